"""The stages that `apply` and `rollback` share: finish interrupted runs, and finalize a run."""

from __future__ import annotations

from clusterprep.changes.damaged_runs import refuse_damaged
from clusterprep.changes.recovery import Recovery, finish_interrupted_runs
from clusterprep.changes.transaction import Transaction, with_lost
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import JOURNAL, Survey
from clusterprep.errors import ClusterprepError
from clusterprep.model import Fleet
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
    force = invocation.settings.force
    with invocation.deadline.shield():
        recovery = finish_interrupted_runs(
            fanout,
            transaction,
            fleet,
            force,
            by,
        )
    for finished in recovery.runs:
        invocation.notices.append(str(finished))
    for finished in recovery.runs:
        if not finished.finalized:
            invocation.applied.forget(invocation.inventory.cluster, finished.run)
    return recovery


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
        raise error.extended("; what was written stays on all nodes") from error
    lost = transaction.receipt.lost
    if not lost:
        return surveyed
    fleet = with_lost(surveyed.fleet, invocation.run, lost)
    checks = [check for check in query_plan.checks if check.name == JOURNAL]
    others = [finding for finding in surveyed.findings if finding.check != JOURNAL]
    judged = judge(fleet, checks, invocation.started.date())
    return Survey(surveyed.fleet, (*others, *judged))
