"""From measurements to a verdict: the result of a trial for the report, and its findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from clusterprep.jobs.verify.consistency import consistency_findings
from clusterprep.jobs.verify.correctness import EXACT, correctness_findings, left_out_words
from clusterprep.jobs.verify.culprits import Fault, find_faults, wrong_ranks
from clusterprep.jobs.verify.init_time import init_time_findings
from clusterprep.jobs.verify.schedule import SHARED_GPU_SETTINGS
from clusterprep.jobs.verify.speed import NAME as SPEED
from clusterprep.jobs.verify.speed import Yardsticks, largest, speed_finding
from clusterprep.jobs.verify.stage_verdicts import judge_stages, stopped_at
from clusterprep.jobs.verify.straggler import straggler_findings
from clusterprep.jobs.verify.tally import (
    all_finished,
    bandwidth_sweep,
    rank_rows,
    scaled_down_steps,
    timed_collectives,
)
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.jobs.verify.transport_check import transport_findings
from clusterprep.model import Culprit, Finding, Stage, Verdict, VerifyResult
from clusterprep.model.nodeset import fold, fold_numbers
from clusterprep.remedies import Remedy, shell_line
from clusterprep.remote.untrusted import shortened

WANTED = {
    "nccl.hang": "every rank finishes",
    "nccl.correct": EXACT,
    "nccl.broadcast": EXACT,
    "nccl.allgather": EXACT,
    "nccl.busbw_multi": "the declared min_busbw",
    "torch.version": "the job's torch",
    "net.ports": "a free port",
}
UNPROVEN = shell_line(
    "clusterprep check INVENTORY   # for these nodes: firewalls, interfaces, names"
)


class Judged(VerifyResult, frozen=True):
    """A result with its timeline: findings need more of it than the report shows."""

    timeline: Timeline | None = None

    def without_timeline(self) -> VerifyResult:
        """Return the result as reports and the history have it: the events of ranks are in none."""
        fields = {name: getattr(self, name) for name in VerifyResult.__struct_fields__}
        return VerifyResult(**fields)


def judge(timeline: Timeline) -> Judged:
    """Return stages, speeds, ranks and culprits of a trial that is over. Pure."""
    plan = timeline.plan
    faults = find_faults(timeline)
    stages = judge_stages(timeline)
    verdict = _verdict(timeline)
    message = _message(timeline, stages, faults)
    return Judged(
        verdict=verdict,
        backend=plan.backend,
        world_size=plan.world_size,
        nproc_per_node=plan.nproc_per_node,
        rendezvous=plan.rendezvous,
        stages=stages,
        collectives=timed_collectives(timeline),
        ranks=rank_rows(timeline),
        culprits=faults,
        message=message,
        timeline=timeline,
    )


def _verdict(timeline: Timeline) -> Verdict:
    if all_finished(timeline):
        has_failed = wrong_ranks(timeline) or _is_too_slow(timeline)
        return "fail" if has_failed else "pass"
    if _has_no_torch_anywhere(timeline):
        return "unknown"
    return "fail"


def _has_no_torch_anywhere(timeline: Timeline) -> bool:
    without = {event.node for event in timeline.of("no_torch")}
    return without == set(timeline.node_names())


def _is_too_slow(timeline: Timeline) -> bool:
    least = timeline.plan.min_busbw
    row = largest(bandwidth_sweep(timeline))
    if row is None or least is None:
        return False
    return row.busbw_gbs < least


def _message(timeline: Timeline, stages: Sequence[Stage], faults: Sequence[Culprit]) -> str:
    """Return the outcome in words, with processes that remain and nodes lost after the end."""
    sentences = [_outcome(timeline, stages, faults)]
    for event in timeline.of("left_over"):
        processes = shortened(event.data.get("left"))
        sentences.append(f"{event.node}: processes {processes} could not be ended")
    if all_finished(timeline):
        for event in timeline.of("lost"):
            sentence = f"{event.node} fell silent after its ranks had finished"
            sentences.append(sentence)
    return "; ".join(filter(None, sentences))


def _outcome(timeline: Timeline, stages: Sequence[Stage], faults: Sequence[Culprit]) -> str:
    if all_finished(timeline):
        return _outcome_of_finished(timeline)
    last = stages[-1]
    count = f"{len(last.arrived)} of {timeline.plan.world_size}"
    outcome = f"{stopped_at(timeline)} did not finish: {count} ranks had arrived"
    if last.missing:
        nodes = fold(timeline.rank(rank).node for rank in last.missing)
        ranks = fold_numbers(last.missing)
        outcome += f", rank {ranks} on {nodes} had not"
    if not faults:
        outcome += "; no evidence names a culprit"
    return outcome


def _outcome_of_finished(timeline: Timeline) -> str:
    wrong = wrong_ranks(timeline)
    if wrong:
        return f"wrong results on ranks {fold_numbers(wrong)}"
    sentences = [left_out_words(timeline), *scaled_down_steps(timeline), _shared_gpus(timeline)]
    return "; ".join(filter(None, sentences))


def _shared_gpus(timeline: Timeline) -> str:
    """Return a sentence on how the trial differed from a job if nodes share a GPU, else ""."""
    plan = timeline.plan
    if plan.most_sharing < 2:
        return ""
    settings: set[str] = set()
    for rank in plan.ranks:
        settings.update(f"{name}={rank.env[name]}" for name in SHARED_GPU_SETTINGS)
    shared = f"{plan.most_sharing} nodes share one GPU"
    return f"{shared}: their ranks took turns on it, with {', '.join(sorted(settings))}"


# ---------------------------------------------------------------- findings


def findings(result: VerifyResult, yard: Yardsticks | None = None) -> tuple[Finding, ...]:
    """Return what a judged trial says about torch.version, net.ports and the checks of `pages`.

    A check that the trial did not get to is unknown, and as severe as its failure would be. Without
    yardsticks a speed is judged by the declared minimum alone.
    """
    timeline = result.timeline if isinstance(result, Judged) else None
    if timeline is None:
        raise TypeError("only a result of judge() has findings")
    faults = find_faults(timeline)
    rows = list(_fault_findings(timeline, faults))
    rows += _hang(timeline, faults)
    rows += correctness_findings(timeline, faults)
    rows += _speed(timeline, yard)
    rows += init_time_findings(timeline)
    rows += straggler_findings(timeline)
    rows += consistency_findings(timeline)
    rows += transport_findings(timeline)
    return tuple(rows)


def with_speed(
    found: Iterable[Finding], result: VerifyResult, yard: Yardsticks
) -> tuple[Finding, ...]:
    """Return findings of `result` in which the speed is judged anew, by these yardsticks."""
    if not isinstance(result, Judged) or result.timeline is None:
        raise TypeError("only a result of judge() has findings")
    rows: list[Finding] = []
    for finding in found:
        if finding.check == SPEED:
            rows += _speed(result.timeline, yard)
        else:
            rows.append(finding)
    return tuple(rows)


def _fault_findings(timeline: Timeline, faults: Sequence[Fault]) -> Iterable[Finding]:
    """Return one failure for all nodes with the same fault.

    If no node has torch, the nodes are equal and the verdict is unknown.
    """
    groups: dict[tuple[str, str, Remedy], list[Fault]] = {}
    for fault in faults:
        key = (fault.check, fault.seen, fault.remedy)
        groups.setdefault(key, []).append(fault)
    no_torch_anywhere = _verdict(timeline) == "unknown"
    for (check, seen, remedy), same in groups.items():
        verdict: Verdict = "fail"
        message = _sentence(same)
        reason = None
        if no_torch_anywhere and check == "torch.version":
            verdict = "unknown"
            message = seen
            reason = "missing_tool"
        yield Finding(
            check=check,
            verdict=verdict,
            severity="error",
            nodes=timeline.sorted_nodes(_nodes_of(same)),
            message=message,
            seen=seen,
            wanted=WANTED[check],
            remedy=remedy,
            reason=reason,
        )


def _nodes_of(faults: Iterable[Fault]) -> list[str]:
    nodes: list[str] = []
    for fault in faults:
        nodes.extend(fault.nodes)
    return nodes


def _sentence(same: Sequence[Fault]) -> str:
    where = fold(_nodes_of(same))
    ranks = [str(fault.rank) for fault in same if fault.rank is not None]
    if ranks:
        where = f"rank {fold(ranks)} on {where}"
    return f"{where}: {same[0].cause}"


def _hang(timeline: Timeline, faults: Sequence[Fault]) -> Iterable[Finding]:
    """Pass if all ranks finished, fail for a hang without a culprit.

    Culprits are reported by `_fault_findings`.
    """
    check = "nccl.hang"
    nodes = timeline.node_names()
    wanted = WANTED[check]
    blamed_checks = {fault.check for fault in faults}
    if all_finished(timeline):
        message = f"all {timeline.plan.world_size} ranks finished"
        yield Finding(
            check=check,
            verdict="pass",
            severity="error",
            nodes=nodes,
            message=message,
            seen="all finished",
            wanted=wanted,
        )
    elif not blamed_checks.isdisjoint(("torch.version", "net.ports")):
        yield _not_reached(check, nodes, "the trial could not begin")
    elif check not in blamed_checks:
        stages = judge_stages(timeline)
        missing = timeline.nodes_of(stages[-1].missing)
        seen = f"{stopped_at(timeline)} did not finish"
        message = _message(timeline, stages, ())
        yield Finding(
            check=check,
            verdict="fail",
            severity="error",
            nodes=missing or nodes,
            message=message,
            seen=seen,
            wanted=wanted,
            remedy=UNPROVEN,
        )


def _speed(timeline: Timeline, yard: Yardsticks | None) -> Iterable[Finding]:
    """Judge the largest size, as small messages measure latency."""
    least = timeline.plan.min_busbw
    if least is None and yard is None:
        return
    nodes = timeline.node_names()
    row = largest(bandwidth_sweep(timeline))
    if all_finished(timeline) and row is not None:
        yardsticks = replace(yard or Yardsticks(), declared=least)
        yield speed_finding(row, nodes, timeline.plan.backend, yardsticks)
    elif least is not None:
        yield _not_reached("nccl.busbw_multi", nodes, "not all collectives finished")


def _not_reached(check: str, nodes: tuple[str, ...], reason: str) -> Finding:
    """Return the finding of a check for which the trial did not come far enough."""
    message = f"not known: {reason}"
    wanted = WANTED[check]
    return Finding(
        check=check,
        verdict="unknown",
        severity="error",
        nodes=nodes,
        message=message,
        wanted=wanted,
        reason=reason,
    )
