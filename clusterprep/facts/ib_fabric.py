"""What a subnet manager gave to InfiniBand ports: its own LID, the subnet, partition keys."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.facts.parts import read_once, read_text_once, shared_text
from clusterprep.model import Read
from clusterprep.remote.untrusted import LONGEST_DEVICE, require_device_name

# Entries of a port's table of partition keys that are read: subnet managers fill it from its start,
# and each entry is a question to the card.
ENTRIES = 4
_FOLDER = "/sys/class/infiniband"
_PORT = re.compile(_FOLDER + r"/([^/]+)/ports/(\d+)/(link_layer|sm_lid|gids/0|pkeys/(\d+))")
_NODE = re.compile(_FOLDER + r"/([^/]+)/node_guid")
_GROUPS = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4})*")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,4}")
_NO_GUID = "0000:0000:0000:0000"


class FabricPort(Struct, frozen=True):
    """One port; a field is None where its file holds no such value.

    `sm_lid` is 0 where no subnet manager has set the port up. `subnet` has the four groups of the
    subnet's prefix, «fe80:0000:0000:0000», and `guid` those of the port's GUID, which an Ethernet
    port has not: it has a GID for each address. `pkeys` has the first entries of the partition
    table that are in use.
    """

    sm_lid: int | None = None
    subnet: str | None = None
    guid: str | None = None
    pkeys: Mapping[int, int] | None = None


class FabricDevice(Struct, frozen=True):
    """One RDMA device; `guid` is None where it has none, as EFA.

    `unread` says which GUIDs could not be read.
    """

    guid: str | None
    ports: Mapping[int, FabricPort]
    unread: tuple[str, ...] = ()


def parse_fabric(files: Mapping[str, str]) -> dict[str, FabricDevice]:
    """Return the devices by name. A text that is no value costs that value of that device alone."""
    guids: dict[str, str] = {}
    ports: dict[str, dict[str, dict[str, str]]] = {}
    for path, text in sorted(files.items()):
        name, number, key = _place_of(path)
        if number is None:
            guids[name] = text
        else:
            ports.setdefault(name, {}).setdefault(number, {})[key] = text
    devices = {}
    for name in {**guids, **ports}:
        devices[name] = _device((guids.get(name), ports.get(name, {})))
    return devices


@read_text_once
def _place_of(path: str) -> tuple[str, str | None, str]:
    """Return device, port and key of a file; without a port it is the device's own GUID."""
    if node := _NODE.fullmatch(path):
        return require_device_name(node[1], LONGEST_DEVICE), None, "node_guid"
    match = _PORT.fullmatch(path)
    if match is None:
        raise ValueError(f"{path} is no file of an RDMA port")
    return require_device_name(match[1], LONGEST_DEVICE), match[2], match[3]


@read_once
def _device(parts: tuple[str | None, Mapping[str, Mapping[str, str]]]) -> FabricDevice:
    """Return a device from the text of its GUID and the texts of its ports by their numbers."""
    guid_text, ports = parts
    unread = []
    if guid_text is None or not _is_guid(guid_text):
        unread.append("node_guid")
    parsed = {}
    for number, texts in ports.items():
        port = parsed[int(number)] = _port(texts)
        if texts.get("link_layer", "InfiniBand") == "InfiniBand" and port.guid is None:
            unread.append(f"GUID of port {number}")
    guid = None
    if "node_guid" not in unread and guid_text != _NO_GUID:
        guid = guid_text and shared_text(guid_text)
    return FabricDevice(guid, parsed, tuple(unread))


def _port(texts: Mapping[str, str]) -> FabricPort:
    gid = texts.get("gids/0", "")
    subnet = guid = None
    if len(gid) == 39 and _GROUPS.fullmatch(gid) and not gid.endswith(_NO_GUID):
        subnet = shared_text(gid[:19])
        if texts.get("link_layer") == "InfiniBand":
            guid = shared_text(gid[20:])  # as a rule that of the device
    pkeys = {key: text for key, text in texts.items() if key.startswith("pkeys/")}
    return FabricPort(_number(texts.get("sm_lid")), subnet, guid, _table(pkeys))


def _is_guid(text: str) -> bool:
    return len(text) == 19 and bool(_GROUPS.fullmatch(text))


def _number(text: str | None) -> int | None:
    """Return a number of 16 bits in hexadecimal digits, «0x8021»; None for another text."""
    if text is None or not _HEXADECIMAL.fullmatch(text):
        return None
    return int(text, 16)


@read_once
def _table(texts: Mapping[str, str]) -> dict[int, int] | None:
    """Return the partition keys by row; None if there is no table, or a row is no key."""
    rows = {}
    for key, text in texts.items():
        rows[int(key.partition("/")[2])] = _number(text)
    if not rows or None in rows.values():
        return None
    return {row: key for row, key in rows.items() if key}


_PATHS = (
    f"{_FOLDER}/*/node_guid",
    f"{_FOLDER}/*/ports/*/link_layer",
    f"{_FOLDER}/*/ports/*/sm_lid",
    f"{_FOLDER}/*/ports/*/gids/0",
    *(f"{_FOLDER}/*/ports/*/pkeys/{number}" for number in range(ENTRIES)),
)

FABRIC = Fact("ib.fabric", lambda node, inventory: (Read("files", _PATHS),), parse_fabric)
