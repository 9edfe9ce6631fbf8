"""Uniform or not at all: stage on every node, commit on every node, settle; put all back when one cannot."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clusterprep.changes.file_plan import plan_files
from clusterprep.changes.file_rollback import OldRun, parse_runs
from clusterprep.errors import LinkLost, Refused
from clusterprep.facts.journal import Journal, JournalEntry
from clusterprep.model import Fleet, StepOutcome
from clusterprep.model.files import FileChange
from clusterprep.model.nodeset import fold
from clusterprep.remote.transports.link import WRITING_LIMIT, Frame
from clusterprep.remote.untrusted import as_list, shortened
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.fanout import Fanout

LONGEST = 4000  # characters of a node's own words
LIMIT = 60.0  # seconds for one phase on all nodes: a few small files and their fsyncs
LASTING = 3600.0  # seconds for the commands of an undo, each of which has a limit of its own


@dataclass
class Receipt:
    """What became of a write: an outcome and a detail per node, and whether every change was done.

    `lost` names the nodes of which nobody knows how far they came.
    """

    outcomes: dict[str, StepOutcome] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    @property
    def done(self) -> bool:
        return all(outcome in ("done", "unchanged") for outcome in self.outcomes.values())


class Transaction:
    """One run's changes on all nodes: `write` commits them, then `settle` says that they stay, or `undo` that not."""

    def __init__(self, fanout: Fanout, fleet: Fleet, run: str) -> None:
        self.fanout, self._fleet, self._run = fanout, fleet, run
        shared = {"run": run, "cluster": fleet.inventory.cluster}
        self._bodies = {node.name: {"root": node.root, **shared} for node in fleet.reached}
        self.receipt = Receipt()
        self._staged: set[str] = set()
        self._locked = False
        self.committed = False  # and not settled
        self.taken_back = False
        self.left: dict[
            str, list[str]
        ] = {}  # folder that an undone run made and others use → nodes
        self.stuck: dict[
            str, str
        ] = {}  # node → why what an earlier run left there cannot be settled

    def lock(self) -> dict[str, str]:
        """Take the lock of every node reached; why some could not be taken. Raises Refused where a run holds one.

        The lock of the first node decides between two runs; only its winner asks the others.
        """
        if self._locked:
            return {}
        self.fanout.load("act")
        names = sorted(
            self._bodies, key=lambda name: str(self._fleet.fact(name, "host.machine_id"))
        )
        for group in (names[:1], names[1:]):
            answers = self.fanout.ask("lock", {name: self._bodies[name] for name in group}, LIMIT)
            for name, answer in answers.items():
                if isinstance(answer, LinkLost):
                    raise LinkLost(
                        answer.reason,
                        f"{name} was lost before anything was written: {answer.message}",
                    )
                if answer.get("no") == "locked":
                    raise Refused(
                        f"{name}: another run holds the lock ({answer.get('why')}); nothing was written"
                    )
            if failed := refusals(answers):
                return failed
        self._locked = True
        return {}

    def recover(self, force: bool = False, by: str | None = None) -> list[Recovered]:
        """Settle what earlier runs left behind, newest first; `by` names the rollback that wants it undone.

        Raises Refused where somebody edited a file meanwhile. `stuck` then names the nodes that cannot do it.
        """
        begun = _unsettled(self._fleet)
        if not begun:
            return []
        if failed := self.lock():
            self.stuck = failed
            return []
        return [
            found
            for run in sorted(begun, reverse=True)
            if (found := self._recover(run, begun[run], force, by))
        ]

    def _recover(
        self, run: str, states: Mapping[str, str], force: bool, by: str | None
    ) -> Recovered | None:
        journals = (self._fleet.fact(node.name, "state.journal") for node in self._fleet.reached)
        # Settling begins only when all nodes have committed, so one that is done speaks for all.
        forward = any(
            isinstance(journal, Journal) and journal.state(run) == "done" for journal in journals
        )
        done: dict[str, str] = {}
        begun = set(states)
        standing = {name for name, state in states.items() if forward and state == "committed"}
        self._take_back(run, begun - standing, force=force)
        self._take_back(run, standing, half=True, again=True, force=force)
        for op in ("settle", "undo"):
            chosen = [
                n for n in states if (op == "settle") == (n in standing) and n not in self.stuck
            ]
            more = {"run": run} if op == "settle" else {"undo": run, "force": force, "by": by}
            answers = self.fanout.ask(
                op, {name: {**self._bodies[name], **more} for name in chosen}, LIMIT
            )
            for name, answer in answers.items():
                if isinstance(answer, dict) and answer.get("no") == "changed":
                    cure = "`clusterprep rollback --force` puts the old bytes back all the same"
                    edit = _edit(
                        name, str(answer.get("path")), answer.get("after"), answer.get("current")
                    )
                    raise Refused(
                        f"{name}: run {run} was cut off, and {answer.get('why')}; {cure}", edit
                    )
            self.stuck.update(refusals(answers))
            done.update(
                {
                    name: op
                    for name, answer in answers.items()
                    if isinstance(answer, dict) and not {"no", "nothing"} & set(answer)
                }
            )
        self._take_back(run, begun - standing - set(self.stuck), again=True)
        return Recovered(run, tuple(n for n in states if n in done), forward) if done else None

    def _take_back(self, run: str, names: Iterable[str], **how: bool) -> None:
        """Undo what a run that was cut off did step by step; a node that cannot do it is stuck."""
        self.fanout.load("steps", names)
        bodies = {name: {**self._bodies[name], "run": run, **how} for name in names}
        self.stuck.update(refusals(self.fanout.ask("take_back", bodies, LASTING)))

    def memories(self) -> dict[str, tuple[OldRun, ...]]:
        """Every run that each node remembers. Raises LinkLost where one cannot say."""
        memories: dict[str, tuple[OldRun, ...]] = {}
        for name, answer in self.fanout.ask("runs", self._bodies, LIMIT).items():
            if isinstance(answer, LinkLost):
                raise LinkLost(
                    answer.reason, f"{name} was lost before anything was written: {answer.message}"
                )
            try:
                memories[name] = parse_runs(answer)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                why = shortened(answer.get("why") or error, LONGEST)
                raise LinkLost(
                    "garbled", f"{name}: its list of runs cannot be read: {why}"
                ) from None
        return memories

    def body(self, name: str) -> dict[str, Any]:
        """What every request about this run says to a node."""
        return dict(self._bodies[name])

    def rejoin(self, names: Iterable[str]) -> dict[str, str]:
        """Take the lock of nodes again whose agent is a new one; why some could not be taken."""
        bodies = {name: self._bodies[name] for name in names}
        self.fanout.load("act", bodies)
        return refusals(self.fanout.ask("lock", bodies, LIMIT))

    def write(
        self,
        changes: Iterable[FileChange],
        deadline: Deadline,
        undoes: str | None = None,
        also: Iterable[str] = (),
    ) -> Receipt:
        """Lock, stage and commit. Raises Refused where a lock is held or a file changed since it was planned.

        The run begins on the nodes of `also`, too, where it has no file to write: what follows needs its journal.
        """
        todo = _by_node(change for change in changes if change.action != "none")
        todo.update({name: [] for name in also if name not in todo})
        failed = self.lock()
        if not todo:
            return self.receipt
        if failed:
            self._mark(todo, failed, "failed", "not-started")
            return self.receipt
        self.fanout.bear_silence(WRITING_LIMIT)
        try:
            if failed := self._stage(todo, undoes):
                self.undo()
                self._mark(todo, failed, "failed", "not-started")
                return self.receipt
            with deadline.shield():
                self._commit(todo)
        except BaseException:
            self.undo()
            raise
        return self.receipt

    def undo(self) -> None:
        """Put the old bytes back on every node that staged; a node that cannot be asked keeps its manifest."""
        self.fanout.bear_silence(WRITING_LIMIT)
        bodies = {
            name: {**self._bodies[name], "undo": self._run}
            for name in self._bodies
            if name in self._staged
        }
        answers = self.fanout.ask("undo", bodies, LIMIT)
        for name, answer in answers.items():
            if isinstance(answer, LinkLost) or "no" in answer:
                self.receipt.outcomes[name], self.receipt.details[name] = "failed", _why(answer)
                self.receipt.lost.add(name)
            elif self.receipt.outcomes.get(name) != "failed":
                self.receipt.outcomes[name] = "rolled-back" if self.committed else "not-started"
        self._staged.clear()
        self.taken_back, self.committed = self.taken_back or self.committed, False

    def settle(self) -> None:
        """Say on every node that what was committed stays. From the first that knows it there is no way back."""
        self.fanout.bear_silence(WRITING_LIMIT)
        bodies = {name: self._bodies[name] for name in self._bodies if name in self._staged}
        answers = self.fanout.ask("settle", bodies, LIMIT)
        for name, why in refusals(answers).items():
            self.receipt.details[name] = why
            self.receipt.lost.add(name)
        for name, answer in answers.items():
            for folder in as_list(answer.get("left")) if isinstance(answer, dict) else ():
                self.left.setdefault(shortened(folder, LONGEST), []).append(name)
        self._staged.clear()
        self.committed = False

    def _stage(self, todo: Mapping[str, list[FileChange]], undoes: str | None) -> dict[str, str]:
        more = {"undoes": undoes}
        bodies = {
            name: {**self._bodies[name], **more, "files": [_wire(c) for c in todo[name]]}
            for name in todo
        }
        answers = self.fanout.ask("stage", bodies, LIMIT)
        failed = refusals(answers)
        self._staged = set(answers) - set(failed)
        self.receipt.lost.update(
            name for name, answer in answers.items() if isinstance(answer, LinkLost)
        )
        self._refuse_changed(todo, answers, "nothing was written")
        return failed

    def _commit(self, todo: Mapping[str, list[FileChange]]) -> None:
        answers = self.fanout.ask("commit", {name: self._bodies[name] for name in todo}, LIMIT)
        self.committed = True
        if failed := refusals(answers):
            self.undo()
            self._refuse_changed(todo, answers, "what had been written was put back")
            self._mark(todo, failed, "failed", "rolled-back")
        else:
            self.receipt.outcomes = dict.fromkeys(todo, "done")

    def _refuse_changed(
        self,
        todo: Mapping[str, list[FileChange]],
        answers: Mapping[str, Frame | LinkLost],
        result: str,
    ) -> None:
        for name, answer in answers.items():
            if isinstance(answer, dict) and answer.get("no") == "changed":
                self.undo()
                planned = {change.path: change for change in todo[name]}
                path = str(answer.get("path"))
                before = _encode(planned[path].before) if path in planned else None
                edit = _edit(name, path, before, answer.get("current"))
                raise Refused(f"{name}: {shortened(answer.get('why'), LONGEST)}; {result}", edit)

    def _mark(
        self, todo: Iterable[str], failed: Mapping[str, str], bad: StepOutcome, rest: StepOutcome
    ) -> None:
        for name in todo:
            if name in failed or self.receipt.outcomes.get(name) != "failed":
                self.receipt.outcomes[name] = bad if name in failed else rest
        self.receipt.details.update(failed)


