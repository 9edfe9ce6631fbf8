"""RDMA devices: cards and firmware, their ports with addresses, who may open them, and how GPUs' memory is reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Address
from typing import Any

from clusterprep.facts import Fact, file, under
from clusterprep.model import Inventory, Node, Read

# Where apply writes the environment; facts may not look into resources, and a test holds the two together.
ENV_FILES = {
    "profile.d": "/etc/profile.d/clusterprep-nccl.sh",
    "nccl.conf": "/etc/nccl.conf",
    "env-file": "/etc/clusterprep/nccl.env",
    "slurm-task-prolog": "/etc/clusterprep/task_prolog.sh",
}


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a RoCE port's table: the address, «RoCE v2» or «IB/RoCE v1», and the interface it belongs to."""

    index: int
    address: IPv6Address
    kind: str
    interface: str | None

    @property
    def ipv4(self) -> str | None:
        mapped = self.address.ipv4_mapped
        return None if mapped is None else str(mapped)

    @property
    def routable(self) -> bool:
        return not self.address.is_link_local


@dataclass(frozen=True, slots=True)
class Port:
    """One port; `rate` in Gbit/s, `lid` is given by the subnet manager and only InfiniBand has one."""

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
        """Whether others can reach it: a LID on InfiniBand, an address that is not link-local on Ethernet.

        An active port of another kind, such as EFA's, has all it needs.
        """
        if self.link_layer == "Ethernet":
            return any(gid.routable for gid in self.gids)
        return self.link_layer != "InfiniBand" or self.lid not in (None, 0)


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """`board` is the vendor's id of the card's make (PSID), `model` the kind of chip (MT4129)."""

    name: str
    pci: str | None
    firmware: str | None
    board: str | None
    model: str | None
    interfaces: tuple[str, ...]
    ports: tuple[Port, ...]
    iwarp: bool = False


def parse_devices(files: Mapping[str, str], tree: Mapping[str, Any]) -> tuple[RdmaDevice, ...]:
    """Devices in the kernel's order. Raises KeyError or TypeError for a port whose state could not be read."""
    if not isinstance(files, Mapping):
        raise TypeError("files by their paths were expected")
    folder = "/sys/class/infiniband"
    seen = {
        tuple(match)
        for path in files
        for match in re.findall(folder + r"/([^/]+)/ports/(\d+)/", path)
    }
    found = []
    for name, row in sorted(tree.items(), key=lambda item: _natural(item[0])):
        ports = [
            _port(number, port, files, f"{folder}/{name}/ports/{number}/")
            for number, port in row["ports"].items()
        ]
        seen -= {(name, number) for number in row["ports"]}
        found.append(
            RdmaDevice(
                name=name,
                pci=row["pci"] if row["pci"] and ":" in row["pci"] else None,
                firmware=row["fw_ver"] or None,
                board=row["board_id"] or None,
                model=row["hca_type"] or None,
                interfaces=tuple(row["net"]),
                ports=tuple(sorted(ports, key=lambda port: port.number)),
                iwarp=(row["node_type"] or "").startswith(
                    "4:"
                ),  # RDMA_NODE_RNIC of rdma/ib_verbs.h
            )
        )
    if seen:
        raise ValueError(f"{min(seen)[0]} came or went while it was looked at")
    return tuple(found)


def _state(text: str) -> str:
    """«ACTIVE» of «4: ACTIVE»."""
    number, word = text.split(":")
    int(number)
    return word.strip()


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _port(number: str, row: Mapping[str, Any], files: Mapping[str, str], folder: str) -> Port:
    rate = files.get(folder + "rate", "").split()
    return Port(
        number=int(number),
        state=_state(files[folder + "state"]),
        phys_state=_state(files[folder + "phys_state"]),
        link_layer=files[folder + "link_layer"],  # EFA says «Unspecified»
        rate=float(rate[0]) if rate else None,
        lid=None if row["lid"] is None else int(row["lid"], 16),
        gids=tuple(
            Gid(int(i), IPv6Address(gid), kind or "", ndev) for i, gid, kind, ndev in row["gids"]
        ),
    )


@dataclass(frozen=True)
class Verbs:
    """Character devices of the verbs, each with its RDMA device where that is known, and those closed to the user."""

    devices: Mapping[str, str | None]
    closed: tuple[str, ...] = ()


def parse_verbs(answer: Mapping[str, Any]) -> Verbs:
    rows, uid, groups = answer["devices"], answer["uid"], answer["groups"]
    closed = tuple(row["name"] for row in rows if not _may_use(row, uid, groups))
    return Verbs({row["name"]: row["device"] for row in rows}, closed)


def _may_use(row: Mapping[str, int], uid: int, groups: list[int]) -> bool:
    if uid == 0:
        return True
    shift = 6 if row["uid"] == uid else 3 if row["gid"] in groups else 0
    return (row["mode"] >> shift) & 0o6 == 0o6


