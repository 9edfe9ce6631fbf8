"""The way back of an earlier run's deeds: what its journals have, undone in reverse, around the files of that run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterprep.changes.file_rollback import OldRun
from clusterprep.changes.step_runner import KEPT, failure_text
from clusterprep.changes.transaction import LASTING, LIMIT, Transaction
from clusterprep.errors import LinkLost, Refused
from clusterprep.model import ChangeRow, StepOutcome
from clusterprep.remote.untrusted import as_list
from clusterprep.runtime.lazy_dataclass import dataclass

ENDED = frozenset(
    {"undone", "kept"}
)  # states of an operation about which nothing more is to be done


@dataclass(frozen=True)
class OldDeed:
    """A deed as a node's journal has it; `number` is its place there, `states` say how far its operations came."""

    number: int
    resource: str
    target: str
    action: str
    diff: str
    states: tuple[str, ...]

    @property
    def stands(self) -> bool:
        """Whether anything of it is still to be undone."""
        return not ENDED.issuperset(self.states)


class StepRollback:
    """The deeds of one run on the nodes that remember it as done: `take_back`, then the files, then `run_again`."""

    def __init__(
        self, writer: Transaction, run: str | None, memories: Mapping[str, Sequence[OldRun]]
    ) -> None:
        self._writer, self._run = writer, run
        self._deeds: dict[str, tuple[OldDeed, ...]] = {}
        self._ends: dict[tuple[str, int], tuple[StepOutcome, str]] = {}
        self.failed = False
        names = [name for name, runs in memories.items() if _remembers(runs, run)]
        if run is not None and names:
            writer.fanout.load("steps", names)
            found = self._asked(names, run)
            self._deeds = {
                name: step_actions
                for name, step_actions in found.items()
                if any(step_action.stands for step_action in step_actions)
            }

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes on which there is something to undo."""
        return tuple(self._deeds)

    def refuse_built_upon(self, memories: Mapping[str, Sequence[OldRun]]) -> None:
        """Refused where a newer run did something about the same thing."""
        newer = {
            run.run: [name for name in self._deeds if _remembers(memories[name], run.run)]
            for runs in memories.values()
            for run in runs
            if self._run is not None and run.run > self._run and run.undoes is None
        }
        for later, names in newer.items():
            for name, step_actions in self._asked(names, later).items():
                theirs = {
                    (step_action.resource, step_action.target)
                    for step_action in step_actions
                    if step_action.stands
                }
                for step_action in self._deeds[name]:
                    if (step_action.resource, step_action.target) in theirs:
                        what = f"{name}: run {later} changed {step_action.resource} {step_action.target} after run {self._run}"
                        raise Refused(f"{what}; --force undoes it all the same")

    def take_back(self, force: bool) -> None:
        """Undo it on all nodes at once; `failed` where that was not possible."""
        self._ask(self.nodes, force=force)

    def run_again(self) -> None:
        """What has to read what is there now that all is as it was."""
        self._ask([name for name in self.nodes if not self.failed], again=True)

    def rows(self) -> tuple[ChangeRow, ...]:
        """What became of every deed, equal ones in one row, the last first."""
        folded: dict[tuple[str, str, str, str, StepOutcome, str], list[str]] = {}
        for name, step_actions in self._deeds.items():
            for step_action in reversed(
                [step_action for step_action in step_actions if step_action.stands]
            ):
                outcome, why = self._ends.get((name, step_action.number), ("not-started", ""))
                key = (
                    step_action.resource,
                    step_action.target,
                    step_action.action,
                    step_action.diff,
                    outcome,
                    why,
                )
                folded.setdefault(key, []).append(name)
        return tuple(
            ChangeRow(tuple(nodes), resource, target, action, outcome, text, why)
            for (resource, target, action, text, outcome, why), nodes in folded.items()
        )

    def _asked(self, names: Iterable[str], run: str) -> dict[str, tuple[OldDeed, ...]]:
        bodies = {name: {**self._writer.body(name), "run": run} for name in names}
        found = {}
        for name, answer in self._writer.fanout.ask("deeds", bodies, LIMIT).items():
            if isinstance(answer, LinkLost) or not isinstance(answer.get("deeds"), list):
                raise LinkLost(
                    "garbled",
                    f"{name}: what run {run} did there cannot be read: {failure_text(answer)}",
                )
            try:
                found[name] = tuple(
                    _deed(number, row) for number, row in enumerate(answer["deeds"])
                )
            except (TypeError, ValueError) as error:
                raise LinkLost(
                    "garbled", f"{name}: what run {run} did there cannot be read: {error}"
                ) from None
        return found

    def _ask(self, names: Iterable[str], **how: bool) -> None:
        bodies = {name: {**self._writer.body(name), "run": self._run, **how} for name in names}
        for name, answer in self._writer.fanout.ask("take_back", bodies, LASTING).items():
            if not isinstance(answer, LinkLost):
                undone, kept = (
                    [n for n in as_list(answer.get(key)) if isinstance(n, int)]
                    for key in ("undone", "kept")
                )
                self._ends.update({(name, number): ("undone", "") for number in undone})
                self._ends.update({(name, number): ("unchanged", KEPT) for number in kept})
            if isinstance(answer, LinkLost) or "no" in answer:
                self.failed = True
                last = max(
                    step_action.number for step_action in self._deeds[name] if step_action.stands
                )
                said_at = None if isinstance(answer, LinkLost) else answer.get("deed")
                at = said_at if isinstance(said_at, int) else last
                self._ends[name, at] = ("failed", f"{name}: {failure_text(answer)}")


def _remembers(runs: Iterable[OldRun], run: str | None) -> bool:
    return any(old.run == run and old.state == "done" for old in runs)


def _deed(number: int, row: Sequence[Any]) -> OldDeed:
    _, _, resource, target, action, diff, states = row
    return OldDeed(
        number, str(resource), str(target), str(action), str(diff), tuple(map(str, states))
    )
