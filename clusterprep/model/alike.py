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
from clusterprep.model.memoize import once_per_fleet

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
    every = columns(fleet)
    differing = []
    for column in (_kinds(fleet), *(every[fact] for fact in facts)):
        if column.odd:
            differing.append(column)
    if not differing:
        return (tuple(nodes),)
    odd = set().union(*(column.odd for column in differing))
    if nodes is fleet.reached:
        places: Sequence[int] = range(len(nodes))
        apart = sorted(odd)
    else:
        place_of = positions(fleet)
        places = [place_of[node.name] for node in nodes]
        apart = [number for number, place in enumerate(places) if place in odd]
    ids = [column.ids for column in differing]
    numbers_by_key: dict[tuple[int, ...], list[int]] = {}
    for number in apart:
        key = tuple([column_ids[places[number]] for column_ids in ids])
        numbers_by_key.setdefault(key, []).append(number)
    classes: dict[int, tuple[Node, ...]] = {}  # by the number of the first node
    for numbers in numbers_by_key.values():
        classes[numbers[0]] = tuple([nodes[number] for number in numbers])
    if len(apart) < len(nodes):
        first, usual = _others(nodes, apart)
        classes[first] = usual
    return [classes[first] for first in sorted(classes)]


def _others(nodes: Sequence[Node], apart: Sequence[int]) -> tuple[int, tuple[Node, ...]]:
    """Return the nodes whose numbers are not in `apart`, after the number of the first of them.

    They are nearly all, so they are copied in slices.
    """
    others: list[Node] = []
    first = start = 0
    for number in apart:
        others += nodes[start:number]
        start = number + 1
        if not others:
            first = start
    others += nodes[start:]
    return first, tuple(others)


@once_per_fleet
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
