"""All nodes dial all others in a small fleet.

In a large one every node dials and is dialled equally often.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from pathlib import Path

import pytest

from clusterprep.model.pair_schedule import (
    ALL_PAIRS,
    AROUND,
    SHARE,
    chance_between,
    chance_of_block,
    chance_of_pair,
    chance_of_share,
    coverage,
    describe_tried,
    dials_per_node,
    disjoint,
    pack_rounds,
    pairing,
    pairs_around,
    rounds,
    spans,
)
from tests.support.simulator import tournament

ROOT = Path(__file__).resolve().parents[2]


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
    share = dials_per_node(count)
    assert {len(set(others)) for others in plan.values()} == {share}
    assert set(Counter(itertools.chain.from_iterable(plan.values())).values()) == {share}
    assert not any(name in others for name, others in plan.items())


@pytest.mark.parametrize(
    ("count", "dials"),
    [(2, 1), (64, 63), (65, 64), (100, 41), (128, 32), (256, 18), (1000, 20), (10_000, 28)],
)
def test_a_node_dials_twice_the_logarithm_and_the_whole_never_shrinks(count, dials):
    assert dials_per_node(count) == dials
    assert count * dials >= min(count, ALL_PAIRS) * (min(count, ALL_PAIRS) - 1)


def test_the_schedule_follows_from_the_seed():
    plan = pairing(names(200), "demo")
    assert plan == pairing(names(200), "demo")
    assert plan != pairing(names(200), "other")


def test_coverage_counts_directed_pairs():
    assert coverage(64_000, 1000) == "64000 of 999000 directed pairs"


def test_only_of_a_sample_it_is_said_what_it_may_have_missed():
    assert describe_tried(12, 4, 5) == "12 of 20 directed pairs tried"
    plan = pairing(names(1000), "seed")
    pairs = sum(map(len, plan.values()))
    assert describe_tried(pairs, 1000, 1000) == (
        "20000 of 999000 directed pairs tried, a sample: it meets a single bad pair with a chance "
        "of 2 %"
    )


# ---------------------------------------------------------------- the power of a sample

RUNS = 400


def racks(count, size):
    members = names(count)
    return {
        f"rack{start // size + 1}": members[start : start + size] for start in range(0, count, size)
    }


def share_of_seeds(count, is_met, groups=None):
    """The share of RUNS seeds whose schedule meets a fault, given as a predicate over pairs."""
    met = 0
    for seed in range(RUNS):
        plan = pairing(names(count), str(seed), groups)
        met += any(is_met(a, b) for a, others in plan.items() for b in others)
    return met / RUNS


def tolerance(chance):
    """Four standard deviations of a share of RUNS, and one run."""
    return 4 * (chance * (1 - chance) / RUNS) ** 0.5 + 1 / RUNS


@pytest.mark.parametrize("count", [100, 300])
def test_a_single_bad_pair_is_met_with_the_stated_chance(count):
    seen = share_of_seeds(count, lambda a, b: (a, b) == ("n1", "n2"))
    chance = chance_of_pair(count)
    assert abs(seen - chance) <= tolerance(chance)


@pytest.mark.parametrize(("count", "one", "other"), [(300, 3, 3), (300, 5, 10), (200, 2, 8)])
def test_two_sets_of_nodes_are_met_with_the_stated_chance(count, one, other):
    first, second = set(names(one)), set(names(count)[-other:])
    seen = share_of_seeds(count, lambda a, b: a in first and b in second)
    chance = chance_between(count, one, other)
    assert abs(seen - chance) <= tolerance(chance)


@pytest.mark.parametrize("count", [65, 100, 1000, 10_000])
def test_every_node_dials_and_is_dialled_so_a_deaf_or_mute_one_is_always_met(count):
    plan = pairing(names(count), "seed")
    heard = Counter(itertools.chain.from_iterable(plan.values()))
    # Three dialers for each of three ports at least, so that a port is not blamed for one pair.
    assert min(heard.values()) >= 9
    assert min(map(len, plan.values())) >= 9


@pytest.mark.parametrize(("count", "size"), [(100, 20), (1000, 50), (10_000, 200)])
def test_each_group_of_the_inventory_dials_each_other_one(count, size):
    groups = racks(count, size)
    group_of = {name: group for group, members in groups.items() for name in members}
    plan = pairing(names(count), "seed", groups)
    met = {(group_of[a], group_of[b]) for a, others in plan.items() for b in others}
    assert set(itertools.permutations(groups, 2)) <= met


def test_many_small_groups_add_no_dials():
    plan = pairing(names(1000), "seed", racks(1000, 4))
    assert plan == pairing(names(1000), "seed")


def test_dials_are_of_the_order_of_n_log_n():
    dials = {}
    for count in (1000, 10_000):
        plan = pairing(names(count), "seed", racks(count, 200))
        dials[count] = sum(map(len, plan.values()))
    assert dials[10_000] <= 10_000 * 29
    assert dials[10_000] / dials[1000] < 15


@pytest.mark.parametrize("share", [0.05, 0.1, 1 / 3, 0.5, 0.6, 2 / 3, 0.9])
def test_a_blocked_range_is_met_at_least_with_the_stated_chance(share):
    draw = random.Random(7)
    low, high, parts = 32768, 60999, 3
    width = (high - low + 1) / parts
    least = 1.0
    length = share * parts * width
    for step in range(40):
        first = low + step / 39 * (high - low + 1 - length)
        met = 0
        for _ in range(RUNS):
            drawn = [low + part * width + draw.random() * width for part in range(parts)]
            met += any(first <= port < first + length for port in drawn)
        least = min(least, met / RUNS)
    chance = chance_of_block(share)
    assert least >= chance - tolerance(chance)


def test_what_is_said_of_shares_and_blocks():
    assert chance_of_block(2 / 3) == chance_of_block(1.0) == 1.0
    assert 0.93 < chance_of_block(0.5) < 0.95
    assert 0.74 < chance_of_block(1 / 3) < 0.76
    assert chance_of_share(10_000, 0.1) == pytest.approx(1 - 0.9**28)
    assert chance_of_pair(64) == chance_of_pair(2) == chance_of_pair(1) == 1.0


def percent(chance):
    """Return a chance as the page shows it: rounded down, so that it claims no more."""
    if chance > 0.9999:
        return "100 %"
    if chance < 0.01:
        return f"{100 * chance:.2g} %"
    return f"{math.floor(1000 * chance + 1e-9) / 10:g} %"


@pytest.mark.parametrize("count", [64, 128, 1000, 4096, 10_000])
def test_the_page_about_costs_states_these_chances(count):
    dials = dials_per_node(count)
    chances = (
        chance_of_pair(count),
        chance_between(count, 8, 8),
        chance_between(count, 32, 32),
        chance_of_share(count, 0.1),
    )
    cells = [f"{count:,}", f"{dials}", f"{count * dials:,}", *map(percent, chances)]
    page = (ROOT / "docs" / "why" / "performance.md").read_text(encoding="utf-8")
    assert f"| {' | '.join(cells)} |" in page


# ---------------------------------------------------------------- around what failed


def test_both_ends_and_others_of_their_groups_dial_each_other():
    groups = racks(200, 10)
    around = pairs_around([("n1", "n150")], {("n1", "n150")}, groups, "seed")
    added = {(a, b) for a, others in around.items() for b in others}
    assert ("n150", "n1") in added
    assert ("n1", "n150") not in added
    assert {name for pair in added for name in pair} <= {*groups["rack1"], *groups["rack15"]}
    assert any(a != "n1" and b == "n150" for a, b in added)
    assert any(a == "n1" and b != "n150" for a, b in added)


def test_nodes_at_fault_dial_each_other_and_those_of_their_group():
    groups = racks(200, 10)
    around = pairs_around([("n1",), ("n2",), ("n99",)], set(), groups, "seed")
    assert "n2" in around["n1"]
    assert all(a != b for a, others in around.items() for b in others)


def test_however_much_failed_no_node_dials_more_than_a_few_around_it():
    ends = [(a, b) for a, b in itertools.permutations(names(60), 2)]
    around = pairs_around(ends, set(), {}, "seed")
    heard = Counter(itertools.chain.from_iterable(around.values()))
    assert max(map(len, around.values())) == max(heard.values()) == AROUND


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
