"""Runs the stages of `clusterprep diagnose --live`: ask all nodes, make jobs, judge each.

    found = diagnose(fanout)

Nothing is written and nothing stays: nodes are read twice by one agent that ends with the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis
from clusterprep.jobs.live.connections import connections_of
from clusterprep.jobs.live.grouping import jobs_of
from clusterprep.jobs.live.judge import judge
from clusterprep.jobs.live.look import RANKS
from clusterprep.jobs.live.model import Answers, JobRow, LiveDiagnosis, NodeLook, State
from clusterprep.model import Absent, Fleet
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import QueryPlan


def diagnose(fanout: Fanout) -> LiveDiagnosis:
    """Look at all nodes and return what is known of the jobs that run there."""
    plan = QueryPlan(checks=(), facts=(RANKS,))
    return explain(fanout.survey(plan, last=True))


def explain(fleet: Fleet) -> LiveDiagnosis:
    """Return what is known of the jobs of a fleet that was looked at."""
    said = answers_of(fleet)
    notices = [
        f"{name} gave no answer ({why}), so its ranks are not known"
        for name, why in said.lost.items()
    ]
    return explain_looks(said.looks, said.addresses, tuple(said.lost), notices)


def ask(fanout: Fanout, fleet: Fleet) -> Fleet:
    """Look at the jobs of the nodes that were just reached; the fleet has no other facts of them.

    Nodes keep their connections.
    """
    names = {node.name for node in fleet.reached}
    if not names:
        return fleet
    asked = fanout.survey(QueryPlan(checks=(), facts=(RANKS,)), names=names)
    return Fleet(fleet.inventory, {**fleet.snapshots, **asked.snapshots})


def answers_of(fleet: Fleet) -> Answers:
    """Return what the nodes of a fleet told of their jobs."""
    looks: dict[str, NodeLook] = {}
    lost: dict[str, str] = {}
    for node in fleet.inventory.nodes:
        snapshot = fleet.snapshots[node.name]
        look = fleet.fact(node.name, RANKS.name) if snapshot.reached else None
        if isinstance(look, NodeLook):
            looks[node.name] = look
        elif isinstance(look, Absent):
            lost[node.name] = f"{look.reason}: {look.detail}"
        else:
            lost[node.name] = f"{snapshot.reason}: {snapshot.detail}"
    addresses = {node.address: node.name for node in fleet.inventory.nodes}
    return Answers(looks, lost, addresses)


def explain_looks(
    looks: Mapping[str, NodeLook],
    addresses: Mapping[str, str],
    lost: Sequence[str] = (),
    notices: Iterable[str] = (),
) -> LiveDiagnosis:
    """Return what is known of the jobs by the looks of nodes.

    `addresses`: the node of each address; `lost`: the nodes that gave no answer.
    """
    found = connections_of(looks, addresses)
    jobs, alone = jobs_of(looks, found)
    sentences = [*notices, *_gaps(looks, alone)]
    causes: list[DiagnosedCause] = []
    rows: list[JobRow] = []
    for job in jobs:
        verdict = judge(job, looks, found, lost)
        rows.append(verdict.job)
        causes += verdict.causes
        sentences += verdict.notices
    if not jobs:
        nodes = ", ".join(looks) or "any node"
        sentences.append(f"no job of several ranks was found on {nodes}")
    causes.sort(key=lambda cause: -cause.confidence)
    processes = {name: len(look.processes) for name, look in looks.items()}
    diagnosis = Diagnosis(tuple(causes), (), tuple(sentences), processes)
    return LiveDiagnosis(_state(rows), tuple(rows), diagnosis)


def _state(rows: list[JobRow]) -> State:
    """Return the gravest of the states: stuck, then unknown; without any job it is unknown."""
    states = {row.state for row in rows}
    if "stuck" in states:
        return "stuck"
    return "moving" if states == {"moving"} else "unknown"


def _gaps(looks: Mapping[str, NodeLook], alone: int) -> list[str]:
    """Return sentences about what the login may not see, and about what was left out."""
    notices: list[str] = []
    for node, look in looks.items():
        if look.hidden:
            count = _processes(look.hidden, "Python process")
            notices.append(f"{node}: {count} of other users may not be looked at; -b asks as root")
        if look.more:
            notices.append(f"{node}: {look.more} more ranks were left out")
        if look.cut:
            notices.append(f"{node}: of its sockets some were left out")
    if alone:
        verb = "belongs" if alone == 1 else "belong"
        count = _processes(alone, "process")
        notices.append(f"{count} with torch or NCCL {verb} to no job of several ranks")
    return notices


def _processes(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}es"
