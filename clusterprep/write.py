"""Uniform or not at all: stage on every node, then commit on every node, and put all back when one cannot."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterprep.deadline import Deadline
from clusterprep.diff import diff
from clusterprep.errors import LinkLost, Refused
from clusterprep.fanout import Fanout
from clusterprep.model import FileChange, Fleet, Outcome

LIMIT = 60.0  # seconds for one phase on all nodes: a few small files and their fsyncs


@dataclass
class Receipt:
    """What became of a write: an outcome and a detail per node, and whether every change was done."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return all(outcome in ("done", "unchanged") for outcome in self.outcomes.values())


class Writer:
    """One run's changes on all nodes. `write` commits them, `undo` puts the old bytes back."""

    def __init__(self, fanout: Fanout, fleet: Fleet, run: str, undoes: str | None = None) -> None:
        self._fanout, self._fleet = fanout, fleet
        shared = {"run": run, "cluster": fleet.inventory.cluster, "undoes": undoes}
        self._bodies = {node.name: {"root": node.root, **shared} for node in fleet.inventory.nodes}
        self.receipt = Receipt()
        self._staged: set[str] = set()
        self.committed = False

    def write(self, changes: Iterable[FileChange], deadline: Deadline) -> Receipt:
        """Lock, stage and commit. Raises Refused where a lock is held or a file changed since it was planned."""
        todo = _by_node(change for change in changes if change.action != "none")
        if not todo:
            return self.receipt
        self._lock(sorted(todo, key=lambda name: str(self._fleet.fact(name, "host.machine_id"))))
        try:
            failed = self._stage(todo)
            if failed:
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
        names = [name for name in self._staged if name in self._fanout.links]
        answers = self._fanout.ask("undo", {name: self._bodies[name] for name in names}, LIMIT)
        for name, answer in answers.items():
            if isinstance(answer, LinkLost) or "no" in answer:
                self.receipt.outcomes[name], self.receipt.details[name] = "failed", _why(answer)
            elif self.receipt.outcomes.get(name) != "failed":
                self.receipt.outcomes[name] = "rolled-back" if self.committed else "not-started"
        self._staged.clear()

    def _lock(self, names: list[str]) -> None:
        """The lock of the first node decides between two runs; only its winner asks the others."""
        for group in (names[:1], names[1:]):
            answers = self._fanout.ask("lock", {name: self._bodies[name] for name in group}, LIMIT)
            for name, answer in answers.items():
                if isinstance(answer, LinkLost):
                    raise LinkLost(answer.reason, f"{name} was lost before anything was written: {answer.message}")
                if "no" in answer:
                    what = "another run holds the lock" if answer["no"] == "locked" else "the lock cannot be taken"
                    raise Refused(f"{name}: {what} ({answer.get('why')}); nothing was written")

    def _stage(self, todo: Mapping[str, list[FileChange]]) -> dict[str, str]:
        bodies = {name: {**self._bodies[name], "files": [_wire(c) for c in mine]} for name, mine in todo.items()}
        answers = self._fanout.ask("stage", bodies, LIMIT)
        self._staged = {name for name, answer in answers.items() if isinstance(answer, dict) and "no" not in answer}
        for name, answer in answers.items():
            if isinstance(answer, dict) and answer.get("no") == "changed":
                self.undo()
                raise Refused(f"{name}: {answer.get('why')}; nothing was written", _changed(todo[name], answer))
        return {name: _why(answer) for name, answer in answers.items() if name not in self._staged}

    def _commit(self, todo: Mapping[str, list[FileChange]]) -> None:
        answers = self._fanout.ask("commit", {name: self._bodies[name] for name in todo}, LIMIT)
        self.committed = True
        failed = {n: _why(a) for n, a in answers.items() if isinstance(a, LinkLost) or "no" in a}
        if failed:
            self.undo()
            self._mark(todo, failed, "failed", "rolled-back")
        else:
            self.receipt.outcomes = dict.fromkeys(todo, "done")

    def _mark(self, todo: Iterable[str], failed: Mapping[str, str], bad: Outcome, rest: Outcome) -> None:
        for name in todo:
            self.receipt.outcomes[name] = bad if name in failed else rest
        self.receipt.details.update(failed)


def _by_node(changes: Iterable[FileChange]) -> dict[str, list[FileChange]]:
    found: dict[str, list[FileChange]] = {}
    for change in changes:
        found.setdefault(change.node, []).append(change)
    return found


def _wire(change: FileChange) -> dict[str, Any]:
    before, after = _encode(change.before), _encode(change.after)
    return {"path": change.path, "before": before, "after": after, "mode": change.mode}


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _why(answer: Any) -> str:
    if isinstance(answer, LinkLost):
        return f"the node was lost: {answer.message}"
    return f"{answer.get('no')}: {answer.get('why')}"


def _changed(changes: Iterable[FileChange], answer: Mapping[str, Any]) -> str:
    """What somebody else changed meanwhile, as a diff from what was planned against."""
    for change in changes:
        if change.path == answer.get("path"):
            now = answer.get("current")
            current = base64.b64decode(now) if isinstance(now, str) else None
            return diff(FileChange(change.node, change.resource, change.path, change.before, current))
    return ""
