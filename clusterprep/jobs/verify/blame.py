"""Measurements to verdict: the result of a trial for the report, and what it means for the checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from clusterprep.jobs.verify.beginning import beginning
from clusterprep.jobs.verify.consistency import consistency
from clusterprep.jobs.verify.culprits import Fault, faults, wrong_ranks
from clusterprep.jobs.verify.exact import EXACT, exact, left_out
from clusterprep.jobs.verify.schedule import SPARING
from clusterprep.jobs.verify.speed import Yardsticks, largest, speed
from clusterprep.jobs.verify.stages import stages, stopped_at
from clusterprep.jobs.verify.straggler import straggler
from clusterprep.jobs.verify.tally import collectives, finished, rank_rows, scaled, sweep
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.jobs.verify.wiring import transport
from clusterprep.model import Culprit, Finding, Stage, Verdict, VerifyResult
from clusterprep.model.nodeset import fold
from clusterprep.remote import untrusted as strangers
from clusterprep.runtime.lazy_dataclass import dataclass

WANTED = {
    "nccl.hang": "every rank finishes",
    "nccl.correct": EXACT,
    "nccl.broadcast": EXACT,
    "nccl.allgather": EXACT,
    "nccl.busbw_multi": "the declared min_busbw",
    "torch.version": "the job's torch",
    "net.ports": "a free port",
}
UNPROVEN = "run clusterprep check for these nodes: firewalls, interfaces, names"


@dataclass(frozen=True)
class Judged(VerifyResult):
    """A result that has kept what it was judged from, because findings need more of it than the report shows."""

    timeline: Timeline | None = None


def judge(timeline: Timeline) -> Judged:
    """Stages, speeds, ranks and culprits of a trial that is over. Pure."""
    plan, found = timeline.plan, faults(timeline)
    return Judged(
        verdict=_verdict(timeline),
        backend=plan.backend,
        world_size=plan.world_size,
        nproc_per_node=plan.nproc_per_node,
        rendezvous=plan.rendezvous,
        stages=(rows := stages(timeline)),
        collectives=collectives(timeline),
        ranks=rank_rows(timeline),
        culprits=found,
        message=_message(timeline, rows, found),
        timeline=timeline,
    )


def _verdict(timeline: Timeline) -> Verdict:
    if finished(timeline):
        return "fail" if wrong_ranks(timeline) or _too_slow(timeline) else "pass"
    bare = {event.node for event in timeline.of("no_torch")}
    return "unknown" if bare == {node.name for node in timeline.plan.nodes} else "fail"


def _too_slow(timeline: Timeline) -> bool:
    row, least = largest(sweep(timeline)), timeline.plan.min_busbw
    return row is not None and least is not None and row.busbw_gbs < least


def _message(timeline: Timeline, rows: Sequence[Stage], found: Sequence[Culprit]) -> str:
    words = _outcome(timeline, rows, found)
    left = [
        f"{event.node}: processes {strangers.shortened(event.data.get('left'))} could not be ended"
        for event in timeline.of("left_over")
    ]
    if finished(timeline):
        left += [
            f"{event.node} fell silent after its ranks had finished"
            for event in timeline.of("lost")
        ]
    return "; ".join(filter(None, [words, *left]))


def _outcome(timeline: Timeline, rows: Sequence[Stage], found: Sequence[Culprit]) -> str:
    if finished(timeline):
        wrong = wrong_ranks(timeline)
        smaller = "; ".join(
            filter(None, [left_out(timeline), *scaled(timeline), _crowded(timeline)])
        )
        return f"wrong results on ranks {fold(map(str, wrong))}" if wrong else smaller
    last = rows[-1]
    many = f"{len(last.arrived)} of {timeline.plan.world_size}"
    words = f"{stopped_at(timeline)} did not finish: {many} ranks had arrived"
    if last.missing:
        nodes = fold(timeline.rank(rank).node for rank in last.missing)
        words += f", rank {fold(map(str, last.missing))} on {nodes} had not"
    return words if found else f"{words}; nothing that was seen proves who is to blame"


def _crowded(timeline: Timeline) -> str:
    """What was otherwise than in a job, where nodes share a GPU."""
    plan = timeline.plan
    if plan.most_sharing < 2:
        return ""
    limits = sorted({f"{name}={rank.env[name]}" for rank in plan.ranks for name in SPARING})
    return f"{plan.most_sharing} nodes share one GPU: their ranks took turns on it, with {', '.join(limits)}"


# ---------------------------------------------------------------- findings


def findings(result: VerifyResult, yard: Yardsticks | None = None) -> tuple[Finding, ...]:
    """What a judged trial says about torch.version, net.ports and the checks of `pages`.

    A check that the trial did not get to is unknown, and as severe as its failure would be. Without yardsticks a speed
    is judged by the declared minimum alone.
    """
    timeline = result.timeline if isinstance(result, Judged) else None
    if timeline is None:
        raise TypeError("only a result of judge() has findings")
    found = faults(timeline)
    rows = [
        *_blamed(timeline, found),
        *_hang(timeline, found),
        *exact(timeline, found),
        *_speed(timeline, yard),
    ]
    return (
        *rows,
        *beginning(timeline),
        *straggler(timeline),
        *consistency(timeline),
        *transport(timeline),
    )


def _nodes(timeline: Timeline, ranks: Iterable[int] | None = None) -> tuple[str, ...]:
    """Nodes of some ranks, or all of them, in inventory order."""
    wanted = None if ranks is None else {timeline.rank(rank).node for rank in ranks}
    return tuple(node.name for node in timeline.plan.nodes if wanted is None or node.name in wanted)


def _blamed(timeline: Timeline, found: Sequence[Fault]) -> Iterable[Finding]:
    """One failure for all nodes with the same fault; where no node has torch, nobody is the odd one out."""
    groups: dict[tuple[str, str, str], list[Fault]] = {}
    for fault in found:
        groups.setdefault((fault.check, fault.seen, fault.remedy), []).append(fault)
    nowhere = _verdict(timeline) == "unknown"
    for (check, seen, remedy), same in groups.items():
        names = {name for fault in same for name in fault.nodes}
        nodes = tuple(name for name in _nodes(timeline) if name in names)
        if nowhere and check == "torch.version":
            yield Finding(
                check, "unknown", "error", nodes, seen, seen, WANTED[check], remedy, "missing_tool"
            )
        else:
            yield Finding(
                check, "fail", "error", nodes, _sentence(same), seen, WANTED[check], remedy
            )


def _sentence(same: Sequence[Fault]) -> str:
    ranks = [str(fault.rank) for fault in same if fault.rank is not None]
    who = f"rank {fold(ranks)} on " if ranks else ""
    return f"{who}{fold(name for fault in same for name in fault.nodes)}: {same[0].cause}"


def _hang(timeline: Timeline, found: Sequence[Fault]) -> Iterable[Finding]:
    """Passed by ranks that all finished; a hang that nobody can be blamed for is a failure of all of them."""
    check, nodes = "nccl.hang", _nodes(timeline)
    if finished(timeline):
        message = f"all {timeline.plan.world_size} ranks finished"
        yield Finding(check, "pass", "error", nodes, message, "all finished", WANTED[check])
    elif any(fault.check in ("torch.version", "net.ports") for fault in found):
        yield _not_reached(check, nodes, "the trial could not begin")
    elif not any(fault.check == check for fault in found):
        rows = stages(timeline)
        nodes = _nodes(timeline, rows[-1].missing) or nodes
        seen = f"{stopped_at(timeline)} did not finish"
        yield Finding(
            check,
            "fail",
            "error",
            nodes,
            _message(timeline, rows, ()),
            seen,
            WANTED[check],
            UNPROVEN,
        )


def _speed(timeline: Timeline, yard: Yardsticks | None) -> Iterable[Finding]:
    """Of the largest size, as small messages measure latency."""
    check, least, nodes = "nccl.busbw_multi", timeline.plan.min_busbw, _nodes(timeline)
    if least is None and yard is None:
        return
    row = largest(sweep(timeline))
    if finished(timeline) and row is not None:
        yield speed(
            row, nodes, timeline.plan.backend, replace(yard or Yardsticks(), declared=least)
        )
    elif least is not None:
        yield _not_reached(check, nodes, "not all collectives finished")


def _not_reached(check: str, nodes: tuple[str, ...], reason: str) -> Finding:
    return Finding(
        check, "unknown", "error", nodes, f"not known: {reason}", "", WANTED[check], reason=reason
    )
