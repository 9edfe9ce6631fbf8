"""Predicts what a playbook will do to every node, before anything is done. Pure.

Files come first, then the step actions in their order. A step is planned against what the steps
before it leave, as far as that is known: files as they will have been written, and as
`PlanContext.earlier` the step actions that are still to come, one of which may bring what is
missing now.

A unit that does not exist is refused, unless a package before the step may bring it; then the step
is planned as if the unit existed. `step_runner` plans the step again before it acts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.changes.file_plan import (
    Gap,
    change_rows,
    gap_rows,
    plan_file_changes,
    plan_step,
    refuse_conflict,
    state_after,
)
from clusterprep.changes.playbook.steps import Owners, Step, resource_fact_names
from clusterprep.changes.resources import PlanContext, StepResource
from clusterprep.facts.account import Rights
from clusterprep.model import Absent, ChangeRow, Fleet, Node, StepOutcome
from clusterprep.model.files import FileChange, FileState
from clusterprep.model.operations import Reboot, StepAction, Write
from clusterprep.nccl.environment import Environment

_NEEDS_ROOT = (
    "writing needs root on the node, and {user} is not: add -b (--become, sudo on the nodes), "
    "or log in as root"
)

Key = tuple[int, str, str]  # the place of a step in the playbook, a node, a target
Results = Mapping[Key, tuple[StepOutcome, str]]  # what became of a step action, and why


class Planned(Struct, frozen=True):
    """A step action, and the place of its step among all steps."""

    place: int
    step_action: StepAction

    @property
    def key(self) -> Key:
        return self.place, self.step_action.node, self.step_action.target


class ChangePlan(Struct, frozen=True, dict=True):
    """Everything that is planned.

    A node in `gaps` could not be planned, so nothing is done anywhere.
    """

    files: tuple[FileChange, ...] = ()
    step_actions: tuple[Planned, ...] = ()
    gaps: Mapping[str, Gap] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        """Whether there is anything to do."""
        if any(change.action != "none" for change in self.files):
            return True
        return bool(self.nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes on which something is to be done step by step."""
        names: dict[str, None] = {}
        for planned in self.step_actions:
            if planned.step_action.operations:
                names[planned.step_action.node] = None
        return tuple(names)

    @property
    def rebooted(self) -> tuple[str, ...]:
        """The nodes that are to be rebooted."""
        names: dict[str, None] = {}
        for planned in self.step_actions:
            action = planned.step_action
            if any(isinstance(operation, Reboot) for operation in action.operations):
                names[action.node] = None
        return tuple(names)

    def of(self, place: int, node: str) -> tuple[StepAction, ...]:
        """Return what a step is to do on a node."""
        return self._by_step.get((place, node), ())

    @functools.cached_property
    def _by_step(self) -> Mapping[tuple[int, str], tuple[StepAction, ...]]:
        by_step: dict[tuple[int, str], tuple[StepAction, ...]] = {}
        for planned in self.step_actions:
            step_action = planned.step_action
            key = (planned.place, step_action.node)
            earlier = by_step.get(key, ())
            by_step[key] = (*earlier, step_action)
        return by_step

    def rows(
        self,
        outcomes: Mapping[str, StepOutcome] | None = None,
        details: Mapping[str, str] | None = None,
    ) -> tuple[ChangeRow, ...]:
        """Return all of it for people.

        `outcomes` and `details` are by node; what has no outcome is planned.
        """
        outcomes = outcomes or {}
        results: dict[Key, tuple[StepOutcome, str]] = {}
        for planned in self.step_actions:
            outcome = outcomes.get(planned.step_action.node)
            if outcome is not None:
                results[planned.key] = (outcome, "")
        of_files = change_rows(self.files, outcomes, details or {})
        of_steps = step_rows(self.step_actions, results)
        of_gaps = gap_rows(self.gaps)
        return (*of_files, *of_steps, *of_gaps)

    def none_started(self, details: Mapping[str, str] | None = None) -> tuple[ChangeRow, ...]:
        """Return the same rows for a run that did nothing."""
        outcomes: dict[str, StepOutcome] = {}
        for change in self.files:
            outcomes[change.node] = "not-started"
        for name in self.nodes:
            outcomes[name] = "not-started"
        return self.rows(outcomes, details)

    def with_gaps(self, gaps: Mapping[str, Gap]) -> ChangePlan:
        """Return the same with further nodes on which it cannot be done."""
        return replace(self, gaps={**gaps, **self.gaps}) if gaps else self

    def without_root(self, fleet: Fleet) -> dict[str, Gap]:
        """Return the nodes with pending changes whose login user may not write there, and why."""
        pending = {change.node for change in self.files if change.action != "none"}
        pending.update(self.nodes)
        lacking = users_without_root(fleet)
        return {name: lacking[name] for name in lacking if name in pending}


