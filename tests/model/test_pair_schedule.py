"""All nodes dial all others in a small fleet.

In a large one every node dials and is dialled equally often.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from clusterprep.model.pair_schedule import (
    ALL_PAIRS,
    SHARE,
    coverage,
    disjoint,
    pack_rounds,
    pairing,
    rounds,
    spans,
)
from tests.support.simulator import tournament


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, ALL_PAIRS])
def test_up_to_64_nodes_every_directed_pair_is_dialled(count):
    plan = pairing(names(count), "seed")
    assert {(a, b) for a, others in plan.items() for b in others} == set(
        itertools.permutations(names(count), 2)
    )


@pytest.mark.parametrize("count", [ALL_PAIRS + 1, 100, 1000])
def test_above_that_every_node_is_tested_in_both_roles(count):
    plan = pairing(names(count), "seed")
    assert {len(set(others)) for others in plan.values()} == {SHARE}
    assert set(Counter(itertools.chain.from_iterable(plan.values())).values()) == {SHARE}
    assert not any(name in others for name, others in plan.items())


def test_the_schedule_follows_from_the_seed():
    plan = pairing(names(200), "demo")
    assert plan == pairing(names(200), "demo")
    assert plan != pairing(names(200), "other")


def test_coverage_counts_directed_pairs():
    assert coverage(64_000, 1000) == "64000 of 999000 directed pairs"


@pytest.mark.parametrize(
    ("low", "high"), [(32768, 60999), (1024, 65535), (40000, 40100), (40000, 40003)]
)
def test_every_third_of_the_range_has_a_port(low, high):
    found = spans(low, high, "demo/n1")
    width = (high - low + 1) // 3
    assert len(found) == 3
    for part, (first, last) in enumerate(found):
        assert low + part * width <= first <= last <= high
        assert first < low + (part + 1) * width


def test_a_range_of_two_ports_is_taken_whole():
    assert spans(40000, 40001, "x") == [[40000, 40001]]


def once_each(schedule):
    for pairs in schedule:
        ends = [name for pair in pairs for name in pair]
        assert len(ends) == len(set(ends))
    return [frozenset(pair) for pairs in schedule for pair in pairs]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 32, ALL_PAIRS])
def test_rounds_are_disjoint_and_have_every_pair_once(count):
    found = rounds(names(count), "seed")
    pairs = once_each(found)
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert len(found) == (count - 1 if count % 2 == 0 else count) or count < 2


@pytest.mark.parametrize("count", [ALL_PAIRS + 1, 100, 1000])
def test_in_a_large_fleet_every_node_has_its_share_of_partners(count):
    found = rounds(names(count), "seed")
    pairs = once_each(found)
    assert len(pairs) == len(set(pairs))
    partners = Counter(name for pair in pairs for name in pair)
    assert set(partners.values()) == {SHARE}
    assert len(found) <= 3 * SHARE // 2
    roles = Counter(dialer for pairs in found for dialer, _ in pairs)
    assert set(roles.values()) == {SHARE // 2}
    assert found == rounds(names(count), "seed")
    assert found != rounds(names(count), "another")


def test_any_pairs_are_put_into_rounds():
    assert disjoint([]) == ()
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "c")]
    found = disjoint(pairs)
    assert sorted(pair for group in found for pair in group) == sorted(pairs)
    assert found[0] == (("a", "b"), ("c", "d"))
    once_each(found)


@pytest.mark.parametrize("count", [1, 2, 7, ALL_PAIRS, 101])
def test_a_tournament_has_every_pair_once_however_many_nodes_there_are(count):
    plan = tournament(names(count), "seed")
    met = [frozenset(pair) for pairs in plan for pair in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in plan)
    assert len(plan) <= count


def test_things_with_members_go_into_the_first_round_that_has_none_of_them():
    assert pack_rounds(["abc", "de", "ad", "fb", "e", "xyz"], list) == (
        ("abc", "de", "xyz"),
        ("ad", "fb", "e"),
    )
    assert pack_rounds([], list) == ()
