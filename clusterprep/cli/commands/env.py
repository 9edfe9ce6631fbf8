"""`clusterprep env`: shows the environment that apply would write, without writing it."""

from __future__ import annotations

from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import new_report, survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import plan_survey, survey
from clusterprep.history.recall import recalled_environment
from clusterprep.model import Report
from clusterprep.nccl.environment import FACTS as ENV_FACTS
from clusterprep.nccl.environment import Environment, render
from clusterprep.nccl.launch_paths import FACTS as PATHS
from clusterprep.survey.gates import LOGIN_CHECKS

CHECKS = (*LOGIN_CHECKS, "eth.iface_choice")


def run(invocation: Invocation) -> tuple[Report, Environment]:
    """Return the environment that follows from the nodes as they are, and its report."""
    query_plan = plan_survey(invocation, only=CHECKS, facts=(*ENV_FACTS, *PATHS))
    with invocation.fanout() as fanout:
        surveyed = survey(invocation, fanout, query_plan, last=True)
    environment = render(surveyed.fleet)
    code = exit_codes.findings_code(surveyed.findings)
    if code == exit_codes.OK and environment.gaps:
        code = exit_codes.UNKNOWN
    report = survey_report(invocation, code, surveyed, env=environment)
    return report, environment


def recall(invocation: Invocation, run_name: str) -> tuple[Report, Environment]:
    """Return the environment that an earlier apply had, and its report; no node is asked.

    Raises InputError if that apply is not remembered.
    """
    environment, notices = recalled_environment(invocation.applied, invocation.inventory, run_name)
    report = new_report(
        "env",
        exit_codes.OK,
        cluster=invocation.inventory.cluster,
        run=run_name,
        started=invocation.started,
        env=environment.values,
        notices=notices,
    )
    return report, environment
