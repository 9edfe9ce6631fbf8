"""From the rounds of an acceptance to findings and culprits, each with its time. Pure.

A link, a rank or the whole fleet that became slower is a failure of the check that judges it in a
single trial too: net.tcp_bw, nccl.straggler, nccl.busbw_multi.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.acceptance.drift import Slowdown, slowdowns
from clusterprep.jobs.acceptance.model import Direction, Rounds
from clusterprep.jobs.verify import blame, straggler
from clusterprep.jobs.verify.link_verdicts import NAME as LINKS
from clusterprep.jobs.verify.pages import REMEDY_OF_LINKS
from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.jobs.verify.speed import NAME as SPEED
from clusterprep.jobs.verify.tally import SWEEP
from clusterprep.model import Culprit, Finding
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_size, pluralize
from clusterprep.remedies import shell_line

SILENT = "nccl.hang"
NODE_CONFIDENCE, LINK_CONFIDENCE = 0.95, 0.9
STEADY = "no link, no rank and no collective becomes slower and stays so"
UNFINISHED = "not finished"
REMEDY_OF_UNFINISHED = shell_line(
    "clusterprep verify INVENTORY --for 30m   # to the end, without --timeout or with a longer one"
)
REMEDY_OF_SPEED = shell_line(
    "clusterprep check INVENTORY   # clocks, temperature and counters, now that the load was on"
)
REMEDY_OF_SILENCE = shell_line(
    "journalctl -b -1 -n 50   # on the nodes named: did they reboot, or lose the network?"
)


class Judgement(Struct, frozen=True):
    """What an acceptance found, and the culprits that follow from it."""

    findings: tuple[Finding, ...]
    culprits: tuple[Culprit, ...]


def judge_rounds(rounds: Rounds, plan: TrialPlan) -> Judgement:
    """Return what became worse while the rounds were run, or one pass if nothing did.

    Links that were not measured in every round are unknown, and so is all that comes after rounds
    that were stopped before their time. Nothing passes then.
    """
    nodes = tuple(node.name for node in plan.nodes)
    if not rounds.ended_well:
        return _of_broken(rounds)
    unknown = (*_unmeasured(rounds, nodes), *_unfinished(rounds, nodes))
    links = _link_findings(rounds, nodes)
    ranks = _rank_findings(rounds, plan)
    found = (*links, *ranks)
    if not found:
        found = tuple(_fleet_findings(rounds, nodes, plan.backend))
    if not found and not unknown:
        found = (_steady(rounds, nodes),)
    return Judgement((*found, *unknown), tuple(map(_culprit, (*links, *ranks))))


def clock(seconds: float) -> str:
    """Return minutes and seconds, such as 1:05; from an hour on 1:00:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


# ---------------------------------------------------------------- rounds that did not end well


def _of_broken(rounds: Rounds) -> Judgement:
    number = rounds.count + 1
    when = f"in round {number}, {clock(rounds.broken_at)} after the first began"
    if rounds.broken is None:
        finding = Finding(
            check=SILENT,
            verdict="fail",
            severity="error",
            nodes=rounds.lost,
            message=f"{fold(rounds.lost)} fell silent {when}",
            seen="no answer",
            wanted=blame.WANTED[SILENT],
            remedy=REMEDY_OF_SILENCE,
        )
        return Judgement((finding,), (_culprit(finding),))
    trial = blame.judge(rounds.broken)
    found: list[Finding] = []
    for finding in blame.findings(trial):
        if finding.verdict == "fail":
            found.append(replace(finding, message=f"{when}: {finding.message}"))
    culprits = [replace(one, cause=f"{when}: {one.cause}") for one in trial.culprits]
    return Judgement(tuple(found), tuple(culprits))


def _unfinished(rounds: Rounds, nodes: tuple[str, ...]) -> list[Finding]:
    """Return that the rest of the time is unknown; nothing if rounds were run to its end."""
    if not rounds.stopped_by:
        return []
    ran = f"{pluralize(rounds.count, 'round')}, {clock(rounds.seconds)}"
    return [unfinished(nodes, f"{rounds.stopped_by} after {ran}", ran)]


