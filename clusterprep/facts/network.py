"""Interfaces with their addresses, the range NCCL's own ports come from, and RDMA ports."""

from __future__ import annotations

import functools
from ipaddress import IPv4Interface
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from clusterprep.facts import Fact, file
from clusterprep.facts.parts import read_once
from clusterprep.model import Read
from clusterprep.remote.untrusted import require_device_name

ARPHRD_ETHER, ARPHRD_INFINIBAND = 1, 32  # linux/if_arp.h
IFF_UP, IFF_LOOPBACK = 0x1, 0x8  # linux/if.h
# Of linux/if_arp.h: PPP, IP in IP of both versions, SIT, GRE of both versions, and NONE, as tun and
# WireGuard have.
TUNNELS = frozenset({512, 768, 769, 776, 778, 823, 65534})


class Interface(Struct, frozen=True):
    """One network interface as the kernel shows it.

    `speed` in Mbit/s, `duplex` full or half; both None where the driver does not report them.
    `master` names the bond or bridge that it is a port of.
    `ipv4` has addresses of global scope such as "10.0.0.1/24", `ipv6` such as "fd00::1".
    `carrier_changes` counts ups and downs since the interface was made.
    `index` is the kernel's number, in whose order it lists interfaces; interfaces of two nodes may
    be equal without it.
    """

    name: str
    up: bool
    running: bool
    loopback: bool
    physical: bool
    bridge: bool
    master: str | None
    mtu: int
    speed: int | None
    infiniband: bool
    ipv4: tuple[str, ...]
    duplex: str | None = None
    carrier_changes: int | None = None
    # The kernel's first address of any scope, "10.0.0.1/24", which NCCL binds; None where it is the
    # first of `ipv4`.
    first: str | None = None
    tunnel: bool = False
    ipv6: tuple[str, ...] = ()
    index: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Interface):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[Any, ...]:
        """Return the values of all fields but `index`, which is the last."""
        return astuple(self)[:-1]

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(map(_network_of, self.ipv4))

    @property
    def address(self) -> str:
        return self.ipv4[0].split("/")[0]

    @property
    def bound(self) -> str | None:
        """The address with its prefix that NCCL binds: the kernel's first of this interface."""
        if self.first:
            return self.first
        return self.ipv4[0] if self.ipv4 else None

    @property
    def binds_link_local(self) -> bool:
        """Whether that address holds on one cable only, so that other machines cannot reach it."""
        return self.bound is not None and IPv4Interface(self.bound).is_link_local


@functools.lru_cache(maxsize=4096)
def _network_of(address: str) -> str:
    """Return «10.0.0.0/24» of «10.0.0.7/24». It is asked for forty times of every node."""
    return str(IPv4Interface(address).network)


def parse_interfaces(rows: list[dict[str, Any]]) -> tuple[Interface, ...]:
    """Parse the agent's rows.

    A row without any value is no interface: one that went while the others were read, as ends of
    containers do, or the file bonding_masters that the bonding driver puts into /sys/class/net.
    """
    interfaces = []
    for row in rows:
        if _is_interface(row):
            # The hardware address differs on each node, and is no part of the value.
            interfaces.append(_interface({**row, "address": None}))
    return tuple(interfaces)


def _is_interface(row: dict[str, Any]) -> bool:
    return any(row[key] is not None for key in ("mtu", "type", "flags"))


@read_once
def _interface(row: dict[str, Any]) -> Interface:
    """Return the interface of a row: texts of /sys/class/net, and addresses of rtnetlink."""
    flags = int(row["flags"] or "0", 16)
    kind = int(row["type"])
    is_operational = row["operstate"] in ("up", "unknown")
    every_ipv4 = [address for address in row["addresses"] if "." in address["address"]]
    ipv4 = [address for address in every_ipv4 if _is_usable(address)]
    first = None
    first_is_usable = every_ipv4[:1] == ipv4[:1]
    if not first_is_usable:
        first = _with_prefix(every_ipv4[0])
    return Interface(
        name=require_device_name(row["name"]),
        up=bool(flags & IFF_UP),
        running=is_operational and row["carrier"] != "0",
        loopback=bool(flags & IFF_LOOPBACK),
        physical=row["physical"],
        bridge=row["bridge"],
        master=None if row["master"] is None else require_device_name(row["master"]),
        mtu=int(row["mtu"]),
        speed=_speed(row["speed"]),
        infiniband=kind == ARPHRD_INFINIBAND,
        ipv4=tuple(map(_with_prefix, ipv4)),
        duplex=_duplex(row.get("duplex")),
        carrier_changes=_count(row.get("carrier_changes")),
        first=first,
        tunnel=kind in TUNNELS,
        ipv6=_ipv6(row["addresses"]),
        index=int(row["ifindex"] or 0),
    )


def _is_usable(address: dict[str, Any]) -> bool:
    """Return whether an IPv4 address has global scope (0 of rtnetlink) and is not link-local."""
    if address["scope"] != 0:
        return False
    return not address["address"].startswith("169.254.")


def _with_prefix(address: dict[str, Any]) -> str:
    text = f"{address['address']}/{address['prefix']}"
    return str(IPv4Interface(text))


def _ipv6(addresses: list[dict[str, Any]]) -> tuple[str, ...]:
    global_addresses = [address for address in addresses if address["scope"] == 0]
    texts = (address["address"] for address in global_addresses)
    return tuple(text for text in texts if ":" in text)


def _speed(text: str | None) -> int | None:
    """Return Mbit/s; the kernel writes -1 where the driver does not know it."""
    if not text:
        return None
    speed = int(text)
    return speed if speed > 0 else None


def _duplex(text: str | None) -> str | None:
    return text if text in ("full", "half") else None


def _count(text: str | None) -> int | None:
    return int(text) if text else None


def parse_port_range(text: str | None) -> tuple[int, int]:
    """Return the first and the last port of «32768 60999»."""
    if text is None:
        raise ValueError("no IPv4 port range")
    low, high = map(int, text.split())
    if not 0 < low <= high < 65536:
        raise ValueError(f"no range of ports: {text!r:.40}")
    return low, high


INTERFACES = Fact("net.interfaces", lambda node, inventory: (Read("interfaces"),), parse_interfaces)
PORT_RANGE = Fact(
    "net.port_range", file("/proc/sys/net/ipv4/ip_local_port_range"), parse_port_range
)
PEER = Fact("ssh.peer", stage="open")
