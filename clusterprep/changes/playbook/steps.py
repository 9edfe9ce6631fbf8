"""The steps of a playbook: their resource, the nodes they are for, and their conditions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.playbook import variables
from clusterprep.changes.playbook.conditions import Condition, Truth
from clusterprep.changes.playbook.names import Name, Value, value_of
from clusterprep.changes.resources import (
    NoPlan,
    Params,
    Part,
    PlanContext,
    Resource,
    StepResource,
    target_fact,
)
from clusterprep.errors import ClusterprepError, InputError, printable
from clusterprep.facts import Fact
from clusterprep.model import Absent, Fleet, Inventory, Node, Read
from clusterprep.model.extensions import Extensions
from clusterprep.runtime.plugins import modules


class Step(Struct, frozen=True):
    """One wanted state.

    `nodes` has the names of the nodes that it is for, None means all. Every condition of `when`
    has to hold. `serial` is how many nodes at once, or their share in percent. `notify` names the
    handlers that follow a change; a `handler` is only done if it was notified.
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
        """Yield every name whose value decides what this step does."""
        for condition in self.when:
            yield from condition.names()
        yield from variables.names(self.params)

    def applies(self, node: Node, fleet: Fleet) -> Truth:
        """Return whether a node that was reached is to have this state.

        Absent says why that is not known. A condition that is false decides, also if another one
        is not known.
        """
        if self.nodes is not None and node.name not in self.nodes:
            return False
        lookup = self.lookup(node, fleet)
        unknown: Absent | None = None
        for condition in self.when:
            truth = condition.holds(node, lookup)
            if truth is False:
                return False
            if isinstance(truth, Absent) and unknown is None:
                unknown = truth
        if unknown is not None:
            return Absent(unknown.reason, f"when: {unknown.detail}")
        return True

    def filled(self, node: Node, fleet: Fleet) -> Mapping[str, Any] | Absent:
        """Return the parameters with their variables replaced for this node."""
        lookup = self.lookup(node, fleet)
        params: Mapping[str, Any] | Absent = variables.filled(self.params, lookup)
        return params

    @staticmethod
    def lookup(node: Node, fleet: Fleet) -> Callable[[Name], Value | Absent]:
        return lambda name: value_of(name, fleet, node)


class Playbook(Struct, frozen=True):
    """Steps in the order written, those of included files where they are included."""

    path: str
    steps: tuple[Step, ...]

    @property
    def tags(self) -> frozenset[str]:
        tags: set[str] = set()
        for step in self.steps:
            tags.update(step.tags)
        return frozenset(tags)


def resources() -> dict[str, Resource | StepResource]:
    """Return the resources that exist, by the name that a step uses."""
    by_name = {}
    for module in modules("clusterprep.changes.resources"):
        resource: Resource | StepResource = module.RESOURCE
        by_name[resource.name] = resource
    return by_name


def site_resources(extensions: Extensions) -> dict[str, Resource | StepResource]:
    """Return the resources of a site by name. Raises InputError for what is no resource."""
    by_name = {}
    for name, (place, resource) in extensions.resources.items():
        if not isinstance(resource, (Resource, StepResource)):
            message = f"RESOURCE is neither a Resource nor a StepResource: {resource!r:.80}"
            raise InputError.of(message, file=place)
        by_name[name] = _said_of(resource, place)
    return by_name