def unfinished(nodes: tuple[str, ...], ended: str, ran: str) -> Finding:
    """Return that the rest of an acceptance is unknown; `ended` says by what and when it was."""
    return Finding(
        check=SPEED,
        verdict="unknown",
        severity="error",
        nodes=nodes,
        message=f"not finished: {ended}; what comes later is not known",
        seen=ran,
        wanted=STEADY,
        remedy=REMEDY_OF_UNFINISHED,
        reason=UNFINISHED,
    )


def _steady(rounds: Rounds, nodes: tuple[str, ...]) -> Finding:
    return Finding(
        check=SPEED,
        verdict="pass",
        severity="error",
        nodes=nodes,
        message=f"nothing became slower in {rounds.count} rounds, {clock(rounds.seconds)}",
        seen=f"{rounds.count} rounds",
        wanted=STEADY,
    )


# ---------------------------------------------------------------- links


def _link_findings(rounds: Rounds, nodes: Sequence[str]) -> list[Finding]:
    """Return a failure for each node whose links became slow, and for each link beside these."""
    costs = _costs_of_links(rounds)
    slow = slowdowns(costs, _seconds(rounds))
    partners = Counter(source for source, _ in costs)
    found: list[Finding] = []
    remaining = dict(slow)
    while remaining:
        node = _node_at_fault(remaining, partners)
        if node is None:
            break
        at_node = {ends: one for ends, one in remaining.items() if node in ends}
        others = len({end for ends in at_node for end in ends}) - 1
        found.append(_link_finding(rounds, (node,), at_node, f"its links with {others} nodes"))
        remaining = {ends: one for ends, one in remaining.items() if node not in ends}
    by_link: dict[frozenset[str], dict[Direction, Slowdown]] = {}
    for ends, one in remaining.items():
        by_link.setdefault(frozenset(ends), {})[ends] = one
    for link, directions in by_link.items():
        names = tuple(sorted(link, key=nodes.index))
        found.append(_link_finding(rounds, names, directions, _arrows(directions)))
    return found


def _unmeasured(rounds: Rounds, nodes: Sequence[str]) -> list[Finding]:
    """Return that the links of some nodes are unknown; nothing if every round measured all."""
    names: set[str] = set()
    for place, ends in enumerate(rounds.directions):
        if any(math.isnan(one.links[place]) for one in rounds.rounds):
            names.update(ends)
    if not names:
        return []
    unknown = tuple(name for name in nodes if name in names)
    return [
        Finding(
            check=LINKS,
            verdict="unknown",
            severity="error",
            nodes=unknown,
            message=f"{fold(unknown)}: some links were not measured in every round",
            wanted=STEADY,
            remedy=REMEDY_OF_LINKS,
            reason="not measured",
        )
    ]


def _costs_of_links(rounds: Rounds) -> dict[Direction, list[float]]:
    """Return seconds per byte, round by round, of the directions that every round measured."""
    costs: dict[Direction, list[float]] = {}
    for place, ends in enumerate(rounds.directions):
        speeds = [one.links[place] for one in rounds.rounds]
        if not any(map(math.isnan, speeds)):
            costs[ends] = [1 / max(speed, 1.0) for speed in speeds]
    return costs


def _node_at_fault(slow: Mapping[Direction, Slowdown], partners: Mapping[str, int]) -> str | None:
    """Return the node with most slow links, if they are two at least and half of its links."""
    links = {frozenset(ends) for ends in slow}
    counts = Counter(name for link in links for name in link)
    guilty = [(count, name) for name, count in counts.items() if count >= 2]
    guilty = [(count, name) for count, name in guilty if 2 * count >= partners[name]]
    return max(guilty)[1] if guilty else None


def _link_finding(
    rounds: Rounds, names: tuple[str, ...], slow: Mapping[Direction, Slowdown], what: str
) -> Finding:
    together = _together(slow.values())
    seen = f"{_rate(1 / together.before)} at first, then {_rate(1 / together.after)}"
    when = _when(rounds, together)
    subject = f"{names[0]}: {what}" if len(names) == 1 else what
    return Finding(
        check=LINKS,
        verdict="fail",
        severity="error",
        nodes=names,
        message=f"{subject} became slow {when}: {seen}",
        seen=seen,
        wanted=STEADY,
        remedy=REMEDY_OF_LINKS,
    )


def _arrows(directions: Iterable[Direction]) -> str:
    return ", ".join(f"{source} → {target}" for source, target in sorted(directions))


def _rate(speed: float) -> str:
    bits = speed * 8
    if bits >= 1e9:
        return f"{bits / 1e9:.3g} Gbit/s"
    return f"{bits / 1e6:.3g} Mbit/s"


