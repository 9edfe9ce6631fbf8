"""nccl.busbw_node: the speed of an all-reduce within each node alone. Pure.

A GPU or NVLink that is slow shows here without the network, which hides it where nodes are many.
The yardsticks are those of the whole job (`speed`), but for a node: what it requires, the baseline,
the model of its hardware, and other nodes of its kind.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.jobs.verify.hardware_model import VALID_FROM, Expected, expected_inside
from clusterprep.jobs.verify.node_outcomes import NodeOutcome, node_findings
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.jobs.verify.peers import slower
from clusterprep.jobs.verify.schedule import ScheduledTest, TrialPlan
from clusterprep.jobs.verify.speed import SLOW, YARDSTICK, Baseline, measures_bandwidth
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import CollectiveResult, Finding, Fleet, Node
from clusterprep.model.units import format_size
from clusterprep.nccl.rails import kind_of

NAME = "nccl.busbw_node"
REMEDY = PAGES[NAME].remedy
SIZE_ON_CPUS = 1 << 20  # bytes
RECORDED = "recorded as what is normal"
NOT_MEASURED = "the all-reduce within the node did not finish"


class NodeSpeeds(Struct, frozen=True):
    """What was measured: the all-reduce of each node that was tried, None if it did not finish.

    `baselines` has the nodes with a run that was recorded as normal; with `records` this run is.
    """

    rows: Mapping[str, CollectiveResult | None]
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    records: bool = False


def nodes_to_measure(plan: TrialPlan) -> list[str]:
    """Return the nodes with several ranks: all of them over NCCL, else those that require it."""
    if plan.most_sharing > 1:
        return []
    names: list[str] = []
    for node in plan.nodes:
        is_wanted = plan.backend == "nccl" or NAME in node.require
        if is_wanted and len(plan.ranks_by_node[node.name]) > 1:
            names.append(node.name)
    return names


def node_step(backend: str) -> ScheduledTest:
    """Return the all-reduce that each node runs: as large as the hardware model needs."""
    if backend == "nccl":
        return ScheduledTest("all_reduce", VALID_FROM, fit=True)
    return ScheduledTest("all_reduce", SIZE_ON_CPUS)


def node_speed_findings(timeline: Timeline, fleet: Fleet, speeds: NodeSpeeds) -> Iterable[Finding]:
    """Judge each node that was measured."""
    plan = timeline.plan
    outcomes: dict[str, NodeOutcome] = {}
    by_yardstick: dict[tuple[str, str], dict[str, CollectiveResult]] = {}
    slow_peers = _slow_peers(plan, fleet, speeds)
    for node in plan.nodes:
        if node.name not in speeds.rows:
            continue
        row = speeds.rows[node.name]
        if row is None:
            outcomes[node.name] = NodeOutcome("unknown", NOT_MEASURED, reason=NOT_MEASURED)
            continue
        outcome, yardstick = _judge(plan, fleet, node, row, speeds, slow_peers)
        if speeds.records and yardstick != RECORDED:
            yardstick = f"{yardstick}; {RECORDED}"
            outcome = replace(outcome, message=f"{outcome.message}; {RECORDED}")
        outcomes[node.name] = outcome
        if outcome.verdict != "fail":
            same = by_yardstick.setdefault((outcome.verdict, yardstick), {})
            same[node.name] = row
    for (_, yardstick), rows in by_yardstick.items():
        for name in rows:
            outcomes[name] = _of_all(outcomes[name], rows, yardstick)
    return node_findings(NAME, timeline, outcomes)


def _judge(
    plan: TrialPlan,
    fleet: Fleet,
    node: Node,
    row: CollectiveResult,
    speeds: NodeSpeeds,
    slow_peers: Mapping[str, float],
) -> tuple[NodeOutcome, str]:
    """Return the outcome of one node and what it was held against."""
    least = _required(node)
    if least is not None:
        return _against(row, least, f"≥ {least:g} GB/s are required")
    baseline = speeds.baselines.get(node.name)
    if baseline is not None and not speeds.records:
        yardstick = f"{baseline.gbs:.3g} GB/s by the baseline of run {baseline.run}"
        return _against(row, SLOW * baseline.gbs, yardstick)
    model = _model(plan, fleet, node)
    if model.gbs is not None and measures_bandwidth(row, VALID_FROM):
        yardstick = f"{model.gbs:.3g} GB/s by the hardware model ({model.why})"
        return _against(row, SLOW * model.gbs, yardstick)
    if node.name in slow_peers:
        usual = slow_peers[node.name]
        return _against(row, SLOW * usual, f"{usual:.3g} GB/s in the median of nodes of its kind")
    if speeds.records:
        return NodeOutcome("pass", ""), RECORDED
    if model.gbs is not None:
        model = Expected(None, f"the hardware model holds from {format_size(VALID_FROM)} on")
    # Without its name, so that nodes of which the same is not known are told together.
    why = model.why.replace(f" of {node.name} ", " of the node ")
    yardstick = f"nothing says what is normal: {why}"
    if plan.backend != "nccl":
        return NodeOutcome("skip", "", reason="first_sample"), yardstick
    return NodeOutcome("unknown", "", reason="first_sample", remedy=YARDSTICK), yardstick


def _required(node: Node) -> float | None:
    """Return the GB/s that a node requires; None for none, or a value that is no number."""
    try:
        return float(str(node.require.get(NAME, "")).lstrip(">=≥ "))
    except ValueError:
        return None


def _model(plan: TrialPlan, fleet: Fleet, node: Node) -> Expected:
    if plan.backend != "nccl":
        return Expected(None, f"the hardware model does not judge {plan.backend}")
    ranks = plan.ranks_by_node[node.name]
    return expected_inside(fleet, node, len(ranks), ranks[0].env)


def _against(row: CollectiveResult, least: float, yardstick: str) -> tuple[NodeOutcome, str]:
    wanted = f"≥ {least:.3g} GB/s"
    if row.busbw_gbs >= least:
        return NodeOutcome("pass", "", wanted=wanted), yardstick
    seen = f"{row.busbw_gbs:.3g} GB/s"
    message = f"{_what(row)} is {seen}, against {yardstick}"
    return NodeOutcome("fail", message, seen, wanted, remedy=REMEDY), yardstick


def _what(row: CollectiveResult) -> str:
    return f"bus bandwidth within the node at {format_size(row.bytes)}"


def _of_all(
    outcome: NodeOutcome, rows: Mapping[str, CollectiveResult], yardstick: str
) -> NodeOutcome:
    """Return an outcome that is true of all these nodes: with the range of their speeds."""
    gbs = [row.busbw_gbs for row in rows.values()]
    seen = f"{min(gbs):.3g} GB/s"
    if f"{max(gbs):.3g}" != f"{min(gbs):.3g}":
        seen = f"{min(gbs):.3g} to {max(gbs):.3g} GB/s"
    first = next(iter(rows.values()))
    message = f"{_what(first)} is {seen}, {yardstick}"
    return NodeOutcome(
        outcome.verdict,
        message,
        seen,
        outcome.wanted,
        outcome.reason,
        outcome.remedy,
    )


def _slow_peers(plan: TrialPlan, fleet: Fleet, speeds: NodeSpeeds) -> dict[str, float]:
    """Return the nodes that stand out as slow among those of their kind, with the usual GB/s.

    On processors what else they do decides, so no node is compared there.
    """
    if plan.backend != "nccl":
        return {}
    kinds: dict[object, dict[str, float]] = {}
    for node in plan.nodes:
        row = speeds.rows.get(node.name)
        if row is not None:
            kind = (kind_of(fleet, node), len(plan.ranks_by_node[node.name]), row.bytes)
            kinds.setdefault(kind, {})[node.name] = row.busbw_gbs
    slow: dict[str, float] = {}
    for rows in kinds.values():
        usual = statistics.median(rows.values())
        slow.update(dict.fromkeys(slower(rows, SLOW), usual))
    return slow
