"""nccl.busbw_node: which nodes are measured by themselves, and what their speed is held against."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.history.applied import AppliedEnvironments
from clusterprep.jobs.verify.blame import judge
from clusterprep.jobs.verify.hardware_model import VALID_FROM
from clusterprep.jobs.verify.node_measurement import measure_nodes
from clusterprep.jobs.verify.node_speed import (
    NodeSpeeds,
    node_speed_findings,
    node_step,
    nodes_to_measure,
)
from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.jobs.verify.speed import Baseline
from clusterprep.jobs.verify.speed_records import SpeedRecords
from clusterprep.model import CollectiveResult, Finding, Fleet, Inventory, Node, VerifySettings
from tests.jobs.verify.agents import agents
from tests.jobs.verify.loopback import nodes as local_nodes
from tests.jobs.verify.loopback import plan as local_plan
from tests.jobs.verify.stories import make_plan, story
from tests.jobs.verify.test_hardware_model import facts
from tests.support.fleet import absent, fleet

GIB = VALID_FROM


def cluster(gpu: str = "H100", links: Any = 18, count: int = 4) -> Fleet:
    told = facts(gpu, 8, links, cards=8, gbits=400)
    return fleet(**{f"n{number}": dict(told) for number in range(1, count + 1)})


def plan(seen: Fleet, nproc: int = 8, backend: str = "nccl", **node: Any) -> TrialPlan:
    of = [
        Node(name, "10.0.0.1", index, nproc_per_node=nproc, **node)
        for index, name in enumerate(seen.snapshots)
    ]
    settings = VerifySettings(backend=backend, sizes=(8, 1 << 20), timeout=10.0)  # type: ignore[arg-type]
    return plan_trial(of, {}, ("10.0.0.1", 29500), settings, {n.name: nproc for n in of})


def row(gbs: float, size: int = GIB, seconds: float = 0.01) -> CollectiveResult:
    return CollectiveResult("all_reduce", size, seconds, gbs, gbs, 0)


def told(
    seen: Fleet, gbs: Mapping[str, float | None], of: TrialPlan | None = None, **more: Any
) -> dict[str, Finding]:
    made = of or plan(seen)
    rows = {name: None if value is None else row(value) for name, value in gbs.items()}
    found = node_speed_findings(story(plan=made), seen, NodeSpeeds(rows, **more))
    return {name: finding for finding in found for name in finding.nodes}


def all_at(gbs: float, count: int = 4) -> dict[str, float | None]:
    return {f"n{number}": gbs for number in range(1, count + 1)}


# ---------------------------------------------------------------- which nodes


def test_over_nccl_every_node_with_several_ranks_is_measured_at_the_size_of_the_model() -> None:
    seen = cluster()
    assert nodes_to_measure(plan(seen)) == ["n1", "n2", "n3", "n4"]
    assert nodes_to_measure(plan(seen, 1)) == []
    step = node_step("nccl")
    assert (step.bytes, step.fit) == (GIB, True)


def test_over_gloo_only_nodes_that_require_it() -> None:
    assert nodes_to_measure(make_plan()) == []
    made = make_plan()
    asking = tuple(
        replace(node, require={"nccl.busbw_node": "1"}) if node.name == "n2" else node
        for node in made.nodes
    )
    assert nodes_to_measure(replace(made, nodes=asking)) == ["n2"]
    assert node_step("gloo").bytes == 1 << 20


def test_nodes_that_share_a_gpu_are_not_measured() -> None:
    assert nodes_to_measure(replace(plan(cluster()), most_sharing=2)) == []


# ---------------------------------------------------------------- the yardsticks


@pytest.mark.parametrize(
    ("gpu", "links", "healthy", "slow"),
    [
        pytest.param("A100", 12, 235.0, 185.0, id="a100-ring"),
        pytest.param("H100", 18, 478.0, 365.0, id="h100-without-nvls"),
        pytest.param("B200", 18, 838.0, 660.0, id="b200"),
    ],
)
def test_the_model_of_the_hardware(gpu: str, links: int, healthy: float, slow: float) -> None:
    seen = cluster(gpu, links)
    found = told(seen, {**all_at(healthy), "n3": slow})
    assert (found["n1"].verdict, found["n1"].nodes) == ("pass", ("n1", "n2", "n4"))
    assert "by the hardware model" in found["n1"].message
    assert (found["n3"].verdict, found["n3"].severity) == ("fail", "warning")
    assert found["n3"].seen == f"{slow:.3g} GB/s"
    assert found["n3"].remedy


def test_without_a_model_nodes_of_one_kind_are_compared() -> None:
    seen = cluster("L40S", absent("not_applicable"), count=6)
    speeds = {**all_at(20.0, 6), "n2": 20.4, "n3": 12.0}
    found = told(seen, speeds)
    assert (found["n3"].verdict, found["n3"].nodes) == ("fail", ("n3",))
    assert "20 GB/s in the median of nodes of its kind" in found["n3"].message
    assert (found["n1"].verdict, found["n1"].severity) == ("unknown", "warning")
    assert "joined by PCIe alone" in found["n1"].message
    assert "--baseline" in found["n1"].remedy
    assert found["n1"].seen == "20 to 20.4 GB/s"


def test_three_nodes_say_nothing_of_each_other() -> None:
    seen = cluster("L40S", absent("not_applicable"), count=3)
    found = told(seen, {"n1": 20.0, "n2": 20.0, "n3": 5.0})
    assert {finding.verdict for finding in found.values()} == {"unknown"}


def test_a_baseline_goes_before_the_model() -> None:
    seen = cluster()
    baselines = {name: Baseline(100.0, "run-1") for name in seen.snapshots}
    found = told(seen, {**all_at(99.0), "n4": 79.0}, baselines=baselines)
    assert found["n1"].verdict == "pass"
    assert "100 GB/s by the baseline of run run-1" in found["n1"].message
    assert (found["n4"].verdict, found["n4"].wanted) == ("fail", "≥ 80 GB/s")


@pytest.mark.parametrize(("wanted", "verdict"), [("400", "fail"), (">= 300", "pass")])
def test_what_a_node_requires_goes_before_all_and_is_an_error(wanted: str, verdict: str) -> None:
    seen = cluster()
    made = plan(seen, require={"nccl.busbw_node": wanted})
    found = told(seen, all_at(350.0), made)
    assert (found["n1"].verdict, found["n1"].severity) == (verdict, "error")


def test_a_size_that_did_not_fit_is_not_held_against_the_model() -> None:
    seen = cluster()
    made = plan(seen)
    rows = {name: row(100.0, 200 << 20) for name in seen.snapshots}
    (found,) = node_speed_findings(story(plan=made), seen, NodeSpeeds(rows))
    assert (found.verdict, found.reason) == ("unknown", "first_sample")
    assert "holds from 1 GiB on" in found.message


def test_a_node_whose_ranks_did_not_finish_is_not_known() -> None:
    found = told(cluster(), {**all_at(478.0), "n2": None})
    assert (found["n2"].verdict, found["n2"].nodes) == ("unknown", ("n2",))
    assert found["n1"].verdict == "pass"


def test_over_gloo_it_is_skipped_without_a_yardstick() -> None:
    seen = cluster()
    made = plan(seen, 2, "gloo", require={"nccl.busbw_node": "any"})
    found = told(seen, all_at(0.5), made)
    assert (found["n1"].verdict, found["n1"].reason) == ("skip", "first_sample")


def test_a_baseline_is_recorded_for_each_node(tmp_path: Path) -> None:
    seen = cluster("L40S", absent("not_applicable"))
    made = plan(seen)
    applied = AppliedEnvironments(tmp_path)
    trial = judge(story(plan=made))
    measured = NodeSpeeds({name: row(20.0) for name in seen.snapshots})
    recording = SpeedRecords(seen, made, trial, applied, "run-1", baseline=True)
    (first,) = node_speed_findings(story(plan=made), seen, recording.node_speeds(measured))
    assert (first.verdict, first.nodes) == ("pass", ("n1", "n2", "n3", "n4"))
    assert "recorded as what is normal" in first.message
    with_model = told(cluster(), all_at(478.0), records=True)["n1"]
    assert with_model.message.endswith(
        "by the hardware model (18 NVLinks of 25 GB/s, added up in "
        "the switch (NVLS)); recorded as what is normal"
    )
    later = SpeedRecords(seen, made, trial, applied, "run-2")
    slow = NodeSpeeds({name: row(10.0) for name in seen.snapshots})
    (second,) = node_speed_findings(story(plan=made), seen, later.node_speeds(slow))
    assert (second.verdict, second.wanted) == ("fail", "≥ 16 GB/s")


# ---------------------------------------------------------------- real ranks


class Few:
    """As much of a Fanout as the measurement needs."""

    def __init__(self, links: Mapping[str, Any]) -> None:
        self.links = links

    def each(self, items: Iterable[str], work: Callable[[str], None]) -> None:
        threads = [threading.Thread(target=work, args=(item,)) for item in items]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.torch
def test_two_nodes_are_measured_at_once_each_by_itself() -> None:
    pytest.importorskip("torch")
    both = tuple(replace(node, require={"nccl.busbw_node": "0.001"}) for node in local_nodes())
    made = local_plan(both, timeout=60.0)
    seen = Fleet(Inventory("test", both), {})
    with agents(both) as links:
        fanout = Few({link.node.name: link for link in links})
        measured = measure_nodes(fanout, seen, made, ["n1", "n2"])  # type: ignore[arg-type]
    for name in ("n1", "n2"):
        speed = measured.rows[name]
        assert speed is not None
        assert (speed.bytes, speed.wrong) == (1 << 20, 0)
        assert speed.busbw_gbs > 0
    (found,) = node_speed_findings(
        SimpleNamespace(plan=made, node_names=lambda: ("n1", "n2")), seen, measured
    )  # type: ignore[arg-type]
    assert (found.verdict, found.severity, found.nodes) == ("pass", "error", ("n1", "n2"))


@pytest.mark.torch
def test_a_node_that_is_gone_has_no_speed() -> None:
    made = local_plan(local_nodes())
    seen = Fleet(Inventory("test", made.nodes), {})
    measured = measure_nodes(Few({}), seen, made, ["n1"])  # type: ignore[arg-type]
    assert measured.rows == {"n1": None}
