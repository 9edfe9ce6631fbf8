"""`clusterprep rollback`: puts back what an apply of this cluster replaced.

The stages are: survey, finish interrupted runs, choose the run, roll back its steps, stage and
commit the old files, finalize.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from clusterprep.changes.damaged_runs import SetAside, set_aside
from clusterprep.changes.file_plan import change_rows, gap_rows
from clusterprep.changes.file_rollback import (
    OtherNodes,
    RememberedRuns,
    last_run,
    other_nodes,
    plan_rollback,
    standing_before,
)
from clusterprep.changes.planner import users_without_root
from clusterprep.changes.recovery import Recovery
from clusterprep.changes.step_rollback import StepRollback
from clusterprep.changes.step_runner import NotRolledBack, roll_back_files
from clusterprep.changes.transaction import Receipt, Transaction
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import held_report, survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import JOURNAL, Survey, plan_survey, survey, survey_again
from clusterprep.cli.commands.write_stages import (
    finalize,
    finish_earlier_runs,
    finished_runs_said,
    put_back_on_error,
    stuck_rows,
)
from clusterprep.errors import Refused
from clusterprep.model import ChangeRow, Report, StepOutcome
from clusterprep.model.files import FileChange
from clusterprep.model.nodeset import fold
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import LOGIN_CHECKS, Obstacle, obstacle
from clusterprep.survey.queries import QueryPlan

CHECKS = (*LOGIN_CHECKS, "host.identity", JOURNAL)
NOTHING = "there is nothing to undo"
NOTHING_MORE = "there is nothing more to undo"


class Target(Struct, frozen=True):
    """The run to roll back and the files that this writes; None if there is no such run.

    `was_interrupted` says that this rollback has already finished an interrupted run, which then
    was the last one. `others` are nodes of the run that keep what it wrote. `earlier` is the last
    run before it that is not undone.
    """

    run: str | None
    files: tuple[FileChange, ...]
    was_interrupted: bool
    others: OtherNodes = OtherNodes()
    earlier: str | None = None


class Outcome(Struct, frozen=True):
    """What became of a rollback."""

    target: Target
    receipt: Receipt
    steps: StepRollback
    files_written: bool  # False: the steps failed, so the files were left as they are
    recovery: Recovery

    @property
    def succeeded(self) -> bool:
        return self.receipt.done and not self.steps.failed


def run(invocation: Invocation) -> Report:
    """Roll back the run that --run names, or the cluster's last one that changed something."""
    query_plan = plan_survey(invocation, only=CHECKS)
    with invocation.fanout() as fanout:
        return roll_back_changes(invocation, fanout, query_plan)


def roll_back_changes(invocation: Invocation, fanout: Fanout, query_plan: QueryPlan) -> Report:
    """Go through all stages on connected nodes."""
    with finished_runs_said(invocation):
        return _roll_back_changes(invocation, fanout, query_plan)


def _roll_back_changes(invocation: Invocation, fanout: Fanout, query_plan: QueryPlan) -> Report:
    surveyed = survey(invocation, fanout, query_plan)
    hindered = obstacle(surveyed.fleet, surveyed.findings, invocation.settings.partial)
    if hindered is not None:
        return _hindered_report(invocation, surveyed, hindered)
    lacks_root = users_without_root(surveyed.fleet)
    if lacks_root:
        rows = gap_rows(lacks_root)
        return survey_report(invocation, exit_codes.FAILED, surveyed, changes=rows)
    transaction = Transaction(fanout, surveyed.fleet, invocation.run, invocation.started)
    transaction.lock()
    if invocation.settings.force:
        aside = set_aside(fanout, transaction)
        if aside.any:
            surveyed = survey_again(invocation, fanout, query_plan, surveyed)
            return _aside_report(invocation, surveyed, aside)
    recovery = finish_earlier_runs(
        invocation, fanout, transaction, surveyed.fleet, by=invocation.run
    )
    if recovery.runs:
        surveyed = survey_again(invocation, fanout, query_plan, surveyed)

    def roll_back() -> NotRolledBack:
        return roll_back_files(transaction, invocation.deadline)

    with put_back_on_error(invocation, transaction, roll_back):
        outcome = _roll_back(invocation, fanout, transaction, recovery)
    surveyed = finalize(invocation, query_plan, transaction, surveyed)
    target_run = outcome.target.run
    if target_run is not None and outcome.succeeded:
        invocation.applied.forget(invocation.inventory.cluster, target_run)
    _add_notices(invocation, transaction, outcome)
    return _final_report(invocation, surveyed, outcome)