def _said_of(resource: Resource | StepResource, place: str) -> Resource | StepResource:
    """Return the resource such that what its functions raise is said of its file."""

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                result = function(*arguments)
                return list(result) if isinstance(result, Iterator) else result
            except (NoPlan, ClusterprepError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the site's
                why = printable(f"{type(error).__name__}: {error}")
                raise InputError.of(f"the resource {resource.name}: {why}", file=place) from None

        return call

    def plan(params: Params, context: PlanContext) -> Any:
        try:
            return list(resource.plan(params, context))
        except NoPlan:
            raise
        except Exception as error:  # noqa: BLE001 - likewise; nothing is then written
            why = printable(f"{place}: {type(error).__name__}: {error}")
            raise NoPlan("garbled", why) from None

    named: dict[str, Any] = {"plan": plan}
    for name in ("paths", "facts", "parts", "wrong", "live"):
        function = getattr(resource, name)
        if function is not None:
            named[name] = guarded(function)
    known: Any = resource  # both kinds have these fields
    said: Resource | StepResource = replace(known, **named)
    return said


def at_once(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps that are written on all nodes or on none."""
    return tuple(step for step in steps if isinstance(step.resource, Resource))


def batches(
    serial: int | str | None, nodes: Sequence[str], whole: int
) -> Iterator[tuple[str, ...]]:
    """Yield the nodes in the groups that are done at once.

    A share in percent is one of `whole`, the number of nodes that a step is for; it is at least
    one node.
    """
    if isinstance(serial, str):
        percent = int(serial.rstrip("%"))
        size = max(1, whole * percent // 100)
    else:
        size = serial or max(1, len(nodes))
    for start in range(0, len(nodes), size):
        yield tuple(nodes[start : start + size])


# ---------------------------------------------------------------- two steps that want the same


def conflicts(steps: Iterable[Step], inventory: Inventory) -> Iterator[tuple[Step, Step, str]]:
    """Yield two steps that would undo each other on some node at every run.

    Each is the later step, the earlier one, and the part of a file. Whether a step with `when`
    applies is only known on the node; see `Owners`.
    """
    owners: dict[str, list[tuple[str, Step]]] = {}
    reported: list[tuple[Step, Step]] = []
    for step in steps:
        if step.when:
            continue
        parts = step.resource.owned(step.params, inventory)
        for path, part in parts:
            for other, first in owners.get(path, ()):
                if not (_overlap(part, other) and _share_nodes(step, first)):
                    continue
                pair = (step, first)
                if pair not in reported:
                    reported.append(pair)
                    yield step, first, _part_text(path, part or other)
            owners.setdefault(path, []).append((part, step))


class Owners:
    """Which step owns which part of a file on one node."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, Step]] = {}

    def take(self, step: Step, parts: Iterable[Part]) -> tuple[Step, str] | None:
        """Give parts to a step; return the step that has one already, and which part."""
        for path, part in parts:
            owners = self._parts.setdefault(path, {})
            for other, first in owners.items():
                if first is not step and _overlap(part, other):
                    return first, _part_text(path, part or other)
            owners[part] = step
        return None


def _overlap(one: str, other: str) -> bool:
    """Whether two parts of a file overlap; the empty part is all of the file."""
    return one == other or "" in (one, other)


def _share_nodes(one: Step, other: Step) -> bool:
    if one.nodes is None or other.nodes is None:
        return True
    return not one.nodes.isdisjoint(other.nodes)


def _part_text(path: str, part: str) -> str:
    return f"{path} ({part})" if part else path


# ---------------------------------------------------------------- what steps ask the nodes


def fact_names(steps: Iterable[Step]) -> tuple[str, ...]:
    """Return the facts that conditions and variables need."""
    names: dict[str, None] = {}
    for step in steps:
        for name in step.names():
            names.update(dict.fromkeys(name.facts))
    return tuple(names)


def resource_fact_names(step: Step, inventory: Inventory) -> tuple[str, ...]:
    """Return the names of the facts that a step's resource is judged by, each once."""
    facts = step.resource.facts(step.params, inventory)
    names = dict.fromkeys(fact.name for fact in facts)
    return tuple(names)


def own_facts(steps: Iterable[Step], inventory: Inventory) -> tuple[Fact, ...]:
    """Return what only these steps ask for.

    These are the facts of their resources, and the states of the files that they may change.
    """
    paths: dict[str, None] = {}
    facts: dict[str, Fact] = {}
    nodes_by_fact: dict[str, frozenset[str] | None] = {}
    for step in steps:
        resource = step.resource
        for path in resource.paths(step.params, inventory):
            paths[path] = None
        for fact in resource.facts(step.params, inventory):
            name = fact.name
            facts[name] = fact
            others = nodes_by_fact.get(name, frozenset())
            nodes_by_fact[name] = _union(step.nodes, others)
    own = []
    for name, fact in facts.items():
        nodes = nodes_by_fact[name]
        own.append(_limited_to(nodes, fact))
    own.extend(target_fact(path) for path in paths)
    return tuple(own)


def _union(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the nodes of both; None, which means all nodes, if one of them is None."""
    if one is None or other is None:
        return None
    return one | other


def _limited_to(nodes: frozenset[str] | None, fact: Fact) -> Fact:
    """Return a fact that is asked of these nodes alone: asking may run a command there.

    A fact of the registry, whose name has no colon, is asked of all nodes.
    """
    if nodes is None or ":" not in fact.name:
        return fact

    def reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
        return fact.reads(node, inventory) if node.name in nodes else ()

    def parse(*answers: Any) -> Any:
        return fact.parse(*answers) if answers else None

    return replace(
        fact,
        reads=reads,
        parse=parse,
        apiece=True,
        narrow=None,
    )
