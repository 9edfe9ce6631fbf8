"""`clusterprep launch`: starts the user's own command on all nodes, or prints how to start it."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.spares import Cast, choose_cast
from clusterprep.cli.commands.stages import JOURNAL, plan_survey, survey, trial_checks
from clusterprep.cli.commands.uneven import refuse_uneven
from clusterprep.errors import NotKnown
from clusterprep.history.database import Unusable
from clusterprep.jobs.launch import stage
from clusterprep.jobs.launch.plan import LaunchRequest
from clusterprep.jobs.launch.stage import Screen
from clusterprep.jobs.launch.text import text_of, with_remarks
from clusterprep.jobs.launch.unreached import plan_all
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.model import Report
from clusterprep.nccl.environment import FACTS as ENV_FACTS
from clusterprep.nccl.environment import render
from clusterprep.survey.culprit_findings import with_findings
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import LOGIN_CHECKS, blocking_findings

NOTICE_EVERY = timedelta(days=7)
LOOKED_THROUGH = 100  # runs
PRINT_CHECKS = (*LOGIN_CHECKS, "eth.iface_choice")


def run(invocation: Invocation, request: LaunchRequest, screen: Screen) -> Report:
    """Survey, judge, and run the command unless a finding says that it could only hang."""
    if not _has_launched_lately(invocation):
        screen.say(stage.INTERACTIVE_NOTICE)
    checks = trial_checks(invocation) if request.preflight else LOGIN_CHECKS
    on_busy = invocation.settings.on_busy or not request.preflight
    with invocation.fanout() as fanout:
        cast = _cast(invocation, fanout, checks, on_busy)
        fleet = cast.fleet
        environment = render(fleet)
        result, notices = stage.launch(
            fanout,
            fleet,
            environment,
            request,
            cast.gates,
            screen,
        )
    invocation.notices.extend(notices)
    code = exit_codes.launch_code(result)
    if cast.gates:
        code = exit_codes.worst(exit_codes.findings_code(cast.surveyed.findings), code)
    report = survey_report(invocation, code, cast.surveyed)
    culprits = with_findings(result.culprits, report.findings or (), PAGES)
    result = msgspec.structs.replace(result, culprits=culprits)
    return msgspec.structs.replace(report, launch=result)


def _has_launched_lately(invocation: Invocation) -> bool:
    """Return True if this machine has launched within a week, so that the notice is known."""
    since = f"{invocation.started - NOTICE_EVERY:%Y-%m-%dT%H:%M:%SZ}"
    try:
        runs = invocation.runs.all(most=LOOKED_THROUGH)
    except Unusable:
        return False
    return any(run.command == "launch" and run.started > since for run in runs)


def _cast(invocation: Invocation, fanout: Fanout, checks: tuple[str, ...], on_busy: bool) -> Cast:
    """Survey the nodes, and return those of the job with what prevents its start.

    Raises Drifted if their environments differ because a rollout in batches has not ended.
    """
    query_plan = plan_survey(invocation, only=checks, facts=(*ENV_FACTS, JOURNAL))
    surveyed = survey(invocation, fanout, query_plan)
    if invocation.settings.spares:
        cast = choose_cast(invocation, fanout, query_plan, surveyed, on_busy)
    else:
        gates = blocking_findings(surveyed.findings, on_busy)
        cast = Cast(surveyed, surveyed.fleet, tuple(gates))
    refuse_uneven(invocation, fanout, cast.fleet)
    return cast


def print_launch(invocation: Invocation, request: LaunchRequest, form: str) -> tuple[int, str]:
    """Return the exit code, and the launch as text for a program; `form` is its name.

    Nodes that were not reached are planned as far as the others tell, and named; with --spares they
    are left out. Raises NotKnown if no node was reached, or another finding blocks the launch.
    """
    checks: tuple[str, ...] = PRINT_CHECKS
    if invocation.settings.spares:
        checks = trial_checks(invocation)
    if not request.preflight:
        checks = LOGIN_CHECKS
    with invocation.fanout() as fanout:
        cast = _cast(invocation, fanout, checks, on_busy=not invocation.settings.spares)
    gates = list(cast.gates)
    fleet = cast.fleet
    if fleet.reached and not invocation.settings.spares:
        gates = [gate for gate in gates if not _is_unreached(gate.check)]
    if gates:
        reasons = [*invocation.notices, stage.describe_gates(gates)]
        raise NotKnown(f"nothing is printed: {'; '.join(reasons)}")
    launch_plan, remarks = plan_all(fleet, render(fleet), request)
    invocation.notices.extend(remarks)
    text = text_of(launch_plan, form, fleet.inventory.cluster)
    code = exit_codes.OK
    if not invocation.settings.spares:
        code = exit_codes.findings_code(cast.surveyed.findings)
    return code, with_remarks(text, invocation.notices)


def _is_unreached(check: str) -> bool:
    return check == "ssh.reach"
