"""RDMA devices: firmware, ports, addresses, who may open them, and how they reach GPU memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from clusterprep.facts import Fact, file, under, user_of_job
from clusterprep.facts.env_files import written_files
from clusterprep.facts.network import Family, network_of
from clusterprep.facts.parts import as_json, read_once, read_text_once, shared_text
from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.untrusted import LONGEST_DEVICE, require_device_name


class Gid(Struct, frozen=True, gc=False):
    """One entry of a RoCE port's table; `kind` is «RoCE v2» or «IB/RoCE v1»."""

    index: int
    address: IPv6Address
    kind: str
    interface: str | None

    @property
    def ipv4(self) -> str | None:
        mapped = self.address.ipv4_mapped
        if mapped is None:
            return None
        return str(mapped)

    @property
    def text(self) -> str:
        """The address as interfaces have it: of IPv4 without the prefix of mapped addresses."""
        return self.ipv4 or str(self.address)

    @property
    def routable(self) -> bool:
        return not self.address.is_link_local


class Port(Struct, frozen=True, gc=False):
    """One port; `rate` in Gbit/s. The subnet manager assigns `lid`, which only InfiniBand has."""

    number: int
    state: str
    phys_state: str
    link_layer: str
    rate: float | None
    lid: int | None = None
    gids: tuple[Gid, ...] = ()

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE" and self.phys_state == "LinkUp"

    @property
    def addressed(self) -> bool:
        """Whether others can reach it.

        That takes a LID on InfiniBand and an address that is not link-local on Ethernet. An active
        port of another kind, such as EFA's, has all it needs.
        """
        if self.link_layer == "Ethernet":
            return any(gid.routable for gid in self.gids)
        if self.link_layer == "InfiniBand":
            return self.lid not in (None, 0)
        return True


class RdmaDevice(Struct, frozen=True, gc=False):
    """`board` is the vendor's id of the card's make (PSID), `model` the kind of chip (MT4129)."""

    name: str
    pci: str | None
    firmware: str | None
    board: str | None
    model: str | None
    interfaces: tuple[str, ...]
    ports: tuple[Port, ...]
    iwarp: bool = False


_FOLDER = "/sys/class/infiniband"
_ALL_GROUPS = re.compile(r"[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){7}")
_PORT_FILE = re.compile(_FOLDER + r"/([^/]+)/ports/(\d+)/")


def parse_devices(files: Any, tree: Mapping[str, Any]) -> tuple[RdmaDevice, ...]:
    """Return the devices in the kernel's order, from texts by their paths and rows by their names.

    Raises KeyError or TypeError for a port whose state could not be read, ValueError where the two
    answers differ.
    """
    files_of = dict(_files_by_device(files))
    devices = []
    rows = dict(tree.items())
    for name in _in_natural_order(tuple(rows)):
        devices.append(_device((name, rows[name], files_of.pop(name, _NO_FILES))))
    # The files and the tree were read one after the other: a device may have gone in between.
    if files_of:
        raise _came_or_went(min(files_of))
    return tuple(devices)


@read_once
def _files_by_device(files: Any) -> dict[str, Raw]:
    """Return the texts of the ports of each device, by their places below its ports, as JSON.

    Nearly all nodes have the same: as JSON they are a part of `_device` that costs nothing.
    """
    if not isinstance(files, Mapping):
        raise TypeError("files by their paths were expected")
    files_of: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        place = _place_of_file(path)
        if place is not None:
            name, file = place
            files_of.setdefault(name, {})[file] = text
    return {name: Raw(as_json(texts)) for name, texts in files_of.items()}


_NO_FILES = Raw(b"{}")


def _came_or_went(name: str) -> ValueError:
    return ValueError(f"{name} came or went while it was looked at")


@read_text_once
def _place_of_file(path: str) -> tuple[str, str] | None:
    """Return the device of a port's file and its place below the device's ports, as «1/state».

    Returns None for a file that is of no port.
    """
    match = _PORT_FILE.search(path)
    return None if match is None else (match[1], path[match.start(2) :])


