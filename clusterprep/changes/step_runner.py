"""Runs the steps of a playbook that cannot be all or none: a batch of nodes at a time, in order.

After each batch its nodes are asked again, and a step that had no effect has failed. A node on
which a step fails rolls back what this run did there, if that can be rolled back, and no node
begins another step. What is all or none is written before and stays: it is the same on all nodes.

A failing node takes no other node with it: that a package is on three nodes of four is what step by
step means, and `--retry-failed` goes on. Files stay written on all nodes then, also on the one that
failed: to take them from one node would be worse than either state. Handlers that were due when a
run stopped are reported as not started, and are not run by a later command.

The transaction comes first and stays in charge: it has begun the run on each node, holds the locks
and finalizes the run at the end. On a node on which something was done before, the first plan of a
step was a prediction, so the step is planned again there before it is done. It counts as done only
if nothing of it is left to do when the node is looked at afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from clusterprep.changes.agents import Agents, Answer, Answers
from clusterprep.changes.file_plan import Gap, plan_step
from clusterprep.changes.planner import ChangePlan, Key, Planned, in_order, step_rows
from clusterprep.changes.playbook.steps import Step, batches, resource_fact_names
from clusterprep.changes.reboot import boot_ids, wait_for
from clusterprep.changes.resources import PlanContext
from clusterprep.changes.step_answers import failure_text, look_again
from clusterprep.changes.transaction import LIMIT, STEPS_LIMIT, Transaction
from clusterprep.errors import ClusterprepError, LinkLost
from clusterprep.model import Absent, ChangeRow, Fleet, StepOutcome
from clusterprep.model.operations import Reboot, StepAction, seconds_limit, wire
from clusterprep.nccl.environment import Environment
from clusterprep.remote.untrusted import as_list
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.fanout import Watch

StepActions = tuple[StepAction, ...]
Judged = StepActions | Absent | None  # of a step on a node; None if the step is not for the node
PERMANENT = "nothing takes it back"  # said of what cannot be rolled back


class Failure(Struct, frozen=True):
    """Why a step failed on a node, in one or more lines; `target` is the thing that failed."""

    target: str | None
    why: str
    lost: bool = False


class NotRolledBack(Struct, frozen=True):
    """The steps of a run that stay although it was rolled back, by node.

    `failed` has why a rollback failed, `permanent` the last thing done that nothing takes back.
    """

    failed: Mapping[str, str] = field(default_factory=dict)
    permanent: Mapping[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> tuple[str, ...]:
        """What to say about it, a line for each."""
        failed = [f"{name}: {why}" for name, why in self.failed.items()]
        permanent = [f"{name}: {PERMANENT}: {target}" for name, target in self.permanent.items()]
        return (*failed, *permanent)


class StepRunner:
    """The steps of one run on all nodes.

    `transaction` has begun the run on each of them and holds the locks.
    """

    def __init__(
        self,
        agents: Agents,
        transaction: Transaction,
        fleet: Fleet,
        steps: Sequence[Step],
        environment: Environment,
        change_plan: ChangePlan,
    ) -> None:
        self._agents = agents
        self._transaction = transaction
        self._fleet = fleet
        self._steps = steps
        self._environment = environment
        self._change_plan = change_plan
        self._planned = {planned.key: planned for planned in change_plan.step_actions}
        self._results: dict[Key, tuple[StepOutcome, str]] = {}
        # Node → its step actions, in the order of the journal that the node keeps.
        self._journals: dict[str, list[Key]] = {}
        # Nodes that are no longer as they were when everything was planned.
        self._changed: set[str] = set()
        self._notified: dict[str, set[str]] = {}  # node → names of handlers
        self.failed = False
        self.lost: set[str] = set()

    def rows(self) -> tuple[ChangeRow, ...]:
        """Return what became of every step action."""
        planned = sorted(self._planned.values(), key=self._position)
        return step_rows(planned, self._results)

    def _position(self, planned: Planned) -> tuple[bool, int]:
        """Return a sort key: handlers come last."""
        return self._steps[planned.place].handler, planned.place

    # ------------------------------------------------------------ all steps

    def run(self, watch: Watch) -> None:
        """Run all steps in their order, until one fails."""
        self._note_written_files()
        steps = in_order(self._steps)
        if steps and (self._changed or self._change_plan.nodes):
            self._agents.load("steps")
        for place, step in steps:
            names = self._pending_nodes(place, step)
            if names:
                watch.stage(step.name, len(names), names)
            for batch in batches(step.serial, names, self._count_of_nodes(step)):
                self._run_batch(place, step, batch, watch)
                if self.failed:
                    self.mark_not_started()
                    return

    def mark_not_started(self) -> None:
        """Mark the remaining steps as not started."""
        for key, planned in self._planned.items():
            if planned.step_action.operations:
                self._results.setdefault(key, ("not-started", ""))

    def _note_written_files(self) -> None:
        """Note the nodes and handlers that the files written before the steps concern."""
        for change in self._change_plan.files:
            if change.action != "none":
                self._changed.add(change.node)
                self._notify(change.node, change.notify)

    def _notify(self, name: str, handlers: Iterable[str]) -> None:
        self._notified.setdefault(name, set()).update(handlers)

    def _pending_nodes(self, place: int, step: Step) -> list[str]:
        """Return the nodes that may have something to do, in the order of the inventory."""
        pending = []
        for node in self._fleet.reached:
            name = node.name
            if step.nodes is not None and name not in step.nodes:
                continue
            if step.handler:
                is_pending = step.name in self._notified.get(name, ())
            else:
                is_pending = name in self._changed or self._has_operations(place, name)
            if is_pending:
                pending.append(name)
        return pending

    def _has_operations(self, place: int, name: str) -> bool:
        planned = self._change_plan.of(place, name)
        return any(step_action.operations for step_action in planned)

    def _count_of_nodes(self, step: Step) -> int:
        """Return how many nodes a step is for: a `serial` in percent is a share of them."""
        names = [node.name for node in self._fleet.reached]
        if step.nodes is None:
            return len(names)
        return len(step.nodes.intersection(names))

    # ------------------------------------------------------------ one batch

    def _run_batch(self, place: int, step: Step, names: Sequence[str], watch: Watch) -> None:
        judged = self._plan_batch(place, step, names)
        failures: dict[str, Failure] = {}
        for name, result in judged.items():
            if isinstance(result, Absent):
                failures[name] = Failure(None, _gap_text(step, result))
        if not failures:
            failures = self._do_batch(place, step, judged, watch)
        if failures:
            self.failed = True
            self._note_failures(place, step, failures)
            self._roll_back_failed(failures)

    def _plan_batch(self, place: int, step: Step, names: Sequence[str]) -> dict[str, Judged]:
        """Return what is to be done on each node.

        Once a step has been done anywhere time has passed, so every node is asked again.
        """
        has_begun = bool(self._journals)
        stale: list[str] = []
        judged: dict[str, Judged] = {}
        for name in names:
            if has_begun or name in self._changed:
                stale.append(name)
            else:
                judged[name] = self._change_plan.of(place, name)
        judged.update(self._judge_again(step, stale, notified=step.handler))
        return {name: judged[name] for name in names}

    def _do_batch(
        self, place: int, step: Step, judged: Mapping[str, Judged], watch: Watch
    ) -> dict[str, Failure]:
        """Do a step on these nodes at once, look again, and return what failed."""
        work: dict[str, StepActions] = {}
        for name, step_actions in judged.items():
            if isinstance(step_actions, tuple):
                pending = self._note_pending(place, name, step_actions)
                if pending:
                    work[name] = pending
        failures = self._perform(place, step, work)
        performed = [name for name in work if name not in failures]
        failures.update(self._without_effect(step, performed))
        for name in judged:
            if name in failures:
                watch.step(name, "failed")
                continue
            watch.step(name, "done" if name in work else "unchanged")
            self._note_done(place, step, name)
        return failures

    def _note_pending(self, place: int, name: str, step_actions: StepActions) -> StepActions:
        """Return those with operations; the report has them in place of what was planned."""
        pending = tuple(step_action for step_action in step_actions if step_action.operations)
        for step_action in pending:
            self._planned[place, name, step_action.target] = Planned(place, step_action)
        return pending

    def _note_done(self, place: int, step: Step, name: str) -> None:
        planned_here = self._planned_at(place, name)
        for planned in planned_here:
            self._results[planned.key] = ("done", "")
            if planned.step_action.operations:
                self._notify(name, step.notify)

    def _planned_at(self, place: int, name: str) -> list[Planned]:
        return [p for p in self._planned.values() if p.key[:2] == (place, name)]

    # ------------------------------------------------------------ doing

    def _perform(
        self, place: int, step: Step, work: Mapping[str, StepActions]
    ) -> dict[str, Failure]:
        """Have the nodes do their step actions at once, and return what failed."""
        reboots = _reboot_limits(work)
        ids_before = boot_ids(self._agents, reboots)
        answers = self._ask_to_perform(place, step, work)
        failures = {}
        for name, answer in answers.items():
            if isinstance(answer, LinkLost) and name in reboots:
                continue  # a node that reboots loses its link, as it should
            if isinstance(answer, LinkLost) or "no" in answer:
                failures[name] = _failure(step, work[name], answer)
        rebooting = {name: limit for name, limit in reboots.items() if name not in failures}
        if rebooting:
            failures.update(self._wait_for_reboots(step, rebooting, ids_before))
        return failures

    def _ask_to_perform(self, place: int, step: Step, work: Mapping[str, StepActions]) -> Answers:
        """Send the step actions of each node, and return the answers by node.

        All nodes work at the same time, so the node with the longest list decides the limit.
        """
        bodies: dict[str, dict[str, Any]] = {}
        limit = 0.0
        for name, step_actions in work.items():
            body = self._transaction.request_body(name)
            body["deeds"] = [_action_request(place, step, action) for action in step_actions]
            bodies[name] = body
            seconds = sum(seconds_limit(action) for action in step_actions)
            limit = max(limit, seconds)
            self._note_begun(place, name, step_actions)
        return self._agents.ask("perform", bodies, limit + LIMIT)

    def _note_begun(self, place: int, name: str, step_actions: StepActions) -> None:
        self._changed.add(name)
        journal = self._journals.setdefault(name, [])
        for action in step_actions:
            journal.append((place, name, action.target))

    def _wait_for_reboots(
        self, step: Step, limits: Mapping[str, float], ids_before: Mapping[str, str]
    ) -> dict[str, Failure]:
        """Wait for nodes that reboot, and take their locks again with their new agents."""
        nodes = {}
        for node in self._fleet.reached:
            if node.name in limits:
                nodes[node.name] = node
        missing = wait_for(self._agents, nodes, limits, ids_before)
        returned = [name for name in nodes if name not in missing]
        if returned:
            missing.update(self._transaction.lock_again(returned))
        ready = [name for name in returned if name not in missing]
        self._agents.load("steps", ready)
        failures = {}
        for name, why in missing.items():
            text = f"{_step_text(step)}: {why}"
            failures[name] = Failure(None, text, lost=True)
        return failures

    # ------------------------------------------------------------ looking again

    def _without_effect(self, step: Step, names: Sequence[str]) -> dict[str, Failure]:
        """Return the nodes that still have something to do after the step was done there."""
        failures = {}
        for name, result in self._judge_again(step, names, notified=False).items():
            if isinstance(result, Absent):
                failures[name] = Failure(None, _gap_text(step, result))
                continue
            for step_action in result or ():
                if step_action.operations:
                    failures[name] = _no_effect(step, step_action)
                    break
        return failures

    def _judge_again(self, step: Step, names: Sequence[str], notified: bool) -> dict[str, Judged]:
        """Return what a step has to do on these nodes as they are now, by node.

        Absent says why that is not known, for a node that was lost, too.
        """
        nodes = [node for node in self._fleet.reached if node.name in names]
        fleet, lost = look_again(self._agents, self._fleet, step, nodes)
        self._fleet = fleet
        fact_names = resource_fact_names(step, fleet.inventory)
        judged: dict[str, Judged] = {}
        for name, why in lost.items():
            judged[name] = Absent("hung", f"the node was lost: {why}")
        for node in nodes:
            if node.name in lost:
                continue
            context = PlanContext(
                fleet,
                node,
                {},
                {},
                self._environment,
                notified=notified,
            )
            judged[node.name] = plan_step(context, step, fact_names)
        return judged

    # ------------------------------------------------------------ after a failure

    def _note_failures(self, place: int, step: Step, failures: Mapping[str, Failure]) -> None:
        """Note which step action failed on each node; those before it were done."""
        for name, failure in failures.items():
            planned_here = self._planned_at(place, name)
            if not planned_here:
                stand_in = StepAction(name, step.resource.name, step.name, "run")
                planned_here = [Planned(place, stand_in)]
            failed_at = _index_of(failure.target, planned_here)
            for number, planned in enumerate(planned_here):
                key = planned.key
                self._planned.setdefault(key, planned)
                if number < failed_at:
                    self._results[key] = ("done", "")
                elif number == failed_at:
                    outcome: StepOutcome = "unanswered" if failure.lost else "failed"
                    self._results[key] = (outcome, f"{name}: {failure.why}")
                else:
                    self._results[key] = ("not-started", "")

    def _roll_back_failed(self, failures: Mapping[str, Failure]) -> None:
        """Roll back the nodes on which a step failed, as far as they can be asked."""
        reachable = []
        for name, failure in failures.items():
            if failure.lost or name not in self._agents.links:
                self.lost.add(name)
            elif name in self._journals:
                reachable.append(name)
        self._ask_to_roll_back(reachable, again=True)

    def _ask_to_roll_back(self, names: Iterable[str], **options: bool) -> dict[str, str]:
        """Roll back what this run did on these nodes; return why it was not possible on some."""
        bodies = {}
        for name in names:
            body = self._transaction.request_body(name)
            bodies[name] = {
                **body,
                "go_on": True,
                **options,
            }
        answers = self._agents.ask("take_back", bodies, STEPS_LIMIT)
        troubles = {}
        for name, answer in answers.items():
            if isinstance(answer, LinkLost) or "no" in answer:
                troubles[name] = failure_text(answer)
                self._add_to_failure(name, f"undoing failed, too: {troubles[name]}")
            if isinstance(answer, LinkLost):
                self.lost.add(name)
                continue
            for number in as_list(answer.get("undone")):
                self._note_rolled_back(name, number, "undone", "")
            for number in as_list(answer.get("kept")):
                self._note_rolled_back(name, number, "done", PERMANENT)
        return troubles

    def _note_rolled_back(self, name: str, number: object, outcome: StepOutcome, why: str) -> None:
        """Note the new outcome of a step action; `number` is its place in the node's journal."""
        journal = self._journals.get(name, [])
        if not isinstance(number, int) or not 0 <= number < len(journal):
            return
        key = journal[number]
        before = self._results.get(key)
        if before is None or before[0] not in ("failed", "unanswered"):
            self._results[key] = (outcome, why)

    def _add_to_failure(self, name: str, text: str) -> None:
        """Add a line to the reason of what failed on a node."""
        for key, (outcome, why) in self._results.items():
            _, node, _ = key
            if node == name and outcome in ("failed", "unanswered"):
                longer = f"{why}\n{text}"
                self._results[key] = (outcome, longer)

    # ------------------------------------------------------------ rolling back all nodes

    def roll_back(self) -> NotRolledBack:
        """Stop what is under way and roll back all steps of this run, on every node.

        Returns what could not be rolled back. `finish_roll_back` has to follow once the files are
        as they were.
        """
        names = self._nodes_with_steps()
        self._agents.ask("halt", {name: {} for name in names}, LIMIT)
        failed = self._ask_to_roll_back(names)
        return NotRolledBack(failed, self._permanent_targets())

    def _permanent_targets(self) -> dict[str, str]:
        """Return the nodes with something that cannot be rolled back, and the last such thing."""
        targets = {}
        for key, (_, why) in self._results.items():
            if why == PERMANENT:
                _, name, target = key
                targets[name] = target
        return targets

    def finish_roll_back(self) -> dict[str, str]:
        """Run the commands that read files again, such as restarts, once these are back.

        Returns why that was not possible on some nodes.
        """
        return self._ask_to_roll_back(self._nodes_with_steps(), again=True)

    def _nodes_with_steps(self) -> list[str]:
        return [name for name in self._journals if name not in self.lost]


