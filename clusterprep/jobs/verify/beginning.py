"""How long it took until ranks could work: the finding nccl.init_time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, Severity
from clusterprep.model.units import parse_duration

NAME = "nccl.init_time"
LIMIT = (
    60.0  # seconds from the start of the ranks to the first collective that all of them finished
)
SLOWEST = 3  # nodes named that were ready last
REMEDY = "time python -c 'import torch' as job_user on the nodes named; then look at name service and firewalls"


def beginning(timeline: Timeline) -> Iterable[Finding]:
    """Judged over all nodes at once, for the slowest rank holds up all; what a node requires counts for all.

    The first collective is the one with which ranks meet. It is not reached where something hangs before, and then
    nccl.hang says it.
    """
    nodes = tuple(node.name for node in timeline.plan.nodes)
    declared = [str(node.require[NAME]) for node in timeline.plan.nodes if NAME in node.require]
    limit = min((_seconds(text) for text in declared), default=LIMIT)
    severity: Severity = "error" if declared else "warning"
    wanted, met, go = f"< {limit:g} s", timeline.ranks_with("met"), timeline.first("go")
    if len(met) < timeline.plan.world_size or go is None:
        reason = "no collective finished on all ranks"
        yield Finding(
            NAME, "unknown", severity, nodes, f"not known: {reason}", "", wanted, reason=reason
        )
        return
    seconds = max(event.at for event in met.values())
    parts = f"start {go.at:.1f} s, rendezvous and first collective {seconds - go.at:.1f} s"
    message, seen = (
        f"the first collective finished after {seconds:.1f} s: {parts}",
        f"{seconds:.1f} s",
    )
    if seconds < limit:
        yield Finding(NAME, "pass", severity, nodes, message, seen, wanted)
    else:
        yield Finding(
            NAME, "fail", severity, nodes, f"{message}; {_last(timeline)}", seen, wanted, REMEDY
        )


def _seconds(text: str) -> float:
    try:
        return parse_duration(text.lstrip("<=≤ "))
    except ValueError:
        return LIMIT


def _last(timeline: Timeline) -> str:
    """Who was ready last, as nobody begins before."""
    ready = sorted(timeline.ranks_with("ready").items(), key=lambda pair: -pair[1].at)
    words = (
        f"rank {rank} on {event.node} after {event.at:.1f} s" for rank, event in ready[:SLOWEST]
    )
    return f"ready last: {', '.join(words)}"
