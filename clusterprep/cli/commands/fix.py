"""`clusterprep fix`: does what cures the findings, and says what it leaves to people.

The stages are: survey, make steps of the findings, drop what a node cannot have, go through the
stages of apply, log in anew and survey again. Apply writes nothing if a node is in the way, and the
report then says which.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from clusterprep.changes.fixes import (
    REFUSED,
    Proposal,
    feasible,
    final_rows,
    planned_rows,
    proposed,
)
from clusterprep.changes.planner import predict_changes
from clusterprep.changes.playbook.steps import resources, site_resources
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.apply import apply_changes, obstacle_to, remember, survey_plan
from clusterprep.cli.commands.report import held_report, survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Survey, plan_survey, survey, survey_again
from clusterprep.model import ChangeRow, FixRow, Report
from clusterprep.nccl.environment import Environment, render
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.queries import QueryPlan

NOT_WRITTEN = "nothing was written"


class Offer(Struct, frozen=True):
    """What would be done, what it was made of, and the invocation that has its steps."""

    invocation: Invocation
    query_plan: QueryPlan
    proposal: Proposal
    surveyed: Survey
    environment: Environment


def run(invocation: Invocation, *, dry: bool) -> Report:
    """Return the report of a fix; with `dry` nothing is done."""
    with invocation.fanout() as fanout:
        report = cure(invocation, fanout, dry=dry)
    return report if dry else remember(invocation, report)


def cure(invocation: Invocation, fanout: Fanout, *, dry: bool) -> Report:
    """Go through all stages on connected nodes."""
    first = survey(invocation, fanout, plan_survey(invocation))
    if invocation.deadline.over:
        raise invocation.deadline.over
    offer = _offer(invocation, fanout, first)
    if not offer.proposal.steps:
        return _not_begun(invocation, first, offer.proposal)
    if dry:
        return _planned(offer)
    return _done(offer, fanout, first)


# ---------------------------------------------------------------- before anything is written


def _offer(invocation: Invocation, fanout: Fanout, first: Survey) -> Offer:
    """Return what can be done, after the nodes were asked what its steps have to know."""
    proposal = _proposal(invocation, first)
    with_steps = msgspec.structs.replace(invocation, steps=proposal.steps)
    query_plan = survey_plan(with_steps)
    nothing = Environment((), {})
    if not proposal.steps:
        return Offer(
            with_steps,
            query_plan,
            proposal,
            first,
            nothing,
        )
    surveyed = survey(with_steps, fanout, query_plan)
    environment = nothing
    if any(step.resource.name == "env" for step in proposal.steps):
        environment = render(surveyed.fleet)
    possible = feasible(surveyed.fleet, proposal, environment)
    with_steps = msgspec.structs.replace(invocation, steps=possible.steps)
    return Offer(
        with_steps,
        query_plan,
        possible,
        surveyed,
        environment,
    )


def _proposal(invocation: Invocation, first: Survey) -> Proposal:
    """Return the steps that the findings of the first look ask for."""
    inventory = invocation.inventory
    return proposed(
        inventory,
        [node.name for node in first.fleet.reached],
        first.findings,
        {**resources(), **site_resources(inventory.extensions)},
    )


def _not_begun(invocation: Invocation, first: Survey, proposal: Proposal) -> Report:
    """Return the report of a fix that has nothing to do."""
    code = exit_codes.findings_code(first.findings, invocation.settings.strict)
    report = survey_report(invocation, code, first)
    report = held_report(report, obstacle_to(invocation, first), "nothing was started")
    return _with_fixes(report, planned_rows(proposal, "not done", NOT_WRITTEN))


def _with_fixes(report: Report, fixes: tuple[FixRow, ...]) -> Report:
    """Return the report with what became of the failures, without what other commands are about."""
    return msgspec.structs.replace(report, fixes=fixes, env=None, env_paths=None)


def _planned(offer: Offer) -> Report:
    """Return the report of what would be done."""
    invocation = offer.invocation
    fleet = offer.surveyed.fleet
    change_plan = predict_changes(fleet, offer.proposal.steps, offer.environment)
    change_plan = change_plan.with_gaps(change_plan.without_root(fleet))
    findings_code = exit_codes.findings_code(offer.surveyed.findings, invocation.settings.strict)
    code = exit_codes.worst(findings_code, exit_codes.gaps_code(change_plan.gaps))
    report = survey_report(invocation, code, offer.surveyed, changes=change_plan.rows())
    report = held_report(report, obstacle_to(invocation, offer.surveyed), "fix would start nothing")
    return _with_fixes(report, planned_rows(offer.proposal))


# ---------------------------------------------------------------- writing, and looking again


def _done(offer: Offer, fanout: Fanout, first: Survey) -> Report:
    """Go through the stages of apply, and look again with new logins if anything was done."""
    refused: list[bool] = []

    def confirm(rows: Sequence[ChangeRow]) -> bool:
        agreed = offer.invocation.confirm(rows)
        refused.append(not agreed)
        return agreed

    invocation = msgspec.structs.replace(offer.invocation, confirm=confirm)
    report = apply_changes(
        invocation,
        fanout,
        offer.query_plan,
        surveyed=offer.surveyed,
    )
    changes = report.changes or ()
    if not any(row.outcome == "done" for row in changes):
        return _not_done(offer, report, _why_not(offer, refused=any(refused)))
    if report.error is not None:  # its time is over
        return _with_fixes(report, _fixes(offer, report, Survey(first.fleet, ())))
    fanout.log_out()
    asked = msgspec.structs.replace(offer.invocation, steps=())
    again = survey_again(asked, fanout, plan_survey(asked), first, keeps_known=True)
    final = survey_report(
        invocation,
        _code(invocation, again, changes),
        again,
        changes=changes,
    )
    return _with_fixes(final, _fixes(offer, report, again))


def _why_not(offer: Offer, *, refused: bool) -> str:
    """Return why no step was done; `refused` says that the user did not confirm."""
    if refused:
        return REFUSED
    hindered = obstacle_to(offer.invocation, offer.surveyed)
    return NOT_WRITTEN if hindered is None else f"{NOT_WRITTEN}: {hindered.reason}"


def _not_done(offer: Offer, report: Report, why: str) -> Report:
    """Return the report of a fix after which the nodes are as they were."""
    strict = offer.invocation.settings.strict
    findings_code = exit_codes.findings_code(report.findings or (), strict)
    code = exit_codes.worst(findings_code, report.code)
    report = msgspec.structs.replace(report, code=code, verdict=exit_codes.verdict_of(code))
    return _with_fixes(report, planned_rows(offer.proposal, "not done", why))


def _fixes(offer: Offer, report: Report, again: Survey) -> tuple[FixRow, ...]:
    failed: set[str] = set()
    for row in report.changes or ():
        if row.outcome in ("failed", "rolled-back", "unanswered", "not-started"):
            failed.update(row.nodes)
    return final_rows(offer.proposal, again.findings, failed)


def _code(invocation: Invocation, again: Survey, changes: Sequence[ChangeRow]) -> int:
    """Return the code of what the second look found, and of what became of the changes."""
    outcomes = {row.outcome for row in changes}
    write_code = exit_codes.OK
    if outcomes & {"failed", "rolled-back"}:
        write_code = exit_codes.FAILED
    elif "unanswered" in outcomes:
        write_code = exit_codes.UNKNOWN
    findings_code = exit_codes.findings_code(again.findings, invocation.settings.strict)
    return exit_codes.worst(findings_code, write_code)
