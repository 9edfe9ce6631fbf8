"""Writes files on all nodes or on none: stage on every node, commit on every node, finalize.

If one node cannot stage or commit, the old bytes are put back on all of them.

Locks are also taken on nodes where nothing is to be written. A lock ends with the agent's process,
so there is no old lock to steal or to clean up.

A running value of the kernel is a file below /proc/sys, which can be read and compared and not
renamed. It is set last in the commit of its node and read back; any other value than the wanted one
is a failed commit. After an interruption the value itself shows whether it had been set.

Tests in tests/hosts read the order of writes and fsyncs from the agent's system calls
(test_disk_order), and kill the agent at each of them (test_agent_killed).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.changes.agents import LONGEST, Agents, Answers, refusals
from clusterprep.changes.file_plan import diff_text
from clusterprep.changes.file_rollback import OldRun, parse_runs
from clusterprep.changes.node_answers import NodeAnswers, node_answers, undo_answers
from clusterprep.errors import LinkLost, Refused
from clusterprep.facts.journal import LARGEST_NUMBER, Journal, JournalEntry
from clusterprep.model import Fleet, StepOutcome
from clusterprep.model.files import FileChange
from clusterprep.model.nodeset import fold
from clusterprep.remote.transports.link import WRITING_LIMIT
from clusterprep.remote.untrusted import as_list, require_integer, shortened
from clusterprep.runtime.deadline import Deadline
from clusterprep.runtime.user import who_is_at_work

LIMIT = 60.0  # seconds for one phase on all nodes: a few small files and their fsyncs
STEPS_LIMIT = 3600.0  # seconds for all commands of a rollback, each of which has a limit of its own

ByNode = Mapping[str, list[FileChange]]


class Receipt(Struct):
    """What became of a write: an outcome and a detail per node.

    `lost` has the nodes on which the run may not be settled: they went away, or refused.
    """

    outcomes: dict[str, StepOutcome] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    @property
    def done(self) -> bool:
        """Whether every change was done on every node."""
        return all(outcome in ("done", "unchanged") for outcome in self.outcomes.values())


class BatchPlace(Struct, frozen=True):
    """The place of a batch among those of its run.

    `number` counts from 1, `batches` are the nodes of each, folded.
    """

    number: int
    batches: tuple[str, ...]


class Transaction:
    """The file changes of one run on all nodes.

    `stage_and_commit` writes them. After it either `finalize` makes them permanent, or `roll_back`
    puts the old bytes back. `started` is when the run began, by the clock of the controller.
    `batch` is for one batch of a run. `number`, which orders the run among all on its nodes, is
    given where the locks of these are held already.
    """

    def __init__(
        self,
        agents: Agents,
        fleet: Fleet,
        run: str,
        started: datetime,
        batch: BatchPlace | None = None,
        number: int | None = None,
    ) -> None:
        self._agents = agents
        self._fleet = fleet
        self._run = run
        self._started = started
        self._batch = batch
        self._bodies: dict[str, dict[str, Any]] = {}
        for node in fleet.reached:
            body = {
                "root": node.root,
                "run": run,
                "cluster": fleet.inventory.cluster,
            }
            self._bodies[node.name] = body
        self._staged: set[str] = set()
        self._locked = number is not None
        # Higher than those of all runs on the nodes that it locks, whatever this clock says. Beside
        # runs that share no node with it, the milliseconds tell what is later.
        self._number = int(started.timestamp() * 1000) if number is None else number
        self.receipt = Receipt()
        self.committed = False  # and neither finalized nor rolled back
        self.rolled_back = False  # after it had been committed
        self.put_back = NodeAnswers()  # what nodes answered to the rollback of this run
        self.finalized = NodeAnswers()  # what nodes answered when it was made final
        # Folders that a run made which is now undone, and that others use → their nodes.
        self.remaining_folders: dict[str, list[str]] = {}

    @property
    def is_batch(self) -> bool:
        """Whether this writes one of several batches of nodes."""
        return self._batch is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes that it may write to."""
        return tuple(self._bodies)

    def of_batch(self, number: int, fleet: Fleet, batches: Sequence[Sequence[str]]) -> Transaction:
        """Return the transaction of one batch of this run, which writes to the nodes of `fleet`.

        `number` counts from 1. `batches` are for the journal: the nodes that each batch writes to,
        without those on which there is nothing to do. The locks have to be taken before, of all
        nodes: a batch takes none.
        """
        folded = tuple(fold(names) for names in batches)
        place = BatchPlace(number, folded)
        return Transaction(self._agents, fleet, self._run, self._started, place, self._number)

    def followed_by(self, run: str, fleet: Fleet, started: datetime) -> Transaction:
        """Return the transaction of a later run on nodes of which this one holds the locks."""
        number = min(self._number + 1, LARGEST_NUMBER)
        return Transaction(self._agents, fleet, run, started, number=number)

    def request_body(self, name: str) -> dict[str, Any]:
        """Return what every request about this run says to a node."""
        return dict(self._bodies[name])

    # ------------------------------------------------------------ locks

    def lock(self) -> dict[str, str]:
        """Take the lock of every node reached; return why some could not be taken.

        The node with the smallest machine id decides between two runs that begin at once; only the
        run that gets its lock asks the others. Raises Refused if another run holds a lock, LinkLost
        if a node is lost.
        """
        if self._locked:
            return {}
        self._agents.load("act")
        names = sorted(self._bodies, key=self._machine_id)
        for group in (names[:1], names[1:]):
            answers = self._ask("lock", group, by=who_is_at_work())
            _refuse_locked(answers)
            failed = refusals(answers)
            if failed:
                return failed
            self._number_after(answers)
        self._locked = True
        return {}

    def lock_again(self, names: Iterable[str]) -> dict[str, str]:
        """Take the lock of nodes that have a new agent; return why some could not be taken."""
        chosen = list(names)
        self._agents.load("act", chosen)
        return refusals(self._ask("lock", chosen, by=who_is_at_work()))

    def _number_after(self, answers: Answers) -> None:
        """Make the number of this run higher than those of all runs on these nodes.

        Raises LinkLost if a node has a number that none can be.
        """
        for name, answer in answers.items():
            if isinstance(answer, LinkLost):
                continue
            try:
                last = require_integer(answer.get("last"), most=LARGEST_NUMBER)
            except ValueError as error:
                raise LinkLost("garbled", f"{name}: the number of its last run: {error}") from None
            # A node can make the number as large as there is, and nothing breaks: names decide.
            self._number = min(max(self._number, last + 1), LARGEST_NUMBER)

    def _machine_id(self, name: str) -> tuple[str, str]:
        """Return the machine id of a node; its name decides between nodes that have none."""
        return str(self._fleet.fact(name, "host.machine_id")), name

    # ------------------------------------------------------------ earlier runs

    def remembered_runs(self) -> dict[str, tuple[OldRun, ...]]:
        """Return every run that each node remembers. Raises LinkLost if one cannot say."""
        remembered: dict[str, tuple[OldRun, ...]] = {}
        for name, answer in self._ask("runs", self._bodies).items():
            if isinstance(answer, LinkLost):
                raise _lost_before_writing(name, answer)
            try:
                remembered[name] = parse_runs(answer)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                why = shortened(answer.get("why") or error, LONGEST)
                message = f"{name}: its list of runs cannot be read: {why}"
                raise LinkLost("garbled", message) from None
        return remembered

    # ------------------------------------------------------------ writing

    def stage_and_commit(
        self,
        changes: Iterable[FileChange],
        deadline: Deadline,
        undoes: str | None = None,
        also: Iterable[str] = (),
    ) -> Receipt:
        """Lock, stage and commit. `undoes` is the run that this one rolls back.

        The run begins on the nodes of `also`, too, even without a file to write: what follows
        there needs its journal. Raises Refused if a lock is held or a file changed since it was
        planned.
        """
        by_node = _changes_by_node(changes)
        for name in also:
            by_node.setdefault(name, [])
        failed = self.lock()
        if not by_node:
            return self.receipt
        if failed:
            self._mark(by_node, failed, "not-started")
            return self.receipt
        self._agents.bear_silence(WRITING_LIMIT)
        try:
            failed = self._stage(by_node, undoes)
            if failed:
                self.roll_back()
                self._mark(by_node, failed, "not-started")
                return self.receipt
            deadline.check()
            # Between the first commit and the last one no signal may end the command.
            with deadline.shield():
                self._commit(by_node)
        except BaseException:
            self.roll_back()
            raise
        return self.receipt

    def roll_back(self) -> None:
        """Put the old bytes back on every node that staged; `put_back` has their answers.

        A node that cannot be asked keeps its manifest, so the next run can do it.
        """
        self._agents.bear_silence(WRITING_LIMIT)
        answers = undo_answers(self._ask("undo", self._staged_names(), undo=self._run))
        outcomes = self.receipt.outcomes
        for name in answers.done:
            if outcomes.get(name) != "failed":
                outcomes[name] = "rolled-back" if self.committed else "not-started"
        outcomes.update(dict.fromkeys(answers.refused, "failed"))
        # Before the commit nothing was in place, whatever became of the node.
        outcomes.update(dict.fromkeys(answers.lost, "unanswered" if self.committed else "failed"))
        self.receipt.details.update({**answers.refused, **answers.lost})
        self.receipt.lost.update(answers.refused, answers.lost)
        self.put_back = self.put_back.joined(answers)
        self._staged.clear()
        if self.committed:
            self.rolled_back = True
            self.committed = False

    def finalize(self) -> None:
        """Tell every node that what was committed stays.

        From the first node that knows it, the run can only be completed and not rolled back.
        """
        self._agents.bear_silence(WRITING_LIMIT)
        answers = self._ask("settle", self._staged_names())
        self.finalized = node_answers(answers)
        unconfirmed = {**self.finalized.refused, **self.finalized.lost}
        self.receipt.details.update(unconfirmed)
        self.receipt.lost.update(unconfirmed)
        for name, answer in answers.items():
            if isinstance(answer, LinkLost):
                continue
            for folder in as_list(answer.get("left")):
                path = shortened(folder, LONGEST)
                self.remaining_folders.setdefault(path, []).append(name)
        self._staged.clear()
        self.committed = False

    def _stage(self, by_node: ByNode, undoes: str | None) -> dict[str, str]:
        """Have every node stage its files; return by node why one could not.

        Raises Refused if a file is not what was planned against.
        """
        bodies = {}
        nodes = fold(by_node)
        of_batch: dict[str, Any] = {}
        if self._batch is not None:
            of_batch = {"batch": self._batch.number, "batches": list(self._batch.batches)}
        for name, changes in by_node.items():
            files = [_file_request(change) for change in changes]
            bodies[name] = {
                **self._bodies[name],
                "number": self._number,
                "node": name,
                "nodes": nodes,
                "undoes": undoes,
                "files": files,
                **of_batch,
            }
        answers = self._agents.ask("stage", bodies, LIMIT)
        failed = refusals(answers)
        self._staged = set(answers) - set(failed)
        for name, answer in answers.items():
            if isinstance(answer, LinkLost):
                self.receipt.lost.add(name)
        _refuse_changed(by_node, answers, "; this run wrote nothing")
        return failed

    def _commit(self, by_node: ByNode) -> None:
        """Have every node commit. If one fails all are rolled back, and it is in the receipt.

        Raises Refused, after the rollback, if a file was changed since it was staged; `put_back`
        then says what became of the rollback.
        """
        answers = self._ask("commit", by_node)
        self.committed = True
        failed = refusals(answers)
        if not failed:
            self.receipt.outcomes = dict.fromkeys(by_node, "done")
            return
        self.roll_back()
        _refuse_changed(by_node, answers)
        self._mark_failed(failed)

    # ------------------------------------------------------------ helpers

    def _ask(self, op: str, names: Iterable[str], **more: Any) -> Answers:
        bodies = {
            name: {
                **self._bodies[name],
                **more,
            }
            for name in names
        }
        return self._agents.ask(op, bodies, LIMIT)

    def _staged_names(self) -> list[str]:
        return [name for name in self._bodies if name in self._staged]

    def _mark(self, names: Iterable[str], failed: Mapping[str, str], others: StepOutcome) -> None:
        """Note the outcome of every node: those in `failed` have failed, the rest are `others`."""
        outcomes = self.receipt.outcomes
        for name in names:
            if name not in failed and outcomes.get(name) != "failed":
                outcomes[name] = others
        self._mark_failed(failed)

    def _mark_failed(self, failed: Mapping[str, str]) -> None:
        """Note why nodes failed; of those that no longer answer nothing better is known."""
        for name, why in failed.items():
            if self.receipt.outcomes.get(name) == "unanswered":
                continue
            self.receipt.outcomes[name] = "failed"
            put_back = self.put_back.refused.get(name)
            self.receipt.details[name] = why if put_back is None else f"{why}\n{put_back}"


