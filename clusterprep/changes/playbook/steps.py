"""What a playbook comes to: steps with their resource, the nodes they are for, and what has to hold there. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterprep.changes.playbook import variables
from clusterprep.changes.playbook.conditions import Condition, Truth
from clusterprep.changes.playbook.names import Name, Value, value_of
from clusterprep.changes.resources import Part, Resource, StepResource, target
from clusterprep.facts import Fact
from clusterprep.model import Absent, Fleet, Inventory, Node
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.runtime.plugins import modules


@dataclass(frozen=True)
class Step:
    """One wanted state. `nodes` has the names it is for, None means all; every condition of `when` has to hold.

    `serial` is how many nodes at once, or their share in percent; `notify` has the names of the handlers that are to
    follow a change, and a `handler` is done where it was notified.
    """

    name: str
    resource: Resource | StepResource
    params: Mapping[str, Any]
    tags: tuple[str, ...] = ()
    when: tuple[Condition, ...] = ()
    nodes: frozenset[str] | None = None
    file: str | None = None
    line: int | None = None
    serial: int | str | None = None
    notify: tuple[str, ...] = ()
    handler: bool = False

    def names(self) -> Iterator[Name]:
        """Every name whose value decides what this step does."""
        for condition in self.when:
            yield from condition.names()
        yield from variables.names(self.params)

    def applies(self, node: Node, fleet: Fleet) -> Truth:
        """Whether a node reached is to have this state, or why nobody knows."""
        if self.nodes is not None and node.name not in self.nodes:
            return False
        truths = [condition.holds(node, self.lookup(node, fleet)) for condition in self.when]
        unknown = [truth for truth in truths if isinstance(truth, Absent)]
        if any(truth is False for truth in truths):
            return False
        return Absent(unknown[0].reason, f"when: {unknown[0].detail}") if unknown else True

    def filled(self, node: Node, fleet: Fleet) -> Mapping[str, Any] | Absent:
        """The parameters with their variables replaced for this node."""
        found: Mapping[str, Any] | Absent = variables.filled(self.params, self.lookup(node, fleet))
        return found

    @staticmethod
    def lookup(node: Node, fleet: Fleet) -> Callable[[Name], Value | Absent]:
        return lambda name: value_of(name, fleet, node)


@dataclass(frozen=True)
class Playbook:
    """Steps in the order written, those of included files where they are included."""

    path: str
    steps: tuple[Step, ...]

    @property
    def tags(self) -> frozenset[str]:
        return frozenset(tag for step in self.steps for tag in step.tags)


def resources() -> dict[str, Resource | StepResource]:
    """The kinds of wanted state that are built, by the name a step calls them."""
    found = (module.RESOURCE for module in modules("clusterprep.changes.resources"))
    return {resource.name: resource for resource in found}


def at_once(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps that are written on all nodes or on none."""
    return tuple(step for step in steps if isinstance(step.resource, Resource))


def batches(
    serial: int | str | None, nodes: Sequence[str], whole: int
) -> Iterator[tuple[str, ...]]:
    """Nodes in the groups that are done at once. A share is of the `whole` that a step is for, at least one."""
    size = serial or max(1, len(nodes))
    if isinstance(size, str):
        size = max(1, whole * int(size.rstrip("%")) // 100)
    for start in range(0, len(nodes), size):
        yield tuple(nodes[start : start + size])


def doubles(steps: Iterable[Step], inventory: Inventory) -> Iterator[tuple[Step, Step, str]]:
    """Two steps that would undo each other on some node at every run: the later, the earlier, and where.

    Whether a step with `when` applies is only known on the node; see `Owners`.
    """
    owners: dict[str, list[tuple[str, Step]]] = {}
    told: list[tuple[Step, Step]] = []
    for step in steps:
        if step.when:
            continue
        for path, part in step.resource.owned(step.params, inventory):
            for other, first in owners.get(path, ()):
                if _clash(part, other) and _meet(step, first) and (step, first) not in told:
                    told.append((step, first))
                    yield step, first, _shown(path, part or other)
            owners.setdefault(path, []).append((part, step))


class Owners:
    """Which step owns which part of a file on one node."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, Step]] = {}

    def take(self, step: Step, parts: Iterable[Part]) -> tuple[Step, str] | None:
        """The step that has such a part already, and which."""
        for path, part in parts:
            mine = self._parts.setdefault(path, {})
            for other, first in mine.items():
                if first is not step and _clash(part, other):
                    return first, _shown(path, part or other)
            mine[part] = step
        return None


def _clash(one: str, other: str) -> bool:
    """Who owns all of a file shares it with nobody."""
    return one == other or "" in (one, other)


def _meet(one: Step, other: Step) -> bool:
    return one.nodes is None or other.nodes is None or not one.nodes.isdisjoint(other.nodes)


def _shown(path: str, part: str) -> str:
    return f"{path} ({part})" if part else path


def fact_names(steps: Iterable[Step]) -> tuple[str, ...]:
    """The facts that conditions and variables need."""
    return tuple(
        dict.fromkeys(fact for step in steps for name in step.names() for fact in name.facts)
    )


def own_facts(steps: Iterable[Step], inventory: Inventory) -> tuple[Fact, ...]:
    """What nobody but these steps asks for: the files that they may touch, and what their resources need besides."""
    paths: dict[str, None] = {}
    facts: dict[str, Fact] = {}
    nodes: dict[str, frozenset[str] | None] = {}
    for step in steps:
        paths.update(dict.fromkeys(step.resource.paths(step.params, inventory)))
        for fact in step.resource.facts(step.params, inventory):
            mine, others = step.nodes, nodes.get(fact.name, frozenset())
            nodes[fact.name] = None if mine is None or others is None else mine | others
            facts[fact.name] = fact
    return (*(_asked_of(fact, nodes[name]) for name, fact in facts.items()), *map(target, paths))


def _asked_of(fact: Fact, nodes: frozenset[str] | None) -> Fact:
    """A fact of these nodes alone: what a step asks may run a command. One of the registry is as it is for all."""
    if nodes is None or ":" not in fact.name:
        return fact
    return replace(
        fact,
        reads=lambda node, inventory: fact.reads(node, inventory) if node.name in nodes else (),
        parse=lambda *answers: fact.parse(*answers) if answers else None,
        apiece=True,
        narrow=None,
    )
