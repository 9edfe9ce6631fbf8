"""A rank for which all others wait: the finding nccl.straggler. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from clusterprep.jobs.verify.tally import nth
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, Severity
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_size

NAME = "nccl.straggler"
Z = 4.0  # robust z-score: distance from the median in standard deviations that the median distance stands for
TIMES = 4.0  # of the median
# Seconds over the median: ranks that share a core with others wait for a tenth of a second now and then.
MARGIN = {"nccl": 0.02}
MARGIN_ON_CPUS = 0.5
LEAST = 0.05  # of the median: a smaller spread than this is not believed
FEWEST = 4  # ranks; among fewer, nobody knows what is usual
WANTED = f"less than {TIMES:g} times the median of all ranks"
REMEDY = "look at clocks, temperature, and what else runs on the nodes named: clusterprep check INVENTORY"


def straggler(timeline: Timeline) -> Iterable[Finding]:
    """By the time that a rank takes between collectives, at the largest size: all others wait for it then.

    The time of the collective itself is the same for all and tells nothing. Of all repetitions the quickest counts, for
    a rank that had to wait for a core once is no straggler.
    """
    nodes = tuple(node.name for node in timeline.plan.nodes)
    severity: Severity = (
        "error" if any(NAME in node.require for node in timeline.plan.nodes) else "warning"
    )
    size, own = _own(timeline)
    if timeline.plan.world_size < FEWEST:
        message = f"among {timeline.plan.world_size} ranks nobody knows what is usual"
        yield Finding(NAME, "skip", severity, nodes, message, "", WANTED, reason="not_applicable")
        return
    if len(own) < timeline.plan.world_size:
        reason = "not all ranks finished a collective"
        yield Finding(
            NAME, "unknown", severity, nodes, f"not known: {reason}", "", WANTED, reason=reason
        )
        return
    plan = timeline.plan  # ranks that share a GPU wait for their turn, as those on processors do
    margin = MARGIN.get(plan.backend, MARGIN_ON_CPUS) if plan.most_sharing == 1 else MARGIN_ON_CPUS
    usual, late = median(own.values()), slow(own, margin)
    at = f"between collectives of {format_size(size)}"
    if not late:
        most = max(own.values())
        message = f"no rank keeps the others waiting {at}"
        seen = f"{most * 1000:.3g} ms at most, median {usual * 1000:.3g} ms"
        yield Finding(NAME, "pass", severity, nodes, message, seen, WANTED)
        return
    guilty = {timeline.rank(rank).node for rank in late}
    names = tuple(name for name in nodes if name in guilty)
    seen = f"{max(own[rank] for rank in late):.3g} s, median {usual:.3g} s"
    message = f"rank {fold(map(str, late))} on {fold(names)} keeps the others waiting {at}: {seen}"
    yield Finding(NAME, "fail", severity, names, message, seen, WANTED, REMEDY)


def _own(timeline: Timeline) -> tuple[int, dict[int, float]]:
    """The largest all_reduce that all ranks left, and what each needed for its own part of it."""
    found: tuple[int, dict[int, float]] = (0, {})
    for number, step in enumerate(timeline.plan.steps):
        left = nth(timeline, "left", number)
        own = {
            rank: float(event.data["own"]) for rank, event in left.items() if "own" in event.data
        }
        usual = (step.op, step.dtype) == ("all_reduce", "float32")
        if usual and len(own) == timeline.plan.world_size and step.bytes >= found[0]:
            found = (step.bytes, own)
    return found


def slow(own: Mapping[int, float], margin: float) -> tuple[int, ...]:
    """The ranks that are far slower than most by every measure: score, share and seconds."""
    usual = median(own.values())
    spread = 1.4826 * max(median(abs(value - usual) for value in own.values()), LEAST * usual, 1e-6)
    return tuple(
        rank
        for rank, value in sorted(own.items())
        if (value - usual) / spread > Z and value > TIMES * usual and value - usual > margin
    )
