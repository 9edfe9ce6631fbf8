"""`clusterprep apply` with --canary or --batches: one batch of nodes after the other.

The locks of all nodes are held from the first batch to the last. Each batch is a transaction of its
own: it is written on all of its nodes or on none, looked at again, and finalized once its gate has
passed; only then comes the next. A batch that fails is taken back, and with --on-failure
rollback-all those before it as well, by a rollback of this run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

import msgspec
from msgspec import Struct

from clusterprep.changes.batches import (
    Batch,
    Content,
    contents_of,
    contents_text,
    split,
    unwritten,
    worst_outcome,
)
from clusterprep.changes.file_plan import change_rows
from clusterprep.changes.node_answers import put_back_text, stays_text
from clusterprep.changes.planner import ChangePlan
from clusterprep.changes.step_runner import NotRolledBack, StepRunner, roll_back_run
from clusterprep.changes.transaction import Receipt, Transaction
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.gate_command import names_text, run_command
from clusterprep.cli.commands.report import survey_report
from clusterprep.cli.commands.rollback import roll_back_again
from clusterprep.cli.commands.session import Invocation, new_run_name
from clusterprep.cli.commands.stages import NO_TRIAL, Survey, survey_again, survey_part
from clusterprep.cli.commands.write_stages import (
    Known,
    Prepared,
    TrialStage,
    findings_of_reached,
    judged_again,
    may_verify,
    put_back_on_error,
    remember_environment,
    run_steps,
    step_runner_of,
    write_files,
)
from clusterprep.errors import ClusterprepError, InputError
from clusterprep.history.applied import is_job_wide
from clusterprep.model import (
    Absent,
    BatchRow,
    ChangeRow,
    Finding,
    Fleet,
    Report,
    StepOutcome,
    Verdict,
)
from clusterprep.model.files import FileState
from clusterprep.model.nodeset import fold
from clusterprep.nccl.environment import Environment
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import blocking_findings
from clusterprep.survey.node_lists import limited_fleet
from clusterprep.survey.queries import QueryPlan

CHECK, VERIFY = "check", "verify"  # gates that are ours; any other is a command of the user


class GateResult(Struct, frozen=True):
    """What a gate said; None if none was wanted and the batch was only looked at again."""

    verdict: Verdict | None
    why: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict in (None, "pass")


def refuse_wrong_batches(invocation: Invocation) -> None:
    """Raise InputError for batches that no nodes of the inventory fit, before any is contacted."""
    settings = invocation.settings
    names = [node.name for node in invocation.inventory.nodes]
    batches = split(names, settings.canary, settings.batches, invocation.inventory.groups)
    if settings.canary and len(batches) == 1:
        message = f"{settings.canary} takes every node: none is left to be written after it"
        raise InputError.of(message, key="--canary", hint="fewer nodes")


def batches_of(invocation: Invocation, fleet: Fleet) -> tuple[Batch, ...]:
    """Return the nodes reached in batches. Raises InputError for options that do not fit them."""
    settings = invocation.settings
    names = [node.name for node in fleet.reached]
    return split(names, settings.canary, settings.batches, invocation.inventory.groups)


def planned_batches(
    invocation: Invocation, surveyed: Survey, change_plan: ChangePlan
) -> tuple[BatchRow, ...]:
    """Return the batches that an apply would write, those with nothing to do as unchanged."""
    pending = _nodes_to_write(change_plan)
    rows = []
    for batch in batches_of(invocation, surveyed.fleet):
        outcome: StepOutcome = "planned" if pending.intersection(batch.nodes) else "unchanged"
        rows.append(BatchRow(batch.name, batch.nodes, outcome))
    return tuple(rows)


def refuse_ungated(
    invocation: Invocation, fleet: Fleet, environment: Environment, change_plan: ChangePlan
) -> None:
    """Raise InputError if values that must be equal on all ranks would be written without a gate.

    While batches differ no job can run across them, so each batch has to be tried by itself.
    """
    settings = invocation.settings
    if not settings.in_batches or len(batches_of(invocation, fleet)) < 2 or settings.gate:
        return
    pending = {change.node for change in change_plan.files if change.action != "none"}
    names: dict[str, None] = {}
    for change in change_plan.files:
        if change.resource != "env" or change.node not in pending:
            continue
        for value in environment.of(change.node).values():
            if is_job_wide(value.name):
                names[value.name] = None
    if not names:
        return
    message = (
        f"{', '.join(names)} must be equal on all ranks, and batches differ until the last one is "
        "written: each has to be tried by itself; nothing was written"
    )
    raise InputError.of(message, key="--gate", hint="check, verify or a command of yours")


def roll_out(
    invocation: Invocation,
    fanout: Fanout,
    query_plan: QueryPlan,
    transaction: Transaction,
    prepared: Prepared,
    verify: TrialStage,
    known: Known,
) -> Report:
    """Write one batch after the other, then survey all nodes again and verify across them."""
    work = _RollOut(
        invocation,
        fanout,
        query_plan,
        transaction,
        prepared,
        verify,
    )
    known.changes = work.changes
    known.batches = lambda: tuple(work.rows)
    work.run()
    surveyed = prepared.surveyed
    if work.wrote:
        # All batches are final or taken back, so the end of the time undoes nothing any more.
        surveyed = survey_again(
            invocation,
            fanout,
            query_plan,
            surveyed,
            keeps_known=invocation.keeps_known,
        )
        known.surveyed = surveyed
        if invocation.deadline.over:
            raise invocation.deadline.over
    findings = findings_of_reached(invocation, surveyed)
    trial = NO_TRIAL
    if work.succeeded and may_verify(invocation, findings):
        trial = verify(
            invocation,
            fanout,
            surveyed.fleet,
            prepared.environment,
            findings,
        )
    surveyed = surveyed.with_findings(trial.findings)
    surveyed = judged_again(invocation, query_plan, surveyed, work.lost)
    findings_code = exit_codes.findings_code(surveyed.findings, invocation.settings.strict)
    write_code = exit_codes.OK if work.succeeded else exit_codes.FAILED
    trial_code = exit_codes.trial_code(trial.result, trial.findings)
    report = survey_report(
        invocation,
        exit_codes.worst(findings_code, write_code, trial_code),
        surveyed,
        env=prepared.environment,
        changes=work.changes(),
        verify=trial.result,
    )
    return msgspec.structs.replace(report, batches=tuple(work.rows))


class _RollOut:
    """The batches of one run, and what became of each node so far."""

    def __init__(
        self,
        invocation: Invocation,
        fanout: Fanout,
        query_plan: QueryPlan,
        transaction: Transaction,
        prepared: Prepared,
        verify: TrialStage,
    ) -> None:
        self._invocation = invocation
        self._fanout = fanout
        self._query_plan = query_plan
        self._transaction = transaction
        self._prepared = prepared
        self._verify = verify
        self._batches = batches_of(invocation, prepared.surveyed.fleet)
        pending = _nodes_to_write(prepared.change_plan)
        self._nodes_to_write = [
            [name for name in batch.nodes if name in pending] for batch in self._batches
        ]
        self._outcomes: dict[str, StepOutcome] = {}
        self._details: dict[str, str] = {}
        self._step_rows: list[ChangeRow] = []
        self._contents: dict[str, Content] = {}
        self.rows: list[BatchRow] = []
        self.lost: set[str] = set()
        self.wrote = False  # on some node, also if it was taken back
        self.succeeded = False
        self._unconfirmed = False  # a batch was written, and a node did not confirm that it stays

    # ------------------------------------------------------------ all batches

    def run(self) -> None:
        """Write the batches until one fails. `rows`, `changes` and the notices say what became."""
        failed = self._transaction.lock()
        if failed:
            self._note_unlocked(failed)
            return
        for batch in self._batches:
            self._invocation.deadline.check()
            try:
                done = self._do_batch(batch)
            except ClusterprepError as error:
                self._note_rest()
                raise error.extended(f"; {contents_text(self._contents)}") from error
            if not done:
                break
        else:
            self.succeeded = True
            return
        if self._invocation.settings.rollback_all:
            if self._unconfirmed:
                # It may be final on some of its nodes, and a rollback is of all of them.
                self._invocation.notices.append(
                    "nothing was taken back, because a node did not confirm that its batch stays: "
                    "`clusterprep rollback` puts back what this run wrote"
                )
            else:
                self._take_back_earlier()
        self._note_rest()
        self._say_who_has_what()

    def changes(self) -> tuple[ChangeRow, ...]:
        """Return what became of every change."""
        files = self._prepared.change_plan.files
        rows = change_rows(files, self._outcomes, self._details)
        return (*rows, *self._step_rows)

    def _note_unlocked(self, failed: dict[str, str]) -> None:
        for batch in self._batches:
            for name in batch.nodes:
                self._outcomes[name] = "failed" if name in failed else "not-started"
            row = BatchRow(batch.name, batch.nodes, self._worst(batch))
            self.rows.append(row)
        self._details.update(failed)
        steps = msgspec.structs.replace(self._prepared.change_plan, files=())
        self._step_rows.extend(steps.none_started())

    def _note_rest(self) -> None:
        """Note the batches that were not begun."""
        for batch in self._batches[len(self.rows) :]:
            plan = self._part(batch).change_plan
            pending = _nodes_to_write(plan)
            for name in batch.nodes:
                content: Content = "old" if name in pending else "new"
                self._contents.setdefault(name, content)
                self._outcomes.setdefault(name, "not-started")
            outcome: StepOutcome = "not-started" if plan.pending else "unchanged"
            self.rows.append(BatchRow(batch.name, batch.nodes, outcome))
            steps = msgspec.structs.replace(plan, files=())
            self._step_rows.extend(steps.none_started())

    def _say_who_has_what(self) -> None:
        notices = self._invocation.notices
        notices.append(contents_text(self._contents))
        names_new = [name for name, content in self._contents.items() if content == "new"]
        if not 0 < len(names_new) < len(self._contents):
            return
        text = (
            "nodes differ: launch across them is refused where a value that must be equal on all "
            "ranks differs; the next apply goes on"
        )
        if any(row.outcome == "done" for row in self.rows):
            text += ", and `clusterprep rollback` puts back what this one wrote"
        notices.append(text)

    # ------------------------------------------------------------ one batch

    def _part(self, batch: Batch) -> Prepared:
        """Return what is planned for the nodes of a batch, as if there were no others."""
        names = frozenset(batch.nodes)
        surveyed = self._prepared.surveyed
        fleet = limited_fleet(surveyed.fleet, names)
        plan = self._prepared.change_plan
        files = tuple(change for change in plan.files if change.node in names)
        actions = tuple(each for each in plan.step_actions if each.step_action.node in names)
        return msgspec.structs.replace(
            self._prepared,
            surveyed=Survey(fleet, surveyed.findings),
            change_plan=ChangePlan(files, actions, {}),
        )

    def _do_batch(self, batch: Batch) -> bool:
        """Write a batch and have it pass its gate. Return False if that failed, once it is undone.

        What became of its nodes is noted also if an error ends it, which comes from here.
        """
        prepared = self._part(batch)
        if not prepared.change_plan.pending:
            self._note_unchanged(batch, prepared)
            return True
        fleet = prepared.surveyed.fleet
        part = self._transaction.of_batch(batch.number, fleet, self._nodes_to_write)
        step_runner = step_runner_of(self._invocation, self._fanout, part, prepared)
        steps = NotRolledBack()

        def roll_back() -> NotRolledBack:
            nonlocal steps
            steps = roll_back_run(part, step_runner, self._invocation.deadline)
            return steps

        gate = GateResult(None)
        failure = ""
        try:
            with put_back_on_error(self._invocation, part, roll_back):
                receipt = write_files(self._invocation, part, prepared)
                self.wrote = self.wrote or part.committed
                run_steps(self._invocation, step_runner, receipt)
                remember_environment(self._invocation, prepared, receipt)
                failure = _write_failure(receipt, step_runner)
                if not failure:
                    gate, failure = self._look_and_try(batch, part, prepared)
            if failure:
                roll_back()
                self._forget(part)
            else:
                failure = self._finalize(part)
        finally:
            pending = _nodes_to_write(prepared.change_plan)
            self._contents.update(contents_of(part, batch.nodes, pending))
            self._note_nodes(batch, pending, part, step_runner)
            lines = (failure, *steps.lines)
            detail = "\n".join(line for line in lines if line)
            row = BatchRow(batch.name, batch.nodes, self._worst(batch), gate.verdict, detail)
            self.rows.append(row)
        return not failure

    def _note_unchanged(self, batch: Batch, prepared: Prepared) -> None:
        for name in batch.nodes:
            self._outcomes[name] = "unchanged"
            self._contents[name] = "new"
        self._step_rows.extend(msgspec.structs.replace(prepared.change_plan, files=()).rows())
        self.rows.append(BatchRow(batch.name, batch.nodes, "unchanged"))

    def _note_nodes(
        self, batch: Batch, pending: frozenset[str], part: Transaction, step_runner: StepRunner
    ) -> None:
        for name in batch.nodes:
            usual: StepOutcome = "not-started" if name in pending else "unchanged"
            self._outcomes[name] = part.receipt.outcomes.get(name, usual)
        self._details.update(part.receipt.details)
        self.lost.update(part.receipt.lost, step_runner.lost)
        self._step_rows.extend(step_runner.rows())

    def _worst(self, batch: Batch) -> StepOutcome:
        outcomes = [self._outcomes[name] for name in batch.nodes]
        for row in self._step_rows:
            if set(row.nodes).intersection(batch.nodes):
                outcomes.append(row.outcome)
        return worst_outcome(outcomes)

    def _forget(self, part: Transaction) -> None:
        """Forget what a batch was given, once it is known to be taken back."""
        if part.put_back.complete:
            cluster = self._invocation.inventory.cluster
            self._invocation.applied.forget(cluster, self._invocation.run, part.names)

    def _finalize(self, part: Transaction) -> str:
        """Tell the nodes of a batch that what was written stays. Return why one did not confirm."""
        with self._invocation.deadline.shield():
            part.finalize()
        if part.finalized.complete:
            return ""
        self._unconfirmed = True
        return stays_text(part.finalized)

    # ------------------------------------------------------------ looking again, and the gate

    def _look_and_try(
        self, batch: Batch, part: Transaction, prepared: Prepared
    ) -> tuple[GateResult, str]:
        """Look at a batch again and ask its gate.

        Return what the gate said, and why the batch did not pass; "" if it did.
        """
        links = dict(self._fanout.links)
        fleet = prepared.surveyed.fleet
        surveyed = survey_part(self._invocation, self._fanout, self._query_plan, fleet)
        again = [
            name for name in batch.nodes if self._fanout.links.get(name) is not links.get(name)
        ]
        failure = _seen_failure(surveyed.fleet, prepared.change_plan, batch)
        if not failure and again:
            # A node that was lost and dialled again has a new agent, which holds no lock.
            unlocked = part.lock_again(again)
            failure = "; ".join(f"{name}: {why}" for name, why in unlocked.items())
        if failure:
            return GateResult(None), failure
        gate = self._ask_gate(batch, prepared, surveyed)
        if gate.passed:
            return gate, ""
        return gate, f"the gate did not pass: {gate.why}"

    def _ask_gate(self, batch: Batch, prepared: Prepared, surveyed: Survey) -> GateResult:
        invocation = self._invocation
        gate = invocation.settings.gate
        if not gate:
            return GateResult(None)
        if gate == CHECK:
            return _judged(surveyed.findings, invocation.settings.strict)
        if gate == VERIFY:
            return self._ask_verify(prepared, surveyed)
        invocation.watch.stage("gate", len(batch.nodes))
        variables = {
            "CLUSTERPREP_NODES": names_text(batch.nodes),
            "CLUSTERPREP_RUN": invocation.run,
            "CLUSTERPREP_BATCH": batch.name,
        }
        end = run_command(gate, variables, invocation.deadline.check)
        return GateResult("pass" if end.code == 0 else "fail", end.text)

    def _ask_verify(self, prepared: Prepared, surveyed: Survey) -> GateResult:
        """Run the all-reduce over the ranks of a batch alone."""
        findings = list(surveyed.findings)
        blocking = blocking_findings(findings, self._invocation.settings.on_busy)
        if blocking:
            return _judged(blocking, strict=True)
        trial = self._verify(
            self._invocation,
            self._fanout,
            surveyed.fleet,
            prepared.environment,
            findings,
        )
        code = exit_codes.trial_code(trial.result, trial.findings)
        if code == exit_codes.OK:
            return GateResult("pass")
        why = "the all-reduce failed" if code == exit_codes.FAILED else "it could not be judged"
        if trial.result is not None:
            causes = [culprit.cause for culprit in trial.result.culprits]
            why = "; ".join([trial.result.message or why, *causes])
        return GateResult("fail" if code == exit_codes.FAILED else "unknown", why)

    # ------------------------------------------------------------ taking back all

    def _take_back_earlier(self) -> None:
        """Roll this run back on the nodes of the batches that were finalized, all or none."""
        earlier = [row for row in self.rows if row.outcome == "done"]
        names = [name for row in earlier for name in row.nodes]
        if not names:
            return
        invocation = self._invocation
        moment = datetime.now(timezone.utc)
        fleet = limited_fleet(self._prepared.surveyed.fleet, frozenset(names))
        undoing = self._transaction.followed_by(new_run_name(moment), fleet, moment)
        why = ""
        try:
            with invocation.deadline.shield():
                why = roll_back_again(invocation, self._fanout, undoing, invocation.run)
                undoing.finalize()
            if not undoing.finalized.complete:
                self._invocation.notices.append(stays_text(undoing.finalized))
        except ClusterprepError as error:
            if undoing.committed:
                undoing.roll_back()
            why = error.message
            if undoing.rolled_back:
                why += f"; {put_back_text(undoing.put_back, of_batch=True)}"
        self._note_taken_back(names, undoing, why)

    def _note_taken_back(self, names: Iterable[str], undoing: Transaction, why: str) -> None:
        doubtful = {**undoing.put_back.refused, **undoing.put_back.lost}
        undone = []
        for name in names:
            if self._outcomes[name] != "done":
                continue
            if undoing.receipt.outcomes.get(name) == "done":
                self._outcomes[name] = "undone"
                self._contents[name] = "old"
                undone.append(name)
            elif name in doubtful:
                self._outcomes[name] = "unanswered"
                self._contents[name] = "unknown"
        self._details.update(undoing.receipt.details)
        self.lost.update(undoing.receipt.lost)
        cluster = self._invocation.inventory.cluster
        self._invocation.applied.forget(cluster, self._invocation.run, undone)
        batches = {batch.name: batch for batch in self._batches}
        rows = []
        for row in self.rows:
            outcome = self._worst(batches[row.name])
            rows.append(msgspec.structs.replace(row, outcome=outcome))
        self.rows = rows
        if why:
            self._invocation.notices.append(f"the batches before it could not be taken back: {why}")


# ---------------------------------------------------------------- values


def _nodes_to_write(plan: ChangePlan) -> frozenset[str]:
    """Return the nodes on which there is something to do."""
    names = {change.node for change in plan.files if change.action != "none"}
    return frozenset(names.union(plan.nodes))


def _write_failure(receipt: Receipt, step_runner: StepRunner) -> str:
    """Return why a batch was not written; empty if it was."""
    if not receipt.done:
        reasons = [
            f"{name}: {why}" for name, why in receipt.details.items() if name in receipt.outcomes
        ]
        return "; ".join(reasons) or "it could not be written"
    if step_runner.failed:
        failed = [row.detail for row in step_runner.rows() if row.detail]
        return "; ".join(dict.fromkeys(failed)) or "a step failed"
    return ""


def _seen_failure(fleet: Fleet, plan: ChangePlan, batch: Batch) -> str:
    """Return why the second look at a batch says that it is not written; empty if it is."""
    reached = {node.name for node in fleet.reached}
    missing = [name for name in batch.nodes if name not in reached]
    if missing:
        return f"{fold(missing)} gave no answer when it was looked at again"
    states: dict[tuple[str, str], object] = {}
    unseen: dict[str, None] = {}
    for change in plan.files:
        state = fleet.fact(change.node, f"target:{change.path}")
        if isinstance(state, FileState):
            states[change.node, change.path] = state.content
        elif isinstance(state, Absent) and state.reason != "not_asked":
            unseen[f"{change.path} on {change.node} ({state.reason})"] = None
    if unseen:
        return f"it is not known whether it is as written: {', '.join(unseen)}"
    differing = unwritten(plan.files, states)
    if differing:
        return f"not what was written, when it was looked at again: {', '.join(differing)}"
    return ""


def _judged(findings: Iterable[Finding], strict: bool) -> GateResult:
    """Return pass where `check` of these nodes would end with 0, and else the first reason."""
    found = tuple(findings)
    code = exit_codes.findings_code(found, strict)
    if code == exit_codes.OK:
        return GateResult("pass")
    verdict: Verdict = "fail" if code == exit_codes.FAILED else "unknown"
    reasons = []
    for finding in found:
        counts = strict or finding.severity == "error"
        if counts and finding.verdict == verdict and not finding.fixed and not finding.silenced:
            reasons.append(f"{finding.check} {verdict} on {fold(finding.nodes)}")
    return GateResult(verdict, "; ".join(dict.fromkeys(reasons)))
