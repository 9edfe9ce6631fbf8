"""Load an inventory file, ours or Ansible's: every node resolved, or all mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from clusterprep.inventory.ansible_signs import may_be_ansible
from clusterprep.inventory.document import (
    INVENTORY,
    MAX_BYTES,
    Document,
    decode,
    parse_document,
    read_text,
    refuse_large,
)
from clusterprep.inventory.extensions import read_extensions, with_extensions
from clusterprep.inventory.known_bad import read_known_bad
from clusterprep.inventory.resolve import NO_OVERRIDES, Overrides, Resolver
from clusterprep.inventory.schema import load_schema, schema_path
from clusterprep.inventory.shapes import valid_part
from clusterprep.model import Inventory

__all__ = [
    "MAX_BYTES",
    "STDIN",
    "WRITTEN",
    "Overrides",
    "load_ansible",
    "load_inventory",
    "load_schema",
    "parse_inventory",
    "schema_path",
]

STDIN = "-"  # the name of an inventory on standard input

# Below these keys scalars are text as written: 2.10 stays "2.10", on stays "on".
_LAYER: Mapping[str, Any] = {
    "env": {"*": True},
    "require": {"*": True},
    "ssh": {"options": {"*": True}},
}
WRITTEN: Mapping[str, Any] = {
    **_LAYER,
    "cluster": True,
    "groups": {"*": {**_LAYER, "nodes": True}},
    "nodes": [{**_LAYER, "name": True, "address": True}],
    "silence": [{"check": True, "nodes": True, "until": True}],
    "plugins": True,
}


def load_inventory(path: str | Path, overrides: Overrides = NO_OVERRIDES) -> Inventory:
    """Return the inventory of a file in our format or in one of Ansible's.

    Raises InputError with all mistakes, in file order.
    """
    file = str(path)
    return _resolved(file, _read_document(file, ansible=False), overrides)


def parse_inventory(content: bytes, overrides: Overrides = NO_OVERRIDES) -> Inventory:
    """Return the inventory that was read from standard input. Raises InputError.

    What stands beside an inventory is looked for in the current folder.
    """
    refuse_large(content, STDIN, INVENTORY)
    text = decode(content, STDIN)
    return _resolved(STDIN, _document(STDIN, text, ansible=False), overrides)


def load_ansible(path: str | Path, overrides: Overrides = NO_OVERRIDES) -> Inventory:
    """Return the inventory of a file that the user says is Ansible's. Raises InputError."""
    file = str(path)
    return _resolved(file, _read_document(file, ansible=True), overrides)


def _resolved(file: str, document: Document, overrides: Overrides) -> Inventory:
    """Return the inventory of a document, with what stands beside the file."""
    data = valid_part(document)
    document.extensions = read_extensions(document, data)
    inventory = Resolver(document, data, overrides).inventory()
    document.settle()
    return with_extensions(replace(inventory, known_bad=read_known_bad(file)), document.extensions)


def _read_document(file: str, *, ansible: bool) -> Document:
    """Return the document of a file in either format, or of a folder of Ansible's inventories.

    With `ansible` the user says that it is Ansible's.
    """
    if Path(file).is_dir():
        from clusterprep.inventory.ansible_nodes import ansible_folder

        return ansible_folder(file, WRITTEN)
    return _document(file, read_text(file, INVENTORY), ansible=ansible)


def _document(file: str, text: str, *, ansible: bool) -> Document:
    """Return the document of the text of a file in either format."""
    document = None
    if ansible or may_be_ansible(file, text):
        from clusterprep.inventory.ansible_nodes import ansible_document

        document = ansible_document(file, text, WRITTEN, surely=ansible)
    return document or parse_document(file, text, WRITTEN)
