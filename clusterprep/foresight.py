"""What a playbook will do to every node, known before anything is done: files first, then deeds step by step. Pure.

A step is planned against what the steps before it leave, as far as that can be told: files as they will have been
written, and as `Known.earlier` the deeds that are still to come, one of which may bring what is not there yet.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from clusterprep.deeds import Deed, Write
from clusterprep.diff import Gap, changes, gap_rows, judged, left, refuse_doubles, rows
from clusterprep.frozen import dataclass
from clusterprep.model import Absent, ChangeRow, Fleet, Inventory, Node, Outcome
from clusterprep.playbook.steps import Owners, Step
from clusterprep.render import Environment
from clusterprep.resources import Known, StepResource
from clusterprep.wanted import FileChange, FileState

Key = tuple[int, str, str]  # the place of a step in the playbook, a node, a target
Ends = Mapping[Key, tuple[Outcome, str]]  # what became of a deed, and why


@dataclass(frozen=True)
class Planned:
    """A deed, and the place of its step among all steps."""

    place: int
    deed: Deed

    @property
    def key(self) -> Key:
        return self.place, self.deed.node, self.deed.target


@dataclass(frozen=True)
class Foreseen:
    """Everything that is planned. A node in `gaps` could not be planned, so nothing is done anywhere."""

    files: tuple[FileChange, ...] = ()
    deeds: tuple[Planned, ...] = ()
    gaps: Mapping[str, Gap] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        """Whether there is anything to do."""
        return any(change.action != "none" for change in self.files) or any(p.deed.operations for p in self.deeds)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes on which something is to be done step by step."""
        return tuple(dict.fromkeys(planned.deed.node for planned in self.deeds if planned.deed.operations))

    def of(self, place: int, node: str) -> tuple[Deed, ...]:
        """What a step is to do on a node."""
        return self._by_step.get((place, node), ())

    @functools.cached_property
    def _by_step(self) -> Mapping[tuple[int, str], tuple[Deed, ...]]:
        found: dict[tuple[int, str], tuple[Deed, ...]] = {}
        for planned in self.deeds:
            at = (planned.place, planned.deed.node)
            found[at] = (*found.get(at, ()), planned.deed)
        return found

    def rows(
        self, outcomes: Mapping[str, Outcome] | None = None, details: Mapping[str, str] | None = None
    ) -> tuple[ChangeRow, ...]:
        """All of it for people; `outcomes` and `details` by node, without them it is planned."""
        ends = {p.key: (outcomes[p.deed.node], "") for p in self.deeds if outcomes and p.deed.node in outcomes}
        return (*rows(self.files, outcomes or {}, details or {}), *deed_rows(self.deeds, ends), *gap_rows(self.gaps))

    def none_started(self, details: Mapping[str, str] | None = None) -> tuple[ChangeRow, ...]:
        """The same where nothing was done."""
        names = dict.fromkeys([*(c.node for c in self.files), *self.nodes])
        return self.rows(dict.fromkeys(names, "not-started"), details)


def foresee(fleet: Fleet, steps: Sequence[Step], environment: Environment) -> Foreseen:
    """What these steps would change on every node reached. InputError where two steps want the same thing."""
    files, gaps = changes(fleet, steps, environment)
    deeds: list[Planned] = []
    if any(isinstance(step.resource, StepResource) for step in steps):
        by_node: dict[str, list[FileChange]] = {}
        for change in files:
            by_node.setdefault(change.node, []).append(change)
        for node in fleet.reached:
            mine = _Forecast(fleet, node, environment, by_node.get(node.name, ()))
            for gap in mine.go_through(steps):
                gaps.setdefault(node.name, gap)
            deeds.extend(mine.planned)
        deeds.sort(key=lambda planned: (steps[planned.place].handler, planned.place))
    return Foreseen(files, tuple(deeds), gaps)


class _Forecast:
    """One node, step by step, as it will be."""

    def __init__(self, fleet: Fleet, node: Node, environment: Environment, files: Iterable[FileChange]) -> None:
        self.planned: list[Planned] = []
        self._owners = Owners()
        self._fleet, self._node, self._environment = fleet, node, environment
        self._files: dict[str, FileState] = {change.path: left(change) for change in files}
        self._written = {change.path: left(change) for change in files if change.action != "none"}
        self._notified = {name for change in files if change.action != "none" for name in change.notify}

    def go_through(self, steps: Sequence[Step]) -> Iterator[Gap]:
        """Plan every step, handlers after all others; why one cannot be planned."""
        watched = any(step.when for step in steps)
        for place, step in in_order(steps):
            if step.handler and step.name not in self._notified:
                continue
            found = judged(self._known(step), step)
            if isinstance(found, Absent):
                yield Gap(step.resource.name, found)
            elif found is not None:
                if watched:
                    refuse_doubles(self._owners, step, self._node, self._fleet)
                self._take(place, step, found)

    def _known(self, step: Step) -> Known:
        earlier = tuple(planned.deed for planned in self.planned)
        facts = asked_by(step, self._fleet.inventory)
        return Known(
            self._fleet, self._node, self._files, facts, self._environment, earlier, self._written, step.handler
        )

    def _take(self, place: int, step: Step, deeds: Iterable[Deed]) -> None:
        for deed in deeds:
            self.planned.append(Planned(place, deed))
            if deed.operations:
                self._notified.update(step.notify)
            for each in deed.operations:
                if isinstance(each, Write):
                    self._files[each.path] = self._written[each.path] = FileState(each.path, each.after, each.mode)


def asked_by(step: Step, inventory: Inventory) -> dict[str, None]:
    """The facts of its own that a step is judged by, by name."""
    return dict.fromkeys(fact.name for fact in step.resource.facts(step.params, inventory))


def in_order(steps: Sequence[Step]) -> list[tuple[int, Step]]:
    """The steps that are done one after the other with their places, handlers last."""
    mine = [(place, step) for place, step in enumerate(steps) if isinstance(step.resource, StepResource)]
    return sorted(mine, key=lambda found: found[1].handler)


def deed_rows(planned: Iterable[Planned], ends: Ends) -> tuple[ChangeRow, ...]:
    """Equal deeds of one step with equal ends in one row; those without an end are planned."""
    folded: dict[tuple[int, ChangeRow], list[str]] = {}
    for each in planned:
        deed = each.deed
        outcome, detail = ends.get(each.key, ("planned" if deed.operations else "unchanged", ""))
        if not deed.operations and outcome != "failed":
            outcome, detail = "unchanged", ""
        row = ChangeRow((), deed.resource, deed.target, deed.action, outcome, deed.diff, detail)
        folded.setdefault((each.place, row), []).append(deed.node)
    return tuple(replace(row, nodes=tuple(nodes)) for (_, row), nodes in folded.items())
