"""Group tests: when they are worth it, what each of them runs, what it measured.

And what the report says of them.
"""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.blame import judge
from clusterprep.jobs.verify.collect import StandingRanks, run_verify, stop_standing_ranks
from clusterprep.jobs.verify.fault_location import LocatedFault
from clusterprep.jobs.verify.group_probes import (
    ON_CPUS,
    probe_plan,
    probe_settings,
    probe_speed,
    rdma_devices,
)
from clusterprep.jobs.verify.group_verdicts import (
    Screened,
    finds_all_alike,
    is_worthwhile,
    with_confirmed,
    with_groups,
)
from clusterprep.jobs.verify.probes import Probe
from clusterprep.jobs.verify.schedule import ScheduledTest, TrialPlan, plan_subset
from clusterprep.jobs.verify.screening import Screening
from clusterprep.jobs.verify.speed import Yardsticks
from clusterprep.model import Culprit, Finding, Node, VerifyResult
from tests.jobs.verify.agents import LocalLink, agents, gone, processes_of
from tests.jobs.verify.loopback import free_port, plan
from tests.jobs.verify.stories import at_node, failed, make_plan, story

FAILED = VerifyResult("fail", "gloo", 8, 2, "10.0.0.1:29500")


def finding(verdict: str, severity: str = "warning") -> Finding:
    return Finding("nccl.busbw_multi", verdict, severity, ("n1",), "", "", "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "found", "nodes", "expected"),
    [
        pytest.param(FAILED, [], 8, True, id="hung-without-a-culprit"),
        pytest.param(replace(FAILED, verdict="pass"), [finding("fail")], 4, True, id="slow"),
        pytest.param(replace(FAILED, verdict="pass"), [finding("pass")], 64, False, id="well"),
        pytest.param(
            replace(FAILED, verdict="pass"),
            [finding("unknown")],
            64,
            False,
            id="not-known-to-be-slow",
        ),
        pytest.param(FAILED, [finding("fail")], 3, False, id="too-few-to-compare"),
        pytest.param(
            replace(FAILED, culprits=(Culprit("node", ("n1",), 0.9, "", ()),)),
            [],
            8,
            False,
            id="known-already",
        ),
    ],
)
def test_groups_are_tried_where_they_can_tell_more(
    result: VerifyResult, found: list[Finding], nodes: int, expected: bool
) -> None:
    assert is_worthwhile(result, found, nodes) is expected


# ---------------------------------------------------------------- what a probe runs


def on_gpus(**env: str) -> TrialPlan:
    made = make_plan(4, sizes=(8, 1 << 30))
    ranks = tuple(replace(rank, env={**rank.env, **env}) for rank in made.ranks)
    return replace(made, backend="nccl", ranks=ranks, timeout=60.0)


def test_a_group_is_an_all_reduce_of_its_nodes_at_a_size_that_measures_bandwidth() -> None:
    made = probe_plan(on_gpus(), Probe("group", ("n3", "n1")), ("10.0.0.3", 29500))
    assert ([n.name for n in made.nodes], made.world_size) == (["n3", "n1"], 4)
    assert made.steps == (ScheduledTest("all_reduce", 256 << 20),)
    assert (made.rendezvous, made.timeout) == ("10.0.0.3:29500", 20.0)
    small = probe_plan(make_plan(4, sizes=(8,)), Probe("pair", ("n1", "n2")), ("10.0.0.1", 29500))
    assert (small.steps[0].bytes, small.timeout) == (64 << 10, 10.0)


def test_a_direction_is_a_broadcast_by_its_first_node() -> None:
    made = probe_plan(on_gpus(), Probe("way", ("n2", "n1")), ("10.0.0.2", 29500))
    assert made.steps[0].op == "broadcast"
    assert made.ranks[0].node == "n2"


def test_a_rail_is_a_pair_on_one_device_alone() -> None:
    made = probe_plan(
        on_gpus(NCCL_IB_HCA="=mlx5_0:1,mlx5_3:1"), Probe("rail", ("n1", "n2"), 1), ("10.0.0.1", 1)
    )
    assert {rank.env["NCCL_IB_HCA"] for rank in made.ranks} == {"=mlx5_3:1"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ()),
        ({"NCCL_IB_HCA": "=mlx5_0"}, ()),
        ({"NCCL_IB_HCA": "mlx5_0,mlx5_1"}, ("mlx5_0", "mlx5_1")),
        ({"NCCL_IB_HCA": "^mlx5_0,mlx5_1"}, ()),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_IB_DISABLE": "1"}, ()),
    ],
)
def test_devices_are_tried_alone_where_all_use_the_same_ones(
    env: dict[str, str], expected: tuple[str, ...]
) -> None:
    made = on_gpus(**env)
    assert rdma_devices(made) == expected
    assert probe_settings(made).rails == len(expected)
    mixed = replace(
        made, ranks=(replace(made.ranks[0], env={"NCCL_IB_HCA": "mlx5_8,mlx5_9"}), *made.ranks[1:])
    )
    assert rdma_devices(mixed) == ()


