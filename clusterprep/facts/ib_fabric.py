"""What a subnet manager gave to InfiniBand ports: its own LID, the subnet, partition keys."""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterprep.facts import Fact
from clusterprep.model import Read
from clusterprep.remote.untrusted import LONGEST_DEVICE, require_device_name
from clusterprep.runtime.lazy_dataclass import dataclass

# Entries of a port's table of partition keys that are read: subnet managers fill it from its start,
# and each entry is a question to the card.
ENTRIES = 8
_FOLDER = "/sys/class/infiniband"
_PORT = re.compile(_FOLDER + r"/([^/]+)/ports/(\d+)/(link_layer|sm_lid|gids/0|pkeys/(\d+))")
_NODE = re.compile(_FOLDER + r"/([^/]+)/node_guid")
_GROUPS = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4})*")
_NO_GUID = "0000:0000:0000:0000"


@dataclass(frozen=True)
class FabricPort:
    """One port.

    `sm_lid` is 0 where no subnet manager has set the port up. `subnet` has the four groups of the
    subnet's prefix, «fe80:0000:0000:0000», and `guid` those of the port's GUID; both are None where
    the port has no GID, and `guid` where it is no InfiniBand port: an Ethernet port has a GID for
    each address. `pkeys` has the first entries of the partition table that are in use.
    """

    sm_lid: int | None = None
    subnet: str | None = None
    guid: str | None = None
    pkeys: Mapping[int, int] | None = None


@dataclass(frozen=True)
class FabricDevice:
    """One RDMA device; `guid` is None where it has none, as EFA."""

    guid: str | None
    ports: Mapping[int, FabricPort]


def parse_fabric(files: Mapping[str, str]) -> dict[str, FabricDevice]:
    """Return the devices by name. Raises ValueError for a text that is no number and no GUID."""
    guids: dict[str, str | None] = {}
    ports: dict[str, dict[int, dict[str, str]]] = {}
    for path, text in sorted(files.items()):
        if node := _NODE.fullmatch(path):
            guids[require_device_name(node[1], LONGEST_DEVICE)] = _guid(text)
            continue
        match = _PORT.fullmatch(path)
        if match is None:
            raise ValueError(f"{path} is no file of an RDMA port")
        name = require_device_name(match[1], LONGEST_DEVICE)
        port = ports.setdefault(name, {}).setdefault(int(match[2]), {})
        port[match[3]] = text
    unnamed = sorted(set(ports) - set(guids))
    if unnamed:
        raise ValueError(f"{unnamed[0]} does not say its GUID")
    devices = {}
    for name, guid in guids.items():
        parsed = {number: _port(texts) for number, texts in ports.get(name, {}).items()}
        devices[name] = FabricDevice(guid, parsed)
    return devices


def _port(texts: Mapping[str, str]) -> FabricPort:
    subnet = guid = None
    if "gids/0" in texts:
        subnet, guid = _split_gid(texts["gids/0"])
    if texts.get("link_layer") != "InfiniBand":
        guid = None
    elif guid is None:
        raise ValueError("an InfiniBand port does not say its GUID")
    sm_lid = None
    if "sm_lid" in texts:
        sm_lid = int(texts["sm_lid"], 16)
    pkeys = {}
    for key, text in texts.items():
        if not key.startswith("pkeys/"):
            continue
        pkey = int(text, 16)
        if not 0 <= pkey <= 0xFFFF:
            raise ValueError(f"{text!r:.40} is no partition key")
        if pkey:
            pkeys[int(key.partition("/")[2])] = pkey
    has_table = any(key.startswith("pkeys/") for key in texts)
    return FabricPort(sm_lid, subnet, guid, pkeys if has_table else None)


def _split_gid(text: str) -> tuple[str | None, str | None]:
    """Return the subnet's prefix and the port's GUID of a GID in full length."""
    if len(text) != 39 or not _GROUPS.fullmatch(text):
        raise ValueError(f"{text!r:.60} is no GID")
    subnet, guid = text[:19], text[20:]
    if guid == _NO_GUID:
        return None, None
    return subnet, guid


def _guid(text: str) -> str | None:
    if len(text) != 19 or not _GROUPS.fullmatch(text):
        raise ValueError(f"{text!r:.60} is no GUID")
    return None if text == _NO_GUID else text


_PATHS = (
    f"{_FOLDER}/*/node_guid",
    f"{_FOLDER}/*/ports/*/link_layer",
    f"{_FOLDER}/*/ports/*/sm_lid",
    f"{_FOLDER}/*/ports/*/gids/0",
    *(f"{_FOLDER}/*/ports/*/pkeys/{number}" for number in range(ENTRIES)),
)

FABRIC = Fact("ib.fabric", lambda node, inventory: (Read("files", _PATHS),), parse_fabric)
