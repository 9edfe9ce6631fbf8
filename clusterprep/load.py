"""The public door to inventories: one file in, every node resolved, or every mistake at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterprep.inventory.document import read_document
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
    """Reads and judges an inventory file. InputError carries all that is wrong with it, in file order."""
    document = read_document(path, WRITTEN)
    inventory = Resolver(document, valid_part(document), overrides).inventory()
    document.settle()
    return inventory


def load_ansible(path: str | Path, overrides: Overrides = NO_OVERRIDES) -> Inventory:
    raise NotImplementedError
