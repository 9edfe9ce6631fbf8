"""`--limit` and `--retry-failed`: a part of the inventory, by its names or by what happened. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from clusterprep.errors import InputError
from clusterprep.model import Inventory
from clusterprep.model.nodeset import select


def limit_to(inventory: Inventory, text: str) -> Inventory:
    """The inventory with only the nodes named, in its own order. Raises InputError for names it does not have."""
    try:
        names = frozenset(select(text, [node.name for node in inventory.nodes], inventory.groups))
    except ValueError as error:
        raise InputError.of(str(error), file=inventory.path, key="--limit") from None
    if not names:
        raise InputError.of("names no node", file=inventory.path, key="--limit")
    return _only(inventory, names)


def limit_to_failed(inventory: Inventory, failed: Collection[str], run: str) -> Inventory:
    """The nodes that failed in a run. Raises InputError where none is left."""
    names = frozenset(node.name for node in inventory.nodes) & frozenset(failed)
    if not names:
        raise InputError.of(
            f"no node failed in run {run}", file=inventory.path, key="--retry-failed"
        )
    return _only(inventory, names)


def _only(inventory: Inventory, names: Collection[str]) -> Inventory:
    kept = tuple(node for node in inventory.nodes if node.name in names)
    others = tuple(node for node in inventory.nodes if node.name not in names)
    return dataclasses.replace(inventory, nodes=kept, left_out=(*inventory.left_out, *others))
