"""Deeds, step by step: each step on its nodes, a batch at a time, looked at again, and stopped where one goes wrong.

A node on which a step fails undoes what this run did there, where that can be undone. No node begins another step
then. What is all or none is written before, and stays: it is the same on all nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterprep.changes.file_plan import Gap, planned_changes
from clusterprep.changes.planner import ChangePlan, Key, Planned, asked_by, deed_rows, in_order
from clusterprep.changes.playbook.steps import Step, batches, fact_names, own_facts
from clusterprep.changes.reboot import boot_ids, wait_for
from clusterprep.changes.resources import PlanContext
from clusterprep.changes.transaction import LASTING, LIMIT, Transaction
from clusterprep.errors import ClusterprepError, LinkLost
from clusterprep.model import Absent, ChangeRow, Fleet, Node, StepOutcome
from clusterprep.model.operations import Reboot, StepAction, seconds_limit, wire
from clusterprep.nccl.environment import Environment
from clusterprep.remote.transports.link import Frame
from clusterprep.remote.untrusted import as_list
from clusterprep.runtime.deadline import Deadline
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey import registry
from clusterprep.survey.fanout import Watch
from clusterprep.survey.queries import Queries, plan_queries
from clusterprep.survey.reads import MARGIN, look_request

Found = (
    tuple[StepAction, ...] | Absent | None
)  # of a step on a node; None where it is not for the node
KEPT = "nothing takes it back"
MOST = 6000  # letters of what a node says about a failure


@dataclass(frozen=True)
class Failure:
    """What went wrong on a node: at which thing, if at one, and why in one or more lines."""

    target: str | None
    why: str
    lost: bool = False


class StepRunner:
    """One run's deeds on all nodes. `writer` has begun the run on each of them and holds the locks."""

    def __init__(
        self,
        writer: Transaction,
        fleet: Fleet,
        steps: Sequence[Step],
        environment: Environment,
        change_plan: ChangePlan,
    ) -> None:
        self._writer, self._fanout, self._steps = writer, writer.fanout, steps
        self._fleet, self._environment, self._foreseen = fleet, environment, change_plan
        self._planned = {planned.key: planned for planned in change_plan.step_actions}
        self._ends: dict[Key, tuple[StepOutcome, str]] = {}
        self._did: dict[str, list[Key]] = {}  # node → deeds in the order of its journal
        self._touched: set[str] = (
            set()
        )  # nodes that are no longer as they were when all was planned
        self._notified: dict[str, set[str]] = {}
        self.failed = False
        self.lost: set[str] = set()

    @property
    def acted(self) -> bool:
        """Whether anything was done."""
        return any(self._did.values())

    def rows(self) -> tuple[ChangeRow, ...]:
        """Every deed, and what became of it."""
        return deed_rows(sorted(self._planned.values(), key=self._turn), self._ends)

    def _turn(self, planned: Planned) -> tuple[bool, int]:
        return self._steps[planned.place].handler, planned.place

    def perform(self, watch: Watch) -> None:
        """All steps in their order, until one fails."""
        self._watch = watch
        for change in self._foreseen.files:
            if change.action != "none":
                self._touched.add(change.node)
                self._notified.setdefault(change.node, set()).update(change.notify)
        steps = in_order(self._steps)
        if steps and (self._touched or self._foreseen.nodes):
            self._fanout.load("steps")
        for place, step in steps:
            nodes = self._nodes_of(place, step)
            if nodes:
                self._watch.stage(step.name, len(nodes), nodes)
            whole = sum(
                step.nodes is None or node.name in step.nodes for node in self._fleet.reached
            )
            for batch in batches(step.serial, nodes, whole):
                self._batch(place, step, batch)
                if self.failed:
                    self.leave()
                    return

    def _nodes_of(self, place: int, step: Step) -> list[str]:
        """The nodes that may have to do something now, in the order of the inventory."""
        names = [n.name for n in self._fleet.reached if step.nodes is None or n.name in step.nodes]
        if step.handler:
            return [name for name in names if step.name in self._notified.get(name, ())]
        return [
            n
            for n in names
            if n in self._touched
            or any(step_action.operations for step_action in self._foreseen.of(place, n))
        ]

    def leave(self) -> None:
        """Begin nothing more."""
        for key, planned in self._planned.items():
            if planned.step_action.operations:
                self._ends.setdefault(key, ("not-started", ""))

    # ------------------------------------------------------------ one batch

    def _batch(self, place: int, step: Step, names: Sequence[str]) -> None:
        stale = (
            list(names) if self._did else [name for name in names if name in self._touched]
        )  # time has passed
        found: dict[str, Found] = {
            name: self._foreseen.of(place, name) for name in names if name not in stale
        }
        found.update(self._judged(step, stale, step.handler))
        failures = {
            n: Failure(None, _gap(step, f)) for n, f in found.items() if isinstance(f, Absent)
        }
        if not failures:
            planned = {
                name: step_actions or ()
                for name, step_actions in found.items()
                if not isinstance(step_actions, Absent)
            }
            work = {
                name: self._noted(place, name, step_actions)
                for name, step_actions in planned.items()
            }
            failures = self._done(
                place,
                step,
                {name: step_actions for name, step_actions in work.items() if step_actions},
            )
            failures.update(
                self._not_taken(
                    step,
                    [n for n, step_actions in work.items() if step_actions and n not in failures],
                )
            )
            for name in names:
                self._watch.step(
                    name, "failed" if name in failures else "done" if work[name] else "unchanged"
                )
                if name not in failures:
                    self._end(place, name, "done", "")
                    self._notified.setdefault(name, set()).update(self._tells(place, step, name))
        if failures:
            self.failed = True
            self._fail(place, step, failures)

    def _noted(
        self, place: int, name: str, step_actions: Iterable[StepAction]
    ) -> tuple[StepAction, ...]:
        """The deeds that are to be done now, which the report then has in place of what was foreseen."""
        work = tuple(step_action for step_action in step_actions if step_action.operations)
        for step_action in work:
            self._planned[place, name, step_action.target] = Planned(place, step_action)
        return work

    def _tells(self, place: int, step: Step, name: str) -> tuple[str, ...]:
        return (
            step.notify
            if any(planned.step_action.operations for planned in self._of(place, name))
            else ()
        )

    def _of(self, place: int, name: str) -> list[Planned]:
        return [planned for planned in self._planned.values() if planned.key[:2] == (place, name)]

    def _end(self, place: int, name: str, outcome: StepOutcome, why: str) -> None:
        for planned in self._of(place, name):
            self._ends[planned.key] = (outcome, why)

    def _done(
        self, place: int, step: Step, work: Mapping[str, tuple[StepAction, ...]]
    ) -> dict[str, Failure]:
        """Do it on these nodes at once, and say what failed."""
        going_down = {
            name: each.limit
            for name, step_actions in work.items()
            for step_action in step_actions
            for each in step_action.operations
            if isinstance(each, Reboot)
        }
        before = boot_ids(self._fanout, going_down)
        bodies = {
            n: {
                **self._writer.body(n),
                "deeds": [_told(place, step, step_action) for step_action in work[n]],
            }
            for n in work
        }
        limit = (
            max(
                (sum(map(seconds_limit, step_actions)) for step_actions in work.values()),
                default=0.0,
            )
            + LIMIT
        )
        for name, step_actions in work.items():
            self._touched.add(name)
            self._did.setdefault(name, []).extend(
                (place, name, step_action.target) for step_action in step_actions
            )
        answers = self._fanout.ask("perform", bodies, limit)
        failures = {
            name: _failure(step, work[name], answer)
            for name, answer in answers.items()
            if (name not in going_down if isinstance(answer, LinkLost) else "no" in answer)
        }
        waited = {name: seconds for name, seconds in going_down.items() if name not in failures}
        failures.update(self._back(step, waited, before))
        return failures

    def _back(
        self, step: Step, waited: Mapping[str, float], before: Mapping[str, str]
    ) -> dict[str, Failure]:
        """Wait for nodes that went down, and take them into the run again."""
        nodes = {node.name: node for node in self._fleet.reached if node.name in waited}
        missing = wait_for(self._fanout, nodes, waited, before)
        there = [name for name in nodes if name not in missing]
        missing.update(self._writer.rejoin(there) if there else {})
        self._fanout.load("steps", [name for name in there if name not in missing])
        return {
            name: Failure(None, f"{_at(step)}: {why}", lost=True) for name, why in missing.items()
        }

    def _not_taken(self, step: Step, names: Sequence[str]) -> dict[str, Failure]:
        """Look again: what was done must have been enough."""
        failures = {}
        for name, found in self._judged(step, names, notified=False).items():
            if isinstance(found, Absent):
                failures[name] = Failure(None, _gap(step, found))
            elif left := [step_action for step_action in found or () if step_action.operations]:
                why = f"{_at(step)}: it was done, and the node is not as wanted: {left[0].diff or left[0].target}"
                failures[name] = Failure(left[0].target, why.strip())
        return failures

    def _judged(self, step: Step, names: Sequence[str], notified: bool) -> dict[str, Found]:
        """A step against the nodes as they are now."""
        nodes = [node for node in self._fleet.reached if node.name in names]
        fleet, lost = look_again(self._writer, self._fleet, step, nodes)
        self._fleet = fleet
        found: dict[str, Found] = {
            name: Absent("hung", f"the node was lost: {why}") for name, why in lost.items()
        }
        for node in nodes:
            if node.name not in lost:
                facts = asked_by(step, fleet.inventory)
                known = PlanContext(fleet, node, {}, facts, self._environment, notified=notified)
                found[node.name] = planned_changes(known, step)
        return found

    # ------------------------------------------------------------ what went wrong

    def _fail(self, place: int, step: Step, failures: Mapping[str, Failure]) -> None:
        for name, failure in failures.items():
            mine = self._of(place, name) or [
                Planned(place, StepAction(name, step.resource.name, step.name, "run"))
            ]
            targets = [planned.step_action.target for planned in mine]
            at = targets.index(failure.target) if failure.target in targets else 0
            for number, planned in enumerate(mine):
                self._planned.setdefault(planned.key, planned)
                later: StepOutcome = "not-started" if number > at else "done"
                self._ends[planned.key] = (
                    ("failed", f"{name}: {failure.why}") if number == at else (later, "")
                )
        gone = {
            name
            for name, failure in failures.items()
            if failure.lost or name not in self._fanout.links
        }
        self.lost |= gone
        self._undo(
            [name for name in failures if name not in gone and name in self._did], again=True
        )

    def _undo(self, names: Iterable[str], **how: bool) -> dict[str, str]:
        """Take back what this run did on these nodes; why it could not be done on some."""
        bodies = {name: {**self._writer.body(name), "go_on": True, **how} for name in names}
        answers = self._fanout.ask("take_back", bodies, LASTING)
        troubles = {}
        for name, answer in answers.items():
            if isinstance(answer, LinkLost) or "no" in answer:
                troubles[name] = failure_text(answer)
                self._add(name, f"undoing failed, too: {troubles[name]}")
            if isinstance(answer, LinkLost):
                self.lost.add(name)
                continue
            for number in as_list(answer.get("undone")):
                self._taken_back(name, number, "undone", "")
            for number in as_list(answer.get("kept")):
                self._taken_back(name, number, "done", KEPT)
        return troubles

    def _taken_back(self, name: str, number: object, outcome: StepOutcome, why: str) -> None:
        mine = self._did.get(name, [])
        if isinstance(number, int) and 0 <= number < len(mine):
            key = mine[number]
            if self._ends.get(key, ("",))[0] != "failed":
                self._ends[key] = (outcome, why)

    def _add(self, name: str, words: str) -> None:
        """Say something more of what failed on a node."""
        for key, (outcome, why) in list(self._ends.items()):
            if key[1] == name and outcome == "failed":
                self._ends[key] = (outcome, f"{why}\n{words}")

    # ------------------------------------------------------------ all of it back

    def take_back(self) -> list[str]:
        """End what is under way and undo all of this run, on every node; why it is not, where it is not.

        `run_again` has to follow once the files are as they were.
        """
        names = [name for name in self._did if name not in self.lost]
        self._fanout.ask("halt", {name: {} for name in names}, LIMIT)
        troubles = self._undo(names)
        kept = {key[1]: key[2] for key, (_, why) in self._ends.items() if why == KEPT}
        return [f"{n}: {why}" for n, why in troubles.items()] + [
            f"{n}: {KEPT}: {t}" for n, t in kept.items()
        ]

    def run_again(self) -> None:
        """What has to read what is there now that all is as it was."""
        self._undo([name for name in self._did if name not in self.lost], again=True)


