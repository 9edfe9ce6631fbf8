"""`clusterprep verify`: runs the all-reduce over all ranks."""

from __future__ import annotations

from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import (
    TRIAL_CHECKS,
    TRIAL_FACTS,
    plan_survey,
    run_trial,
    survey,
)
from clusterprep.model import Report
from clusterprep.nccl.environment import render


def run(invocation: Invocation) -> Report:
    """Survey, judge, and run the all-reduce unless a finding says that it could only hang."""
    query_plan = plan_survey(invocation, only=TRIAL_CHECKS, facts=TRIAL_FACTS)
    with invocation.fanout() as fanout:
        surveyed = survey(invocation, fanout, query_plan)
        fleet = surveyed.fleet
        environment = render(fleet)
        trial = run_trial(
            invocation,
            fanout,
            fleet,
            environment,
            surveyed.findings,
        )
    surveyed = surveyed.with_findings(trial.findings)
    strict = invocation.settings.strict
    findings_code = exit_codes.findings_code(surveyed.findings, strict)
    trial_code = exit_codes.trial_code(trial.result, trial.findings)
    code = exit_codes.worst(findings_code, trial_code)
    invocation.notices.extend(invocation.applied.troubles)
    return survey_report(
        invocation,
        code,
        surveyed,
        env=environment,
        verify=trial.result,
    )