def roll_back_run(
    transaction: Transaction, step_runner: StepRunner, deadline: Deadline
) -> NotRolledBack:
    """Roll back a run that is not finalized, on every node, the last change first.

    Returns what could not be rolled back. A time limit that passes meanwhile does not end it.
    """
    steps = NotRolledBack()
    if not transaction.committed:
        return steps
    with contextlib.suppress(ClusterprepError), deadline.shield():
        steps = step_runner.roll_back()
        transaction.roll_back()
        failed = {**step_runner.finish_roll_back(), **steps.failed}
        steps = NotRolledBack(failed, steps.permanent)
    return steps


def roll_back_files(transaction: Transaction, deadline: Deadline) -> NotRolledBack:
    """Do the same for a run without steps of its own, such as a rollback."""
    if transaction.committed:
        with contextlib.suppress(ClusterprepError), deadline.shield():
            transaction.roll_back()
    return NotRolledBack()


# ---------------------------------------------------------------- requests and texts


def _reboot_limits(work: Mapping[str, StepActions]) -> dict[str, float]:
    """Return the nodes that reboot, with the seconds after which they have to be back."""
    limits = {}
    for name, step_actions in work.items():
        for step_action in step_actions:
            for operation in step_action.operations:
                if isinstance(operation, Reboot):
                    limits[name] = operation.limit
    return limits