def roll_back_run(writer: Transaction, step_runner: StepRunner, deadline: Deadline) -> list[str]:
    """Undo all of a run that is not settled, on every node, the last first; what of it is not undone, and why."""
    if not writer.committed:
        return []
    troubles: list[str] = []
    with (
        contextlib.suppress(ClusterprepError),
        deadline.shield(),
    ):  # a limit that passes meanwhile ends nothing
        troubles = step_runner.take_back()
        writer.undo()
        step_runner.run_again()
    return troubles


def look_again(
    writer: Transaction, fleet: Fleet, step: Step, nodes: Sequence[Node]
) -> tuple[Fleet, dict[str, str]]:
    """The fleet with what a step depends on as these nodes have it now, and the nodes that did not answer."""
    facts = [registry.facts()[name] for name in fact_names([step])]
    plan = plan_queries((), registry.facts(), (*facts, *own_facts([step], fleet.inventory)))
    questions = Queries(plan, fleet.inventory)
    sheets = {node.name: questions.of(node) for node in nodes}
    asked = {name: sheet for name, sheet in sheets.items() if sheet.reads}
    limit = (
        max((sum(read.limit for read in sheet.reads) for sheet in asked.values()), default=0.0)
        + MARGIN
    )
    answers = writer.fanout.ask(
        "look", {n: look_request(sheet.reads)[1] for n, sheet in asked.items()}, limit
    )
    snapshots, lost = dict(fleet.snapshots), {}
    for name, answer in answers.items():
        rows = None if isinstance(answer, LinkLost) else answer.get("answers")
        if not isinstance(rows, list) or len(rows) != len(asked[name].reads):
            lost[name] = failure_text(answer)
        else:
            seen = questions.facts(asked[name], rows)
            snapshots[name] = replace(snapshots[name], facts={**snapshots[name].facts, **seen})
    return replace(fleet, snapshots=snapshots), lost


