"""The file that tells NCCL which GPU and card hang where, as clouds provide it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, under
from clusterprep.model import Inventory, Node, Read

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FUNCTION = re.compile(r"<pci\b([^>]*)>")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class TopologyFile(Struct, frozen=True):
    """The PCI addresses of a topology file.

    `gpus` and `nics` go by the class that the file says, `others` are devices without a class;
    bridges are left out, as they may be invented. `there` is false for a file that is named and
    cannot be opened.
    """

    path: str
    there: bool
    gpus: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def parse_topology(answer: Mapping[str, Any] | None) -> TopologyFile | None:
    """Return the file that NCCL would read, None where it would read none.

    Raises ValueError for a text that is no topology, and for a device without a PCI address.
    """
    if answer is None:
        return None
    path, text = answer["path"], answer["text"]
    if text is None:
        return TopologyFile(path, there=False)
    if "<system" not in text:
        raise ValueError(f"{path:.80} holds no topology")
    devices: dict[str, list[str]] = {"gpus": [], "nics": [], "others": []}
    for match in _FUNCTION.finditer(_COMMENT.sub("", text)):
        attributes = dict(_ATTRIBUTE.findall(match[1]))
        kind = _kind(attributes.get("class", ""), is_leaf=match[1].rstrip().endswith("/"))
        if kind is None:
            continue
        address = attributes.get("busid", "").lower()
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r:.40} is no PCI address")
        devices[kind].append(address)
    found = {kind: tuple(addresses) for kind, addresses in devices.items()}
    return TopologyFile(path, there=True, **found)


def _kind(pci_class: str, is_leaf: bool) -> str | None:
    """Return the field for a device of this class, None for a bridge."""
    if pci_class.startswith("0x03"):
        return "gpus"
    if pci_class.startswith("0x02"):
        return "nics"
    if pci_class or not is_leaf:
        return None
    return "others"


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return the read of the file that the inventory names, or else NCCL's configuration."""
    declared = node.env.get("NCCL_TOPO_FILE")
    path = None if declared is None else declared.value
    return (Read("nccl_topology", (path, under(node, "/etc/nccl.conf"))),)


TOPOLOGY = Fact("nccl.topology", _reads, parse_topology)
