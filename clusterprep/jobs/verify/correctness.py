"""Whether collectives gave exact results: nccl.correct, nccl.broadcast and nccl.allgather."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterprep.jobs.verify.culprits import Fault, check_of, wrong_ranks
from clusterprep.jobs.verify.schedule import ScheduledTest
from clusterprep.jobs.verify.tally import refusals, step_name
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding
from clusterprep.model.nodeset import fold, fold_numbers
from clusterprep.model.units import pluralize
from clusterprep.remedies import sentence

EXACT = "0 wrong elements"
CHECKS = ("nccl.correct", "nccl.broadcast", "nccl.allgather")
UNPROVEN = sentence("run the trial on halves of the nodes (--limit) until one of them is right")


def correctness_findings(timeline: Timeline, faults: Sequence[Fault]) -> Iterable[Finding]:
    """Yield the finding of each check whose collectives the trial has.

    A check that fails by a fault of its own is left out, as the caller reports that fault. A
    further check that the same fault spoils is reported here.
    """
    reported = {fault.check for fault in faults}
    for check in CHECKS:
        steps = _steps_of(timeline, check)
        if not steps:
            continue
        finding = _finding(timeline, check, steps, faults)
        if finding.verdict != "fail" or check not in reported:
            yield finding


def _steps_of(timeline: Timeline, check: str) -> dict[int, ScheduledTest]:
    """Return the steps that a check judges, by their number in the plan."""
    numbered = enumerate(timeline.plan.steps)
    return {number: step for number, step in numbered if check_of(step.op) == check}


def _finding(
    timeline: Timeline, check: str, steps: Mapping[int, ScheduledTest], faults: Sequence[Fault]
) -> Finding:
    """Return the finding of a check that judges these steps of the plan."""
    wrong = wrong_ranks(timeline, check)
    if wrong:
        return _wrong(timeline, check, sorted(wrong), faults)
    refused = refusals(timeline)
    tried = {number: step for number, step in steps.items() if step not in refused}
    if not tried:
        refusal = next(iter(refused.values()))
        return _all_refused(timeline, check, refusal)
    for number in tried:
        left = timeline.turn("left", number)
        if len(left) < timeline.plan.world_size:
            return _not_finished(timeline, check)
    tried_steps = list(tried.values())
    return _exact(timeline, check, tried_steps, len(steps))


def _all_refused(timeline: Timeline, check: str, refusal: str) -> Finding:
    nodes = timeline.node_names()
    message = left_out_words(timeline)
    reason = f"{timeline.plan.backend} refused it: {refusal}"
    return Finding(
        check=check,
        verdict="skip",
        severity="error",
        nodes=nodes,
        message=message,
        wanted=EXACT,
        reason=reason,
    )


def _not_finished(timeline: Timeline, check: str) -> Finding:
    nodes = timeline.node_names()
    reason = "not all collectives finished"
    message = f"not known: {reason}"
    return Finding(
        check=check,
        verdict="unknown",
        severity="error",
        nodes=nodes,
        message=message,
        wanted=EXACT,
        reason=reason,
    )


def _exact(timeline: Timeline, check: str, tried: Sequence[ScheduledTest], wanted: int) -> Finding:
    """Pass a check, and name what was left out if fewer steps were tried than `wanted`."""
    subject = f"{len(tried)} collectives are"
    if len(tried) == 1:
        subject = f"{step_name(tried[0])} is"
    message = f"{subject} exact on {pluralize(timeline.plan.world_size, 'rank')}"
    if len(tried) < wanted:
        message += f"; {left_out_words(timeline)}"
    nodes = timeline.node_names()
    return Finding(
        check=check,
        verdict="pass",
        severity="error",
        nodes=nodes,
        message=message,
        seen=EXACT,
        wanted=EXACT,
    )


def _wrong(
    timeline: Timeline, check: str, ranks: Sequence[int], faults: Sequence[Fault]
) -> Finding:
    """Blame the ranks or nodes that spoil data, else all nodes with wrong results."""
    guilty: set[str] = set()
    for fault in faults:
        if fault.check in CHECKS:
            guilty.update(fault.nodes)
    message = f"wrong results on ranks {fold_numbers(ranks)}"
    if guilty:
        nodes = timeline.sorted_nodes(guilty)
        message += f" because of {fold(sorted(guilty))}"
    else:
        nodes = timeline.nodes_of(ranks)
        message += "; where they became wrong cannot be told"
    events = wrong_ranks(timeline, check).values()
    most = max(int(event.data["wrong"]) for event in events)
    seen = f"up to {most} wrong elements on a rank"
    return Finding(
        check=check,
        verdict="fail",
        severity="error",
        nodes=nodes,
        message=message,
        seen=seen,
        wanted=EXACT,
        remedy=UNPROVEN,
    )


def left_out_words(timeline: Timeline) -> str:
    """Return which collectives were left out as the backend does not know them; empty if none."""
    refused = refusals(timeline)
    if not refused:
        return ""
    names = ", ".join(map(step_name, refused))
    return f"left out, as {timeline.plan.backend} does not know it: {names}"
