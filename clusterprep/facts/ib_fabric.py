"""What a subnet manager gave to InfiniBand ports: its own LID, the subnet, partition keys."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from operator import itemgetter

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.facts.parts import LONGEST_TEXT, MOST_PARTS, read_text_once, shared_text
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
_GID = "gids/0"
_NO_GUID = "0000:0000:0000:0000"
_TEXT = frozenset((str,))


class FabricPort(Struct, frozen=True, gc=False):
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


class FabricDevice(Struct, frozen=True, gc=False):
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
    are_texts = _TEXT.issuperset(map(type, texts))
    are_short = are_texts and max(map(len, texts), default=0) <= LONGEST_TEXT
    parse_rest = _known_rest if are_short else _parse_rest
    devices = {}
    for places in _places_in(tuple([path for path, _ in items])):
        devices[places.device] = _device(places, texts, parse_rest)
    return devices


class _PortPlaces(Struct, frozen=True, eq=False):
    """Which texts of an answer a port is made of: its GID, and the rest by the names of files."""

    number: int
    gid: int | None
    rest_keys: tuple[str, ...]
    choose_rest: Callable[[Sequence[str]], tuple[str, ...]]


class _Places(Struct, frozen=True, eq=False):
    """Which texts of an answer a device is made of."""

    device: str
    guid: int | None
    ports: tuple[_PortPlaces, ...]


@functools.lru_cache(maxsize=64)  # nodes of a kind have the same files
def _places_in(paths: tuple[str, ...]) -> tuple[_Places, ...]:
    """Return the places of each device: first those that have a GUID of their own."""
    guids: dict[str, int] = {}
    files_of: dict[str, dict[str, dict[str, int]]] = {}
    for path, position in sorted(zip(paths, range(len(paths)), strict=True)):
        name, number, key = _place_of(path)
        of_device = files_of.setdefault(name, {})
        if number is None:
            guids[name] = position
        else:
            of_device.setdefault(number, {})[key] = position
    places = []
    for name in dict.fromkeys((*guids, *files_of)):
        ports = tuple(starmap(_port_places, files_of[name].items()))
        places.append(_Places(name, guids.get(name), ports))
    return tuple(places)


def _port_places(number: str, positions: Mapping[str, int]) -> _PortPlaces:
    rest = {key: position for key, position in positions.items() if key != _GID}
    choose_rest = _chooser(tuple(rest.values()))
    return _PortPlaces(int(number), positions.get(_GID), tuple(rest), choose_rest)


def _chooser(positions: Sequence[int]) -> Callable[[Sequence[str]], tuple[str, ...]]:
    """Return what returns the items at these positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda texts: tuple([texts[position] for position in positions])


@read_text_once
def _place_of(path: str) -> tuple[str, str | None, str]:
    """Return device, port and key of a file; without a port it is the device's own GUID."""
    if node := _NODE.fullmatch(path):
        return require_device_name(node[1], LONGEST_DEVICE), None, "node_guid"
    match = _PORT.fullmatch(path)
    if match is None:
        raise ValueError(f"{path} is no file of an RDMA port")
    return require_device_name(match[1], LONGEST_DEVICE), match[2], match[3]


def _device(
    places: _Places, texts: Sequence[str], parse_rest: Callable[..., _Rest]
) -> FabricDevice:
    guid_text = None if places.guid is None else texts[places.guid]
    guid = None
    unread: list[str] = []
    if guid_text is None or not _is_guid(guid_text):
        unread.append("node_guid")
    elif guid_text != _NO_GUID:
        guid = guid_text
    ports = {}
    for of_port in places.ports:
        port, is_infiniband = _port(of_port, texts, guid, parse_rest)
        ports[of_port.number] = port
        if is_infiniband and port.guid is None:
            unread.append(f"GUID of port {of_port.number}")
    return FabricDevice(guid, ports, tuple(unread))


def _port(
    places: _PortPlaces,
    texts: Sequence[str],
    device_guid: str | None,
    parse_rest: Callable[..., _Rest],
) -> tuple[FabricPort, bool]:
    """Return a port, and whether it is one of InfiniBand or may be one."""
    gid = "" if places.gid is None else texts[places.gid]
    has_gid = len(gid) == 39 and _GROUPS.fullmatch(gid) and not gid.endswith(_NO_GUID)
    rest = parse_rest(places.rest_keys, places.choose_rest(texts))
    if not has_gid:
        return rest.port, rest.may_be_infiniband
    guid = None
    if rest.is_infiniband:
        # As a rule the GUID is that of the device: one object for both.
        guid = gid[20:] if device_guid is None or not gid.endswith(device_guid) else device_guid
    port = FabricPort(rest.port.sm_lid, shared_text(gid[:19]), guid, rest.port.pkeys)
    return port, rest.may_be_infiniband


class _Rest(Struct, frozen=True):
    """A port without what its GID says, which is another one on each node.

    `may_be_infiniband`: it is one of InfiniBand, or does not say what it is.
    """

    port: FabricPort
    is_infiniband: bool
    may_be_infiniband: bool


def _parse_rest(keys: Sequence[str], texts: Sequence[str]) -> _Rest:
    files = dict(zip(keys, texts, strict=True))
    pkeys = {key: text for key, text in files.items() if key.startswith("pkeys/")}
    port = FabricPort(_number(files.get("sm_lid")), pkeys=_table(pkeys))
    is_infiniband = files.get("link_layer") == "InfiniBand"
    return _Rest(port, is_infiniband, is_infiniband or "link_layer" not in files)


_known_rest = functools.lru_cache(maxsize=MOST_PARTS)(_parse_rest)


def _is_guid(text: str) -> bool:
    return len(text) == 19 and bool(_GROUPS.fullmatch(text))


def _number(text: str | None) -> int | None:
    """Return a number of 16 bits in hexadecimal digits, «0x8021»; None for another text."""
    if text is None or not _HEXADECIMAL.fullmatch(text):
        return None
    return int(text, 16)


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
