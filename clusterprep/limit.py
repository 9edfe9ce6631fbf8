"""`--limit`: a part of the inventory, as a node set or the name of a group. Pure."""

from __future__ import annotations

import dataclasses
import difflib

from clusterprep.errors import InputError
from clusterprep.model import Inventory
from clusterprep.noderange import expand


def limit_to(inventory: Inventory, text: str) -> Inventory:
    """The inventory with only the nodes named, in its own order. Raises InputError for names it does not have."""
    known = [node.name for node in inventory.nodes]
    names: set[str] = set()
    for word in _words(text):
        names.update(inventory.groups[word] if word in inventory.groups else expand(word))
    strangers = sorted(names - set(known))
    if strangers or not names:
        near = difflib.get_close_matches(strangers[0], [*known, *inventory.groups], 1) if strangers else []
        what = f"there is no node or group {strangers[0]!r}" if strangers else "names no node"
        raise InputError.of(what, file=inventory.path, key="--limit", hint=f"did you mean {near[0]}?" if near else None)
    return dataclasses.replace(inventory, nodes=tuple(node for node in inventory.nodes if node.name in names))


def _words(text: str) -> list[str]:
    """Split at commas outside brackets: `gpu[1,3],login` is two words."""
    words, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]
