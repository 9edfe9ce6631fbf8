"""What later runs are held against: earlier runs, and the one that was recorded as normal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.cli import exit_codes
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.jobs.verify.blame import Judged, findings, judge
from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.jobs.verify.speed_records import SpeedRecords
from clusterprep.jobs.verify.stage import limited_by_speed
from clusterprep.jobs.verify.timeline import ordered_timeline
from clusterprep.model import Finding, Node, VerifyResult, VerifySettings
from tests.jobs.verify.stories import make_plan, story
from tests.support.fleet import fleet

SIZES = (8, 1 << 20)
KEY = "n[1-2] 4 ranks nccl all_reduce 1048576"


def nccl_plan(nodes: int = 2, nproc: int = 2) -> TrialPlan:
    """A plan over NCCL of nodes that NVML says nothing about."""
    of = [Node(f"n{i + 1}", f"10.0.0.{i + 1}", i, nproc_per_node=nproc) for i in range(nodes)]
    settings = VerifySettings(backend="nccl", sizes=SIZES, timeout=10.0)
    gpus = {node.name: nproc for node in of}
    return plan_trial(of, {}, ("10.0.0.1", 29500), settings, gpus)


class Cluster:
    """Verifies of one cluster, one after the other, with the file that they keep."""

    def __init__(self, folder: Path) -> None:
        self.applied = AppliedEnvironments(folder)
        self.runs = 0

    def verify(
        self, plan: TrialPlan, baseline: bool = False, faster: float = 1.0, **more: Any
    ) -> tuple[VerifyResult, Finding | None]:
        self.runs += 1
        trial = judge(story(plan=plan, **more))
        trial = quicker(trial, faster)
        records = SpeedRecords(
            fleet(**{node.name: {} for node in plan.nodes}),
            plan,
            trial,
            self.applied,
            f"run-{self.runs}",
            baseline,
        )
        found = findings(trial, records.yardsticks(None))
        speed = [finding for finding in found if finding.check == "nccl.busbw_multi"]
        return records.remember(trial, found), speed[0] if speed else None


def quicker(trial: Judged, factor: float) -> Judged:
    """The same trial, in which every rank was quicker."""
    timeline = trial.timeline
    assert timeline is not None
    events = []
    for event in timeline.events:
        if event.what == "left":
            data = {**event.data, "seconds": event.data["seconds"] / factor}
            event = replace(event, data=data)  # noqa: PLW2901
        events.append(event)
    return judge(ordered_timeline(timeline.plan, events))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_one_run_with_baseline_is_a_yardstick_and_the_report_says_what_was_recorded(
    cluster: Cluster,
) -> None:
    plan = nccl_plan()
    _, first = cluster.verify(plan)
    assert first is not None
    assert first.verdict == "unknown"
    result, recorded = cluster.verify(plan, baseline=True)
    assert recorded is not None
    assert recorded.verdict == "pass"
    assert "recorded as normal for n[1-2] over nccl: all_reduce of 1 MiB at 0.393 GB/s" in (
        result.message
    )
    assert "the next verify with --baseline takes its place" in result.message
    _, alike = cluster.verify(plan)
    assert alike is not None
    assert alike.verdict == "pass"
    assert "by the baseline of run run-2" in alike.message
    _, slow = cluster.verify(plan, faster=0.3)
    assert slow is not None
    assert (slow.verdict, slow.severity) == ("fail", "error")


def test_the_newest_baseline_counts(cluster: Cluster) -> None:
    plan = nccl_plan()
    cluster.verify(plan, baseline=True, faster=10.0)
    _, slow = cluster.verify(plan)
    assert slow is not None
    assert slow.verdict == "fail"
    cluster.verify(plan, baseline=True)
    _, alike = cluster.verify(plan)
    assert alike is not None
    assert alike.verdict == "pass"


def test_a_baseline_is_of_these_nodes_ranks_and_sizes_alone(cluster: Cluster) -> None:
    cluster.verify(nccl_plan(), baseline=True)
    for plan in (nccl_plan(nodes=3), nccl_plan(nproc=4)):
        _, found = cluster.verify(plan)
        assert found is not None
        assert found.verdict == "unknown"


def test_a_trial_that_failed_is_no_baseline(cluster: Cluster) -> None:
    plan = nccl_plan()
    result, _ = cluster.verify(plan, baseline=True, wrong={1: 5})
    assert "no baseline was recorded: the collectives failed" in result.message
    assert cluster.applied.baseline("test", KEY) is None
    cluster.verify(plan, baseline=True)
    assert cluster.applied.baseline("test", KEY) is not None


def test_three_runs_are_a_yardstick_too(cluster: Cluster) -> None:
    verdicts = []
    for _ in range(4):
        _, found = cluster.verify(nccl_plan())
        assert found is not None
        verdicts.append(found.verdict)
    assert verdicts == ["unknown", "unknown", "unknown", "pass"]


def test_one_rank_alone_is_not_judged_and_no_baseline(cluster: Cluster) -> None:
    result, found = cluster.verify(nccl_plan(nodes=1, nproc=1), baseline=True)
    assert found is not None
    assert (found.verdict, found.reason) == ("skip", "not_applicable")
    assert "no baseline was recorded: one rank alone sends nothing" in result.message


def test_over_gloo_a_run_can_be_recorded_too(cluster: Cluster) -> None:
    plan = make_plan()
    result, _ = cluster.verify(plan, baseline=True)
    assert "recorded as normal for n[1-2] over gloo" in result.message
    _, slow = cluster.verify(plan, faster=0.1)
    assert slow is not None
    assert (slow.verdict, slow.severity) == ("fail", "error")


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result, _ = Cluster(tmp_path / "file").verify(nccl_plan(), baseline=True)
    assert "no baseline was recorded: the file of earlier runs cannot be written" in result.message


def test_a_trial_that_hung_is_no_baseline(cluster: Cluster) -> None:
    result, found = cluster.verify(nccl_plan(), baseline=True, until="entered 1", end="overdue")
    assert found is None
    assert "no baseline was recorded: the collectives failed" in result.message


@pytest.mark.parametrize(("over_nccl", "code"), [(True, 3), (False, 0)])
def test_the_exit_code_without_a_yardstick(cluster: Cluster, over_nccl: bool, code: int) -> None:
    plan = nccl_plan() if over_nccl else make_plan()
    result, found = cluster.verify(plan)
    assert found is not None
    limited = limited_by_speed(result, [found])
    codes = (exit_codes.findings_code([found]), exit_codes.trial_code(limited, [found]))
    assert exit_codes.worst(*codes) == code
    silenced = replace(found, silenced="on loan")
    assert exit_codes.trial_code(limited, [silenced]) == 0
