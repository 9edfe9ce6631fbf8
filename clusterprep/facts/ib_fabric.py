"""What a subnet manager gave to InfiniBand ports: its own LID, the subnet, partition keys."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.facts.parts import (
    LONGEST_PART,
    MOST_PARTS,
    read_once,
    read_text_once,
    shared_text,
)
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
_TEXT = frozenset((str,))


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
    items = files.items()
    texts = [text for _, text in items]
    devices = {}
    for places in _places_in(tuple([path for path, _ in items])):
        devices[places.device] = _device(places, places.choose(texts))
    return devices


class _Places(Struct, frozen=True, eq=False):
    """Which texts of an answer a device is made of: `choose` returns them, and `keys` names them.

    Keys are the port, None for the device's own GUID, and the file.
    """

    device: str
    choose: Callable[[Sequence[str]], tuple[str, ...]]
    keys: tuple[tuple[str | None, str], ...]


@functools.lru_cache(maxsize=64)  # nodes of a kind have the same files
def _places_in(paths: tuple[str, ...]) -> tuple[_Places, ...]:
    """Return the places of each device: first those that have a GUID of their own."""
    positions_of: dict[str, list[int]] = {}
    keys_of: dict[str, list[tuple[str | None, str]]] = {}
    with_guid = []
    for path, position in sorted(zip(paths, range(len(paths)), strict=True)):
        name, number, key = _place_of(path)
        if number is None:
            with_guid.append(name)
        positions_of.setdefault(name, []).append(position)
        keys_of.setdefault(name, []).append((number, key))
    places = []
    for name in dict.fromkeys((*with_guid, *positions_of)):
        places.append(_Places(name, _chooser(positions_of[name]), tuple(keys_of[name])))
    return tuple(places)


def _chooser(positions: Sequence[int]) -> Callable[[Sequence[str]], tuple[str, ...]]:
    """Return what returns the items at these positions."""
    if len(positions) == 1:
        (position,) = positions
        return lambda texts: (texts[position],)
    return itemgetter(*positions)


@read_text_once
def _place_of(path: str) -> tuple[str, str | None, str]:
    """Return device, port and key of a file; without a port it is the device's own GUID."""
    if node := _NODE.fullmatch(path):
        return require_device_name(node[1], LONGEST_DEVICE), None, "node_guid"
    match = _PORT.fullmatch(path)
    if match is None:
        raise ValueError(f"{path} is no file of an RDMA port")
    return require_device_name(match[1], LONGEST_DEVICE), match[2], match[3]


def _device(places: _Places, texts: tuple[str, ...]) -> FabricDevice:
    """Return a device from the texts at its places, one value for equal texts."""
    if _TEXT.issuperset(map(type, texts)) and sum(map(len, texts)) <= LONGEST_PART:
        return _known_device(places, texts)
    return _parse_device(places, texts)


def _parse_device(places: _Places, texts: Sequence[Any]) -> FabricDevice:
    guid_text = None
    ports: dict[str, dict[str, str]] = {}
    for (number, key), text in zip(places.keys, texts, strict=True):
        if number is None:
            guid_text = text
        else:
            ports.setdefault(number, {})[key] = text
    unread = []
    if guid_text is None or not _is_guid(guid_text):
        unread.append("node_guid")
    parsed = {}
    for number, of_port in ports.items():
        port = parsed[int(number)] = _port(of_port)
        if of_port.get("link_layer", "InfiniBand") == "InfiniBand" and port.guid is None:
            unread.append(f"GUID of port {number}")
    guid = None
    if "node_guid" not in unread and guid_text != _NO_GUID:
        guid = guid_text and shared_text(guid_text)
    return FabricDevice(guid, parsed, tuple(unread))


_known_device = functools.lru_cache(maxsize=MOST_PARTS)(_parse_device)


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

FABRIC = Fact(
    "ib.fabric",
    lambda node, inventory: (Read("files", _PATHS),),
    parse_fabric,
    pieces=(dict[str, str],),
    typed=True,
)
