"""Searches against fleets whose faults are known: the culprit is exact, or it is undecided."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from clusterprep.jobs.bisection.cost import most_runs
from clusterprep.jobs.bisection.evidence import Outcome
from clusterprep.jobs.bisection.search import Search, groups_of
from tests.jobs.bisection.played import (
    at_times,
    found,
    in_order,
    names,
    played,
    undecided,
    with_faults,
)

COUNTS = (2, 3, 4, 5, 6, 7, 8, 13, 16, 64)
MOST_WHOLE = 16  # nodes among which all ways are listed
SAMPLE = 100  # ways of a kind, where there are more
Faults = list[list[str]]
Kind = Callable[[list[str]], Iterator[Faults]]


def least(count: int) -> int:
    return 2 if count > 2 else 1


def sampled(kind: Kind, count: int) -> list[Faults]:
    """Faults of a kind among so many nodes: all ways, or some that chance chose."""
    if count <= MOST_WHOLE:
        every = list(kind(names(count)))
        return every if len(every) <= SAMPLE else random.Random(count).sample(every, SAMPLE)
    rng = random.Random(count)
    # The first way among four nodes in any order.
    return [next(kind(rng.sample(names(count), 4))) for _ in range(SAMPLE)]


def node(nodes: list[str]) -> Iterator[Faults]:
    return ([[one]] for one in nodes)


def pair(nodes: list[str]) -> Iterator[Faults]:
    return ([list(two)] for two in itertools.combinations(nodes, 2))


def two_nodes(nodes: list[str]) -> Iterator[Faults]:
    return ([[one], [other]] for one, other in itertools.combinations(nodes, 2))


def node_and_pair(nodes: list[str]) -> Iterator[Faults]:
    for two in itertools.combinations(nodes, 2):
        yield from ([[one], list(two)] for one in nodes if one not in two)


def two_pairs(nodes: list[str]) -> Iterator[Faults]:
    for four in itertools.combinations(nodes, 4):
        yield from ([list(four[:2]), list(four[2:])], [list(four[::2]), list(four[1::2])])


def triple(nodes: list[str]) -> Iterator[Faults]:
    return ([list(three)] for three in itertools.combinations(nodes, 3))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", [node, pair])
def test_one_fault_is_found_exactly_in_the_runs_that_are_stated(count: int, kind: Kind) -> None:
    for faults in sampled(kind, count):
        search = played(count, with_faults(faults), least=least(count))
        assert (undecided(search), found(search)) == ("", in_order(faults))
        assert len(search.runs) <= most_runs(count).one


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 13, 16, 64])
def test_two_nodes_are_found_exactly(count: int) -> None:
    for faults in sampled(two_nodes, count):
        search = played(count, with_faults(faults))
        assert (undecided(search), found(search)) == ("", in_order(faults))
        assert len(search.runs) <= most_runs(count).two


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", [two_nodes, node_and_pair, two_pairs])
def test_two_faults_are_exact_or_undecided(count: int, kind: Kind) -> None:
    decided = 0
    for faults in sampled(kind, count):
        search = played(count, with_faults(faults), least=least(count))
        assert len(search.runs) <= most_runs(count).two
        if not undecided(search):
            decided += 1
            assert found(search) == in_order(faults)
    if count >= 13:
        assert decided == len(sampled(kind, count))


@pytest.mark.parametrize("count", [4, 8, 16])
def test_what_takes_three_nodes_is_undecided(count: int) -> None:
    for faults in sampled(triple, count):
        search = played(count, with_faults(faults))
        assert "more than two nodes together" in undecided(search)
        assert found(search) == []


@pytest.mark.parametrize("count", COUNTS)
def test_a_command_that_always_fails_is_undecided_soon(count: int) -> None:
    search = played(count, lambda nodes: True, least=least(count))
    assert "the command itself may be at fault" in undecided(search)
    assert len(search.runs) <= most_runs(count).one


@pytest.mark.parametrize("count", COUNTS)
def test_a_command_that_works_has_no_culprits(count: int) -> None:
    search = played(count, lambda nodes: False, least=least(count))
    assert (undecided(search), found(search)) == ("", [])
    assert len(search.runs) <= most_runs(count).one


def test_a_failure_that_does_not_come_again_is_told() -> None:
    moments = iter([True])
    search = played(8, lambda nodes: next(moments, False))
    assert undecided(search) == "on n[1-8] it failed once and did not fail again"
    assert found(search) == []


@pytest.mark.parametrize("need", [3, 4, 5])
def test_a_command_that_needs_more_nodes_is_no_ones_fault(need: int) -> None:
    bad = with_faults([["n6"]])
    search = played(8, lambda nodes: bad(nodes) or len(nodes) < need)
    assert "--min-nodes" in undecided(search)
    search = played(8, lambda nodes: bad(nodes) or len(nodes) < need, least=need)
    assert (undecided(search), found(search)) == ("", [["n6"]])


@pytest.mark.parametrize(("first", "second"), [("n1", "n2"), ("n3", "n12"), ("n15", "n16")])
def test_a_pair_is_found_with_more_nodes_in_each_run(first: str, second: str) -> None:
    search = played(16, with_faults([[first, second]]), least=4)
    assert (undecided(search), found(search)) == ("", [sorted([first, second])])


# ---------------------------------------------------------------- what fails at times


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_node_that_fails_at_times_is_found_or_undecided(share: float) -> None:
    """Chance may name a good one beside it, in one of fifty fleets, and hardly ever another."""
    rng = random.Random(7)
    beside = 0
    for _ in range(300):
        bad = rng.choice(names(8))
        search = played(8, at_times(with_faults([[bad]]), share, rng))
        if undecided(search) or not found(search):
            continue
        assert all(bad in fault for fault in found(search))
        beside += found(search) != [[bad]]
    assert beside <= 15


def test_a_command_that_fails_at_random_is_undecided() -> None:
    rng = random.Random(3)
    blamed = 0
    for _ in range(300):
        search = played(8, lambda nodes: rng.random() < 0.5)
        blamed += bool(found(search) and not undecided(search))
    assert blamed <= 9


# ---------------------------------------------------------------- what is slow


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 13, 16, 64])
def test_a_slow_node_is_found_in_the_runs_that_are_stated(count: int) -> None:
    rng = random.Random(count)
    for faults in sampled(node, count):
        search = played(
            count, with_faults(faults), slow=True, seconds=lambda: rng.uniform(5.0, 5.3)
        )
        assert (undecided(search), found(search)) == ("", in_order(faults))
        assert len(search.runs) <= most_runs(count).one


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 16, 64])
def test_two_slow_nodes_are_exact_or_undecided(count: int) -> None:
    for faults in sampled(two_nodes, count):
        search = played(count, with_faults(faults), slow=True)
        assert len(search.runs) <= most_runs(count).two
        if count >= 8:
            assert not undecided(search)
        if not undecided(search):
            assert found(search) == in_order(faults)


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 13, 16])
def test_a_slow_pair_is_found_where_its_nodes_are_timed_together(count: int) -> None:
    rng = random.Random(count)
    for faults in sampled(pair, count):
        search = played(
            count, with_faults(faults), slow=True, seconds=lambda: rng.uniform(5.0, 5.3)
        )
        assert len(search.runs) <= most_runs(count).one
        if any(set(faults[0]) <= set(group) for group in groups_of(names(count), 2)):
            assert (undecided(search), found(search)) == ("", in_order(faults))
            assert all(fault.slow for fault in search.faults)
        else:
            assert "nodes of different groups are slow together" in undecided(search)


def test_a_slow_pair_in_a_group_of_more_nodes_is_undecided() -> None:
    for faults in sampled(pair, 64):
        search = played(64, with_faults(faults), slow=True)
        assert undecided(search)
        assert found(search) == []
        assert len(search.runs) <= most_runs(64).one


@pytest.mark.parametrize("count", [4, 5, 8, 16])
def test_two_slow_pairs_are_exact_or_undecided(count: int) -> None:
    for faults in sampled(two_pairs, count):
        search = played(count, with_faults(faults), slow=True)
        assert len(search.runs) <= most_runs(count).two
        if not undecided(search):
            missed = [fault for fault in in_order(faults) if fault not in found(search)]
            assert len(missed) < 2
            assert all(fault in in_order(faults) for fault in found(search))


@pytest.mark.parametrize("count", [2, 3])
def test_of_too_few_nodes_none_is_told_to_be_slow(count: int) -> None:
    search = played(count, with_faults([["n1"]]), slow=True, least=least(count))
    assert search.found is not None
    assert search.found.notes == ("there are too few nodes to tell which of them are slow",)
    assert len(search.runs) == 1


def test_a_group_that_was_slow_once_is_not_blamed() -> None:
    search = Search(names(8))
    for seconds in (5.0, 5.0, 9.0, 5.0, 5.0, 5.0):
        search.take(Outcome("passed", seconds))
    assert search.found is not None
    assert (search.found.undecided, search.found.faults) == ("", ())


def test_a_job_that_is_slow_only_as_a_whole_is_undecided() -> None:
    search = Search(names(8))
    for seconds in (30.0, 5.0, 5.0, 5.0, 5.0):
        search.take(Outcome("passed", seconds))
    assert "a larger job takes longer" in undecided(search)


def test_a_hang_counts_as_a_failure() -> None:
    search = Search(names(8))
    while search.found is None:
        search.take(Outcome("hung" if "n5" in search.next else "passed", 3.0))
    assert found(search) == [["n5"]]


# ---------------------------------------------------------------- going on


def test_a_search_goes_on_by_its_outcomes_alone() -> None:
    whole = played(16, with_faults([["n3", "n11"]]))
    for made in range(len(whole.runs)):
        search = Search(names(16))
        for run in whole.runs[:made]:
            search.take(run.outcome)
        assert search.next == whole.runs[made].nodes


@pytest.mark.parametrize(("count", "groups"), [(2, 0), (3, 0), (4, 6), (5, 10), (8, 4), (64, 8)])
def test_groups_have_one_size_and_hold_all_nodes(count: int, groups: int) -> None:
    seen = groups_of(names(count), 2)
    assert len(seen) == groups
    if seen:
        assert len({len(group) for group in seen}) == 1
        assert {name for group in seen for name in group} == set(names(count))