# ---------------------------------------------------------------- answers that end the command


def _refuse_locked(answers: Answers) -> None:
    for name, answer in answers.items():
        if isinstance(answer, LinkLost):
            raise _lost_before_writing(name, answer)
        if answer.get("no") == "locked":
            holder = answer.get("why")
            message = f"{name}: another run holds the lock ({holder}); nothing was written"
            raise Refused(message)


def _refuse_changed(by_node: ByNode, answers: Answers, result: str = "") -> None:
    """Raise Refused if a file changed since it was planned; `result` ends its message."""
    for name, answer in answers.items():
        if isinstance(answer, LinkLost) or answer.get("no") != "changed":
            continue
        path = str(answer.get("path"))
        before = None
        for change in by_node[name]:
            if change.path == path:
                before = encoded(change.before)
        difference = edit_diff(name, path, before, answer.get("current"))
        why = shortened(answer.get("why"), LONGEST)
        raise Refused(f"{name}: {why}{result}", difference)


def _lost_before_writing(name: str, lost: LinkLost) -> LinkLost:
    message = f"{name} was lost before anything was written: {lost.message}"
    return LinkLost(lost.reason, message)


def edit_diff(node: str, path: str, before: object, now: object) -> str:
    """Return the change that others made to a file, as a diff.

    Both states come as base64, None for no such file. They are a node's own words: what is no
    base64 gives an empty diff.
    """
    try:
        old = _decoded(before)
        new = _decoded(now)
    except ValueError:
        old = None
        new = None
    return diff_text(
        FileChange(
            node,
            "env",
            path,
            old,
            new,
        )
    )


