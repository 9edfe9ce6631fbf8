"""Checks: one file per area, each turning facts of many nodes into outcomes; missing facts never reach them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from clusterprep.model import NOT_ASKED, Fleet, Inventory, Node, Severity, Verdict
from clusterprep.model.nodeset import fold
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Outcome:
    """What a check says about some nodes. `severity` and `remedy` default to the check's own."""

    verdict: Verdict
    nodes: tuple[str, ...]
    message: str
    seen: str = ""
    wanted: str = ""
    remedy: str | None = None
    reason: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class CheckContext:
    """What a check may look at: the nodes that know every fact it needs, and those facts."""

    fleet: Fleet
    nodes: tuple[Node, ...]
    check: str

    @property
    def inventory(self) -> Inventory:
        return self.fleet.inventory

    def value(self, node: Node, fact: str) -> Any:
        return self.fleet.snapshots[node.name].facts.get(fact, NOT_ASKED)

    def values(self, fact: str) -> dict[str, Any]:
        return {node.name: self.value(node, fact) for node in self.nodes}

    def wanted(self, node: Node) -> str | None:
        """What the inventory requires of this check on this node, as written."""
        return node.require.get(self.check)


def machine(node: Node) -> object:
    """The declared kind of machine: number and model of GPUs; nodes that declare nothing are one kind."""
    return None if node.gpus is None else (node.gpus.count, node.gpus.model)


def kinds(context: CheckContext, of: Callable[[Node], object] = machine) -> Iterable[CheckContext]:
    """The context once for each kind of node, as if there were no others: what is alike within a kind is compared."""
    members: dict[object, list[Node]] = {}
    for node in context.inventory.nodes:
        members.setdefault(of(node), []).append(node)
    for alike in members.values():
        fleet = replace(context.fleet, inventory=replace(context.inventory, nodes=tuple(alike)))
        names = {node.name for node in alike}
        yield replace(
            context, fleet=fleet, nodes=tuple(node for node in context.nodes if node.name in names)
        )


@dataclass(frozen=True)
class Proof:
    """How `clusterprep selftest` shows that a check fires: one recorded fact of one healthy node, turned bad.

    `turn` gets the recorded value and returns the bad one; with an empty `fact` it gets the node's whole NodeSnapshot.
    Of all checks exactly this one must then answer otherwise than before: `verdict`, on that node. `fleet` is the
    recording, for some faults need a machine that can have them. What shows on both ends of a pair is turned by
    `between`: turn(recorded value, name of the bad node) for every node.
    """

    fact: str
    turn: Callable[..., Any]
    verdict: Verdict = "fail"
    fleet: str = "hgx-h100-ib"
    between: bool = False


@dataclass(frozen=True)
class Check:
    """A check: the facts it needs, how it judges, and its page for `explain`.

    `judge(context)` is called once with every node that knows all `facts`; the engine answers unknown for the
    others. `severity` is that of a failure, and of not knowing; `grave` says where not knowing is an error all
    the same. What `require:` declares is always an error, and `wants` reads it: it raises ValueError, saying what
    is expected, when the inventory is loaded. `uses` names facts that are asked for too, and whose absence the check
    deals with itself. `proof` shows that the check can fail.
    """

    name: str
    facts: tuple[str, ...]
    judge: Callable[[CheckContext], Iterable[Outcome]]
    severity: Severity
    title: str
    why: str
    how: str
    remedy: str
    tags: tuple[str, ...] = field(default=())
    grave: Callable[[Fleet, Node], bool] = lambda fleet, node: False
    wants: Callable[[str], object] = str
    uses: tuple[str, ...] = ()
    proof: Proof | None = None


def each(
    judge: Callable[..., Outcome | Iterable[Outcome] | None], *facts: str
) -> Callable[[CheckContext], Iterable[Outcome]]:
    """A judge for one node at a time: judge(context, node, *fact values) says nothing, one thing or several."""

    def judge_all(context: CheckContext) -> Iterable[Outcome]:
        for node in context.nodes:
            said = judge(context, node, *(context.value(node, fact) for fact in facts))
            if isinstance(said, Outcome):
                yield said
            elif said is not None:
                yield from said

    return judge_all