def test_on_processors_a_factor_of_two_proves_nothing() -> None:
    assert probe_settings(make_plan(4)) == ON_CPUS
    assert ON_CPUS.slow < 0.5


def test_what_a_probe_measured() -> None:
    well = story(plan=make_plan(sizes=(1 << 20, 8)))
    assert probe_speed(well) == pytest.approx(
        (1 << 20) / 0.002 / 1e9
    )  # the quickest time of the slowest rank
    assert probe_speed(story(until="store", end="overdue")) == 0.0
    assert probe_speed(story(*failed([1], "reset", "rendezvous"), until="store")) == 0.0
    for what in ("refused", "lost"):
        assert probe_speed(story(at_node("n1", what), until="ready")) is None


# ---------------------------------------------------------------- what the report says

SAMPLES = {
    Probe("group", ("n1", "n2")): [10.0, 10.4],
    Probe("group", ("n3", "n4")): [2.0],
    Probe("pair", ("n1", "n2")): [9.0],
    Probe("pair", ("n2", "n3")): [1.0],
    Probe("pair", ("n3", "n4")): [1.5, 1.7],
    Probe("rail", ("n2", "n3"), 0): [5.0],
    Probe("rail", ("n2", "n3"), 1): [0.5],
}


def screened(*blames: LocatedFault, exercised: int = 6) -> Screened:
    return Screened(
        Screening(blames, (), 4, 7, 30, exercised, 6),
        SAMPLES,
        12.5,
        300.0,
        "",
        ("mlx5_0", "mlx5_1"),
    )


@pytest.mark.parametrize(
    ("blame", "kind", "words", "evidence"),
    [
        (
            LocatedFault("node", ("n3",)),
            "node",
            "whichever nodes take part",
            "all-reduce of pairs with n3: 1.5 GB/s in the median of 3, others 9 GB/s of 1",
        ),
        (
            LocatedFault("rail", ("n3",), 1),
            "interface",
            "mlx5_1 of n3",
            "all-reduce over one device with n3: 0.5 GB/s in the median of 1, others 5 GB/s of 1",
        ),
        (
            LocatedFault("pair", ("n2", "n3"), ways=(("n3", "n2"),)),
            "link",
            "between n2 and n3",
            "all-reduce of pairs with n2 and n3: 1 GB/s in the median of 1, others 1.7 GB/s of 3",
        ),
        (
            LocatedFault("boundary", ("n3", "n4")),
            "node",
            "n[3-4] are fast among themselves",
            (
                "all-reduce of pairs with n[3-4] and others: 1 GB/s in the median of 1, "
                "others 1.7 GB/s of 3"
            ),
        ),
    ],
)
def test_each_blame_is_a_culprit_with_what_was_measured(
    blame: LocatedFault, kind: str, words: str, evidence: str
) -> None:
    result = with_groups(FAILED, screened(blame))
    (culprit,) = result.culprits
    assert (culprit.kind, culprit.nodes) == (kind, blame.nodes)
    assert words in culprit.cause
    assert evidence in culprit.evidence
    if blame.ways:
        assert (culprit.source, culprit.target) == ("n3", "n2")
    (stage,) = result.stages
    assert (stage.name, stage.verdict, stage.seconds, stage.limit) == (
        "groups",
        "fail",
        12.5,
        300.0,
    )
    assert result.message == "4 group tests, 7 rounds of pairs: 6 of 6 pairs exercised"


def test_what_is_not_slow_in_the_median_is_not_blamed_whatever_the_odds() -> None:
    pair = LocatedFault("pair", ("n2", "n3"), ways=(("n2", "n3"), ("n3", "n2")))
    believed = replace(
        screened(pair),
        believed=0.5,
        samples={**SAMPLES, Probe("pair", ("n2", "n3")): [0.1, 0.9, 1.0]},
    )
    result = with_groups(FAILED, believed)
    assert (result.culprits, result.stages[0].verdict) == ((), "unknown")
    assert "n2 and n3 looked slow and turned out" in result.message
    worse = replace(believed, samples={**SAMPLES, Probe("pair", ("n2", "n3")): [0.1, 0.7, 0.8]})
    assert [culprit.nodes for culprit in with_groups(FAILED, worse).culprits] == [("n2", "n3")]


def test_a_node_with_one_slow_pair_is_no_slow_node() -> None:
    pairs = {
        ("n1", "n2"): 9.0,
        ("n1", "n3"): 8.0,
        ("n2", "n3"): 1.0,
        ("n3", "n4"): 8.5,
        ("n2", "n4"): 9.1,
    }
    samples = {Probe("pair", nodes): [speed] * 3 for nodes, speed in pairs.items()}
    result = with_groups(
        FAILED, replace(screened(LocatedFault("node", ("n3",))), believed=0.5, samples=samples)
    )
    assert [(culprit.kind, culprit.nodes) for culprit in result.culprits] == [
        ("link", ("n2", "n3"))
    ]
    assert "looked slow" not in result.message


