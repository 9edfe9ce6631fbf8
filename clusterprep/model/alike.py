"""Nodes that are alike: equal settings, and the same values of some facts. Pure.

    for alike in alike_nodes(fleet, fleet.reached, ("os.release",)):
        ...   # what is judged of one of them holds for all of them

Of ten thousand nodes nearly all are alike, so work is done once for each class of them. Nodes that
answered alike share one value of a fact (survey/queries.py), so values are compared by identity.
Equal values that are two objects only make two classes where one would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from clusterprep.model import Fleet, Node
from clusterprep.model.fact_columns import Column, Part, column_of, columns, positions
from clusterprep.model.memoize import once_per_facts

Settings = tuple[object, ...]

# Fields in which nodes with the same settings differ.
_IDENTITY = ("name", "address", "index")
_SETTINGS = tuple(name for name in Node.__struct_fields__ if name not in _IDENTITY)
_VALUES = attrgetter(*_SETTINGS)


def settings_of(node: Node) -> Settings:
    """Return all that the inventory says about a node, but its name, address and position."""
    settings: list[object] = []
    for name in _SETTINGS:
        value = getattr(node, name)
        if isinstance(value, Mapping):
            value = tuple(value.items())  # a mapping cannot be hashed
        settings.append(value)
    return tuple(settings)


def alike_nodes(
    fleet: Fleet, nodes: Sequence[Node], facts: Sequence[str | Part]
) -> Iterable[tuple[Node, ...]]:
    """Return the classes of nodes with the same settings and values of `facts`, or of their parts.

    They stand in the order of their first nodes, and the nodes of each in the order given. All
    `nodes` were reached.
    """
    if len(nodes) < 2:
        return (tuple(nodes),) if nodes else ()
    differing = _differing_columns(fleet, facts)
    if not differing:
        return (tuple(nodes),)
    places = _places(fleet, nodes)
    odd = _odd_numbers(places, differing)
    usual = _without(nodes, odd)
    # Most nodes have the usual values everywhere, and the first of them is looked at for all.
    looked_at = sorted([*odd, nodes.index(usual[0])]) if usual else odd
    classes: dict[tuple[int | None, ...], list[Node]] = {}
    for number in looked_at:
        key = tuple([column.kind_at(places[number]) for column in differing])
        classes.setdefault(key, []).append(nodes[number])
    if usual:
        classes[(None,) * len(differing)] = usual
    return map(tuple, classes.values())


def _differing_columns(fleet: Fleet, facts: Sequence[str | Part]) -> list[Column]:
    """Return the columns, of settings and of facts, in which not all nodes are alike."""
    every = columns(fleet)
    of_facts = [every[fact] for fact in facts]
    return [column for column in (_kinds(fleet), *of_facts) if column.odd]


def _places(fleet: Fleet, nodes: Sequence[Node]) -> Sequence[int]:
    """Return the positions of the nodes in the columns of the fleet."""
    if nodes is fleet.reached:
        return range(len(nodes))
    place_of = positions(fleet)
    return [place_of[node.name] for node in nodes]


def _odd_numbers(places: Sequence[int], differing: Iterable[Column]) -> list[int]:
    """Return the numbers of the nodes, in order, that have an unusual value in any column."""
    odd_places = set().union(*(column.odd for column in differing))
    if isinstance(places, range):  # of all nodes: each number is its place
        return sorted(odd_places)
    return [number for number, place in enumerate(places) if place in odd_places]


def _without(nodes: Sequence[Node], left_out: Iterable[int]) -> list[Node]:
    """Return the nodes but those at the positions `left_out`, which stand in their order."""
    kept: list[Node] = []
    start = 0
    for number in left_out:
        kept.extend(nodes[start:number])
        start = number + 1
    kept.extend(nodes[start:])
    return kept


@once_per_facts()
def _kinds(fleet: Fleet) -> Column:
    """Return a column of numbers, one object for nodes with the same settings."""
    numbers: dict[Settings, int] = {}
    by_objects: dict[tuple[int, ...], int] = {}
    kinds = []
    for node in fleet.reached:
        # Nodes of one range share the objects of their settings, which are fast to compare.
        objects = tuple(map(id, _VALUES(node)))
        if objects not in by_objects:
            by_objects[objects] = numbers.setdefault(settings_of(node), len(numbers))
        kinds.append(by_objects[objects])
    return column_of(kinds)
