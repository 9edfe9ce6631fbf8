"""The few dials of each look: all pairs in time, and a failure that counts when it comes again."""

from __future__ import annotations

import pytest

from clusterprep.facts.pairs import Dial
from clusterprep.survey.watch.ring import MOST_AGAIN, PARTNERS, Ring


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def dialled(ring: Ring, count: int, *blocked: tuple[str, str]) -> list[Dial]:
    """Return the dials of a look, of which these pairs fail; «*» stands for any node."""
    dials = []
    for dialer, listeners in ring.pairs(names(count)).items():
        for listener in listeners:
            ways = {(dialer, listener), ("*", listener), (dialer, "*")}
            word = "ok" if ways.isdisjoint(blocked) else "timed_out"
            dials.append(Dial(dialer, listener, "10.0.0.1", 29500, word))
    return dials


def failed(dials: tuple[Dial, ...]) -> set[tuple[str, str]]:
    return {(dial.dialer, dial.listener) for dial in dials if dial.word != "ok"}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16])
def test_every_pair_is_dialled_in_half_of_as_many_looks_as_there_are_nodes(count: int) -> None:
    ring = Ring()
    seen: set[tuple[str, str]] = set()
    for _ in range((count + 1) // PARTNERS):
        dials = dialled(ring, count)
        assert len(dials) == count * min(PARTNERS, count - 1)
        seen.update((dial.dialer, dial.listener) for dial in dials)
    assert len(seen) == count * (count - 1)
    assert all(dialer != listener for dialer, listener in seen)


@pytest.mark.parametrize("count", [0, 1])
def test_without_another_node_none_is_dialled(count: int) -> None:
    assert dialled(Ring(), count) == []


@pytest.mark.parametrize("blocked", [("*", "n3"), ("n3", "*")])
def test_a_node_that_is_blocked_is_seen_in_the_second_look(blocked: tuple[str, str]) -> None:
    ring = Ring()
    ring.counted(dialled(ring, 8))
    assert failed(ring.counted(dialled(ring, 8, blocked))) == set()
    for _ in range(5):
        assert len(failed(ring.counted(dialled(ring, 8, blocked)))) >= 2
    assert failed(ring.counted(dialled(ring, 8))) == set()


def test_a_failure_counts_at_once_where_rules_are_seen_that_explain_it() -> None:
    ring = Ring()
    dials = dialled(ring, 8, ("*", "n3"), ("n7", "n8"))
    assert {listener for _, listener in failed(ring.counted(dials, {"n3"}))} == {"n3"}


def test_a_pair_that_failed_is_dialled_until_it_passes() -> None:
    ring = Ring()
    looks = [failed(ring.counted(dialled(ring, 16, ("n2", "n9")))) for _ in range(24)]
    first = looks.index({("n2", "n9")})
    assert first <= 8
    assert looks[first:] == [{("n2", "n9")}] * (24 - first)


def test_a_node_that_reaches_none_dials_no_more_than_a_few_again() -> None:
    ring = Ring()
    for _ in range(30):
        listeners = [dial for dial in dialled(ring, 64, ("n5", "*")) if dial.dialer == "n5"]
        ring.counted(listeners)
        assert len(listeners) <= PARTNERS + MOST_AGAIN


def test_a_node_that_is_down_is_not_dialled_again() -> None:
    ring = Ring()
    ring.counted(dialled(ring, 4, ("*", "n3")))
    pairs = ring.pairs(["n1", "n2", "n4"])
    assert all("n3" not in listeners for listeners in pairs.values())
