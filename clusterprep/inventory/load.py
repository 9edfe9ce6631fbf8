"""The public door to inventories: one file in, every node resolved, or every mistake at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterprep.inventory.ansible_nodes import ansible_document
from clusterprep.inventory.document import parse_document, read_text
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
    """Reads and judges an inventory, ours or Ansible's. InputError carries all that is wrong with it, in file order."""
    return _load(str(path), overrides, ansible=False)


def load_ansible(path: str | Path, overrides: Overrides = NO_OVERRIDES) -> Inventory:
    """The same of a file that is said to be one of Ansible's."""
    return _load(str(path), overrides, ansible=True)


def _load(file: str, overrides: Overrides, *, ansible: bool) -> Inventory:
    text = read_text(file, "an inventory")
    document = ansible_document(file, text, WRITTEN, surely=ansible) or parse_document(
        file, text, WRITTEN
    )
    inventory = Resolver(document, valid_part(document), overrides).inventory()
    document.settle()
    return inventory
