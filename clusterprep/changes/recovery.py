"""Finishes interrupted runs: finalized if a node knows them as done, else rolled back.

A run is interrupted because its controller died or a node was lost. The check state.journal fails
on its nodes while no run holds the lock. Every action here can be repeated, so a recovery may be
interrupted as well.

If no node is done, all steps of the run are rolled back. If others are done, only a node that
stopped in the middle of a step action rolls back that action, as after a step that fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from clusterprep.changes.agents import Agents, Answers, refusals
from clusterprep.changes.transaction import LIMIT, STEPS_LIMIT, Transaction, edit_diff
from clusterprep.errors import LinkLost, Refused
from clusterprep.facts.journal import Journal
from clusterprep.model import Fleet
from clusterprep.model.nodeset import fold
from clusterprep.runtime.lazy_dataclass import dataclass

FORCE = "`clusterprep rollback --force` puts the old bytes back all the same"


@dataclass(frozen=True)
class FinishedRun:
    """A run that was interrupted, and the nodes on which it is now finalized or rolled back."""

    run: str
    nodes: tuple[str, ...]
    finalized: bool

    def __str__(self) -> str:
        what = "stands on all nodes and is done now" if self.finalized else "was undone"
        return f"run {self.run} was cut off; on {fold(self.nodes)} it {what}"


@dataclass(frozen=True)
class Recovery:
    """The runs that were finished, newest first, and why it was not possible on some nodes."""

    runs: tuple[FinishedRun, ...] = ()
    stuck: Mapping[str, str] = field(default_factory=dict)


def finish_interrupted_runs(
    agents: Agents,
    transaction: Transaction,
    fleet: Fleet,
    force: bool = False,
    by: str | None = None,
) -> Recovery:
    """Finish what earlier runs left unfinished, newest first, and return what was done.

    `by` is the name of the rollback that wants it rolled back. Raises Refused if a file was edited
    meanwhile, unless `force`.
    """
    unfinished = _unfinished_runs(fleet)
    if not unfinished:
        return Recovery()
    failed = transaction.lock()
    if failed:
        return Recovery(stuck=failed)
    finisher = _Finisher(
        agents,
        transaction,
        fleet,
        force,
        by,
    )
    finished = []
    for run in sorted(unfinished, reverse=True):
        result = finisher.finish(run, unfinished[run])
        if result is not None:
            finished.append(result)
    return Recovery(tuple(finished), finisher.stuck)


class _Finisher:
    """Finishes one interrupted run after the other; `stuck` collects why nodes could not do it."""

    def __init__(
        self, agents: Agents, transaction: Transaction, fleet: Fleet, force: bool, by: str | None
    ) -> None:
        self._agents = agents
        self._transaction = transaction
        self._fleet = fleet
        self._force = force
        self._by = by
        self.stuck: dict[str, str] = {}

    def finish(self, run: str, states: Mapping[str, str]) -> FinishedRun | None:
        """Finish a run; `states` has how far it came on each node. None if there was nothing."""
        finalized = self._is_done_somewhere(run)
        forward = []
        back = []
        for name, state in states.items():
            if finalized and state == "committed":
                forward.append(name)
            else:
                back.append(name)
        self._roll_back_steps(run, back, force=self._force)
        # A node that committed may have died in the middle of one step: that one is rolled back.
        self._roll_back_steps(
            run,
            forward,
            half=True,
            again=True,
            force=self._force,
        )
        done = self._finish_files("settle", run, forward, {"run": run})
        undo = {
            "undo": run,
            "force": self._force,
            "by": self._by,
        }
        done |= self._finish_files("undo", run, back, undo)
        # Commands that read the old files run once these are back.
        self._roll_back_steps(run, self._not_stuck(back), again=True)
        if not done:
            return None
        names = tuple(name for name in states if name in done)
        return FinishedRun(run, names, finalized)

    def _is_done_somewhere(self, run: str) -> bool:
        """Whether a node knows the run as done.

        Finalizing begins only when all nodes have committed, so one such node speaks for all.
        """
        for node in self._fleet.reached:
            journal = self._fleet.fact(node.name, "state.journal")
            if isinstance(journal, Journal) and journal.state(run) == "done":
                return True
        return False

    def _finish_files(
        self, op: str, run: str, names: Iterable[str], options: Mapping[str, Any]
    ) -> set[str]:
        """Finalize or roll back the files of a run; return the nodes that had something to do."""
        bodies = self._bodies(self._not_stuck(names), options)
        answers = self._agents.ask(op, bodies, LIMIT)
        _refuse_edited(run, answers)
        self.stuck.update(refusals(answers))
        done = set()
        for name, answer in answers.items():
            if isinstance(answer, LinkLost):
                continue
            if "no" not in answer and "nothing" not in answer:
                done.add(name)
        return done

    def _roll_back_steps(self, run: str, names: Iterable[str], **options: bool) -> None:
        """Have these nodes roll back their steps of a run; those that refuse are `stuck`."""
        chosen = list(names)
        self._agents.load("steps", chosen)
        bodies = self._bodies(
            chosen,
            {
                "run": run,
                **options,
            },
        )
        answers = self._agents.ask("take_back", bodies, STEPS_LIMIT)
        self.stuck.update(refusals(answers))

    def _not_stuck(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.stuck]

    def _bodies(
        self, names: Iterable[str], options: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return the body of a request for each node: what names its transaction, and options."""
        return {
            name: {
                **self._transaction.request_body(name),
                **options,
            }
            for name in names
        }


def _refuse_edited(run: str, answers: Answers) -> None:
    """Raise Refused if a file of the run was edited after it was written."""
    for name, answer in answers.items():
        if isinstance(answer, LinkLost) or answer.get("no") != "changed":
            continue
        path = str(answer.get("path"))
        difference = edit_diff(name, path, answer.get("after"), answer.get("current"))
        why = answer.get("why")
        raise Refused(f"{name}: run {run} was cut off, and {why}; {FORCE}", difference)


def _unfinished_runs(fleet: Fleet) -> dict[str, dict[str, str]]:
    """Return run → node → state, of all runs that are not finished on some node."""
    unfinished: dict[str, dict[str, str]] = {}
    for node in fleet.reached:
        journal = fleet.fact(node.name, "state.journal")
        if not isinstance(journal, Journal):
            continue
        for entry in journal.unsettled:
            unfinished.setdefault(entry.run, {})[node.name] = entry.state
    return unfinished