@dataclass(frozen=True)
class Recovered:
    """A run that was cut off, and the nodes on which it was settled: done after all, or undone."""

    run: str
    nodes: tuple[str, ...]
    done: bool

    def __str__(self) -> str:
        what = "stands on all nodes and is done now" if self.done else "was undone"
        return f"run {self.run} was cut off; on {fold(self.nodes)} it {what}"


def _unsettled(fleet: Fleet) -> dict[str, dict[str, str]]:
    """Run → node → state, of all runs that are not settled on some node."""
    found: dict[str, dict[str, str]] = {}
    for node in fleet.reached:
        journal = fleet.fact(node.name, "state.journal")
        for entry in journal.unsettled if isinstance(journal, Journal) else ():
            found.setdefault(entry.run, {})[node.name] = entry.state
    return found


def with_lost(fleet: Fleet, run: str, lost: Iterable[str]) -> Fleet:
    """A fleet to judge the journal by: on these nodes it is not settled, as far as anybody can tell."""
    entry = JournalEntry(run, fleet.inventory.cluster, "lost")
    snapshots = dict(fleet.snapshots)
    for name in lost:
        facts = {**snapshots[name].facts, "state.journal": Journal((entry,))}
        snapshots[name] = replace(snapshots[name], reached=True, facts=facts)
    return replace(fleet, snapshots=snapshots)