def _told(place: int, step: Step, step_action: StepAction) -> dict[str, Any]:
    """A deed as the agent takes it and as its journal keeps it."""
    row = {
        "place": place,
        "step": step.name,
        "resource": step_action.resource,
        "target": step_action.target,
        "diff": step_action.diff,
    }
    return {
        **row,
        "action": step_action.action,
        "operations": [wire(operation) for operation in step_action.operations],
    }


def _failure(step: Step, step_actions: Sequence[StepAction], answer: Frame | LinkLost) -> Failure:
    number = None if isinstance(answer, LinkLost) else answer.get("deed")
    target = (
        step_actions[number].target
        if isinstance(number, int) and 0 <= number < len(step_actions)
        else None
    )
    return Failure(target, f"{_at(step)}: {failure_text(answer)}", isinstance(answer, LinkLost))


def failure_text(answer: Frame | LinkLost) -> str:
    """Why something was not done, and the last lines of the command that failed, without what a terminal would obey."""
    if isinstance(answer, LinkLost):
        return f"the node was lost: {answer.message}"
    tail = str(answer.get("said") or "").strip()
    text = str(answer.get("why")) + (f"\n{tail}" if tail else "")
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text[:MOST])


def _at(step: Step) -> str:
    line = "" if step.line is None else f" (line {step.line})"
    return f"step «{step.name}»{line}"


def _gap(step: Step, why: Absent) -> str:
    return f"{_at(step)}: {Gap(step.resource.name, why)}"