# ---------------------------------------------------------------- stages


def _roll_back(
    invocation: Invocation, fanout: Fanout, transaction: Transaction, recovery: Recovery
) -> Outcome:
    """Choose the run, roll back its steps, then its files. Nothing is finalized yet."""
    remembered = transaction.remembered_runs()
    target = _choose_target(invocation, remembered, recovery)
    return _roll_back_target(
        invocation,
        fanout,
        transaction,
        recovery,
        remembered,
        target,
    )


def roll_back_again(
    invocation: Invocation, fanout: Fanout, transaction: Transaction, run: str
) -> str:
    """Roll back a run that this command has written and finalized, on the nodes of a transaction.

    The locks are held, and nothing is finalized yet. Returns why it failed, empty if it did not.
    Raises Refused if a file was edited meanwhile.
    """
    remembered = transaction.remembered_runs()
    files = plan_rollback(remembered, run, force=False)
    target = Target(run, files, was_interrupted=False)
    outcome = _roll_back_target(
        invocation,
        fanout,
        transaction,
        Recovery(),
        remembered,
        target,
    )
    if outcome.succeeded:
        return ""
    reasons = [f"{name}: {why}" for name, why in outcome.receipt.details.items()]
    reasons += [row.detail for row in outcome.steps.rows() if row.outcome == "failed"]
    return "; ".join(reasons)


def _roll_back_target(
    invocation: Invocation,
    fanout: Fanout,
    transaction: Transaction,
    recovery: Recovery,
    remembered: RememberedRuns,
    target: Target,
) -> Outcome:
    force = invocation.settings.force
    # A node on which an earlier run could not be finished must not be changed further.
    steps_run = None if recovery.stuck else target.run
    steps = StepRollback(fanout, transaction, steps_run)
    steps.read(remembered)
    if not force:
        steps.refuse_built_upon(remembered)
    steps.roll_back(force)
    # After a failure the files stay as they are, and the next rollback continues here.
    writes_files = force or not steps.failed
    receipt = transaction.stage_and_commit(
        target.files if writes_files else (),
        invocation.deadline,
        undoes=target.run,
        also=steps.nodes if writes_files else (),
    )
    if receipt.done and writes_files:
        steps.finish_roll_back()
    return Outcome(
        target,
        receipt,
        steps,
        writes_files,
        recovery,
    )


def _choose_target(
    invocation: Invocation, remembered: RememberedRuns, recovery: Recovery
) -> Target:
    """Return the run that --run names, else the last one, and the files that undo it.

    An interrupted run that this rollback has finished was the last one, so no other is taken; but
    where a node has it as done all the same, that node is to be put back, too.
    """
    settings = invocation.settings
    standing = recovery.standing
    was_interrupted = standing is None and _was_finished_by(remembered, invocation.run)
    wanted = settings.run
    if wanted is None and standing is not None:
        wanted = standing.run
    if recovery.stuck or (was_interrupted and not wanted):
        return Target(None, (), was_interrupted)
    run = last_run(remembered, invocation.inventory.cluster, wanted)
    if run is None:
        return Target(None, (), was_interrupted)
    others = other_nodes(remembered, run)
    if others.forgetful and not settings.partial:
        raise _forgotten(run, others.forgetful)
    files = plan_rollback(remembered, run, settings.force)
    return Target(
        run,
        files,
        was_interrupted,
        others,
        standing_before(remembered, invocation.inventory.cluster, run),
    )


def _forgotten(run: str, names: Iterable[str]) -> Refused:
    """Return the error for a run that some of its nodes do not remember any more."""
    nodes = fold(names)
    message = (
        f"run {run} wrote to {nodes} as well, which remembers nothing of it and would keep what it "
        f"has; this rollback wrote nothing; --partial undoes it on the others"
    )
    return Refused(message)


def _was_finished_by(remembered: RememberedRuns, rollback_name: str) -> bool:
    """Return True if this rollback rolled back an interrupted run, which is then the last one."""
    for runs in remembered.values():
        for old in runs:
            if old.by == rollback_name:
                return True
    return False


# ---------------------------------------------------------------- what is said about it