def _by_node(changes: Iterable[FileChange]) -> dict[str, list[FileChange]]:
    found: dict[str, dict[str, FileChange]] = {}
    for change in changes:
        paths = found.setdefault(change.node, {})
        paths[change.path] = _after(paths.get(change.path), change)
    return {node: list(paths.values()) for node, paths in found.items()}


def _after(first: FileChange | None, then: FileChange) -> FileChange:
    """One change of two steps to a file, of which the second was planned against what the first leaves."""
    if first is None:
        return then
    resource = ", ".join(dict.fromkeys((first.resource, then.resource)))
    access = then.access or first.access
    return replace(then, resource=resource, before=first.before, was=first.was, access=access)


def _wire(change: FileChange) -> dict[str, Any]:
    before, after = _encode(change.before), _encode(change.after)
    file = {
        "path": change.path,
        "before": before,
        "after": after,
        "mode": change.mode,
        "resource": change.resource,
    }
    access = change.access and (change.access.mode, change.access.uid, change.access.gid)
    return {**file, "access": access, "running": change.running}


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _why(answer: Any) -> str:
    if isinstance(answer, LinkLost):
        return f"the node was lost: {answer.message}"
    return shortened(f"{answer.get('no')}: {answer.get('why')}", LONGEST)


def refusals(answers: Mapping[str, Frame | LinkLost]) -> dict[str, str]:
    """The nodes that did not do what they were asked to, and why."""
    return {
        name: _why(answer)
        for name, answer in answers.items()
        if isinstance(answer, LinkLost) or "no" in answer
    }


def _edit(node: str, path: str, before: object, now: object) -> str:
    """What somebody else changed meanwhile, as a diff; both as base64, None for no such file."""
    try:
        old, new = (
            base64.b64decode(text) if isinstance(text, str) else None for text in (before, now)
        )
    except ValueError:  # the node says what is there, and this is nothing that could be there
        old, new = None, None
    return plan_files(FileChange(node, "env", path, old, new))
