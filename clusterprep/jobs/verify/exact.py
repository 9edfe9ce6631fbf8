"""Whether the collectives gave exact results: the findings nccl.correct, nccl.broadcast and nccl.allgather. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterprep.jobs.verify.culprits import Fault, check_of, wrong_ranks
from clusterprep.jobs.verify.tally import nth, refusals, step_name
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding
from clusterprep.model.nodeset import fold

EXACT = "0 wrong elements"
CHECKS = ("nccl.correct", "nccl.broadcast", "nccl.allgather")
UNPROVEN = "run the trial on halves of the nodes (--limit) until one of them is right"


def exact(timeline: Timeline, found: Sequence[Fault]) -> Iterable[Finding]:
    """A check fails by its own fault, which the caller reports; a further check that the same fault spoils, here."""
    told = {fault.check for fault in found}
    for check in CHECKS:
        if any(check_of(step.op) == check for step in timeline.plan.steps):
            finding = _judged(timeline, check, found)
            if finding.verdict != "fail" or check not in told:
                yield finding


def _judged(timeline: Timeline, check: str, found: Sequence[Fault]) -> Finding:
    refused = refusals(timeline)
    steps = [
        (number, step)
        for number, step in enumerate(timeline.plan.steps)
        if check_of(step.op) == check
    ]
    tried = [(number, step) for number, step in steps if step not in refused]
    world, nodes = timeline.plan.world_size, tuple(node.name for node in timeline.plan.nodes)
    if wrong := wrong_ranks(timeline, check):
        return _wrong(timeline, check, sorted(wrong), found)
    if not tried:
        reason = f"{timeline.plan.backend} refused it: {next(iter(refused.values()))}"
        return Finding(check, "skip", "error", nodes, left_out(timeline), "", EXACT, reason=reason)
    missing = [step for number, step in tried if len(nth(timeline, "left", number)) < world]
    if missing:
        reason = "not all collectives finished"
        return Finding(
            check, "unknown", "error", nodes, f"not known: {reason}", "", EXACT, reason=reason
        )
    what = step_name(tried[0][1]) if len(tried) == 1 else f"{len(tried)} collectives"
    message = f"{what} {'is' if len(tried) == 1 else 'are'} exact on {world} ranks"
    omitted = left_out(timeline) if len(tried) < len(steps) else ""
    return Finding(
        check, "pass", "error", nodes, "; ".join(filter(None, [message, omitted])), EXACT, EXACT
    )


def _wrong(timeline: Timeline, check: str, ranks: Sequence[int], found: Sequence[Fault]) -> Finding:
    """Where a rank or node was found to spoil data, it is blamed; else all that saw wrong results are named."""
    guilty = {name for fault in found if fault.check in CHECKS for name in fault.nodes}
    most = max(int(event.data["wrong"]) for event in wrong_ranks(timeline, check).values())
    nodes = guilty or {timeline.rank(rank).node for rank in ranks}
    where = (
        f"because of {fold(sorted(guilty))}"
        if guilty
        else "; where they became wrong cannot be told"
    )
    message = f"wrong results on ranks {fold(map(str, ranks))}{' ' if guilty else ''}{where}"
    names = tuple(node.name for node in timeline.plan.nodes if node.name in nodes)
    return Finding(
        check,
        "fail",
        "error",
        names,
        message,
        f"up to {most} wrong elements on a rank",
        EXACT,
        UNPROVEN,
    )


def left_out(timeline: Timeline) -> str:
    """What the backend does not know and was therefore not tried; empty where that is nothing."""
    refused = refusals(timeline)
    names = ", ".join(step_name(step) for step in refused)
    return f"left out, as {timeline.plan.backend} does not know it: {names}" if refused else ""