def _seconds(rounds: Rounds) -> list[float]:
    """Return how long each round took until the next one that was kept."""
    moments = [one.at for one in rounds.rounds]
    if moments:  # else the first round was stopped
        moments.append(rounds.seconds)
    return [end - begin for begin, end in itertools.pairwise(moments)]


def _together(slow: Collection[Slowdown]) -> Slowdown:
    """Return several slowdowns as one: from the first to the last round, the worst speeds."""
    worst = max(slow, key=lambda one: one.after / one.before)
    first = min(one.first for one in slow)
    last = max(one.last for one in slow)
    return Slowdown(first, last, worst.before, worst.after)


def _when(rounds: Rounds, slow: Slowdown) -> str:
    since = clock(rounds.rounds[slow.first].at)
    if slow.last == len(rounds.rounds) - 1:
        return f"from {since} on"
    return f"from {since} to {clock(rounds.rounds[slow.last + 1].at)}"


# ---------------------------------------------------------------- ranks


def _rank_findings(rounds: Rounds, plan: TrialPlan) -> list[Finding]:
    """Return a failure for the ranks of each node that take longer than at first."""
    slow_by_node: dict[str, dict[int, Slowdown]] = {}
    for number, slow in slowdowns(_own_times(rounds, plan), _seconds(rounds)).items():
        node = plan.ranks[number].node
        slow_by_node.setdefault(node, {})[number] = slow
    found: list[Finding] = []
    for node, slow_ranks in slow_by_node.items():
        found.append(_rank_finding(rounds, node, slow_ranks))
    return found


def _own_times(rounds: Rounds, plan: TrialPlan) -> dict[int, list[float]]:
    """Return the seconds of each rank round by round, of the ranks that every round has."""
    series: dict[int, list[float]] = {}
    for planned in plan.ranks:
        rank = planned.rank
        values = [one.own[rank] for one in rounds.rounds if rank in one.own]
        if len(values) == len(rounds.rounds):
            series[rank] = values
    return series


def _rank_finding(rounds: Rounds, node: str, slow: Mapping[int, Slowdown]) -> Finding:
    together = _together(slow.values())
    seen = f"{_milliseconds(together.before)} at first, then {_milliseconds(together.after)}"
    when = _when(rounds, together)
    ranks = fold(map(str, sorted(slow)))
    return Finding(
        check=straggler.NAME,
        verdict="fail",
        severity="error",
        nodes=(node,),
        message=f"rank {ranks} on {node} takes longer between collectives {when}: {seen}",
        seen=seen,
        wanted=STEADY,
        remedy=straggler.REMEDY,
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


# ---------------------------------------------------------------- the fleet


def _fleet_findings(rounds: Rounds, nodes: tuple[str, ...], backend: str) -> Iterable[Finding]:
    """Yield a warning for each size of the all-reduce that became slower, with no culprit."""
    series: dict[int, list[float]] = {}
    for one in rounds.rounds:
        for row in one.collectives:
            if (row.op, row.dtype) == SWEEP:
                series.setdefault(row.bytes, []).append(row.seconds)
    complete = {size: row for size, row in series.items() if len(row) == len(rounds.rounds)}
    if not complete:
        return
    size = max(complete)
    for slow in slowdowns({size: complete[size]}, _seconds(rounds)).values():
        seen = f"{slow.before:.3g} s at first, then {slow.after:.3g} s"
        when = _when(rounds, slow)
        yield Finding(
            check=SPEED,
            verdict="fail",
            # The processors that gloo uses have other work too, so it proves less.
            severity="error" if backend == "nccl" else "warning",
            nodes=nodes,
            message=f"the all-reduce of {format_size(size)} became slow {when}: {seen}",
            seen=seen,
            wanted=STEADY,
            remedy=REMEDY_OF_SPEED,
        )


# ---------------------------------------------------------------- culprits


def _culprit(finding: Finding) -> Culprit:
    is_link = len(finding.nodes) == 2 and finding.check == LINKS
    return Culprit(
        kind="link" if is_link else "node",
        nodes=finding.nodes,
        confidence=LINK_CONFIDENCE if is_link else NODE_CONFIDENCE,
        cause=finding.message,
        evidence=(f"{finding.check}: {finding.seen}",),
    )
