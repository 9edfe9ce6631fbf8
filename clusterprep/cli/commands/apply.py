"""`clusterprep apply`: writes on all nodes or on none.

The stages are: survey, finish interrupted runs, plan, stage and commit, run steps, survey again,
verify, finalize.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from clusterprep.changes.file_plan import change_rows, nodes_with_resource
from clusterprep.changes.planner import ChangePlan, predict_changes, users_without_root
from clusterprep.changes.recovery import Recovery
from clusterprep.changes.step_runner import NotRolledBack, StepRunner, roll_back_run
from clusterprep.changes.transaction import Receipt, Transaction
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import cut_report, held_report, survey_report
from clusterprep.cli.commands.roll_out import refuse_ungated, refuse_wrong_batches, roll_out
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import (
    NO_TRIAL,
    TRIAL_FACTS,
    Survey,
    Trial,
    plan_survey,
    run_trial,
    survey,
    survey_again,
)
from clusterprep.cli.commands.write_stages import (
    Known,
    Prepared,
    TrialStage,
    finalize,
    findings_of_reached,
    finish_earlier_runs,
    finished_runs_said,
    may_verify,
    put_back_on_error,
    remember_environment,
    run_steps,
    step_runner_of,
    write_files,
)
from clusterprep.errors import ChangeFailed, OutOfTime, Refused
from clusterprep.history.applied import refuse_clashes
from clusterprep.model import ChangeRow, Finding, Report, StepOutcome
from clusterprep.nccl.environment import Environment, render
from clusterprep.nccl.launch_paths import FACTS as PATHS
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import Obstacle, obstacle
from clusterprep.survey.queries import QueryPlan


class Written(Struct, frozen=True):
    """What was written, and what the nodes are like after it.

    `succeeded` says that all files were written and all steps done.
    """

    receipt: Receipt
    succeeded: bool
    surveyed: Survey
    trial: Trial


def run(invocation: Invocation) -> Report:
    """Write the playbook's changes on all nodes or on none, and verify."""
    if invocation.settings.in_batches:
        refuse_wrong_batches(invocation)
    query_plan = survey_plan(invocation)
    with invocation.fanout() as fanout:
        report = apply_changes(invocation, fanout, query_plan)
    return remember(invocation, report)


def apply_changes(
    invocation: Invocation,
    fanout: Fanout,
    query_plan: QueryPlan,
    verify: TrialStage = run_trial,
    surveyed: Survey | None = None,
) -> Report:
    """Go through all stages on connected nodes; `verify` is the stage that runs the all-reduce.

    `surveyed` is what a caller knows already by this plan; else the nodes are asked. If the time
    limit ends it, what is known by then is reported.
    """
    known = Known()
    try:
        with finished_runs_said(invocation):
            return _apply_changes(
                invocation,
                fanout,
                query_plan,
                verify,
                known,
                surveyed,
            )
    except (OutOfTime, ChangeFailed) as error:
        if known.surveyed is None or not invocation.deadline.over:
            raise
        report = cut_report(
            invocation,
            error,
            known.surveyed,
            env=known.environment,
            changes=known.changes(),
        )
        return msgspec.structs.replace(report, batches=known.batches())


def _apply_changes(
    invocation: Invocation,
    fanout: Fanout,
    query_plan: QueryPlan,
    verify: TrialStage,
    known: Known,
    surveyed: Survey | None,
) -> Report:
    if surveyed is None:
        surveyed = survey(invocation, fanout, query_plan)
    known.surveyed = surveyed
    if invocation.deadline.over:
        raise invocation.deadline.over
    transaction = Transaction(fanout, surveyed.fleet, invocation.run, invocation.started)
    prepared = _prepare(
        invocation,
        fanout,
        query_plan,
        transaction,
        surveyed,
    )
    known.surveyed = prepared.surveyed
    known.environment = prepared.environment
    known.changes = prepared.change_plan.none_started
    if not _may_write(invocation, prepared):
        return _refused_report(invocation, prepared)
    _refuse_clashes(invocation, prepared)
    refuse_ungated(invocation, prepared.surveyed.fleet, prepared.environment, prepared.change_plan)
    change_plan = prepared.change_plan
    if change_plan.pending and not invocation.confirm(change_plan.rows()):
        # With --ask the user has refused.
        rows = change_plan.none_started()
        env = prepared.environment
        return survey_report(
            invocation,
            exit_codes.OK,
            prepared.surveyed,
            env=env,
            changes=rows,
        )
    if change_plan.rebooted:
        from clusterprep.cli.commands.evidence import keep_before_reboot

        keep_before_reboot(invocation, prepared.surveyed, change_plan)
    write = _write_and_verify
    if invocation.settings.in_batches:
        write = roll_out
    return write(
        invocation,
        fanout,
        query_plan,
        transaction,
        prepared,
        verify,
        known,
    )