def _decoded(text: object) -> bytes | None:
    return base64.b64decode(text) if isinstance(text, str) else None


def encoded(content: bytes | None) -> str | None:
    """Return bytes as base64, None for no such file."""
    return None if content is None else base64.b64encode(content).decode()


# ---------------------------------------------------------------- changes


def _changes_by_node(changes: Iterable[FileChange]) -> dict[str, list[FileChange]]:
    """Return the changes of every node that has some, those to one file joined into one."""
    by_node: dict[str, dict[str, FileChange]] = {}
    for change in changes:
        if change.action == "none":
            continue
        path = change.path
        by_path = by_node.setdefault(change.node, {})
        earlier = by_path.get(path)
        by_path[path] = change if earlier is None else _joined(earlier, change)
    return {node: list(by_path.values()) for node, by_path in by_node.items()}


def _joined(first: FileChange, second: FileChange) -> FileChange:
    """Return one change for those of two steps to a file.

    The second one was planned against what the first one leaves.
    """
    resources = dict.fromkeys((first.resource, second.resource))
    access = second.access or first.access
    return replace(
        second,
        resource=", ".join(resources),
        before=first.before,
        was=first.was,
        access=access,
    )


def _file_request(change: FileChange) -> dict[str, Any]:
    """Return a change as the agent takes it."""
    access = None
    if change.access is not None:
        access = (change.access.mode, change.access.uid, change.access.gid)
    return {
        "path": change.path,
        "before": encoded(change.before),
        "after": encoded(change.after),
        "mode": change.mode,
        "resource": change.resource,
        "access": access,
        "running": change.running,
    }


# ---------------------------------------------------------------- after a loss


def with_lost(fleet: Fleet, run: str, lost: Iterable[str]) -> Fleet:
    """Return the fleet as the check of the journal has to see it after nodes were lost.

    On these nodes the run counts as not finalized, as far as can be told from here.
    """
    names = list(lost)
    journal = Journal((JournalEntry(run, fleet.inventory.cluster, "lost"),))
    fleet = fleet.with_facts({name: {"state.journal": journal} for name in names})
    snapshots = dict(fleet.snapshots)
    for name in names:
        snapshots[name] = replace(snapshots[name], reached=True)
    return replace(fleet, snapshots=snapshots)
