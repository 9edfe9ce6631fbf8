"""How far a trial came, stage by stage.

Each with its time, its limit, its verdict and who had arrived.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.schedule import ScheduledTest
from clusterprep.jobs.verify.stage_verdicts import (
    judge_stages,
    limited_by_findings,
    reach_stage,
    stopped_at,
)
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, NodeSnapshot, Stage
from tests.jobs.verify.stories import make_plan, on, story

PARTS = ("interpreter", "packages", "environment", "files")


def verdicts(timeline: Timeline) -> dict[str, str]:
    return {row.name: row.verdict for row in judge_stages(timeline)}


@pytest.mark.parametrize(
    ("last", "expected", "stopped"),
    [
        ("imported", {"start": "fail"}, "start"),
        ("store", {"start": "pass", "rendezvous": "fail"}, "rendezvous"),
        (
            "joined",
            {"start": "pass", "rendezvous": "pass", "first collective": "fail"},
            "first collective",
        ),
        (
            "warmed 1",
            {
                "start": "pass",
                "rendezvous": "pass",
                "first collective": "pass",
                "bandwidth": "fail",
            },
            "bandwidth: all_reduce 1 MiB",
        ),
    ],
)
def test_what_one_rank_does_not_finish_is_the_last_row(
    last: str, expected: dict[str, str], stopped: str
) -> None:
    until = "ready" if last == "imported" else "finished"
    timeline = story(until=until, but={2: last}, end="overdue")
    assert verdicts(timeline) == expected
    assert stopped_at(timeline) == stopped


def test_every_stage_has_its_time_and_its_limit() -> None:
    rows = {row.name: row for row in judge_stages(story())}
    assert {name: row.seconds for name, row in rows.items()} == pytest.approx(
        # a milestone a second, three milliseconds from the first rank to the last
        {"start": 3.003, "rendezvous": 1.503, "first collective": 1.0, "bandwidth": 6.0}
    )
    assert {name: row.limit for name, row in rows.items()} == {
        "start": 60.0,
        "rendezvous": 10.0,
        "first collective": 10.0,
        "bandwidth": 10.0,
    }


def test_collectives_after_the_sweep_are_correctness() -> None:
    steps = (ScheduledTest("all_reduce", 8), ScheduledTest("broadcast", 1 << 20))
    plan = replace(make_plan(), steps=steps)
    assert [row.name for row in judge_stages(story(plan=plan))][-2:] == ["bandwidth", "correctness"]
    hung = story(plan=plan, but={3: "left 0"}, end="overdue")
    seconds, after = pytest.approx(30.0 - 9.003), pytest.approx((0.997, 0.998, 0.999))
    assert judge_stages(hung)[-1] == Stage(
        "correctness", seconds, "fail", (0, 1, 2), (3,), 10.0, after
    )
    assert stopped_at(hung) == "correctness: broadcast 1 MiB"


def test_wrong_data_in_the_sweep_fail_correctness_although_nothing_comes_after_it() -> None:
    row = judge_stages(story(wrong={1: 5}))[-1]
    assert row == Stage("correctness", 0.0, "fail", (0, 1, 2, 3), (), 10.0)


def test_what_is_not_told_by_all_is_no_consistency() -> None:
    told = [on(rank, "holds", 3.0, part=part, items={}) for rank in range(4) for part in PARTS]
    assert verdicts(story(*told))["consistency"] == "pass"
    row = next(row for row in judge_stages(story(*told[:-1])) if row.name == "consistency")
    assert (row.verdict, row.arrived, row.missing) == ("unknown", (0, 1, 2), (3,))
    assert row.seconds == pytest.approx(1.0)


def finding(check: str, verdict: str) -> Finding:
    return Finding(check, verdict, "warning", ("n1",), "", "", "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "expected"), [("fail", "fail"), ("unknown", "unknown"), ("skip", "skip")]
)
@pytest.mark.parametrize(
    ("check", "stage"),
    [
        ("nccl.busbw_multi", "bandwidth"),
        ("nccl.init_time", "first collective"),
        ("rank.consistency", "consistency"),
    ],
)
def test_a_stage_is_no_better_than_its_finding(
    check: str, stage: str, verdict: str, expected: str
) -> None:
    rows = [Stage("start", 1.0, "pass"), Stage(stage, 1.0, "pass")]
    found = limited_by_findings(
        rows, [finding(check, "pass"), finding(check, verdict), finding("nccl.hang", "fail")]
    )
    assert [row.verdict for row in found] == ["pass", expected if verdict != "skip" else "pass"]
    assert (
        limited_by_findings([Stage(stage, 1.0, "fail")], [finding(check, "pass")])[0].verdict
        == "fail"
    )


def test_a_node_that_refuses_is_a_failed_reach_and_a_silent_one_an_unknown() -> None:
    good = NodeSnapshot("n1", "10.0.0.1", True, login=0.4)
    refuses, silent = (
        NodeSnapshot(f"n{i}", "", False, "x", answered=i == 2, seconds=9.0) for i in (2, 3)
    )
    assert reach_stage([good], 10.0) == Stage("reach", 0.4, "pass", limit=10.0)
    assert reach_stage([good, silent], 10.0).verdict == "unknown"
    assert reach_stage([good, silent, refuses], 10.0).verdict == "fail"
