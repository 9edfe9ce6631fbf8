"""Finishes interrupted runs: finalized if a node knows them as done, else rolled back.

A run is interrupted because its controller died or a node was lost. The check state.journal fails
on its nodes while no run holds the lock. Every action here can be repeated, so a recovery may be
interrupted as well.

What becomes of a run is decided by what its nodes know of it, and its journal names them all:

* One is done, and none is staged or undone: finalizing had begun, so all had committed. The others
  are finalized.
* One is staged or undone, and none is done: it is rolled back.
* All of its nodes are committed: it is rolled back.
* All that were asked are committed, and others were not asked or remember nothing of it: one of
  these may be done, and then a rollback would make the nodes differ. Nothing is changed, except
  with `force`.
* Some of its nodes were not asked: a single journal that lies would decide for the others. Nothing
  is changed, except with `partial`, with which those that were asked decide as above.
* One is done, and another staged or undone: no run comes that far, so a journal was changed, or
  a node was rolled back by itself. What is not done is rolled back, and the nodes that are done
  are named: a rollback of this run puts them back as well.

A run in batches is all or none within a batch, so each batch is a run by itself here: one that was
cut off says nothing of those before it, which are done and stay so. Such nodes are named, and a
rollback puts them back as well.

If no node is done, all steps of the run are rolled back. If others are done, only a node that
stopped in the middle of a step action rolls back that action, as after a step that fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.changes.agents import Agents, Answers, refusals
from clusterprep.changes.transaction import LIMIT, STEPS_LIMIT, Transaction, edit_diff
from clusterprep.errors import LinkLost, Refused
from clusterprep.facts.journal import UNSETTLED, Journal, JournalEntry
from clusterprep.model import Fleet
from clusterprep.model.nodeset import fold

FORCE = "`clusterprep rollback --force` puts the old bytes back all the same"


class InterruptedRun(Struct, frozen=True):
    """What the nodes that were reached know of a run that is not finished on one of them.

    `states` has the state on each node that knows it. Of its other nodes `unasked` were not reached
    or are left out, and `forgetful` remember nothing of it. Of a run in batches it is one batch,
    `batch`, and `elsewhere` are nodes on which other batches of the run are done.
    """

    run: str
    number: int
    states: Mapping[str, str]
    unasked: tuple[str, ...]
    forgetful: tuple[str, ...]
    batch: int = 0
    elsewhere: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, str, int]:
        """A key by which newer runs come later."""
        return self.number, self.run, self.batch

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The nodes on which it is to be finalized or rolled back."""
        return tuple(name for name, state in self.states.items() if state in UNSETTLED)

    @property
    def done(self) -> tuple[str, ...]:
        """The nodes that know it as done."""
        return tuple(name for name, state in self.states.items() if state == "done")

    @property
    def not_committed(self) -> tuple[str, ...]:
        """The nodes on which it is staged or undone."""
        states = ("staged", "undone")
        return tuple(name for name, state in self.states.items() if state in states)


