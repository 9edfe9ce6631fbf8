"""Load an inventory file, ours or Ansible's: every node resolved, or all mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterprep.inventory.ansible_nodes import ansible_document
from clusterprep.inventory.document import parse_document, read_text
from clusterprep.inventory.known_bad import read_known_bad
from clusterprep.inventory.resolve import NO_OVERRIDES, Overrides, Resolver
from clusterprep.inventory.schema import load_schema, schema_path
from clusterprep.inventory.shapes import valid_part
from clusterprep.model import Inventory

__all__ = ["WRITTEN", "Overrides", "load_ansible", "load_inventory", "load_schema", "schema_path"]

# Below these keys scalars are text as written: 2.10 stays "2.10", on stays "on".
_LAYER: Mapping[str, Any] = {"env": {"*": True}, "require": {"*": True}}
WRITTEN: Mapping[str, Any] = {
    **_LAYER,
    "cluster": True,
    "groups": {"*": {**_LAYER, "nodes": True}},
    "nodes": [{**_LAYER, "name": True, "address": True}],
    "silence": [{"check": True, "nodes": True, "until": True}],
}


def load_inventory(path: str | Path, overrides: Overrides = NO_OVERRIDES) -> Inventory:
    """Return the inventory of a file in our format or in one of Ansible's.

    Raises InputError with all mistakes, in file order.
    """
    return _load(str(path), overrides, ansible=False)


def load_ansible(path: str | Path, overrides: Overrides = NO_OVERRIDES) -> Inventory:
    """Return the inventory of a file that the user says is Ansible's. Raises InputError."""
    return _load(str(path), overrides, ansible=True)


def _load(file: str, overrides: Overrides, *, ansible: bool) -> Inventory:
    """Return the inventory of a file; with `ansible` the user says that it is Ansible's."""
    text = read_text(file, "an inventory")
    document = ansible_document(file, text, WRITTEN, surely=ansible)
    if document is None:
        document = parse_document(file, text, WRITTEN)
    data = valid_part(document)
    inventory = Resolver(document, data, overrides).inventory()
    document.settle()
    return replace(inventory, known_bad=read_known_bad(file))
