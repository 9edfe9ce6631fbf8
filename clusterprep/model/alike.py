"""Nodes that are alike: equal settings, and the same values of some facts. Pure.

    for alike in alike_nodes(fleet, fleet.reached, ("os.release",)):
        ...   # what is judged of one of them holds for all of them

Of ten thousand nodes nearly all are alike, so work is done once for each class of them. Nodes that
answered alike share one value of a fact (survey/queries.py), so values are compared by identity.
Equal values that are two objects only make two classes where one would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterprep.model import NOT_ASKED, Fleet, Node
from clusterprep.model.memoize import once_per_fleet

Settings = tuple[object, ...]

# Fields in which nodes with the same settings differ.
_IDENTITY = ("name", "address", "index")
_SETTINGS = tuple(name for name in Node.__struct_fields__ if name not in _IDENTITY)


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
    fleet: Fleet, nodes: Iterable[Node], facts: Sequence[str]
) -> Iterable[tuple[Node, ...]]:
    """Return the classes of nodes with the same settings and values of `facts`.

    They stand in the order of their first nodes, and the nodes of each in the order given.
    """
    kinds = _kinds(fleet)
    classes: dict[tuple[int, ...], list[Node]] = {}
    for node in nodes:
        known = fleet.snapshots[node.name].facts
        values = [known.get(name, NOT_ASKED) for name in facts]
        key = (kinds[node.name], *map(id, values))
        classes.setdefault(key, []).append(node)
    return map(tuple, classes.values())


@once_per_fleet
def _kinds(fleet: Fleet) -> Mapping[str, int]:
    """Return a number for each node, which is the same for nodes with the same settings."""
    numbers: dict[Settings, int] = {}
    kinds: dict[str, int] = {}
    for node in fleet.inventory.nodes:
        kinds[node.name] = numbers.setdefault(settings_of(node), len(numbers))
    return kinds