def _add_notices(invocation: Invocation, transaction: Transaction, outcome: Outcome) -> None:
    target = outcome.target
    invocation.notices.append(_summary(invocation, outcome))
    for folder, nodes in transaction.remaining_folders.items():
        invocation.notices.append(
            f"{folder} of {fold(nodes)} stays: run {target.run} made it, and files of others "
            "are in it"
        )


def _summary(invocation: Invocation, outcome: Outcome) -> str:
    """Return a sentence that says whether the run is undone, and on which nodes it is not."""
    target = outcome.target
    if outcome.recovery.stuck:
        nodes = fold(outcome.recovery.stuck)
        return f"a run that was cut off could not be finished on {nodes}; nothing else was undone"
    if target.run is None:
        return NOTHING_MORE if target.was_interrupted else NOTHING
    if not target.files and not outcome.steps.nodes:
        text = f"{NOTHING}: run {target.run} was undone before; {_earlier_text(target.earlier)}"
        return text + _kept_text(invocation, target.others)
    if outcome.succeeded:
        text = f"run {target.run} is undone"
        if target.others != OtherNodes():
            text += f" on {fold(outcome.receipt.outcomes)}"
        return text + _kept_text(invocation, target.others)
    return f"run {target.run} is not undone; rollback goes on where it stopped"


def _earlier_text(earlier: str | None) -> str:
    """Return how to undo the run before one that is undone already."""
    if earlier is None:
        return "no earlier run of this cluster is left to undo"
    return f"`--run {earlier}` undoes the one before it"


def _kept_text(invocation: Invocation, others: OtherNodes) -> str:
    """Return what is to be said of nodes of the run that were not put back."""
    text = ""
    if others.forgetful:
        text += f"; {fold(others.forgetful)} remembers nothing of it and keeps what it has"
    if others.perhaps:
        nodes = fold(others.perhaps)
        text += f"; {nodes}, of a later batch, remembers nothing of it and keeps what it has"
    if others.taken_back:
        nodes = fold(others.taken_back)
        text += f"; {nodes}, of a batch that was taken back, remembers nothing of it"
    for names, what in (
        (others.not_asked, "wrote"),
        (others.perhaps_not_asked, "may have written"),
    ):
        if not names:
            continue
        why = "was not asked"
        if set(names) <= set(invocation.settings.left_out):
            why = "is left out by --limit"
        text += f"; {fold(names)}, where it {what} as well, {why} and keeps what it has"
    return text


def _hindered_report(invocation: Invocation, surveyed: Survey, hindered: Obstacle) -> Report:
    findings_code = exit_codes.findings_code(surveyed.findings)
    code = exit_codes.worst(findings_code, exit_codes.UNKNOWN)
    report = survey_report(invocation, code, surveyed)
    return held_report(report, hindered, "nothing was rolled back")


def _aside_report(invocation: Invocation, surveyed: Survey, aside: SetAside) -> Report:
    """Report what was moved out of the journals. Nothing is rolled back: that is another command.

    Who pastes the remedy for a damaged record does not ask for the last run to be undone.
    """
    invocation.notices.extend(aside.moved)
    for node, why in aside.failed.items():
        invocation.notices.append(f"{node}: the record of a damaged run is where it was: {why}")
    invocation.notices.append("nothing was rolled back; the next rollback does that")
    findings_code = exit_codes.findings_code(surveyed.findings)
    write_code = exit_codes.FAILED if aside.failed else exit_codes.OK
    code = exit_codes.worst(findings_code, write_code)
    return survey_report(invocation, code, surveyed)


def _final_report(invocation: Invocation, surveyed: Survey, outcome: Outcome) -> Report:
    succeeded = outcome.succeeded and not outcome.recovery.stuck
    findings_code = exit_codes.findings_code(surveyed.findings)
    write_code = exit_codes.OK if succeeded else exit_codes.FAILED
    code = exit_codes.worst(findings_code, write_code)
    rows = (*stuck_rows(outcome.recovery), *_rows(outcome))
    return survey_report(invocation, code, surveyed, changes=rows)


def _rows(outcome: Outcome) -> tuple[ChangeRow, ...]:
    """Return what became of each step and file; a file that was rolled back is `undone`."""
    files = outcome.target.files
    outcomes: dict[str, StepOutcome] = {}
    if outcome.files_written:
        for name, result in outcome.receipt.outcomes.items():
            outcomes[name] = "undone" if result == "done" else result
    else:
        outcomes = {change.node: "not-started" for change in files}
    rows = change_rows(files, outcomes, outcome.receipt.details)
    return (*outcome.steps.rows(), *rows)