class FinishedRun(Struct, frozen=True):
    """A run that was interrupted, and the nodes on which it is now finalized or rolled back.

    `done` are the nodes that knew it as done before, and `unknown` those of which it is not known
    how it ended there. `elsewhere` are the nodes on which other batches of it are done.
    """

    run: str
    nodes: tuple[str, ...]
    finalized: bool
    done: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether nodes have it done although it was rolled back on the others of its batch."""
        return bool(self.done) and not self.finalized

    @property
    def stands(self) -> bool:
        """Whether it was rolled back here, and a node has it done all the same."""
        return bool(self.done or self.elsewhere) and not self.finalized

    def __str__(self) -> str:
        nodes = fold(self.nodes)
        text = f"run {self.run} was cut off; "
        if self.finalized:
            text += f"it is done now on {nodes}, as on {fold(self.done)}"
        else:
            text += f"it was undone on {nodes}"
            if self.done:
                text += f", and is done on {fold(self.done)}"
        if self.elsewhere:
            text += f"; on {fold(self.elsewhere)}, of its other batches, it had been done"
        if self.unknown:
            text += f"; of {fold(self.unknown)}, where it was to write as well, nothing is known"
        return text


class Recovery(Struct, frozen=True):
    """The runs that were finished, newest first, and why it was not possible on some nodes."""

    runs: tuple[FinishedRun, ...] = ()
    stuck: Mapping[str, str] = field(default_factory=dict)

    @property
    def differing(self) -> FinishedRun | None:
        """The newest run that is done on some nodes and was rolled back on others, if any."""
        for finished in self.runs:
            if finished.differs:
                return finished
        return None

    @property
    def standing(self) -> FinishedRun | None:
        """The newest run that was rolled back and that other nodes still have, if any."""
        for finished in self.runs:
            if finished.stands:
                return finished
        return None


def finish_interrupted_runs(
    agents: Agents,
    transaction: Transaction,
    fleet: Fleet,
    force: bool = False,
    by: str | None = None,
    partial: bool = False,
) -> Recovery:
    """Finish what earlier runs left unfinished, newest first, and return what was done.

    `by` is the name of the rollback that wants it rolled back. Unless `force`, raises Refused if a
    file was edited meanwhile, or if it depends on nodes that were not asked; with `partial` those
    that were asked decide where they can.
    """
    interrupted = interrupted_runs(fleet)
    if not interrupted:
        return Recovery()
    if not force:
        for run in interrupted:
            _refuse_partial_view(run, partial)
    failed = transaction.lock()
    if failed:
        return Recovery(stuck=failed)
    finisher = _Finisher(
        agents,
        transaction,
        force,
        by,
    )
    finished = []
    for run in interrupted:
        result = finisher.finish(run)
        if result is not None:
            finished.append(result)
    return Recovery(tuple(finished), finisher.stuck)


def interrupted_runs(fleet: Fleet) -> list[InterruptedRun]:
    """Return the runs that are not finished on some node that was reached, newest first."""
    entries_by_batch: dict[tuple[str, int], dict[str, JournalEntry]] = {}
    done: dict[str, dict[str, int]] = {}  # run → the nodes that have it done → their batch
    for node in fleet.reached:
        journal = fleet.fact(node.name, "state.journal")
        if not isinstance(journal, Journal):
            continue
        for entry in journal.entries:
            entries_by_batch.setdefault((entry.run, entry.batch), {})[node.name] = entry
            if entry.state == "done":
                done.setdefault(entry.run, {})[node.name] = entry.batch
    reached = {node.name for node in fleet.reached}
    found = []
    for (run, batch), entries in entries_by_batch.items():
        others = [name for name, other in done.get(run, {}).items() if other != batch]
        interrupted = _interrupted_run(run, entries, reached)
        if interrupted.unfinished:
            found.append(replace(interrupted, batch=batch, elsewhere=tuple(others)))
    return sorted(found, key=lambda each: each.order, reverse=True)


def _interrupted_run(
    run: str, entries: Mapping[str, JournalEntry], reached: Collection[str]
) -> InterruptedRun:
    """Return a run, or a batch of it, by what its nodes remember, each under its name of now."""
    states = {}
    numbers = []
    wanted: dict[str, None] = {}
    seen = set()
    for name, entry in entries.items():
        states[name] = entry.state
        numbers.append(entry.number)
        wanted.update(dict.fromkeys(entry.nodes))
        seen.add(entry.node or name)
    missing = [name for name in wanted if name not in seen]
    return InterruptedRun(
        run,
        max(numbers),
        states,
        tuple(name for name in missing if name not in reached),
        tuple(name for name in missing if name in reached),
    )


def _refuse_partial_view(run: InterruptedRun, partial: bool) -> None:
    """Raise Refused if it depends on nodes that were not asked whether a run stands."""
    is_decided = bool(run.done or run.not_committed)
    # Where one is staged or undone, a node that remembers nothing had not begun.
    if not run.unasked and (is_decided or not run.forgetful):
        return
    if is_decided and partial:
        return
    parts = []
    if run.unasked:
        parts.append(f"{fold(run.unasked)} was not asked")
    if run.forgetful:
        parts.append(f"{fold(run.forgetful)} remembers nothing of it")
    why = " and ".join(parts)
    message = (
        f"run {run.run} was cut off on {fold(run.unfinished)}, and {why}: to settle it here alone "
        "could make the nodes differ; nothing was written"
    )
    way_out = f"{FORCE}, on these alone"
    if is_decided:
        way_out = "--partial decides by those that were asked"
    raise Refused(f"{message}. Ask all of its nodes; or {way_out}")


class _Finisher:
    """Finishes one interrupted run after the other; `stuck` collects why nodes could not do it."""

    def __init__(
        self, agents: Agents, transaction: Transaction, force: bool, by: str | None
    ) -> None:
        self._agents = agents
        self._transaction = transaction
        self._force = force
        self._by = by
        self.stuck: dict[str, str] = {}

    def finish(self, run: InterruptedRun) -> FinishedRun | None:
        """Finish a run. None if there was nothing to do."""
        finalized = bool(run.done) and not run.not_committed
        finished = self._finalize(run) if finalized else self._roll_back(run)
        if not finished:
            return None
        names = tuple(name for name in run.states if name in finished)
        unknown = run.unasked
        if not run.not_committed:
            unknown = (*run.unasked, *run.forgetful)
        return FinishedRun(
            run.run,
            names,
            finalized,
            run.done,
            unknown,
            run.elsewhere,
        )

    def _finalize(self, run: InterruptedRun) -> set[str]:
        """Finalize a run where it is not done; return the nodes that had something to do."""
        # A node that committed may have died in the middle of one step: that one is rolled back.
        self._roll_back_steps(
            run.run,
            run.unfinished,
            half=True,
            again=True,
            force=self._force,
        )
        return self._finish_files("settle", run.run, run.unfinished, {"run": run.run})

    def _roll_back(self, run: InterruptedRun) -> set[str]:
        """Roll a run back where it is not done; return the nodes that had something to do."""
        self._roll_back_steps(run.run, run.unfinished, force=self._force)
        options = {
            "undo": run.run,
            "force": self._force,
            "by": self._by,
        }
        finished = self._finish_files("undo", run.run, run.unfinished, options)
        # Commands that read the old files run once these are back.
        self._roll_back_steps(run.run, self._not_stuck(run.unfinished), again=True)
        return finished

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
