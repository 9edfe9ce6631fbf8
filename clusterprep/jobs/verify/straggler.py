"""A rank for which all others wait: the finding nccl.straggler. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from clusterprep.jobs.verify.tally import SWEEP
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, Severity
from clusterprep.model.nodeset import fold, fold_numbers
from clusterprep.model.units import format_size
from clusterprep.remedies import shell_line

NAME = "nccl.straggler"
Z = 4.0  # robust z-score: distance from the median in standard deviations
TIMES = 4.0  # of the median
# Seconds over the median: ranks that share a core with others wait for a tenth of a second now and
# then.
MARGIN = {"nccl": 0.02}
MARGIN_ON_CPUS = 0.5
LEAST = 0.05  # of the median: a smaller spread than this is not believed
TO_SIGMA = 1.4826  # from the median distance of a normal distribution to its standard deviation
FEWEST = 4  # ranks; with fewer it is not known what is usual
WANTED = f"less than {TIMES:g} times the median of all ranks"
REMEDY = shell_line(
    "clusterprep check INVENTORY"
    "   # look at clocks, temperature, and what else runs on the nodes named"
)


def straggler_findings(timeline: Timeline) -> Iterable[Finding]:
    """Judge the time that each rank takes between collectives, at the largest size.

    All other ranks wait for it then. The time of the collective itself is the same for all and
    tells nothing. Of all repetitions the quickest counts, as a rank that had to wait for a core
    once is no straggler.
    """
    plan = timeline.plan
    nodes = timeline.node_names()
    is_required = any(NAME in node.require for node in plan.nodes)
    severity: Severity = "error" if is_required else "warning"
    if plan.world_size < FEWEST:
        message = f"among {plan.world_size} ranks it is not known what is usual"
        reason = "not_applicable"
        yield Finding(
            check=NAME,
            verdict="skip",
            severity=severity,
            nodes=nodes,
            message=message,
            wanted=WANTED,
            reason=reason,
        )
        return
    size, own_times = own_times_of(timeline)
    if len(own_times) < plan.world_size:
        reason = "not all ranks finished a collective"
        message = f"not known: {reason}"
        yield Finding(
            check=NAME,
            verdict="unknown",
            severity=severity,
            nodes=nodes,
            message=message,
            wanted=WANTED,
            reason=reason,
        )
        return
    late = slow(own_times, _margin(timeline))
    usual = median(own_times.values())
    when = f"between collectives of {format_size(size)}"
    if not late:
        most = max(own_times.values()) * 1000
        message = f"no rank keeps the others waiting {when}"
        seen = f"{most:.3g} ms at most, median {usual * 1000:.3g} ms"
        yield Finding(
            check=NAME,
            verdict="pass",
            severity=severity,
            nodes=nodes,
            message=message,
            seen=seen,
            wanted=WANTED,
        )
        return
    nodes = timeline.nodes_of(late)
    most = max(own_times[rank] for rank in late)
    seen = f"{most:.3g} s, median {usual:.3g} s"
    ranks = fold_numbers(late)
    message = f"rank {ranks} on {fold(nodes)} keeps the others waiting {when}: {seen}"
    yield Finding(
        check=NAME,
        verdict="fail",
        severity=severity,
        nodes=nodes,
        message=message,
        seen=seen,
        wanted=WANTED,
        remedy=REMEDY,
    )


def _margin(timeline: Timeline) -> float:
    """Return seconds; ranks that share a GPU wait for their turn, as those on processors do."""
    plan = timeline.plan
    if plan.most_sharing > 1:
        return MARGIN_ON_CPUS
    return MARGIN.get(plan.backend, MARGIN_ON_CPUS)


def own_times_of(timeline: Timeline) -> tuple[int, dict[int, float]]:
    """Return the size of the largest all_reduce that all ranks left, and their own seconds."""
    largest = 0
    times: dict[int, float] = {}
    for number, step in enumerate(timeline.plan.steps):
        if (step.op, step.dtype) != SWEEP or step.bytes < largest:
            continue
        own: dict[int, float] = {}
        for rank, seconds in timeline.turn("left", number).told("own"):
            if seconds is not None:
                own[rank] = float(seconds)
        if len(own) == timeline.plan.world_size:
            largest = step.bytes
            times = own
    return largest, times


def slow(own_times: Mapping[int, float], margin: float) -> tuple[int, ...]:
    """Return the ranks that are far slower than most by every measure: score, share and seconds."""
    usual = median(own_times.values())
    distance = median(abs(seconds - usual) for seconds in own_times.values())
    spread = TO_SIGMA * max(distance, LEAST * usual, 1e-6)
    ranks: list[int] = []
    for rank, seconds in sorted(own_times.items()):
        excess = seconds - usual
        if excess <= margin or seconds <= TIMES * usual:
            continue
        if excess / spread > Z:
            ranks.append(rank)
    return tuple(ranks)
