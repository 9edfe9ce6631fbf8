"""What became slower in many rounds, with noise: found with its time, and not invented."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterprep.jobs.acceptance import drift
from clusterprep.jobs.acceptance.drift import FEWEST, FIRST, LASTING, Slowdown

Series = dict[int, list[float]]


def slowdowns(series: Mapping[Any, Sequence[float]]) -> dict[Any, Slowdown]:
    """What is found in rounds of a second each."""
    return drift.slowdowns(series, [1.0] * max(map(len, series.values())))


def noisy(seed: int, count: int, rounds: int, spread: float = 0.15) -> Series:
    """Return series that vary each by itself, and all together from round to round."""
    source = random.Random(seed)
    shared = [source.lognormvariate(0, spread) for _ in range(rounds)]
    series: Series = {}
    for key in range(count):
        usual = source.uniform(0.5, 2)
        series[key] = [usual * one * source.lognormvariate(0, spread) for one in shared]
    return series


@given(seed=st.integers(0, 10_000), count=st.integers(1, 40), rounds=st.integers(FEWEST, 80))
@settings(max_examples=200)
def test_noise_is_no_slowdown(seed: int, count: int, rounds: int) -> None:
    assert slowdowns(noisy(seed, count, rounds, spread=0.05)) == {}


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(4, 40),
    first=st.integers(FIRST, 20),
    factor=st.floats(6, 100),
)
@settings(max_examples=200)
def test_one_that_slows_down_is_found_with_its_first_round(
    seed: int, count: int, first: int, factor: float
) -> None:
    series = noisy(seed, count, 30, spread=0.05)
    series[1][first:] = [factor * value for value in series[1][first:]]
    found = slowdowns(series)
    assert set(found) == {1}
    assert (found[1].first, found[1].last) == (first, 29)
    assert found[1].after / found[1].before == pytest.approx(factor, rel=0.5)


def test_what_slows_all_alike_is_no_series_at_fault() -> None:
    series = noisy(1, 8, 20, spread=0.05)
    for values in series.values():
        values[8:] = [5 * value for value in values[8:]]
    assert slowdowns(series) == {}


def test_a_single_series_is_compared_with_its_own_beginning() -> None:
    assert set(slowdowns({"a": [1.0] * 5 + [5.0] * 5})) == {"a"}


def test_a_spell_that_ended_has_its_last_round() -> None:
    quiet = {key: [1.0] * 12 for key in "abcde"}
    found = slowdowns({**quiet, "f": [1.0] * 4 + [9.0] * LASTING + [1.0] * 5})
    assert [(key, one.first, one.last) for key, one in found.items()] == [("f", 4, 3 + LASTING)]


@pytest.mark.parametrize("slow", range(LASTING))
def test_fewer_slow_rounds_prove_nothing(slow: int) -> None:
    quiet = {key: [1.0] * 12 for key in "abcde"}
    assert slowdowns({**quiet, "f": [1.0] * 4 + [9.0] * slow + [1.0] * (8 - slow)}) == {}


def test_in_many_rounds_a_short_spell_proves_nothing() -> None:
    quiet = {key: [1.0] * 100 for key in "abcde"}
    assert slowdowns({**quiet, "f": [1.0] * 40 + [9.0] * 9 + [1.0] * 51}) == {}
    assert set(slowdowns({**quiet, "f": [1.0] * 40 + [9.0] * 10 + [1.0] * 50})) == {"f"}


def test_half_of_the_links_of_four_nodes_are_those_of_one_node() -> None:
    ends = [(one, other) for one in "abcd" for other in "abcd" if one != other]
    series = {pair: [1.0] * 12 for pair in ends}
    for pair in ends:
        if "c" in pair:
            series[pair][6:] = [20.0] * 6
    assert set(slowdowns(series)) == {pair for pair in ends if "c" in pair}


def test_too_few_rounds_say_nothing() -> None:
    assert slowdowns({key: [1.0, 1.0, 9.0, 9.0, 9.0] for key in "ab"}) == {}


def test_slow_rounds_are_few_because_they_are_long() -> None:
    series = {key: [1.0] * 27 for key in "abcde"}
    series["f"] = [1.0] * 25 + [20.0] * 2
    assert drift.slowdowns(series, [2.0] * 27) == {}
    found = drift.slowdowns(series, [2.0] * 25 + [24.0] * 2)
    assert (found["f"].first, found["f"].last) == (25, 26)


def test_one_quick_round_among_slow_ones_ends_no_spell() -> None:
    quiet = {key: [1.0] * 12 for key in "abcde"}
    found = slowdowns({**quiet, "f": [1.0] * 4 + [9.0, 9.0, 1.0, 9.0, 9.0, 1.0, 1.0, 1.0]})
    assert (found["f"].first, found["f"].last) == (4, 8)
