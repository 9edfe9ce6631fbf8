"""Rolls back the steps of an earlier run, in reverse, from the journals that its nodes keep.

The order is: `roll_back` the steps, put back the files, `finish_roll_back` with the commands that
read these files again.

The commands come last because they read the files: a service is restarted once its old file is
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.agents import Agents, Answer, refusal
from clusterprep.changes.file_rollback import OldRun, RememberedRuns
from clusterprep.changes.step_answers import failure_text
from clusterprep.changes.step_runner import PERMANENT
from clusterprep.changes.transaction import LIMIT, STEPS_LIMIT, Transaction
from clusterprep.errors import LinkLost, Refused
from clusterprep.model import ChangeRow, StepOutcome
from clusterprep.remote.untrusted import as_list

# States of an operation after which there is nothing more to roll back.
ENDED = frozenset({"undone", "kept"})


class OldStepAction(Struct, frozen=True):
    """A step action as a node's journal has it.

    `number` is its place in the journal, `states` say how far its operations came.
    """

    number: int
    resource: str
    target: str
    action: str
    diff: str
    states: tuple[str, ...]

    @property
    def is_pending(self) -> bool:
        """Whether anything of it is still to be rolled back."""
        return not ENDED.issuperset(self.states)

    @property
    def subject(self) -> tuple[str, str]:
        """What it was about: two actions with the same subject concern the same thing."""
        return self.resource, self.target


class StepRollback:
    """The steps of one run on the nodes that remember it as done. `read` has to come first."""

    def __init__(self, agents: Agents, transaction: Transaction, run: str | None) -> None:
        self._agents = agents
        self._transaction = transaction
        self._run = run
        self._pending: dict[str, list[OldStepAction]] = {}  # by node, in the order of its journal
        self._results: dict[tuple[str, int], tuple[StepOutcome, str]] = {}
        self.failed = False

    def read(self, remembered: RememberedRuns) -> None:
        """Read the journals of the nodes that remember the run. Raises LinkLost."""
        if self._run is None:
            return
        names = [name for name, runs in remembered.items() if _is_done(runs, self._run)]
        if not names:
            return
        self._agents.load("steps", names)
        for name, actions in self._read_journals(names, self._run).items():
            pending = [action for action in actions if action.is_pending]
            if pending:
                self._pending[name] = pending

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes on which there is something to roll back."""
        return tuple(self._pending)

    def refuse_built_upon(self, remembered: RememberedRuns) -> None:
        """Raise Refused if a newer run changed something that this one had changed."""
        for later in self._newer_runs(remembered):
            names = [name for name in self._pending if _is_done(remembered[name], later)]
            journals = self._read_journals(names, later)
            for name, actions in journals.items():
                subjects = {action.subject for action in actions if action.is_pending}
                self._refuse_common(name, later, subjects)

    def _newer_runs(self, remembered: RememberedRuns) -> list[str]:
        """Return the names of the runs after this one that are no rollback themselves."""
        if self._run is None:
            return []
        newer: dict[str, None] = {}
        for runs in remembered.values():
            orders = [run.order for run in runs if run.run == self._run]
            for run in runs:
                if orders and run.order > orders[0] and run.undoes is None:
                    newer[run.run] = None
        return list(newer)

    def _refuse_common(self, name: str, later: str, subjects: set[tuple[str, str]]) -> None:
        for action in self._pending[name]:
            if action.subject in subjects:
                changed = f"{action.resource} {action.target}"
                what = f"{name}: run {later} changed {changed} after run {self._run}"
                raise Refused(f"{what}; --force undoes it all the same")

    def roll_back(self, force: bool) -> None:
        """Roll back the steps on all nodes at once; `failed` says whether one could not."""
        self._ask_to_roll_back(self.nodes, force=force)

    def finish_roll_back(self) -> None:
        """Run the commands that read files again, such as restarts, once these are back."""
        if not self.failed:
            self._ask_to_roll_back(self.nodes, again=True)

    def rows(self) -> tuple[ChangeRow, ...]:
        """Return what became of every step action, equal ones in one row, the last first."""
        nodes_by_row: dict[ChangeRow, list[str]] = {}
        for name, actions in self._pending.items():
            for action in reversed(actions):
                row = self._row(name, action)
                nodes_by_row.setdefault(row, []).append(name)
        rows = []
        for row, names in nodes_by_row.items():
            rows.append(replace(row, nodes=tuple(names)))
        return tuple(rows)

    def _row(self, name: str, action: OldStepAction) -> ChangeRow:
        """Return a row without a node, so that equal rows can be found."""
        outcome, why = self._results.get((name, action.number), ("not-started", ""))
        return ChangeRow(
            (), action.resource, action.target, action.action, outcome, action.diff, why
        )

    # ------------------------------------------------------------ requests

    def _read_journals(self, names: Iterable[str], run: str) -> dict[str, list[OldStepAction]]:
        """Return what a run did on these nodes. Raises LinkLost if an answer is unreadable."""
        journals = {}
        for name, answer in self._ask("deeds", names, run, LIMIT).items():
            unreadable = f"{name}: what run {run} did there cannot be read"
            rows = None if isinstance(answer, LinkLost) else answer.get("deeds")
            if not isinstance(rows, list):
                raise LinkLost("garbled", f"{unreadable}: {failure_text(answer)}")
            try:
                journals[name] = [_parse(number, row) for number, row in enumerate(rows)]
            except (TypeError, ValueError) as error:
                raise LinkLost("garbled", f"{unreadable}: {error}") from None
        return journals

    def _ask_to_roll_back(self, names: Iterable[str], **options: bool) -> None:
        answers = self._ask(
            "take_back",
            names,
            self._run,
            STEPS_LIMIT,
            **options,
        )
        for name, answer in answers.items():
            if not isinstance(answer, LinkLost):
                self._note_all(name, answer.get("undone"), "undone", "")
                self._note_all(name, answer.get("kept"), "unchanged", PERMANENT)
            if refusal(answer) is not None:
                self.failed = True
                number = self._failed_number(name, answer)
                why = f"{name}: {failure_text(answer)}"
                self._results[name, number] = ("failed", why)

    def _note_all(self, name: str, numbers: object, outcome: StepOutcome, why: str) -> None:
        for number in as_list(numbers):
            if isinstance(number, int):
                self._results[name, number] = (outcome, why)

    def _failed_number(self, name: str, answer: Answer) -> int:
        """Return the number of the action that failed, as the node says it.

        Without an answer that is the last one, where a rollback begins.
        """
        if not isinstance(answer, LinkLost):
            number = answer.get("deed")
            if isinstance(number, int):
                return number
        return max(action.number for action in self._pending[name])

    def _ask(
        self, op: str, names: Iterable[str], run: str | None, limit: float, **options: bool
    ) -> Mapping[str, Answer]:
        bodies = {}
        for name in names:
            body = self._transaction.request_body(name)
            bodies[name] = {
                **body,
                "run": run,
                **options,
            }
        return self._agents.ask(op, bodies, limit)


def _is_done(runs: Iterable[OldRun], run: str) -> bool:
    return any(old.run == run and old.state == "done" for old in runs)


def _parse(number: int, row: Sequence[Any]) -> OldStepAction:
    _, _, resource, target, action, diff, states = row
    parsed_states = tuple(str(state) for state in states)
    return OldStepAction(
        number,
        str(resource),
        str(target),
        str(action),
        str(diff),
        parsed_states,
    )
