"""`clusterprep check`: surveys all nodes and judges them."""

from __future__ import annotations

import msgspec

from clusterprep.checks.stress import ONLY_STRESS
from clusterprep.cli import exit_codes
from clusterprep.cli.commands import node_lists
from clusterprep.cli.commands.report import cut_report, survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import (
    Survey,
    chosen_checks,
    is_judged,
    plan_survey,
    stress,
    survey,
)
from clusterprep.errors import OutOfTime
from clusterprep.model import ChangeRow, Report
from clusterprep.survey.cached import cached_notice
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import NOT_BUILT, ONLY_VERIFY
from clusterprep.survey.queries import QueryPlan


def run(invocation: Invocation) -> Report:
    """Survey and judge. Nothing is written; with --store the nodes keep findings of deep checks."""
    settings = invocation.settings
    facts = node_lists.FACTS if settings.sorts_nodes else ()
    query_plan = plan_survey(invocation, facts=facts)
    stored = None
    with invocation.fanout() as fanout:
        is_last = not settings.store and not settings.stress
        surveyed = survey(invocation, fanout, query_plan, last=is_last)
        try:
            if settings.stress and not invocation.deadline.over:
                surveyed = stress(invocation, fanout, query_plan, surveyed)
            if settings.store and not invocation.deadline.over:
                stored = _store(fanout, surveyed, query_plan)
        except OutOfTime:
            if not invocation.keeps_known:
                raise
    if invocation.deadline.over:
        return cut_report(invocation, invocation.deadline.over, surveyed)
    lists = node_lists.choose(invocation, surveyed)
    counted = node_lists.counted_findings(surveyed, lists)
    findings_code = exit_codes.findings_code(counted, settings.strict)
    lists, lists_code = node_lists.conclude(invocation, surveyed, lists)
    stored_code = exit_codes.stored_code(stored or ())
    judged_code = _note_unjudged(invocation, surveyed, query_plan)
    code = exit_codes.worst(findings_code, lists_code, stored_code, judged_code)
    invocation.notices.extend(cached_notice(surveyed.findings))
    report = survey_report(invocation, code, surveyed, changes=stored)
    return msgspec.structs.replace(report, lists=lists)


def _note_unjudged(invocation: Invocation, surveyed: Survey, query_plan: QueryPlan) -> int:
    """Return 3 and note why, if none of the checks that were asked for can be judged, else 0."""
    judged = [check for check in query_plan.checks if is_judged(invocation, check)]
    if chosen_checks(invocation, (*judged, *query_plan.kept)):
        return exit_codes.OK
    reasons: dict[str, None] = {}
    for finding in surveyed.findings:
        if finding.reason in (NOT_BUILT, ONLY_VERIFY, ONLY_STRESS):
            reasons[f"{finding.check}: {finding.message}"] = None
    invocation.notices.append(f"no check that was asked for was judged. {'; '.join(reasons)}")
    return exit_codes.UNKNOWN


def _store(fanout: Fanout, surveyed: Survey, query_plan: QueryPlan) -> tuple[ChangeRow, ...]:
    from clusterprep.changes.findings_cache import store

    return store(fanout, surveyed.fleet, surveyed.findings, query_plan.checks)
