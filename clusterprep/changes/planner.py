"""What a playbook will do to every node, known before anything is done: files first, then deeds step by step. Pure.

A step is planned against what the steps before it leave, as far as that can be told: files as they will have been
written, and as `Known.earlier` the deeds that are still to come, one of which may bring what is not there yet.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from clusterprep.changes.file_plan import (
    Gap,
    change_rows,
    changes,
    gap_rows,
    pending_changes,
    planned_changes,
    refuse_doubles,
)
from clusterprep.changes.playbook.steps import Owners, Step
from clusterprep.changes.resources import PlanContext, StepResource
from clusterprep.model import Absent, ChangeRow, Fleet, Inventory, Node, StepOutcome
from clusterprep.model.files import FileChange, FileState
from clusterprep.model.operations import StepAction, Write
from clusterprep.nccl.environment import Environment
from clusterprep.runtime.lazy_dataclass import dataclass

Key = tuple[int, str, str]  # the place of a step in the playbook, a node, a target
Ends = Mapping[Key, tuple[StepOutcome, str]]  # what became of a deed, and why


@dataclass(frozen=True)
class Planned:
    """A deed, and the place of its step among all steps."""

    place: int
    step_action: StepAction

    @property
    def key(self) -> Key:
        return self.place, self.step_action.node, self.step_action.target


@dataclass(frozen=True)
class ChangePlan:
    """Everything that is planned. A node in `gaps` could not be planned, so nothing is done anywhere."""

    files: tuple[FileChange, ...] = ()
    step_actions: tuple[Planned, ...] = ()
    gaps: Mapping[str, Gap] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        """Whether there is anything to do."""
        return any(change.action != "none" for change in self.files) or any(
            p.step_action.operations for p in self.step_actions
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes on which something is to be done step by step."""
        return tuple(
            dict.fromkeys(
                planned.step_action.node
                for planned in self.step_actions
                if planned.step_action.operations
            )
        )

    def of(self, place: int, node: str) -> tuple[StepAction, ...]:
        """What a step is to do on a node."""
        return self._by_step.get((place, node), ())

    @functools.cached_property
    def _by_step(self) -> Mapping[tuple[int, str], tuple[StepAction, ...]]:
        found: dict[tuple[int, str], tuple[StepAction, ...]] = {}
        for planned in self.step_actions:
            at = (planned.place, planned.step_action.node)
            found[at] = (*found.get(at, ()), planned.step_action)
        return found

    def rows(
        self,
        outcomes: Mapping[str, StepOutcome] | None = None,
        details: Mapping[str, str] | None = None,
    ) -> tuple[ChangeRow, ...]:
        """All of it for people; `outcomes` and `details` by node, without them it is planned."""
        ends = {
            p.key: (outcomes[p.step_action.node], "")
            for p in self.step_actions
            if outcomes and p.step_action.node in outcomes
        }
        return (
            *change_rows(self.files, outcomes or {}, details or {}),
            *deed_rows(self.step_actions, ends),
            *gap_rows(self.gaps),
        )

    def none_started(self, details: Mapping[str, str] | None = None) -> tuple[ChangeRow, ...]:
        """The same where nothing was done."""
        names = dict.fromkeys([*(c.node for c in self.files), *self.nodes])
        return self.rows(dict.fromkeys(names, "not-started"), details)


def predict_changes(fleet: Fleet, steps: Sequence[Step], environment: Environment) -> ChangePlan:
    """What these steps would change on every node reached. InputError where two steps want the same thing."""
    files, gaps = changes(fleet, steps, environment)
    step_actions: list[Planned] = []
    if any(isinstance(step.resource, StepResource) for step in steps):
        by_node: dict[str, list[FileChange]] = {}
        for change in files:
            by_node.setdefault(change.node, []).append(change)
        for node in fleet.reached:
            mine = _Forecast(fleet, node, environment, by_node.get(node.name, ()))
            for gap in mine.go_through(steps):
                gaps.setdefault(node.name, gap)
            step_actions.extend(mine.planned)
        step_actions.sort(key=lambda planned: (steps[planned.place].handler, planned.place))
    return ChangePlan(files, tuple(step_actions), gaps)


class _Forecast:
    """One node, step by step, as it will be."""

    def __init__(
        self, fleet: Fleet, node: Node, environment: Environment, files: Iterable[FileChange]
    ) -> None:
        self.planned: list[Planned] = []
        self._owners = Owners()
        self._fleet, self._node, self._environment = fleet, node, environment
        self._files: dict[str, FileState] = {
            change.path: pending_changes(change) for change in files
        }
        self._written = {
            change.path: pending_changes(change) for change in files if change.action != "none"
        }
        self._notified = {
            name for change in files if change.action != "none" for name in change.notify
        }

    def go_through(self, steps: Sequence[Step]) -> Iterator[Gap]:
        """Plan every step, handlers after all others; why one cannot be planned."""
        watched = any(step.when for step in steps)
        for place, step in in_order(steps):
            if step.handler and step.name not in self._notified:
                continue
            found = planned_changes(self._known(step), step)
            if isinstance(found, Absent):
                yield Gap(step.resource.name, found)
            elif found is not None:
                if watched:
                    refuse_doubles(self._owners, step, self._node, self._fleet)
                self._take(place, step, found)

    def _known(self, step: Step) -> PlanContext:
        earlier = tuple(planned.step_action for planned in self.planned)
        facts = asked_by(step, self._fleet.inventory)
        return PlanContext(
            self._fleet,
            self._node,
            self._files,
            facts,
            self._environment,
            earlier,
            self._written,
            step.handler,
        )

    def _take(self, place: int, step: Step, step_actions: Iterable[StepAction]) -> None:
        for step_action in step_actions:
            self.planned.append(Planned(place, step_action))
            if step_action.operations:
                self._notified.update(step.notify)
            for each in step_action.operations:
                if isinstance(each, Write):
                    self._files[each.path] = self._written[each.path] = FileState(
                        each.path, each.after, each.mode
                    )


def asked_by(step: Step, inventory: Inventory) -> dict[str, None]:
    """The facts of its own that a step is judged by, by name."""
    return dict.fromkeys(fact.name for fact in step.resource.facts(step.params, inventory))


def in_order(steps: Sequence[Step]) -> list[tuple[int, Step]]:
    """The steps that are done one after the other with their places, handlers last."""
    mine = [
        (place, step) for place, step in enumerate(steps) if isinstance(step.resource, StepResource)
    ]
    return sorted(mine, key=lambda found: found[1].handler)


def deed_rows(planned: Iterable[Planned], ends: Ends) -> tuple[ChangeRow, ...]:
    """Equal deeds of one step with equal ends in one row; those without an end are planned."""
    folded: dict[tuple[int, ChangeRow], list[str]] = {}
    for each in planned:
        step_action = each.step_action
        outcome, detail = ends.get(
            each.key, ("planned" if step_action.operations else "unchanged", "")
        )
        if not step_action.operations and outcome != "failed":
            outcome, detail = "unchanged", ""
        row = ChangeRow(
            (),
            step_action.resource,
            step_action.target,
            step_action.action,
            outcome,
            step_action.diff,
            detail,
        )
        folded.setdefault((each.place, row), []).append(step_action.node)
    return tuple(replace(row, nodes=tuple(nodes)) for (_, row), nodes in folded.items())
