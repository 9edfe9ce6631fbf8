"""How long it took until ranks could work: the finding nccl.init_time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, Severity
from clusterprep.model.units import parse_duration
from clusterprep.remedies import shell_line

NAME = "nccl.init_time"
LIMIT = 60.0  # seconds from the start of the ranks to the end of their first collective
SLOWEST = 3  # nodes named that were ready last
REMEDY = shell_line(
    "time python -c 'import torch'"
    "   # as job_user on the nodes named; then look at name service and firewalls"
)


def init_time_findings(timeline: Timeline) -> Iterable[Finding]:
    """Judge the time for all nodes at once, as the slowest rank delays all others.

    A limit that one node requires counts for all. The first collective is the one with which ranks
    meet. If something hangs before it, the time is unknown here and nccl.hang reports the hang.
    """
    nodes = timeline.node_names()
    declared: list[float] = []
    for node in timeline.plan.nodes:
        if NAME in node.require:
            seconds = _seconds(str(node.require[NAME]))
            declared.append(seconds)
    limit = min(declared, default=LIMIT)
    severity: Severity = "error" if declared else "warning"
    wanted = f"< {limit:g} s"
    met = timeline.turn("met")
    go = timeline.first("go")
    if len(met) < timeline.plan.world_size or go is None:
        reason = "no collective finished on all ranks"
        message = f"not known: {reason}"
        yield Finding(
            check=NAME,
            verdict="unknown",
            severity=severity,
            nodes=nodes,
            message=message,
            wanted=wanted,
            reason=reason,
        )
        return
    seconds = max(time for _, time in met.times())
    meeting = seconds - go.at
    parts = f"start {go.at:.1f} s, rendezvous and first collective {meeting:.1f} s"
    message = f"the first collective finished after {seconds:.1f} s: {parts}"
    seen = f"{seconds:.1f} s"
    if seconds < limit:
        yield Finding(
            check=NAME,
            verdict="pass",
            severity=severity,
            nodes=nodes,
            message=message,
            seen=seen,
            wanted=wanted,
        )
        return
    message = f"{message}; {_ready_last(timeline)}"
    yield Finding(
        check=NAME,
        verdict="fail",
        severity=severity,
        nodes=nodes,
        message=message,
        seen=seen,
        wanted=wanted,
        remedy=REMEDY,
    )


def _seconds(text: str) -> float:
    """Return a duration such as "90s" or "< 2m" in seconds, LIMIT if it cannot be read."""
    try:
        return parse_duration(text.lstrip("<=≤ "))
    except ValueError:
        return LIMIT


def _ready_last(timeline: Timeline) -> str:
    """Return the ranks that were ready last, as no rank begins before all are ready."""
    ready = sorted(timeline.turn("ready").values(), key=_time, reverse=True)
    ranks: list[str] = []
    for event in ready[:SLOWEST]:
        rank = f"rank {event.rank} on {event.node} after {event.at:.1f} s"
        ranks.append(rank)
    return f"ready last: {', '.join(ranks)}"


def _time(event: Event) -> float:
    return event.at
