"""Who stands out among its peers, and what is normal in a mixture of healthy and slow."""

from __future__ import annotations

import random
import statistics

import pytest

from clusterprep.jobs.verify.peers import LEAST, scores, slower, spread, usual_level


def named(*values: float) -> dict[str, float]:
    return {f"n{number}": value for number, value in enumerate(values, 1)}


def test_the_outlier_does_not_move_what_it_is_compared_with() -> None:
    calm, wild = named(10.0, 10.2, 9.8, 10.1, 9.9, 10.0), named(10.0, 10.2, 9.8, 10.1, 9.9, 0.1)
    assert spread(list(wild.values())) <= 2 * spread(list(calm.values()))
    assert scores(wild)["n6"] < -20
    assert statistics.stdev(wild.values()) > 10 * spread(list(wild.values())), (
        "by which it would hide itself"
    )


def test_the_spread_is_the_standard_deviation_of_a_normal_distribution() -> None:
    draw = random.Random(3)
    assert spread([draw.gauss(100, 7) for _ in range(5000)]) == pytest.approx(7, rel=0.05)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param((10, 10, 10, 10, 3), 0.5, ("n5",), id="one-of-five"),
        pytest.param((10, 10, 10, 10, 6), 0.5, (), id="far-off-and-not-slow-enough-to-matter"),
        pytest.param((10, 14, 6, 12, 4.9), 0.5, (), id="slow-and-so-are-others"),
        pytest.param((10, 10, 10, 3, 3), 0.5, ("n4", "n5"), id="two-of-five"),
        pytest.param((10, 10, 10, 30), 0.5, (), id="a-fast-one-is-no-fault"),
        pytest.param((10, 10, 1), 0.5, (), id="three-say-nothing"),
        pytest.param((), 0.5, (), id="none"),
        pytest.param((0, 0, 0, 0), 0.5, (), id="all-zero"),
    ],
)
def test_the_values_that_are_slower_than_their_peers(
    values: tuple[float, ...], share: float, expected: tuple[str, ...]
) -> None:
    assert slower(named(*values), share) == expected


def test_few_values_have_no_scores() -> None:
    assert scores(named(*[1.0] * (LEAST - 1))) == {}
    assert set(scores(named(*[1.0] * LEAST)).values()) == {0.0}


@pytest.mark.parametrize("slow", [0, 5, 40, 60])
def test_the_usual_level_is_that_of_the_healthy(slow: int) -> None:
    """Also where they are the minority, for which a median would not do."""
    draw = random.Random(slow)
    values = [draw.gauss(70, 10) for _ in range(slow)] + [
        draw.gauss(100, 10) for _ in range(100 - slow)
    ]
    assert usual_level(values, slow=0.7, noise=0.1) == pytest.approx(100, rel=0.05)


def test_what_is_zero_or_missing_does_not_decide_what_is_usual() -> None:
    assert usual_level([], 0.7, 0.1) == 0.0
    assert usual_level([0.0, 0.0], 0.7, 0.1) == 0.0
    assert usual_level([0.0, 98.0, 100.0, 102.0, 0.0], 0.7, 0.1) == pytest.approx(100, rel=0.03)
