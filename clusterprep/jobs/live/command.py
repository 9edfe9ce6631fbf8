"""Runs the stages of `clusterprep diagnose --live`: ask all nodes, make jobs, judge each.

    found = diagnose(invocation.fanout, inventory)

Nothing is written and nothing stays: nodes are read twice by one agent that ends with the command.
"""

from __future__ import annotations

from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis
from clusterprep.jobs.live.connections import connections_of
from clusterprep.jobs.live.grouping import jobs_of
from clusterprep.jobs.live.judge import judge
from clusterprep.jobs.live.look import RANKS
from clusterprep.jobs.live.model import JobRow, LiveDiagnosis, NodeLook, State
from clusterprep.model import Absent, Fleet
from clusterprep.model.units import pluralize
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import QueryPlan


def diagnose(fanout: Fanout) -> LiveDiagnosis:
    """Look at all nodes and return what is known of the jobs that run there."""
    plan = QueryPlan(checks=(), facts=(RANKS,))
    return explain(fanout.survey(plan, last=True))


def explain(fleet: Fleet) -> LiveDiagnosis:
    """Return what is known of the jobs of a fleet that was looked at."""
    looks: dict[str, NodeLook] = {}
    notices: list[str] = []
    lost: list[str] = []
    for node in fleet.inventory.nodes:
        snapshot = fleet.snapshots[node.name]
        look = fleet.fact(node.name, RANKS.name) if snapshot.reached else None
        if isinstance(look, NodeLook):
            looks[node.name] = look
            continue
        lost.append(node.name)
        why = f"{snapshot.reason}: {snapshot.detail}"
        if isinstance(look, Absent):
            why = f"{look.reason}: {look.detail}"
        notices.append(f"{node.name} gave no answer ({why}), so its ranks are not known")
    addresses = {node.address: node.name for node in fleet.inventory.nodes}
    found = connections_of(looks, addresses)
    jobs, alone = jobs_of(looks, found)
    notices += _gaps(looks, alone)
    causes: list[DiagnosedCause] = []
    rows: list[JobRow] = []
    for job in jobs:
        verdict = judge(job, looks, found, lost)
        rows.append(verdict.job)
        causes += verdict.causes
        notices += verdict.notices
    if not jobs:
        notices.append(f"no job of several ranks was found on {', '.join(looks) or 'any node'}")
    causes.sort(key=lambda cause: -cause.confidence)
    files = {look_node: len(look.processes) for look_node, look in looks.items()}
    diagnosis = Diagnosis(tuple(causes), (), tuple(notices), files)
    return LiveDiagnosis(_state(rows), tuple(rows), diagnosis)


def _state(rows: list[JobRow]) -> State:
    """Return the gravest of the states: stuck, then unknown; without any job it is unknown."""
    states = {row.state for row in rows}
    if "stuck" in states:
        return "stuck"
    return "moving" if states == {"moving"} else "unknown"


def _gaps(looks: dict[str, NodeLook], alone: int) -> list[str]:
    """Return sentences about what the login may not see, and about what was left out."""
    notices: list[str] = []
    for node, look in looks.items():
        if look.hidden:
            count = pluralize(look.hidden, "Python process", "Python processes")
            notices.append(f"{node}: {count} of other users may not be looked at; -b asks as root")
        if look.more:
            notices.append(f"{node}: {look.more} more ranks were left out")
        if look.cut:
            notices.append(f"{node}: of its sockets some were left out")
    if alone:
        count = pluralize(alone, "process", "processes")
        notices.append(f"{count} with torch or NCCL belong to no job of several ranks")
    return notices
