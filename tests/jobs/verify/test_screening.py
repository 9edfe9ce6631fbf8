"""Blame at scale: what is asked, what it costs.

And what is named, on simulated clusters of 8 to 1024 nodes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from clusterprep.jobs.verify.fault_location import LocatedFault
from clusterprep.jobs.verify.probes import REPEATS, Probe, ProbeEvidence, ProbeSettings, run_probes
from clusterprep.jobs.verify.screening import BUDGET, HEALTHY, Screening, screen
from clusterprep.model.pair_schedule import rounds
from tests.support.simulator import (
    KINDS,
    Cluster,
    Run,
    World,
    answered,
    planted,
    play,
    same,
    tournament,
)
from tests.support.simulator.__main__ import row


def runs(
    nodes: int, faults: int, count: int, kinds: Sequence[str] = KINDS, seed: str = "t"
) -> list[Run]:
    return [play(nodes, faults, f"{seed}-{number}", kinds) for number in range(count)]


def share(found: Sequence[bool]) -> float:
    return sum(found) / len(found)


def told(nodes: Sequence[str], answer: Callable[[Probe], float | None]) -> Screening:
    """What is found with answers without noise."""
    settings = ProbeSettings(rails=2)
    return answered(
        screen(nodes, tournament(nodes, "x"), settings),
        lambda batch: [answer(probe) for probe in batch],
    )


NODES = tuple(f"n{number}" for number in range(1, 25))


def test_what_was_measured_is_counted_from_nothing() -> None:
    evidence = ProbeEvidence(ProbeSettings())
    assert (evidence.groups, evidence.rounds, evidence.measured) == (0, 0, 0)
    group, pair = Probe("group", NODES[:4]), Probe("pair", NODES[:2])
    evidence.add((group,), (1.0,))
    assert (evidence.groups, evidence.rounds, evidence.measured) == (1, 0, 1)
    evidence.add((pair, group), (1.0, None))
    assert (evidence.groups, evidence.rounds, evidence.measured) == (2, 1, 3)


# ------------------------------------------------- one fault of each kind, without noise


def test_a_healthy_cluster_is_healthy_because_every_pair_was_exercised() -> None:
    used: set[frozenset[str]] = set()

    def answer(probe: Probe) -> float:
        used.update({frozenset(probe.nodes)} if probe.kind == "pair" else ())
        return 100.0

    found = told(NODES, answer)
    assert found.healthy
    assert (found.exercised, found.pairs) == (276, 276) == (len(used), len(used))
    assert found.coverage == "276 of 276 pairs exercised"


def test_pairs_that_were_not_measured_are_no_health() -> None:
    found = told(NODES, lambda probe: None if set(probe.nodes) == {"n1", "n2"} else 100.0)
    assert found.blames == ()
    assert found.exercised == 275
    assert not found.healthy


def test_a_share_of_the_pairs_is_no_health() -> None:
    names = tuple(f"n{number}" for number in range(100))
    found = answered(screen(names, rounds(names, "x")), lambda batch: [100.0] * len(batch))
    assert (found.exercised, found.pairs) == (3200, 4950)
    assert not found.blames
    assert not found.healthy


@pytest.mark.parametrize(
    "fault",
    [
        LocatedFault("node", ("n7",)),
        LocatedFault("rail", ("n7",), 1),
        LocatedFault("pair", ("n7", "n20"), ways=(("n7", "n20"),)),
        LocatedFault("pair", ("n7", "n20"), ways=(("n20", "n7"),)),
        LocatedFault("pair", ("n7", "n8"), ways=(("n7", "n8"), ("n8", "n7"))),
        LocatedFault("boundary", tuple(f"n{number}" for number in range(9, 17))),
        LocatedFault("boundary", tuple(f"n{number}" for number in range(3, 19))),
    ],
    ids=str,
)
def test_each_kind_is_named_as_what_it_is(fault: LocatedFault) -> None:
    cluster = Cluster(NODES, (), rails=2)
    world = World(cluster, (fault,), random.Random(1), noise=0.0)
    found = told(NODES, lambda probe: world.answer([probe])[0])
    assert same(cluster, (fault,), found.blames), found.blames
    assert not found.healthy


def test_a_bad_link_of_a_suspect_is_not_taken_for_its_node() -> None:
    """Neighbours stand side by side in their group, so it is slow.

    With other partners both are fast.
    """
    fault = LocatedFault("pair", ("n3", "n4"), ways=(("n3", "n4"),))
    world = World(Cluster(NODES, (), rails=2), (fault,), random.Random(1), noise=0.0)
    found = told(NODES, lambda probe: world.answer([probe])[0])
    assert {"n3", "n4"} <= set(found.suspects)
    assert found.blames == (fault,) or found.blames == (
        LocatedFault("pair", ("n4", "n3"), ways=fault.ways),
    )


def test_what_does_not_run_at_all_is_slow() -> None:
    found = told(NODES, lambda probe: 0.0 if "n5" in probe.nodes else 100.0)
    assert found.blames == (LocatedFault("node", ("n5",)),)


def test_nobody_is_measured_twice_at_once_and_slow_groups_are_padded_to_their_size() -> None:
    sizes = Counter[int]()

    def answer(batch: Sequence[Probe]) -> list[float]:
        members = [name for probe in batch for name in probe.nodes]
        assert len(members) == len(set(members))
        sizes.update(len(probe.nodes) for probe in batch if probe.kind == "group")
        return [70.0 if "m50" in probe.nodes else 100.0 for probe in batch]

    names = tuple(f"m{number}" for number in range(240))
    assert answered(screen(names, tournament(names, "x")), answer).blames == (
        LocatedFault("node", ("m50",)),
    )
    assert set(sizes) == {20, 11}, (
        "groups and padded halves of twenty, and one node of each healthy group"
    )


@pytest.mark.parametrize(
    ("across", "samples"), [pytest.param(100.0, 1, id="normal"), pytest.param(10.0, 2, id="slow")]
)
def test_healthy_groups_are_tried_across_their_boundaries_until_that_suffices(
    across: float, samples: int
) -> None:
    """Of eight nodes in four groups two are healthy.

    One node of each is tried with one of the other.
    """
    asked = Counter[tuple[str, ...]]()

    def answer(probe: Probe) -> float:
        asked[probe.nodes] += probe.kind == "group"
        if probe.nodes == ("n2", "n4"):
            return across
        return 50.0 if {"n5", "n7"} & set(probe.nodes) else 100.0

    found = told(NODES[:8], answer)
    assert asked["n2", "n4"] == samples
    assert ({"n2", "n4"} <= set(found.suspects)) is (across < 100)


# ---------------------------------------------------------------- evidence


def decide(values: Sequence[float | None], low: float, high: float) -> tuple[bool | None, int]:
    evidence, probe = ProbeEvidence(ProbeSettings()), Probe("pair", ("a", "b"))
    evidence.fixed["pair"] = 100.0
    steps, given = run_probes(evidence, [probe], low, high), list(values)
    try:
        next(steps)
        while True:
            steps.send([given.pop(0)])
    except StopIteration as stop:
        return stop.value[probe], len(values) - len(given)


@pytest.mark.parametrize(
    ("values", "expected", "samples"),
    [
        pytest.param([100.0] * 9, False, 1, id="normal"),
        pytest.param([70.0] * 9, True, 2, id="slow"),
        pytest.param([85.0] * 20, None, REPEATS, id="right-between"),
        pytest.param([0.0, 100.0, 100.0, 100.0], False, 3, id="one-freak-does-not-decide"),
        pytest.param([None] * 20, None, REPEATS, id="never-measured"),
    ],
)
def test_measuring_goes_on_until_it_suffices(
    values: list[float | None], expected: bool | None, samples: int
) -> None:
    assert decide(values, -3.0, 7.0) == (expected, samples)


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize(("nodes", "faults", "count"), [(8, 1, 20), (24, 2, 12), (64, 2, 10)])
def test_one_or_two_faults_are_named(nodes: int, faults: int, count: int) -> None:
    found = runs(nodes, faults, count)
    assert share([run.right for run in found]) >= 0.95 - 1 / count
    assert all(run.covered for run in found)


@pytest.mark.parametrize(("nodes", "count"), [(8, 40), (24, 20), (64, 12)])
def test_a_healthy_noisy_cluster_is_not_blamed(nodes: int, count: int) -> None:
    found = runs(nodes, 0, count)
    assert [run.found.blames for run in found if run.found.blames] == []
    assert max(run.found.group_tests for run in found) <= HEALTHY


def test_232_nodes_cost_no_more_group_tests_than_promised() -> None:
    (healthy,), (one,) = runs(232, 0, 1), runs(232, 5, 1)
    assert healthy.found.healthy
    assert healthy.found.group_tests <= HEALTHY == 28
    assert one.found.group_tests <= BUDGET == 57
    assert healthy.found.exercised == healthy.found.pairs == 232 * 231 // 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("faults", [0, 1, 2, 5])
def test_232_nodes(faults: int) -> None:
    found = runs(232, faults, 60 if faults < 5 else 30)
    assert max(run.found.group_tests for run in found) <= (BUDGET if faults else HEALTHY)
    assert share([run.right for run in found]) >= (0.95 if faults < 5 else 0.85)
    pairs = [run.pairs_right for run in found if any(fault.kind == "pair" for fault in run.faults)]
    assert not pairs or share(pairs) >= 0.93
    assert all(run.covered for run in found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_at_64_nodes(kind: str) -> None:
    assert share([run.right for run in runs(64, 1, 60, (kind,))]) >= 0.95


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("nodes", "count"), [(8, 600), (32, 300), (64, 200)])
def test_healthy_clusters_are_blamed_in_one_of_a_hundred_at_most(nodes: int, count: int) -> None:
    assert share([bool(run.found.blames) for run in runs(nodes, 0, count)]) <= 0.01


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_1024_nodes() -> None:
    found = runs(1024, 0, 3) + runs(1024, 1, 5) + runs(1024, 2, 5)
    assert share([run.right for run in found]) >= 0.9
    assert max(run.found.group_tests for run in found) <= BUDGET


# ---------------------------------------------------------------- the simulator itself


def test_equal_seeds_give_equal_plays() -> None:
    assert play(16, 2, "a") == play(16, 2, "a")
    assert play(16, 2, "a").faults != play(16, 2, "b").faults


@pytest.mark.parametrize("nodes", [8, 16, 232])
def test_no_planted_fault_hides_another(nodes: int) -> None:
    for seed in range(50):
        faults = planted(Cluster.of(nodes), 5, random.Random(seed))
        ends = [node for fault in faults for node in fault.nodes]
        assert len(ends) == len(set(ends))
        assert 1 <= len(faults) <= 5


def test_wrong_blame_is_not_right() -> None:
    cluster = Cluster.of(8)
    way, back = ("n0001", "n0002"), ("n0002", "n0001")
    pair = LocatedFault("pair", way, ways=(way,))
    assert same(cluster, [pair], [LocatedFault("pair", back, ways=(way,))])
    assert not same(cluster, [pair], [LocatedFault("pair", way, ways=(back,))])
    assert not same(cluster, [pair], [LocatedFault("node", ("n0001",))])
    assert not same(cluster, [pair], [])
    assert not same(cluster, [], [pair])
    assert not same(cluster, [LocatedFault("rail", way[:1], 1)], [LocatedFault("rail", way[:1], 2)])
    left, right = cluster.racks
    assert same(cluster, [LocatedFault("boundary", left)], [LocatedFault("boundary", right)])
    assert not same(cluster, [LocatedFault("boundary", left)], [LocatedFault("boundary", left[1:])])


def test_the_table_has_rates_and_counts() -> None:
    line = row(8, 1, KINDS, runs(8, 1, 4))
    assert "100.0%" in line
    assert line.split()[:3] == ["8", "1", "all"]
