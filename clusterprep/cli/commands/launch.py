"""`clusterprep launch`: starts the user's own command on all nodes, or prints how to start it."""

from __future__ import annotations

import dataclasses

from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import TRIAL_CHECKS, plan_survey, survey
from clusterprep.errors import NotKnown
from clusterprep.jobs.launch import stage
from clusterprep.jobs.launch.plan import LaunchRequest
from clusterprep.jobs.launch.stage import Screen
from clusterprep.jobs.launch.text import text_of
from clusterprep.model import Report
from clusterprep.nccl.environment import FACTS as ENV_FACTS
from clusterprep.nccl.environment import render
from clusterprep.survey.gates import blocking_findings

PRINT_CHECKS = ("ssh.", "eth.iface_choice")


def run(invocation: Invocation, request: LaunchRequest, screen: Screen) -> Report:
    """Survey, judge, and run the command unless a finding says that it could only hang."""
    screen.say(stage.INTERACTIVE_NOTICE)
    checks = TRIAL_CHECKS if request.preflight else ("ssh.",)
    query_plan = plan_survey(invocation, only=checks, facts=ENV_FACTS)
    on_busy = invocation.settings.on_busy or not request.preflight
    with invocation.fanout() as fanout:
        surveyed = survey(invocation, fanout, query_plan)
        fleet = surveyed.fleet
        gates = blocking_findings(surveyed.findings, on_busy)
        environment = render(fleet)
        result, notices = stage.launch(
            fanout,
            fleet,
            environment,
            request,
            gates,
            screen,
        )
    invocation.notices.extend(notices)
    code = exit_codes.launch_code(result)
    if gates:
        code = exit_codes.worst(exit_codes.findings_code(surveyed.findings), code)
    report = survey_report(invocation, code, surveyed)
    return dataclasses.replace(report, launch=result)


def print_launch(invocation: Invocation, request: LaunchRequest, form: str) -> tuple[int, str]:
    """Return the exit code, and the launch as text for torchrun, sbatch or a hostfile.

    Raises NotKnown if a node was not reached, or another finding blocks the launch.
    """
    query_plan = plan_survey(invocation, only=PRINT_CHECKS, facts=ENV_FACTS)
    with invocation.fanout() as fanout:
        surveyed = survey(invocation, fanout, query_plan, last=True)
    gates = blocking_findings(surveyed.findings, on_busy=True)
    if gates:
        raise NotKnown(f"nothing is printed: {stage.describe_gates(gates)}")
    fleet = surveyed.fleet
    launch_plan = stage.launch_plan(fleet, render(fleet), request)
    text = text_of(launch_plan, form, fleet.inventory.cluster)
    return exit_codes.findings_code(surveyed.findings), text
