"""What each node's own resolver says about the names of the others."""

from __future__ import annotations

import random
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Inventory, Node, Read
from clusterprep.neighbours import one_machine

WHOLE = 64  # up to so many nodes every node resolves every name; above, a seeded sample of as many


def names_for(node: Node, inventory: Inventory) -> tuple[str, ...]:
    """The names this node is asked for: all of them in a small fleet, else itself, the first, and a sample.

    None where all nodes are one machine: what they are called there is nobody's name.
    """
    if one_machine(inventory.nodes):
        return ()
    names = [other.name for other in inventory.nodes]
    if len(names) <= WHOLE:
        return tuple(names)
    sample = random.Random(len(names)).sample(names, WHOLE - 2)  # noqa: S311 - the same for all nodes is the point
    return tuple(dict.fromkeys([node.name, names[0], *sample]))


def parse_names(answer: dict[str, Any]) -> dict[str, list[str] | None]:
    """Addresses by name, None for a name that has none."""
    return {str(name): addresses(found) for name, found in answer.items()}


def addresses(answer: Any) -> list[str] | None:
    if answer is not None and not (isinstance(answer, list) and all(isinstance(item, str) for item in answer)):
        raise ValueError("no list of addresses")
    return answer or None


NAMES = Fact(
    "names.resolved",
    lambda node, inventory: (Read("resolve", names_for(node, inventory), limit=10.0),),
    parse_names,
)
OWN_NAME = Fact(
    "names.own",
    lambda node, inventory: (Read("file", ("/proc/sys/kernel/hostname",)), Read("own_name", (), limit=10.0)),
    lambda name, answers: (name.strip(), addresses(answers)),
)
