"""`clusterprep verify`: runs the all-reduce over all ranks."""

from __future__ import annotations

import msgspec

from clusterprep.cli import exit_codes
from clusterprep.cli.commands import node_lists
from clusterprep.cli.commands.acceptance import (
    accept_tried,
    certified,
    cut_before_rounds,
    prepared_seal,
)
from clusterprep.cli.commands.picked_trial import Tried, try_nodes, try_picked
from clusterprep.cli.commands.report import cut_report, survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import (
    TRIAL_FACTS,
    Survey,
    plan_survey,
    survey,
    trial_checks,
)
from clusterprep.errors import Interrupted, OutOfTime
from clusterprep.history.certificate import FACTS as CERTIFIED
from clusterprep.model import Fleet, Report
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import QueryPlan


def run(invocation: Invocation) -> Report:
    """Survey, judge, and run the all-reduce unless a finding says that it could only hang."""
    seal = prepared_seal(invocation)
    invocation.deadline.has_results = seal is not None
    with invocation.fanout() as fanout:
        tried = _try(invocation, fanout)
    invocation.notices.extend(invocation.applied.troubles)
    ended_by = invocation.deadline.ended_by
    if ended_by is None:
        report = _whole_report(invocation, tried)
    else:
        report = cut_report(
            invocation,
            ended_by,
            tried.surveyed,
            env=tried.environment,
            verify=tried.trial.result,
        )
    return report if seal is None else certified(report, seal)


def _whole_report(invocation: Invocation, tried: Tried) -> Report:
    """Return the report of a verify that nothing ended before its time, and write the lists."""
    counted = node_lists.counted_findings(tried.surveyed, tried.lists)
    findings_code = exit_codes.findings_code(counted, invocation.settings.strict)
    trial_code = exit_codes.trial_code(tried.trial.result, tried.trial.findings)
    lists, lists_code = node_lists.conclude(invocation, tried.surveyed, tried.lists)
    code = exit_codes.worst(findings_code, trial_code, lists_code)
    report = survey_report(
        invocation,
        code,
        tried.surveyed,
        env=tried.environment,
        verify=tried.trial.result,
    )
    return msgspec.structs.replace(report, lists=lists)


def _try(invocation: Invocation, fanout: Fanout) -> Tried:
    """Survey, and try all nodes, with --for again and again.

    With --pick also the chosen ones are tried alone if all do not pass. If something ends the
    command, nothing more is tried. Without --for it is raised until all nodes were tried once.
    """
    is_acceptance = invocation.settings.accept_for is not None
    begin = _accept if is_acceptance else _try_once
    surveyed, tried = begin(invocation, fanout)
    if is_acceptance and invocation.deadline.ended_by:
        return tried
    if invocation.settings.pick is None:
        lists = node_lists.choose(invocation, tried.surveyed, tried.trial.result)
        return msgspec.structs.replace(tried, lists=lists)
    return try_picked(invocation, fanout, surveyed, tried)


def _try_once(invocation: Invocation, fanout: Fanout) -> tuple[Survey, Tried]:
    """Return the survey, and the trial of all nodes. Raises what ends the command."""
    surveyed = survey(invocation, fanout, _query_plan(invocation, TRIAL_FACTS))
    return surveyed, _try_all(invocation, fanout, surveyed)


def _accept(invocation: Invocation, fanout: Fanout) -> tuple[Survey, Tried]:
    """Return the survey, and the trial of all nodes with its rounds.

    If something ends the command, that is what is known by then.
    """
    facts = tuple(dict.fromkeys((*TRIAL_FACTS, *CERTIFIED)))
    try:
        surveyed = survey(invocation, fanout, _query_plan(invocation, facts))
    except Interrupted:
        surveyed = Survey(Fleet(invocation.inventory, {}), ())
    if invocation.deadline.ended_by:
        return surveyed, cut_before_rounds(invocation, surveyed, "the survey of the nodes")
    try:
        tried = _try_all(invocation, fanout, surveyed)
    except (Interrupted, OutOfTime):
        return surveyed, cut_before_rounds(invocation, surveyed, "the first trial")
    return surveyed, accept_tried(invocation, fanout, tried)


def _query_plan(invocation: Invocation, facts: tuple[str, ...]) -> QueryPlan:
    return plan_survey(invocation, only=trial_checks(invocation), facts=facts)


def _try_all(invocation: Invocation, fanout: Fanout, surveyed: Survey) -> Tried:
    return try_nodes(
        invocation,
        fanout,
        surveyed,
        surveyed.fleet,
        surveyed.findings,
    )
