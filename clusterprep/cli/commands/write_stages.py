"""The stages that `apply` and `rollback` share: finish interrupted runs, and finalize a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from clusterprep.changes.damaged_runs import refuse_damaged
from clusterprep.changes.node_answers import NOT_PUT_BACK, put_back_text, stays_text
from clusterprep.changes.recovery import Recovery, finish_interrupted_runs
from clusterprep.changes.step_runner import NotRolledBack
from clusterprep.changes.transaction import Transaction, with_lost
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import JOURNAL, Survey
from clusterprep.errors import ChangeFailed, ClusterprepError, Refused
from clusterprep.model import ChangeRow, Fleet
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import judge
from clusterprep.survey.queries import QueryPlan


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
            invocation.applied.forget(invocation.inventory.cluster, finished.run)
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
            invocation.applied.forget(invocation.inventory.cluster, invocation.run)
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
    what = f"; {put_back_text(transaction.put_back)}"
    for line in steps.lines:
        what += f"\n{line}"
    if not isinstance(error, ClusterprepError):
        return RuntimeError(f"{type(error).__name__}: {error}{what}")
    is_complete = transaction.put_back.complete and not steps.failed
    if error.code == exit_codes.UNKNOWN or not is_complete:
        diff = error.diff if isinstance(error, Refused) else ""
        return ChangeFailed(f"{error.message}{what}\n{diff}".rstrip())
    return error.extended(what)


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
    lost = transaction.receipt.lost
    if not lost:
        return surveyed
    fleet = with_lost(surveyed.fleet, invocation.run, lost)
    checks = [check for check in query_plan.checks if check.name == JOURNAL]
    others = [finding for finding in surveyed.findings if finding.check != JOURNAL]
    judged = judge(fleet, checks, invocation.started.date())
    return Survey(surveyed.fleet, (*others, *judged))
