"""`launch --spares K`: the nodes of the job, where K nodes more than are needed were looked at."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Survey, survey_ports
from clusterprep.errors import InputError
from clusterprep.jobs.launch.stage import describe_gates
from clusterprep.model import Finding, Fleet
from clusterprep.model.nodeset import fold
from clusterprep.model.units import pluralize
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import blocking_findings
from clusterprep.survey.node_lists import limited_fleet, stand_in
from clusterprep.survey.queries import QueryPlan


class Cast(Struct, frozen=True):
    """The nodes of a job and what prevents its start. `surveyed` has all nodes looked at."""

    surveyed: Survey
    fleet: Fleet
    gates: tuple[Finding, ...]


def needed(invocation: Invocation) -> int:
    """Return how many nodes the job has. Raises InputError if --spares leaves none."""
    spares = invocation.settings.spares
    nodes = len(invocation.inventory.nodes)
    if spares >= nodes:
        message = f"of {pluralize(nodes, 'node')} none is left for the job"
        raise InputError.of(message, key="--spares")
    return nodes - spares


def choose_cast(
    invocation: Invocation,
    fanout: Fanout,
    query_plan: QueryPlan,
    surveyed: Survey,
    on_busy: bool,
) -> Cast:
    """Return the first nodes without trouble, as many as are needed.

    If too few have none, the fleet is whole and the gates are the trouble. If the first node is
    another one than before, ranks meet at a port that was not tried, so that is done now.
    """
    number = needed(invocation)
    findings = surveyed.findings
    # The port of the rendezvous was tried on the first node that was reached.
    tried = "".join(node.name for node in surveyed.fleet.reached[:1])
    while True:
        trouble = _trouble(findings, on_busy)
        busy = {name for finding in trouble for name in finding.nodes}
        chosen, bad = stand_in(surveyed.fleet, findings, busy, number)
        if len(chosen) < number:
            have = pluralize(len(chosen), "node")
            invocation.notices.append(f"the job needs {number} and {have} can be used")
            return Cast(Survey(surveyed.fleet, findings), surveyed.fleet, trouble)
        fleet = limited_fleet(surveyed.fleet, chosen)
        if chosen[0] == tried or "pairs" not in query_plan.stages:
            _note(invocation, chosen, bad, trouble)
            return Cast(Survey(surveyed.fleet, findings), fleet, ())
        tried = chosen[0]
        findings = (*findings, *survey_ports(invocation, fanout, query_plan, fleet))


def _trouble(findings: Iterable[Finding], on_busy: bool) -> tuple[Finding, ...]:
    """Return the findings for which a node is left out: errors, and what blocks a launch."""
    blocking = blocking_findings(findings, on_busy)
    trouble = []
    for finding in findings:
        is_bad = finding.verdict in ("fail", "unknown") and not finding.fixed
        is_error = finding.severity == "error" and not finding.silenced
        if is_bad and (is_error or finding in blocking):
            trouble.append(finding)
    return tuple(trouble)


def _note(
    invocation: Invocation,
    chosen: tuple[str, ...],
    bad: tuple[str, ...],
    trouble: tuple[Finding, ...],
) -> None:
    """Note who runs the job, who is left out and why, and which spares are not used."""
    invocation.notices.append(f"the job runs on {fold(chosen)}")
    if bad:
        invocation.notices.append(f"left out: {fold(bad)}: {describe_gates(trouble)}")
    unused = []
    for node in invocation.inventory.nodes:
        if node.name not in chosen and node.name not in bad:
            unused.append(node.name)
    if unused:
        invocation.notices.append(f"not needed: {fold(unused)}")