def by_value(values: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Values with the nodes that have them, most frequent first, then in order of appearance."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    return [
        (value, tuple(names))
        for value, names in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]


def uniform(
    values: Mapping[str, str],
    what: str,
    fleet_size: int,
    remedy: str | None = None,
    about: Collection[str] | None = None,
) -> list[Outcome]:
    """«Equal on all nodes» without a golden value.

    `values` holds the nodes that know theirs, of `fleet_size` that should. A strict majority blames the others;
    without one all are named. `about` limits the answers to some of them: a node whose value is declared counts
    for what is usual and is not judged by it.
    """
    outcomes = _compare(values, what, fleet_size, remedy)
    if about is None:
        return outcomes
    mine = [replace(o, nodes=tuple(node for node in o.nodes if node in about)) for o in outcomes]
    return [outcome for outcome in mine if outcome.nodes]


def uniform_by_kind(
    context: CheckContext,
    values: Mapping[str, str],
    what: str,
    remedy: str | None = None,
    about: Collection[str] | None = None,
    exempt: Collection[str] = (),
) -> Iterable[Outcome]:
    """`uniform` among the machines of each kind. `exempt` names the nodes that need no value."""
    for part in kinds(context):
        names = [node.name for node in part.inventory.nodes if node.name not in exempt]
        mine = {name: values[name] for name in names if name in values}
        if mine:
            yield from uniform(mine, what, len(names), remedy, about)


def as_wanted(
    context: CheckContext,
    values: Mapping[str, str],
    satisfied: Callable[[str, str], bool],
    what: str,
    exempt: int = 0,
) -> Iterable[Outcome]:
    """What `require:` declares node by node, and «equal on all nodes» for the nodes that declare nothing.

    `satisfied(seen, wanted)` compares one value with what is declared; `exempt` nodes need no value at all.
    """
    undeclared: set[str] = set()
    for node in context.nodes:
        seen, wanted = values.get(node.name), context.wanted(node)
        if seen is None:
            continue
        if wanted is None:
            undeclared.add(node.name)
        elif satisfied(seen, wanted):
            yield Outcome("pass", (node.name,), f"{what} is as required", seen, wanted)
        else:
            yield Outcome(
                "fail", (node.name,), f"{what} is not what the inventory requires", seen, wanted
            )
    if undeclared:
        yield from uniform(values, what, len(context.inventory.nodes) - exempt, about=undeclared)


def _compare(
    values: Mapping[str, str], what: str, fleet_size: int, remedy: str | None
) -> list[Outcome]:
    nodes = tuple(values)
    groups = by_value(values)
    if len(values) < 2:
        seen = groups[0][0] if groups else ""
        if fleet_size < 2:
            return [
                Outcome(
                    "skip",
                    nodes,
                    f"{what} has nothing to be compared with",
                    seen,
                    reason="not_applicable",
                )
            ]
        reason = "fewer than two nodes have a value to compare"
        return [
            Outcome(
                "unknown",
                nodes,
                f"{what} could not be compared",
                seen,
                "equal on all nodes",
                reason=reason,
            )
        ]
    if len(groups) == 1:
        return [
            Outcome(
                "pass", nodes, f"{what} is equal on all nodes", groups[0][0], "equal on all nodes"
            )
        ]
    return _differing(groups, nodes, what, remedy)


def _differing(
    groups: Sequence[tuple[str, tuple[str, ...]]],
    nodes: tuple[str, ...],
    what: str,
    remedy: str | None,
) -> list[Outcome]:
    seen = "; ".join(f"{value} on {fold(names)}" for value, names in groups)
    usual, majority = groups[0]
    if 2 * len(majority) > len(nodes):
        usually = frozenset(majority)
        odd = tuple(node for node in nodes if node not in usually)
        return [
            Outcome("fail", odd, f"{what} differs from the other nodes", seen, usual, remedy),
            Outcome("pass", majority, f"{what} is that of the majority", usual, usual),
        ]
    return [
        Outcome(
            "fail",
            nodes,
            f"{what} differs, and no value has a majority",
            seen,
            "equal on all nodes",
            remedy,
        )
    ]
