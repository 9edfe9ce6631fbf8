"""What an acceptance says: the culprit, when it became slow, and what is not known."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from clusterprep.jobs.acceptance.findings import clock, judge_rounds
from clusterprep.jobs.acceptance.model import NO_ROUNDS, Direction, Round, Rounds
from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.model import CollectiveResult, Node, VerifySettings

NODES = ("n1", "n2", "n3", "n4")
MEGABYTE = 1e6
EVERY = 10.0  # seconds a round


@pytest.fixture
def plan() -> TrialPlan:
    nodes = [Node(name, name, index) for index, name in enumerate(NODES)]
    return plan_trial(nodes, {}, ("10.0.0.1", 29500), VerifySettings(), {})


def links(speeds: Mapping[frozenset[str], float] = {}) -> dict[Direction, float]:
    found: dict[Direction, float] = {}
    for one in NODES:
        for other in NODES:
            if one != other:
                found[one, other] = speeds.get(frozenset((one, other)), 100 * MEGABYTE)
    return found


def a_round(number: int, slow: Mapping[frozenset[str], float], own: Mapping[int, float]) -> Round:
    ranks = {rank: own.get(rank, 0.01) for rank in range(len(NODES))}
    collective = CollectiveResult("all_reduce", 1 << 20, 0.1, 1.0, 1.0, 0)
    speeds = array("d", links(slow).values())
    return Round(EVERY * number, speeds, ranks, (collective,))


def rounds_of(each: Sequence[Round]) -> Rounds:
    return Rounds(tuple(each), EVERY * len(each), tuple(links()), len(each))


def test_nothing_that_changes_passes_once(plan: TrialPlan) -> None:
    judged = judge_rounds(rounds_of([a_round(number, {}, {}) for number in range(8)]), plan)
    (finding,) = judged.findings
    assert (finding.verdict, judged.culprits) == ("pass", ())
    assert finding.message == "nothing became slower in 8 rounds, 1:20"


def test_a_link_is_named_with_the_time_and_both_speeds(plan: TrialPlan) -> None:
    slow = {frozenset(("n2", "n4")): 5 * MEGABYTE}
    each = [a_round(number, slow if number >= 4 else {}, {}) for number in range(9)]
    judged = judge_rounds(rounds_of(each), plan)
    (finding,) = judged.findings
    assert finding.nodes == ("n2", "n4")
    assert finding.message == (
        "n2 → n4, n4 → n2 became slow from 0:40 on: 800 Mbit/s at first, then 40 Mbit/s"
    )
    assert [(one.kind, one.nodes) for one in judged.culprits] == [("link", ("n2", "n4"))]


def test_a_node_with_all_its_links_is_one_finding(plan: TrialPlan) -> None:
    slow = {frozenset(("n3", name)): 5 * MEGABYTE for name in NODES if name != "n3"}
    each = [a_round(number, slow if 4 <= number < 8 else {}, {}) for number in range(12)]
    judged = judge_rounds(rounds_of(each), plan)
    (finding,) = judged.findings
    assert finding.nodes == ("n3",)
    assert "its links with 3 nodes became slow from 0:40 to 1:20" in finding.message
    assert [(one.kind, one.nodes) for one in judged.culprits] == [("node", ("n3",))]


def test_a_link_that_is_cut_is_slower_than_any(plan: TrialPlan) -> None:
    slow = {frozenset(("n1", "n2")): 0.0}
    each = [a_round(number, slow if number >= 5 else {}, {}) for number in range(9)]
    (finding,) = judge_rounds(rounds_of(each), plan).findings
    assert finding.nodes == ("n1", "n2")


def test_a_rank_that_drifts_is_named_with_its_node(plan: TrialPlan) -> None:
    each = [a_round(number, {}, {1: 0.01 * (1 + number)}) for number in range(10)]
    (finding,) = judge_rounds(rounds_of(each), plan).findings
    assert (finding.check, finding.nodes) == ("nccl.straggler", ("n2",))
    assert "rank 1 on n2 takes longer between collectives from 0:" in finding.message


def test_a_link_that_one_round_did_not_measure_is_no_pass(plan: TrialPlan) -> None:
    each = [a_round(number, {}, {}) for number in range(8)]
    place = list(links()).index(("n2", "n4"))
    each[5].links[place] = math.nan
    (finding,) = judge_rounds(rounds_of(each), plan).findings
    assert (finding.verdict, finding.severity) == ("unknown", "error")
    assert finding.nodes == ("n2", "n4")


def test_rounds_that_were_stopped_are_no_pass(plan: TrialPlan) -> None:
    rounds = rounds_of([a_round(number, {}, {}) for number in range(8)])
    judged = judge_rounds(replace(rounds, stopped_by="interrupted by SIGINT"), plan)
    (finding,) = judged.findings
    assert (finding.verdict, finding.severity, finding.nodes) == ("unknown", "error", NODES)
    assert finding.message == (
        "not finished: interrupted by SIGINT after 8 rounds, 1:20; what comes later is not known"
    )


def test_a_first_round_that_was_stopped_is_no_pass(plan: TrialPlan) -> None:
    judged = judge_rounds(replace(NO_ROUNDS, stopped_by="interrupted by SIGINT"), plan)
    (finding,) = judged.findings
    assert (finding.verdict, finding.severity, finding.nodes) == ("unknown", "error", NODES)
    assert finding.message.startswith("not finished: interrupted by SIGINT after 0 rounds, 0:00")


def test_what_became_slow_before_rounds_were_stopped_is_a_failure(plan: TrialPlan) -> None:
    slow = {frozenset(("n2", "n4")): 5 * MEGABYTE}
    rounds = rounds_of([a_round(number, slow if number >= 4 else {}, {}) for number in range(9)])
    judged = judge_rounds(replace(rounds, stopped_by="--timeout of 90 s reached"), plan)
    assert [(one.verdict, one.nodes) for one in judged.findings] == [
        ("fail", ("n2", "n4")),
        ("unknown", NODES),
    ]
    assert [one.nodes for one in judged.culprits] == [("n2", "n4")]


def test_a_node_that_fell_silent_is_a_failure(plan: TrialPlan) -> None:
    lost = Rounds((a_round(0, {}, {}),), 12.0, count=1, broken_at=10.0, lost=("n2",))
    judged = judge_rounds(lost, plan)
    (finding,) = judged.findings
    assert (finding.verdict, finding.nodes) == ("fail", ("n2",))
    assert finding.message == "n2 fell silent in round 2, 0:10 after the first began"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0:00"), (65.9, "1:05"), (3600, "1:00:00"), (86_399, "23:59:59")]
)
def test_times_are_read_like_a_clock(seconds: float, words: str) -> None:
    assert clock(seconds) == words