def test_no_node_is_blamed_where_all_are_alike_and_only_all_pairs_make_a_pass() -> None:
    whole, part = with_groups(FAILED, screened()), with_groups(FAILED, screened(exercised=5))
    assert (whole.stages[0].verdict, part.stages[0].verdict) == ("pass", "unknown")
    assert whole.message.endswith("6 of 6 pairs exercised, and no node is slower than others")
    assert whole.verdict == "fail"


def test_only_tests_that_came_to_their_end_without_a_blame_find_all_alike() -> None:
    assert finds_all_alike(screened())
    assert not finds_all_alike(screened(exercised=5))
    assert not finds_all_alike(screened(LocatedFault("node", ("n2",))))
    assert not finds_all_alike(Screened(None, SAMPLES, 300.0, 300.0, "they take longer than 300 s"))


ACCUSING = Yardsticks(peers={"n1": 2e9, "n2": 2e9, "n3": 0.8e9, "n4": 2e9})


def test_group_tests_acquit_nodes_whose_links_looked_slow_for_a_moment() -> None:
    assert with_confirmed(ACCUSING, FAILED, screened()).peers == {}


def test_a_node_that_the_groups_blame_too_is_confirmed_and_no_other() -> None:
    found = screened(LocatedFault("node", ("n3",)))
    result = with_groups(FAILED, found)
    assert with_confirmed(ACCUSING, result, found).confirmed == {"n3"}


def test_without_group_tests_links_that_were_slow_each_time_are_confirmed() -> None:
    given_up = Screened(None, SAMPLES, 300.0, 300.0, "they take longer than 300 s")
    for groups in (None, given_up):
        assert with_confirmed(ACCUSING, FAILED, groups).confirmed == set(ACCUSING.peers)


def test_what_was_given_up_is_not_known() -> None:
    result = with_groups(
        FAILED, Screened(None, SAMPLES, 300.0, 300.0, "they take longer than 300 s")
    )
    assert (result.stages[0].verdict, result.culprits) == ("unknown", ())
    assert result.message == "group tests were given up: they take longer than 300 s"


# ---------------------------------------------------------------- ranks that stand


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(
        Node(f"n{i + 1}", "127.0.0.1", i, python=sys.executable, nproc_per_node=1)
        for i in range(count)
    )


@pytest.mark.torch
def test_ranks_stand_from_test_to_test_and_meet_anew_under_other_numbers() -> None:
    port, standing = free_port(), StandingRanks()
    with agents(nodes(3)) as links:
        by_name = {link.node.name: link for link in links}

        def tried(*names: str, timeout: float = 8.0, **env: str) -> tuple[float | None, set[int]]:
            few = plan_subset(
                whole,
                names,
                ("127.0.0.1", port),
                (ScheduledTest("all_reduce", 4096),),
                timeout,
                **env,
            )
            there: list[LocalLink] = [by_name[name] for name in names]
            timeline = run_verify(there, few, standing=standing)
            assert judge(timeline).culprits == ()
            return probe_speed(timeline), set(processes_of(there))

        whole = plan(nodes(3), port)
        first, own = tried("n1", "n2")
        assert first
        assert len(own) == 2
        for names in (
            ("n2", "n1"),
            ("n1", "n2"),
            ("n2", "n1"),
        ):  # the same port again and again, at once
            speed, again = tried(*names)
            assert speed
            assert again == own
        speed, more = tried("n3", "n2")  # one is started, one stands
        assert speed
        assert len(more & own) == 1
        speed, other = tried(
            "n1", "n2", NCCL_IB_HCA="=mlx5_0"
        )  # another environment needs other processes
        assert speed
        assert other.isdisjoint(own)
        stop_standing_ranks(links, standing)
        assert gone(links, 2.0)


@pytest.mark.torch
def test_ranks_that_hung_are_not_used_again() -> None:
    port, standing = free_port(), StandingRanks()
    whole = plan(nodes(2), port)
    few = plan_subset(
        whole, ("n1", "n2"), ("127.0.0.1", port), (ScheduledTest("all_reduce", 4096),), 8.0
    )
    with agents(nodes(2)) as links:
        assert probe_speed(run_verify(links, few, standing=standing))
        before = set(processes_of(links))
        assert before
        nobody_there = replace(few, address="255.255.255.255", timeout=2.0)  # refused by the kernel
        assert probe_speed(run_verify(links, nobody_there, standing=standing)) == 0.0
        assert gone(links, 2.0)
        assert probe_speed(run_verify(links, few, standing=standing))
        assert before.isdisjoint(processes_of(links))
        stop_standing_ranks(links, standing)
        assert gone(links, 2.0)