def users_without_root(fleet: Fleet) -> dict[str, Gap]:
    """Return the nodes on which nothing can be written, because the login user is not root.

    With `root:` a tree of the user's own may be written to, which its agent finds out. A node that
    does not tell who the user is is left to its agent as well.
    """
    gaps: dict[str, Gap] = {}
    for node in fleet.reached:
        rights = fleet.fact(node.name, "ssh.rights")
        if node.root == "/" and isinstance(rights, Rights) and rights.uid != 0:
            gaps[node.name] = Gap("rights", Absent("cannot", _NEEDS_ROOT.format(user=rights.user)))
    return gaps


def predict_changes(fleet: Fleet, steps: Sequence[Step], environment: Environment) -> ChangePlan:
    """Return what these steps would change on every node reached.

    Raises InputError if two steps want the same thing.
    """
    files, gaps = plan_file_changes(fleet, steps, environment)
    if not any(isinstance(step.resource, StepResource) for step in steps):
        return ChangePlan(files, (), gaps)
    by_node = _by_node(files)
    step_actions: list[Planned] = []
    for node in fleet.reached:
        own_files = by_node.get(node.name, [])
        forecast = _Forecast(fleet, node, environment, own_files)
        for gap in forecast.plan(steps):
            gaps.setdefault(node.name, gap)
        step_actions.extend(forecast.planned)

    def position(planned: Planned) -> tuple[bool, int]:
        return steps[planned.place].handler, planned.place

    step_actions.sort(key=position)
    return ChangePlan(files, tuple(step_actions), gaps)


def _by_node(files: Iterable[FileChange]) -> dict[str, list[FileChange]]:
    by_node: dict[str, list[FileChange]] = {}
    for change in files:
        by_node.setdefault(change.node, []).append(change)
    return by_node


class _Forecast:
    """One node as it will be, step after step. `planned` collects its step actions."""

    def __init__(
        self, fleet: Fleet, node: Node, environment: Environment, files: Iterable[FileChange]
    ) -> None:
        self.planned: list[Planned] = []
        self._fleet = fleet
        self._node = node
        self._environment = environment
        self._owners = Owners()
        self._files: dict[str, FileState] = {}
        self._written: dict[str, FileState] = {}
        self._notified: set[str] = set()  # names of handlers
        for change in files:
            self._files[change.path] = state_after(change)
            if change.action != "none":
                self._written[change.path] = state_after(change)
                self._notified.update(change.notify)

    def plan(self, steps: Sequence[Step]) -> Iterator[Gap]:
        """Plan every step, handlers after all others; yield why one cannot be planned."""
        has_conditions = any(step.when for step in steps)
        for place, step in in_order(steps):
            if step.handler and step.name not in self._notified:
                continue
            fact_names = resource_fact_names(step, self._fleet.inventory)
            result = plan_step(self._context(step), step, fact_names)
            if result is None:
                continue
            if isinstance(result, Absent):
                yield Gap(step.resource.name, result, step.name)
                continue
            if has_conditions:
                refuse_conflict(self._owners, step, self._node, self._fleet)
            for step_action in result:
                self._add(place, step, step_action)

    def _context(self, step: Step) -> PlanContext:
        earlier = tuple(planned.step_action for planned in self.planned)
        return PlanContext(
            self._fleet,
            self._node,
            self._files,
            {},
            self._environment,
            earlier,
            self._written,
            step.handler,
        )

    def _add(self, place: int, step: Step, step_action: StepAction) -> None:
        self.planned.append(Planned(place, step_action))
        if step_action.operations:
            self._notified.update(step.notify)
        for operation in step_action.operations:
            if isinstance(operation, Write):
                path = operation.path
                state = FileState(path, operation.after, operation.mode)
                self._files[path] = state
                self._written[path] = state


def in_order(steps: Sequence[Step]) -> list[tuple[int, Step]]:
    """Return the steps that are done one after the other with their places, handlers last."""
    ordinary: list[tuple[int, Step]] = []
    handlers: list[tuple[int, Step]] = []
    for place, step in enumerate(steps):
        if isinstance(step.resource, StepResource):
            group = handlers if step.handler else ordinary
            group.append((place, step))
    return ordinary + handlers


def step_rows(planned: Iterable[Planned], results: Results) -> tuple[ChangeRow, ...]:
    """Return equal step actions of one step with equal results in one row.

    Those without a result are planned.
    """
    nodes_by_row: dict[tuple[int, ChangeRow], list[str]] = {}
    for each in planned:
        key = (each.place, _step_row(each, results))
        nodes = nodes_by_row.setdefault(key, [])
        nodes.append(each.step_action.node)
    rows = []
    for (_, row), nodes in nodes_by_row.items():
        rows.append(replace(row, nodes=tuple(nodes)))
    return tuple(rows)


def _step_row(planned: Planned, results: Results) -> ChangeRow:
    """Return a row without a node, so that equal rows can be found."""
    step_action = planned.step_action
    outcome, detail = results.get(planned.key, ("planned", ""))
    if not step_action.operations and outcome != "failed":
        outcome, detail = "unchanged", ""
    return ChangeRow(
        (),
        step_action.resource,
        step_action.target,
        step_action.action,
        outcome,
        step_action.diff,
        detail,
    )