@functools.lru_cache(maxsize=64)  # nodes of a kind have the same devices
def _in_natural_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names in an order in which mlx5_2 is before mlx5_10."""
    return tuple(sorted(names, key=_natural_order))


def _natural_order(name: str) -> tuple[Any, ...]:
    parts = re.split(r"(\d+)", name)
    return tuple(int(part) if part.isdigit() else part for part in parts)


@read_once
def _device(parts: tuple[str, Mapping[str, Any], Mapping[str, str]]) -> RdmaDevice:
    """Return a device from its name, its row of the tree and the files of its ports."""
    name, row, files = parts
    ports = []
    for number, port in row["ports"].items():
        ports.append(_port(number, port, files))
    ports.sort(key=lambda port: port.number)
    if {file.partition("/")[0] for file in files} - row["ports"].keys():
        raise _came_or_went(name)
    pci = row["pci"]
    if not pci or ":" not in pci:  # a device without hardware of its own, such as rxe
        pci = None
    node_type = row["node_type"] or ""
    return RdmaDevice(
        name=shared_text(require_device_name(name, LONGEST_DEVICE)),
        pci=pci and shared_text(pci),
        firmware=_text_or_none(row["fw_ver"]),
        board=_text_or_none(row["board_id"]),
        model=_text_or_none(row["hca_type"]),
        interfaces=_interfaces(row["net"]),
        ports=tuple(ports),
        iwarp=node_type.startswith("4:"),  # RDMA_NODE_RNIC of rdma/ib_verbs.h
    )


def _text_or_none(text: str | None) -> str | None:
    return shared_text(text) if text else None


@read_once
def _interfaces(names: list[str]) -> tuple[str, ...]:
    return tuple(map(require_device_name, names))


def _port(number: str, row: Mapping[str, Any], files: Mapping[str, str]) -> Port:
    """Return a port; `files` has those of its device by the places below its ports."""
    gids = []
    for index, text, kind, interface in row["gids"]:
        address = _address(text) if isinstance(text, str) else IPv6Address(text)
        gids.append(Gid(int(index), address, _if_text(kind or ""), _if_text(interface)))
    return Port(
        number=int(number),
        state=_state(files[f"{number}/state"]),
        phys_state=_state(files[f"{number}/phys_state"]),
        link_layer=shared_text(files[f"{number}/link_layer"]),  # EFA has «Unspecified»
        rate=_rate(files.get(f"{number}/rate", "")),
        lid=None if row["lid"] is None else int(row["lid"], 16),
        gids=tuple(gids),
    )


def _if_text(value: Any) -> Any:
    """Return a text as one object for equal texts, and what is none as it is."""
    return shared_text(value) if isinstance(value, str) else value


@read_text_once  # two entries of a table have one address
def _address(text: str) -> IPv6Address:
    # To parse a text takes ten times as long as a number, and the kernel writes all digits.
    if _ALL_GROUPS.fullmatch(text):
        return IPv6Address(int(text.replace(":", ""), 16))
    return IPv6Address(text)


@read_text_once
def _rate(text: str) -> float | None:
    """Return Gbit/s of «400 Gb/sec (4X NDR)»."""
    words = text.split()
    return float(words[0]) if words else None


@read_text_once
def _state(text: str) -> str:
    """Return «ACTIVE» of «4: ACTIVE»."""
    number, name = text.split(":")
    int(number)
    return name.strip()


class Verbs(Struct, frozen=True):
    """Character devices of the verbs, each with its RDMA device if known.

    The job's user cannot open `closed`.
    """

    devices: Mapping[str, str | None]
    closed: tuple[str, ...] = ()


def parse_verbs(answer: Mapping[str, Any]) -> Verbs:
    """Return the character devices, and which of them the job's user cannot open.

    The answer has the user's uid and groups, and a row for each file: name, device, uid, gid, mode.
    """
    uid, groups = answer["uid"], answer["groups"]
    devices = {}
    closed = []
    for row in answer["devices"]:
        name = row["name"]
        devices[name] = row["device"]
        if not _may_use(row, uid, groups):
            closed.append(name)
    return Verbs(devices, tuple(closed))


def _may_use(row: Mapping[str, int], uid: int, groups: list[int]) -> bool:
    """Return whether a user may read and write a file with this owner, group and mode.

    As in the kernel, the owner's rights count for the owner even if those of others are wider.
    """
    if uid == 0:
        return True
    if row["uid"] == uid:
        rights = row["mode"] >> 6
    elif row["gid"] in groups:
        rights = row["mode"] >> 3
    else:
        rights = row["mode"]
    return rights & 0o6 == 0o6


_IB_DISABLED = re.compile(
    r"""(?:^|[\s'"])NCCL_IB_DISABLE=(['"]?)1\1(?=['"]*,?(?:\s|$))""", re.MULTILINE
)


def parse_disabled(*texts: str | None) -> bool:
    """Return whether a file of those that apply writes sets NCCL_IB_DISABLE=1."""
    settings = (_without_comments(text) for text in texts if text is not None)
    return any(_IB_DISABLED.search(text) for text in settings)


def _without_comments(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


def _env_file_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return tuple(Read("file", (under(node, path),)) for path in written_files(inventory))


_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem")


def parse_peermem(text: str | None) -> str | None:
    """Return the loaded module that lets RDMA cards reach GPU memory, None where none is loaded.

    The text is that of /proc/modules.
    """
    if text is None:
        return None  # a kernel without modules
    loaded = {line.split()[0] for line in text.splitlines() if line.strip()}
    for module in _PEER_MODULES:
        if module in loaded:
            return module
    return None


def parse_open_driver(text: str | None) -> bool:
    """Return whether the loaded NVIDIA driver is the open one, by /proc/driver/nvidia/version."""
    if text is None:
        return False
    if "NVRM version" not in text:
        raise ValueError("no version in /proc/driver/nvidia/version")
    return "Open Kernel Module" in text


# Modules of RDMA drivers. The folder of a loaded one has a file `refcnt`, and `version` where its
# maker gave it one.
DRIVERS = ("mlx5_core", "mlx4_core", "bnxt_re", "irdma", "efa", "ionic_rdma")


def parse_stack(files: Mapping[str, str]) -> str | None:
    """Return the loaded RDMA drivers, None where there is none.

    «mlx5_core 23.10-0.5.5» is a vendor's, «mlx5_core of the kernel» is the kernel's own.
    """
    drivers = []
    for name in DRIVERS:
        folder = f"/sys/module/{name}"
        version = files.get(f"{folder}/version")
        if version:
            drivers.append(f"{name} {version}")
        elif version is not None or f"{folder}/refcnt" in files:
            drivers.append(f"{name} of the kernel")
    return ", ".join(drivers) or None


class Rail(Struct, frozen=True):
    """One address of a RoCE device on a node where several devices have one.

    `leaves` is the device that the kernel sends from this address by, "" where the kernel has no
    route, None where the network has no neighbour to ask for. `router`: whether the kernel knows a
    way to the networks of the other addresses, None where that is not known. The settings are those
    of IPv4, None for an address of IPv6, which has no such settings.
    """

    interface: str
    address: str
    prefix: int
    leaves: str | None
    rp_filter: int | None = None
    arp_ignore: int | None = None
    arp_announce: int | None = None
    router: bool | None = None

    @property
    def network(self) -> str:
        return network_of(f"{self.address}/{self.prefix}")

    @property
    def family(self) -> Family:
        return "AF_INET6" if ":" in self.address else "AF_INET"


def parse_rails(answer: Mapping[str, Any]) -> tuple[Rail, ...]:
    """Return the rails.

    Of each setting the larger of the interface's and that of «all» is in force
    (Documentation/networking/ip-sysctl).
    """
    all_interfaces = answer.get("all", {})
    return tuple(_rail(row, all_interfaces) for row in answer["rails"])


def _rail(row: Mapping[str, Any], all_interfaces: Mapping[str, Any]) -> Rail:
    """Return a rail with the settings that are in force."""
    router = row.get("router")
    if router not in (True, False, None):
        raise ValueError("whether a router leads from one rail to another is not understood")
    address = ip_address(row["address"])
    prefix = int(row["prefix"])
    if not 0 <= prefix <= address.max_prefixlen:
        raise ValueError(f"no length of a prefix: {prefix}")
    rail = Rail(
        interface=require_device_name(row["name"]),
        address=str(address),
        prefix=prefix,
        leaves=row["leaves"],
        router=None if router is None else bool(router),  # 1 equals True
    )
    if address.version == 6:
        return rail
    return replace(
        rail,
        rp_filter=_in_force("rp_filter", row, all_interfaces),
        arp_ignore=_in_force("arp_ignore", row, all_interfaces),
        arp_announce=_in_force("arp_announce", row, all_interfaces),
    )


def _in_force(key: str, row: Mapping[str, Any], all_interfaces: Mapping[str, Any]) -> int:
    own_setting = int(row[key])
    common_setting = int(all_interfaces[key])
    return max(own_setting, common_setting)


def _verbs_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("verbs", (user_of_job(node),)),)


_MODULES = tuple(f"/sys/module/{name}/{key}" for name in DRIVERS for key in ("refcnt", "version"))
_PORTS = (
    f"{_FOLDER}/*/ports/*/state",
    f"{_FOLDER}/*/ports/*/phys_state",
    f"{_FOLDER}/*/ports/*/link_layer",
    f"{_FOLDER}/*/ports/*/rate",
)

DEVICES = Fact(
    "rdma.devices",
    lambda node, inventory: (Read("files", _PORTS), Read("rdma_tree")),
    parse_devices,
    pieces=(Raw, dict[str, Raw]),
)
VERBS = Fact("rdma.verbs", _verbs_reads, parse_verbs)
DISABLED = Fact("rdma.disabled", _env_file_reads, parse_disabled)
PEERMEM = Fact("rdma.peermem", file("/proc/modules"), parse_peermem)
OPEN_DRIVER = Fact("nv.open_driver", file("/proc/driver/nvidia/version"), parse_open_driver)
STACK = Fact("rdma.stack", lambda node, inventory: (Read("files", _MODULES),), parse_stack)
RAILS = Fact("rdma.rails", lambda node, inventory: (Read("rail_routes"),), parse_rails)
