"""`clusterprep plan`: shows what apply would change."""

from __future__ import annotations

import msgspec

from clusterprep.changes.planner import ChangePlan, predict_changes
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.apply import clashes, obstacle_to
from clusterprep.cli.commands.report import held_report, survey_report
from clusterprep.cli.commands.roll_out import planned_batches, refuse_ungated
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Survey, plan_survey, survey
from clusterprep.errors import InputError, Refused
from clusterprep.model import Fleet, Report
from clusterprep.nccl.environment import FACTS as ENV_FACTS
from clusterprep.nccl.environment import Environment, render
from clusterprep.nccl.launch_paths import FACTS as PATHS
from clusterprep.survey.fanout import Fanout


def run(invocation: Invocation) -> Report:
    """Return the report of what apply would change. Nothing is written."""
    with invocation.fanout() as fanout:
        return planned_changes(invocation, fanout)


def planned_changes(invocation: Invocation, fanout: Fanout) -> Report:
    """Survey the nodes and return what apply would change there."""
    steps = invocation.steps
    query_plan = plan_survey(invocation, facts=(*ENV_FACTS, *PATHS), steps=steps)
    surveyed = survey(invocation, fanout, query_plan, last=True)
    environment = render(surveyed.fleet)
    change_plan = predict_changes(surveyed.fleet, steps, environment)
    _note_clashes(invocation, surveyed.fleet, environment, change_plan)
    change_plan = change_plan.with_gaps(change_plan.without_root(surveyed.fleet))
    code = _code(invocation, surveyed, change_plan)
    rows = change_plan.rows()
    report = survey_report(
        invocation,
        code,
        surveyed,
        env=environment,
        changes=rows,
    )
    report = held_report(report, obstacle_to(invocation, surveyed), "apply would start nothing")
    if not invocation.settings.in_batches:
        return report
    return msgspec.structs.replace(
        report, batches=planned_batches(invocation, surveyed, change_plan)
    )


def _note_clashes(
    invocation: Invocation, fleet: Fleet, environment: Environment, change_plan: ChangePlan
) -> None:
    """Note why apply would refuse to write with --limit, or what is not known of the others.

    So is a gate that batches need.
    """
    try:
        notice = clashes(invocation, environment, change_plan)
        refuse_ungated(invocation, fleet, environment, change_plan)
    except (Refused, InputError) as error:
        notice = f"apply will refuse this: {error.message}"
    if notice:
        invocation.notices.append(notice)


def _code(invocation: Invocation, surveyed: Survey, change_plan: ChangePlan) -> int:
    """Return the exit code; 5 for pending changes only with --detailed-exitcode."""
    settings = invocation.settings
    findings_code = exit_codes.findings_code(surveyed.findings, settings.strict)
    gaps_code = exit_codes.gaps_code(change_plan.gaps)
    code = exit_codes.worst(findings_code, gaps_code)
    if code == exit_codes.OK and change_plan.pending and settings.detailed_exitcode:
        return exit_codes.PENDING
    return code
