"""The stages that `apply`, its batches and `rollback` share.

They finish interrupted runs, write the files and run the steps of a plan, and finalize a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from clusterprep.changes.damaged_runs import refuse_damaged
from clusterprep.changes.file_plan import nodes_with_resource
from clusterprep.changes.node_answers import NOT_PUT_BACK, put_back_text, stays_text
from clusterprep.changes.planner import ChangePlan
from clusterprep.changes.recovery import Recovery, finish_interrupted_runs
from clusterprep.changes.step_runner import NotRolledBack, StepRunner
from clusterprep.changes.transaction import Receipt, Transaction, with_lost
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import JOURNAL, Survey, Trial
from clusterprep.errors import ChangeFailed, ClusterprepError, Refused
from clusterprep.model import BatchRow, ChangeRow, Finding, Fleet
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import blocking_findings
from clusterprep.survey.judge import judge
from clusterprep.survey.queries import QueryPlan

TrialStage = Callable[[Invocation, Fanout, Fleet, Environment, Iterable[Finding]], Trial]


class Prepared(Struct, frozen=True):
    """What is known before anything is written."""

    surveyed: Survey
    recovery: Recovery
    environment: Environment
    change_plan: ChangePlan


class Known:
    """What an apply knows so far, for the report of one that its time limit ends.

    `changes` and `batches` return what became of them; None if there is none to speak of.
    """

    def __init__(self) -> None:
        self.surveyed: Survey | None = None
        self.environment: Environment | None = None
        self.changes: Callable[[], tuple[ChangeRow, ...] | None] = lambda: None
        self.batches: Callable[[], tuple[BatchRow, ...] | None] = lambda: None


def finish_earlier_runs(
    invocation: Invocation,
    fanout: Fanout,
    transaction: Transaction,
    fleet: Fleet,
    by: str | None = None,
) -> Recovery:
    """Finalize or roll back what interrupted runs left, and note it for the report.

    `by` is the name of the rollback that wants them rolled back.
    """
    refuse_damaged(fleet)
    settings = invocation.settings
    with invocation.deadline.shield():
        recovery = finish_interrupted_runs(
            fanout,
            transaction,
            fleet,
            settings.force,
            by,
            settings.partial,
        )
    sentences = [str(finished) for finished in recovery.runs]
    invocation.notices.extend(sentences)
    invocation.finished.extend(sentences)
    for finished in recovery.runs:
        if not finished.finalized:
            # Other batches of the run keep what they were given.
            nodes = finished.nodes if finished.elsewhere else None
            invocation.applied.forget(invocation.inventory.cluster, finished.run, nodes)
    return recovery


@contextlib.contextmanager
def finished_runs_said(invocation: Invocation) -> Iterator[None]:
    """Add what became of earlier runs to an error that ends the command."""
    try:
        yield
    except ClusterprepError as error:
        if not invocation.finished:
            raise
        raise error.extended("\n" + "\n".join(invocation.finished)) from error


@contextlib.contextmanager
def put_back_on_error(
    invocation: Invocation, transaction: Transaction, roll_back: Callable[[], NotRolledBack]
) -> Iterator[None]:
    """Roll back what the block wrote if it raises, and raise the error with what became of it.

    `roll_back` does that, and returns the steps that stay.
    """
    try:
        yield
    except Exception as error:
        try:
            steps = roll_back()
        except Exception as bug:
            raise RuntimeError(f"{bug}, after: {error}; {NOT_PUT_BACK}") from bug
        if transaction.rolled_back and transaction.put_back.complete:
            names = transaction.names if transaction.is_batch else None
            invocation.applied.forget(invocation.inventory.cluster, invocation.run, names)
        if transaction.committed:
            raise ChangeFailed(f"{error}; {NOT_PUT_BACK}") from error
        if not transaction.rolled_back:
            raise
        raise _failed_write(transaction, error, steps) from error


def _failed_write(transaction: Transaction, error: Exception, steps: NotRolledBack) -> Exception:
    """Return the error with what became of the files on each node.

    If one could not be put back the command has failed, whatever ended it. So it has if a time
    limit or a lost node undid what was written.
    """
    what = f"; {put_back_text(transaction.put_back, transaction.is_batch)}"
    for line in steps.lines:
        what += f"\n{line}"
    if not isinstance(error, ClusterprepError):
        return RuntimeError(f"{type(error).__name__}: {error}{what}")
    is_complete = transaction.put_back.complete and not steps.failed
    if error.code == exit_codes.UNKNOWN or not is_complete:
        diff = error.diff if isinstance(error, Refused) else ""
        return ChangeFailed(f"{error.message}{what}\n{diff}".rstrip())
    return error.extended(what)


def step_runner_of(
    invocation: Invocation, fanout: Fanout, transaction: Transaction, prepared: Prepared
) -> StepRunner:
    """Return what runs the steps of a plan."""
    return StepRunner(
        fanout,
        transaction,
        prepared.surveyed.fleet,
        invocation.steps,
        prepared.environment,
        prepared.change_plan,
    )


def write_files(invocation: Invocation, transaction: Transaction, prepared: Prepared) -> Receipt:
    """Stage and commit the files of the plan, and return what became of them on each node."""
    names = [node.name for node in prepared.surveyed.fleet.reached]
    change_plan = prepared.change_plan
    invocation.watch.stage("write", len(names), names)
    receipt = transaction.stage_and_commit(
        change_plan.files, invocation.deadline, also=change_plan.nodes
    )
    for name in names:
        outcome = receipt.outcomes.get(name, "unchanged")
        invocation.watch.step(name, outcome)
    return receipt


def run_steps(invocation: Invocation, step_runner: StepRunner, receipt: Receipt) -> None:
    """Run the steps if all files were written; else they are not started."""
    if receipt.done:
        step_runner.run(invocation.watch)
    else:
        step_runner.mark_not_started()


def remember_environment(invocation: Invocation, prepared: Prepared, receipt: Receipt) -> None:
    """Note which nodes have this environment, for later runs with --limit.

    Nodes that had it before are noted too: another controller may have written it.
    """
    if not receipt.done:
        return
    nodes = nodes_with_resource("env", prepared.change_plan.files)
    cluster = invocation.inventory.cluster
    invocation.applied.record_written(cluster, invocation.run, prepared.environment, nodes)


def findings_of_reached(invocation: Invocation, surveyed: Survey) -> list[Finding]:
    """Return the findings that may block; with --partial only those about nodes reached.

    Nodes that were not reached are then noted for the report.
    """
    fleet = surveyed.fleet
    reached = {node.name for node in fleet.reached}
    missing = [node.name for node in fleet.inventory.nodes if node.name not in reached]
    if not (invocation.settings.partial and missing):
        return list(surveyed.findings)
    # The same command: without its --playbook it would write something else.
    later = f"the same command with --retry-failed {invocation.run}"
    notice = f"{fold(missing)} was not reached and keeps what it has; later: {later}"
    invocation.notices.append(notice)
    findings = surveyed.findings
    return [finding for finding in findings if reached.intersection(finding.nodes)]


def may_verify(invocation: Invocation, findings: list[Finding]) -> bool:
    """Return True if the all-reduce is wanted and no finding blocks it; else note what does.

    GPUs in use are left to the trial, whose result says that no rank was started because of them.
    """
    if not invocation.settings.verify:
        return False
    blocking = dict.fromkeys(finding.check for finding in blocking_findings(findings, on_busy=True))
    if blocking:
        invocation.notices.append(f"no all-reduce was run: {', '.join(blocking)}")
    return not blocking


def stuck_rows(recovery: Recovery) -> tuple[ChangeRow, ...]:
    """Return what nodes said that could not finish a run that was cut off, as rows of a report."""
    nodes_by_reason: dict[str, list[str]] = {}
    for name, why in recovery.stuck.items():
        nodes_by_reason.setdefault(why, []).append(name)
    rows = []
    for why, names in nodes_by_reason.items():
        row = ChangeRow(
            tuple(names),
            "journal",
            "the run that was cut off",
            "none",
            "failed",
            detail=why,
        )
        rows.append(row)
    return tuple(rows)


def finalize(
    invocation: Invocation, query_plan: QueryPlan, transaction: Transaction, surveyed: Survey
) -> Survey:
    """Tell all nodes that what was written stays, and return the findings that hold after it.

    If a node was lost meanwhile, its journal is judged again.
    """
    try:
        with invocation.deadline.shield():
            transaction.finalize()
    except ClusterprepError as error:
        raise error.extended(f"; {stays_text(transaction.finalized)}") from error
    return judged_again(invocation, query_plan, surveyed, transaction.receipt.lost)


def judged_again(
    invocation: Invocation, query_plan: QueryPlan, surveyed: Survey, lost: Iterable[str]
) -> Survey:
    """Return the findings with the journals of nodes judged on which the run may not be settled."""
    names = list(lost)
    if not names:
        return surveyed
    fleet = with_lost(surveyed.fleet, invocation.run, names)
    checks = [check for check in query_plan.checks if check.name == JOURNAL]
    others = [finding for finding in surveyed.findings if finding.check != JOURNAL]
    judged = judge(fleet, checks, invocation.started.date())
    return Survey(surveyed.fleet, (*others, *judged))
