"""What each node's own resolver says about the names of the others."""

from __future__ import annotations

import functools
import random
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Inventory, Node, Read
from clusterprep.model.colocation import one_machine

WHOLE = 64  # up to so many nodes every node resolves every name; above, a seeded sample of as many


def names_for(node: Node, inventory: Inventory) -> tuple[str, ...]:
    """The names this node is asked for: all of them in a small fleet, else itself, the first, and a sample.

    None where all nodes are one machine: what they are called there is nobody's name.
    """
    if one_machine(inventory.nodes):
        return ()
    nodes = inventory.nodes
    if len(nodes) <= WHOLE:
        return tuple(other.name for other in nodes)
    return tuple(
        dict.fromkeys(
            [node.name, nodes[0].name, *(nodes[place].name for place in _sample(len(nodes)))]
        )
    )


@functools.cache
def _sample(nodes: int) -> tuple[int, ...]:
    """Places in the inventory: the same for all nodes, so that their answers can be compared."""
    return tuple(random.Random(nodes).sample(range(nodes), WHOLE - 2))  # noqa: S311 - a fair choice, not a secret


def parse_names(answer: dict[str, Any]) -> dict[str, tuple[str, ...] | None]:
    """Addresses by name, None for a name that has none."""
    return dict(_entry(str(name), addresses(found)) for name, found in answer.items())


@functools.lru_cache(1 << 14)
def _entry(name: str, found: tuple[str, ...] | None) -> tuple[str, tuple[str, ...] | None]:
    """All nodes say nearly the same, and then share it."""
    return name, found


def addresses(answer: Any) -> tuple[str, ...] | None:
    if answer is not None and not (
        isinstance(answer, list) and all(isinstance(item, str) for item in answer)
    ):
        raise ValueError("no list of addresses")
    return tuple(answer) if answer else None


NAMES = Fact(
    "names.resolved",
    lambda node, inventory: (Read("resolve", names_for(node, inventory), limit=10.0),),
    parse_names,
    apiece=True,
)
OWN_NAME = Fact(
    "names.own",
    lambda node, inventory: (
        Read("file", ("/proc/sys/kernel/hostname",)),
        Read("own_name", (), limit=10.0),
    ),
    lambda name, answers: (name.strip(), addresses(answers)),
)
