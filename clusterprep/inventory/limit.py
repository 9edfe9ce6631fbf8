"""`--limit` and `--retry-failed`: restrict an inventory to some of its nodes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from clusterprep.errors import InputError
from clusterprep.model import Inventory, Node
from clusterprep.model.nodeset import select


def limit_to(inventory: Inventory, text: str) -> Inventory:
    """Return the inventory with only the nodes that `text` selects, in its own order.

    The text is that of `--limit`: names, ranges and groups, such as gpu[01-16],rack2. Raises
    InputError for names that the inventory does not have.
    """
    known = [node.name for node in inventory.nodes]
    try:
        names = frozenset(select(text, known, inventory.groups))
    except ValueError as error:
        raise InputError.of(str(error), file=inventory.path, key="--limit") from None
    if not names:
        raise InputError.of("names no node", file=inventory.path, key="--limit")
    return _keep(inventory, names)


def limit_to_failed(inventory: Inventory, failed: Collection[str], run: str) -> Inventory:
    """Return the inventory with only the nodes that failed in a run.

    Raises InputError if it has none of them.
    """
    known = frozenset(node.name for node in inventory.nodes)
    names = known.intersection(failed)
    if not names:
        message = f"no node failed in run {run}"
        raise InputError.of(message, file=inventory.path, key="--retry-failed")
    return _keep(inventory, names)


def _keep(inventory: Inventory, names: Collection[str]) -> Inventory:
    """Return the inventory with the nodes of these names; the others are added to `left_out`."""
    inside: list[Node] = []
    outside = list(inventory.left_out)
    for node in inventory.nodes:
        if node.name in names:
            inside.append(node)
        else:
            outside.append(node)
    return dataclasses.replace(inventory, nodes=tuple(inside), left_out=tuple(outside))