def _action_request(place: int, step: Step, step_action: StepAction) -> dict[str, Any]:
    """Return a step action as the agent takes it, and as its journal keeps it."""
    return {
        "place": place,
        "step": step.name,
        "resource": step_action.resource,
        "target": step_action.target,
        "diff": step_action.diff,
        "action": step_action.action,
        "operations": [wire(operation) for operation in step_action.operations],
    }


def _failure(step: Step, step_actions: Sequence[StepAction], answer: Answer) -> Failure:
    why = f"{_step_text(step)}: {failure_text(answer)}"
    if isinstance(answer, LinkLost):
        return Failure(None, why, lost=True)
    number = answer.get("deed")
    target = None
    if isinstance(number, int) and 0 <= number < len(step_actions):
        target = step_actions[number].target
    return Failure(target, why)


def _no_effect(step: Step, step_action: StepAction) -> Failure:
    what = step_action.diff or step_action.target
    why = f"{_step_text(step)}: it was done, and the node is not as wanted: {what}"
    return Failure(step_action.target, why.strip())


def _index_of(target: str | None, planned: Sequence[Planned]) -> int:
    """Return the index of the first with this target, 0 if there is none."""
    for number, candidate in enumerate(planned):
        if candidate.step_action.target == target:
            return number
    return 0


def _step_text(step: Step) -> str:
    line = "" if step.line is None else f" (line {step.line})"
    return f"step «{step.name}»{line}"


def _gap_text(step: Step, why: Absent) -> str:
    return f"{_step_text(step)}: {Gap(step.resource.name, why)}"