def _write_and_verify(
    invocation: Invocation,
    fanout: Fanout,
    query_plan: QueryPlan,
    transaction: Transaction,
    prepared: Prepared,
    verify: TrialStage,
    known: Known,
) -> Report:
    """Write, survey again, verify, finalize. An error before the last stage rolls all back."""
    step_runner = step_runner_of(invocation, fanout, transaction, prepared)
    known.changes = lambda: _rows_so_far(prepared, transaction.receipt, step_runner)

    def roll_back() -> NotRolledBack:
        return roll_back_run(transaction, step_runner, invocation.deadline)

    with put_back_on_error(invocation, transaction, roll_back):
        receipt = write_files(invocation, transaction, prepared)
        run_steps(invocation, step_runner, receipt)
        remember_environment(invocation, prepared, receipt)
        surveyed = prepared.surveyed
        if _wrote_files(receipt) and not step_runner.lost:
            surveyed = survey_again(invocation, fanout, query_plan, surveyed)
        findings = findings_of_reached(invocation, surveyed)
        succeeded = receipt.done and not step_runner.failed
        trial = NO_TRIAL
        if succeeded and may_verify(invocation, findings):
            trial = verify(
                invocation,
                fanout,
                surveyed.fleet,
                prepared.environment,
                findings,
            )
    # `finalize` judges the nodes of `receipt.lost` again.
    receipt.lost.update(step_runner.lost)
    surveyed = surveyed.with_findings(trial.findings)
    known.surveyed = surveyed  # from here on nothing is rolled back
    surveyed = finalize(invocation, query_plan, transaction, surveyed)
    written = Written(receipt, succeeded, surveyed, trial)
    return _final_report(invocation, prepared, written, step_runner.rows())


# ---------------------------------------------------------------- before writing


def _needs_environment(invocation: Invocation) -> bool:
    """Return True if the environment is written or used.

    Only then is it asked for: it needs the job's own interpreter on every node.
    """
    if invocation.settings.verify:
        return True
    return any(step.resource.name == "env" for step in invocation.steps)


def survey_plan(invocation: Invocation) -> QueryPlan:
    """Return what apply asks the nodes for."""
    facts = (*TRIAL_FACTS, *PATHS) if _needs_environment(invocation) else ()
    return plan_survey(invocation, facts=facts, steps=invocation.steps)


def obstacle_to(invocation: Invocation, surveyed: Survey) -> Obstacle | None:
    """Return what these nodes have in the way of anything being written on them."""
    return obstacle(surveyed.fleet, surveyed.findings, invocation.settings.partial)


def _prepare(
    invocation: Invocation,
    fanout: Fanout,
    query_plan: QueryPlan,
    transaction: Transaction,
    surveyed: Survey,
) -> Prepared:
    """Finish interrupted runs, then plan against the nodes as they are."""
    recovery = Recovery()
    lacks_root = users_without_root(surveyed.fleet)
    if not lacks_root and obstacle_to(invocation, surveyed) is None:
        recovery = finish_earlier_runs(invocation, fanout, transaction, surveyed.fleet)
    _refuse_differing(recovery)
    if recovery.runs:
        surveyed = survey_again(invocation, fanout, query_plan, surveyed)
    environment = Environment((), {})
    if _needs_environment(invocation):
        environment = render(surveyed.fleet)
    change_plan = predict_changes(surveyed.fleet, invocation.steps, environment)
    change_plan = change_plan.with_gaps(lacks_root)
    return Prepared(surveyed, recovery, environment, change_plan)


