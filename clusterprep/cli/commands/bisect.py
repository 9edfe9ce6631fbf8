"""`clusterprep bisect`: the user's own command is the measurement, and nodes at fault are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import JOURNAL, Survey, plan_survey, survey, trial_checks
from clusterprep.cli.commands.uneven import refuse_uneven
from clusterprep.errors import InputError
from clusterprep.history import state_folder
from clusterprep.jobs.bisection import stage
from clusterprep.jobs.bisection.files import RunFolder, earlier
from clusterprep.jobs.bisection.search import LEAST, Search
from clusterprep.jobs.bisection.stage import Desk, Job, Limits
from clusterprep.jobs.bisection.state import Measurement, resumed
from clusterprep.jobs.launch.plan import LaunchRequest
from clusterprep.jobs.launch.stage import describe_gates
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.model import BisectResult, Report
from clusterprep.nccl.environment import FACTS as ENV_FACTS
from clusterprep.nccl.environment import render
from clusterprep.survey.culprit_findings import with_findings
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import LOGIN_CHECKS, blocking_findings

FOLDER = "bisect"  # in the state folder


class Choice(Struct, frozen=True):
    """What the user chose for the search: limits, the least nodes of a run, the runs to go on."""

    limits: Limits
    least: int | None = None
    resume: str | None = None


def run(
    invocation: Invocation,
    request: LaunchRequest,
    command: Sequence[str],
    choice: Choice,
    say: Callable[[str], None],
) -> Report:
    """Survey, judge, and run the command on some nodes after the others until it is decided."""
    measurement = _measurement(invocation, request, command, choice.least)
    search = Search(measurement.nodes, measurement.least)
    if choice.resume is not None:
        state, file = earlier(state_folder() / FOLDER, choice.resume)
        resumed(search, state, measurement, file)
    with invocation.fanout() as fanout:
        surveyed = _survey(invocation, fanout, request)
        on_busy = invocation.settings.on_busy or not request.preflight
        gates = blocking_findings(surveyed.findings, on_busy)
        if gates:
            message = f"no run was made: {describe_gates(gates)}"
            result = BisectResult("unknown", measurement.command, 0, message=message)
        else:
            desk = Desk(say, RunFolder(state_folder() / FOLDER, invocation.run))
            job = Job(surveyed.fleet, render(surveyed.fleet), request)
            result = stage.bisect(
                fanout,
                job,
                measurement,
                search,
                choice.limits,
                desk,
            )
            if desk.folder.trouble:
                invocation.notices.append(desk.folder.trouble)
    code = exit_codes.bisect_code(result)
    if gates:
        code = exit_codes.worst(exit_codes.findings_code(surveyed.findings), code)
    report = survey_report(invocation, code, surveyed)
    culprits = with_findings(result.culprits, report.findings or (), PAGES)
    result = msgspec.structs.replace(result, culprits=culprits)
    return msgspec.structs.replace(report, bisect=result)


def _measurement(
    invocation: Invocation, request: LaunchRequest, command: Sequence[str], least: int | None
) -> Measurement:
    """Return what is run, and on which nodes. Raises InputError if these are too few."""
    nodes = invocation.inventory.nodes
    if len(nodes) < LEAST:
        raise InputError.of("bisect runs the command on some of the nodes: it needs two at least")
    if least is None:
        # Of two nodes each is run alone as well.
        least = LEAST if len(nodes) > LEAST else 1
    if least >= len(nodes):
        message = f"of {len(nodes)} nodes a run needs {least}: there is nothing to leave out"
        raise InputError.of(message, key="--min-nodes")
    ranks = {}
    for node in nodes:
        if node.nproc_per_node is not None:
            ranks[node.name] = node.nproc_per_node
    return Measurement(
        nodes=tuple(node.name for node in nodes),
        command=tuple(command),
        least=least,
        direct=request.direct,
        variables=tuple(sorted(request.env)),
        folder=request.folder,
        ranks=ranks,
    )


def _survey(invocation: Invocation, fanout: Fanout, request: LaunchRequest) -> Survey:
    """Return what the nodes answer. Raises Refused if their environments differ by a rollout."""
    checks = trial_checks(invocation) if request.preflight else LOGIN_CHECKS
    query_plan = plan_survey(invocation, only=checks, facts=(*ENV_FACTS, JOURNAL))
    surveyed = survey(invocation, fanout, query_plan)
    refuse_uneven(invocation, fanout, surveyed.fleet)
    return surveyed
