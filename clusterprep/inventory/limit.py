"""`--limit` and `--retry-failed`: restrict an inventory to some of its nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from clusterprep.checks import machine
from clusterprep.errors import InputError
from clusterprep.model import Inventory, Node
from clusterprep.model.nodeset import fold, select


def limit_to(inventory: Inventory, text: str) -> Inventory:
    """Return the inventory with only the nodes that `text` selects, in its own order.

    The text is that of `--limit`: names, ranges and groups, such as gpu[01-16],rack2. Raises
    InputError for names that the inventory does not have.
    """
    known = [node.name for node in inventory.nodes]
    try:
        names = frozenset(select(text, known, inventory.groups))
    except ValueError as error:
        raise _wrong_limit(text, str(error), inventory) from None
    if not names:
        raise _wrong_limit(text, "names no node", inventory)
    return _keep(inventory, names)


def _wrong_limit(text: str, message: str, inventory: Inventory) -> InputError:
    """Return the error about a text that selects nothing; Ansible's patterns have colons."""
    hint = None
    if ":" in text:
        hint = "Ansible's a:b, a:!b and a:&b are a,b and a!b and a&b here"
    return InputError.of(message, file=inventory.path, key="--limit", hint=hint)


def limit_to_failed(
    inventory: Inventory, failed: Collection[str], run: str, *, peers: bool = False
) -> Inventory:
    """Return the inventory with only the nodes that failed in a run.

    With `peers` it also has, for each kind of machine, one more node that did not fail than nodes
    that did: a node that differs from all others is found only by comparison, which takes a strict
    majority. Raises InputError if no node of the inventory failed.
    """
    known = frozenset(node.name for node in inventory.nodes)
    names = known.intersection(failed)
    if not names:
        message = f"no node failed in run {run}"
        raise InputError.of(message, file=inventory.path, key="--retry-failed")
    if not peers:
        return _keep(inventory, names)
    compared = _peers(inventory, names)
    kept = _keep(inventory, names.union(compared))
    if not compared:
        return kept
    notice = f"{fold(names)} failed in run {run}; {fold(compared)}: only to compare with"
    return msgspec.structs.replace(kept, warnings=(*kept.warnings, notice))


def _peers(inventory: Inventory, failed: Collection[str]) -> list[str]:
    """Return the first nodes that did not fail, enough to outnumber the failed of their kind."""
    missing: dict[object, int] = {}
    for node in inventory.nodes:
        if node.name in failed:
            missing.setdefault(machine(node), 1)
            missing[machine(node)] += 1
    names = []
    for node in inventory.nodes:
        kind = machine(node)
        if node.name not in failed and missing.get(kind, 0) > 0:
            names.append(node.name)
            missing[kind] -= 1
    return names


def _keep(inventory: Inventory, names: Collection[str]) -> Inventory:
    """Return the inventory with the nodes of these names; the others are added to `left_out`."""
    inside: list[Node] = []
    outside = list(inventory.left_out)
    for node in inventory.nodes:
        if node.name in names:
            inside.append(node)
        else:
            outside.append(node)
    return msgspec.structs.replace(inventory, nodes=tuple(inside), left_out=tuple(outside))