def _refuse_differing(recovery: Recovery) -> None:
    """Raise Refused if a run is done on some nodes and was rolled back on others."""
    differing = recovery.differing
    if differing is None:
        return
    remedy = f"`clusterprep rollback --run {differing.run}` puts the others back as well"
    raise Refused(f"nodes differ; {remedy}; this apply wrote nothing")


def _may_write(invocation: Invocation, prepared: Prepared) -> bool:
    if obstacle_to(invocation, prepared.surveyed) is not None:
        return False
    return not prepared.change_plan.gaps and not prepared.recovery.stuck


def _refuse_clashes(invocation: Invocation, prepared: Prepared) -> None:
    """Raise Refused if nodes that --limit leaves out have other values of job-wide variables.

    With --partial it is only noted if their values are not known.
    """
    notice = clashes(invocation, prepared.environment, prepared.change_plan)
    if notice:
        invocation.notices.append(notice)


def clashes(invocation: Invocation, environment: Environment, change_plan: ChangePlan) -> str:
    """Return what is not known of the nodes that --limit leaves out. Raises Refused if they differ.

    If no environment is about to be written, nothing can come to differ.
    """
    settings = invocation.settings
    if not settings.left_out:
        return ""
    pending = [change for change in change_plan.files if change.action != "none"]
    return refuse_clashes(
        environment,
        nodes_with_resource("env", pending),
        settings.left_out,
        invocation.applied.last(invocation.inventory.cluster),
        settings.partial,
    )


def _wrote_files(receipt: Receipt) -> bool:
    """Return True if the run was committed on at least one node."""
    return receipt.done and bool(receipt.outcomes)


# ---------------------------------------------------------------- reports


def _rows_so_far(
    prepared: Prepared, receipt: Receipt, step_runner: StepRunner
) -> tuple[ChangeRow, ...]:
    """Return what became of every change of a run that was ended; the others are not started."""
    step_runner.mark_not_started()
    files = prepared.change_plan.files
    outcomes: dict[str, StepOutcome] = {change.node: "not-started" for change in files}
    outcomes.update(receipt.outcomes)
    return (*change_rows(files, outcomes, receipt.details), *step_runner.rows())


def _refused_report(invocation: Invocation, prepared: Prepared) -> Report:
    """Return the report of a run that must not write anything."""
    gaps_code = exit_codes.gaps_code(prepared.change_plan.gaps)
    if gaps_code == exit_codes.OK:
        gaps_code = exit_codes.UNKNOWN
    findings_code = _findings_code(invocation, prepared.surveyed.findings)
    code = exit_codes.worst(findings_code, gaps_code)
    rows = prepared.change_plan.none_started(prepared.recovery.stuck)
    env = prepared.environment
    report = survey_report(
        invocation,
        code,
        prepared.surveyed,
        env=env,
        changes=rows,
    )
    return held_report(report, obstacle_to(invocation, prepared.surveyed), "nothing was started")


def _final_report(
    invocation: Invocation,
    prepared: Prepared,
    written: Written,
    step_rows: tuple[ChangeRow, ...],
) -> Report:
    """Return the report of a run that wrote; `step_rows` has what became of the steps."""
    surveyed = written.surveyed
    trial = written.trial
    findings_code = _findings_code(invocation, surveyed.findings)
    write_code = exit_codes.OK if written.succeeded else exit_codes.FAILED
    trial_code = exit_codes.trial_code(trial.result, trial.findings)
    code = exit_codes.worst(findings_code, write_code, trial_code)
    receipt = written.receipt
    files = prepared.change_plan.files
    file_rows = change_rows(files, receipt.outcomes, receipt.details)
    return survey_report(
        invocation,
        code,
        surveyed,
        env=prepared.environment,
        changes=(*file_rows, *step_rows),
        verify=trial.result,
    )


def _findings_code(invocation: Invocation, findings: tuple[Finding, ...]) -> int:
    return exit_codes.findings_code(findings, invocation.settings.strict)


def remember(invocation: Invocation, report: Report) -> Report:
    """Note what became of each node and the environment that it was given.

    Returns the report with what could not be noted.
    """
    applied = invocation.applied
    cluster = invocation.inventory.cluster
    applied.record_outcomes(cluster, report)
    applied.record_environment(cluster, report)
    return msgspec.structs.replace(report, notices=(*report.notices, *applied.troubles))
