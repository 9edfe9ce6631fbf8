"""`--limit`: a part of the inventory, as a node set or the name of a group. Pure."""

from __future__ import annotations

import dataclasses

from clusterprep.errors import InputError
from clusterprep.model import Inventory
from clusterprep.noderange import select


def limit_to(inventory: Inventory, text: str) -> Inventory:
    """The inventory with only the nodes named, in its own order. Raises InputError for names it does not have."""
    try:
        names = frozenset(select(text, [node.name for node in inventory.nodes], inventory.groups))
    except ValueError as error:
        raise InputError.of(str(error), file=inventory.path, key="--limit") from None
    if not names:
        raise InputError.of("names no node", file=inventory.path, key="--limit")
    return dataclasses.replace(inventory, nodes=tuple(node for node in inventory.nodes if node.name in names))