def parse_disabled(*texts: str | None) -> bool:
    """Whether a file of those that apply writes says NCCL_IB_DISABLE=1."""
    said = re.compile(r"""(?:^|[\s'"])NCCL_IB_DISABLE=(['"]?)1\1(?=['"]*(?:\s|$))""", re.MULTILINE)
    return any(said.search(_without_comments(text)) for text in texts if text is not None)


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def _env_files(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return tuple(Read("file", (under(node, ENV_FILES[name]),)) for name in inventory.env_targets)


def parse_peermem(text: str | None) -> str | None:
    """The loaded module that lets RDMA cards reach GPU memory, by /proc/modules; None: none is."""
    if text is None:
        return None  # a kernel without modules
    loaded = {line.split()[0] for line in text.splitlines() if line.strip()}
    return next(
        (name for name in ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem") if name in loaded),
        None,
    )


def parse_open_driver(text: str | None) -> bool:
    """Whether the loaded NVIDIA driver is the open one, by /proc/driver/nvidia/version."""
    if text is None:
        return False
    if "NVRM version" not in text:
        raise ValueError("no version in /proc/driver/nvidia/version")
    return "Open Kernel Module" in text


# Modules of RDMA drivers; the folder of a loaded one has a file `refcnt`, and `version` where its maker gave it one.
DRIVERS = ("mlx5_core", "mlx4_core", "bnxt_re", "irdma", "efa", "ionic_rdma")


def parse_stack(files: Mapping[str, str]) -> str | None:
    """«mlx5_core 23.10-0.5.5» of a vendor's RDMA drivers, «mlx5_core of the kernel»; None: no driver is loaded."""
    words = []
    for name in DRIVERS:
        if f"/sys/module/{name}/refcnt" in files or f"/sys/module/{name}/version" in files:
            version = files.get(f"/sys/module/{name}/version")
            words.append(f"{name} {version}" if version else f"{name} of the kernel")
    return ", ".join(words) or None


@dataclass(frozen=True)
class Rail:
    """One address of a RoCE device where several have one. `leaves`: the device that the kernel sends by.

    `leaves` is "" where the kernel has no route, None where the network has no neighbour to ask for. `router`: whether
    the kernel knows a way to the networks of the other addresses; None where that was not told.
    """

    interface: str
    address: str
    prefix: int
    leaves: str | None
    rp_filter: int
    arp_ignore: int
    arp_announce: int
    router: bool | None = None

    @property
    def network(self) -> str:
        return str(IPv4Interface(f"{self.address}/{self.prefix}").network)


def parse_rails(answer: Mapping[str, Any]) -> tuple[Rail, ...]:
    """Of each setting the larger one of the interface's and «all» holds (Documentation/networking/ip-sysctl)."""
    everywhere = answer.get("all", {})
    return tuple(_rail(row, everywhere) for row in answer["rails"])


def _rail(row: Mapping[str, Any], everywhere: Mapping[str, Any]) -> Rail:
    held = (
        max(int(row[key]), int(everywhere[key]))
        for key in ("rp_filter", "arp_ignore", "arp_announce")
    )
    rp_filter, arp_ignore, arp_announce = held
    routes = row["name"], row["address"], row["prefix"], row["leaves"]
    return Rail(*routes, rp_filter, arp_ignore, arp_announce, _told(row.get("router")))


def _told(value: Any) -> bool | None:
    if value not in (True, False, None):
        raise ValueError("whether a router leads from one rail to another is not understood")
    return None if value is None else bool(value)


_MODULES = tuple(f"/sys/module/{name}/{key}" for name in DRIVERS for key in ("refcnt", "version"))

_PORTS = tuple(
    f"/sys/class/infiniband/*/ports/*/{name}"
    for name in ("state", "phys_state", "link_layer", "rate")
)

DEVICES = Fact(
    "rdma.devices",
    lambda node, inventory: (Read("files", _PORTS), Read("rdma_tree")),
    parse_devices,
)
VERBS = Fact(
    "rdma.verbs",
    lambda node, inventory: (Read("verbs", (node.job_user or node.ssh.user,)),),
    parse_verbs,
)
DISABLED = Fact("rdma.disabled", _env_files, parse_disabled)
PEERMEM = Fact("rdma.peermem", file("/proc/modules"), parse_peermem)
OPEN_DRIVER = Fact("nv.open_driver", file("/proc/driver/nvidia/version"), parse_open_driver)
STACK = Fact("rdma.stack", lambda node, inventory: (Read("files", _MODULES),), parse_stack)
RAILS = Fact("rdma.rails", lambda node, inventory: (Read("rail_routes"),), parse_rails)
