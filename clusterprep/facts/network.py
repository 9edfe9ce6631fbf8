"""Interfaces with their addresses, the range NCCL's own ports come from, and RDMA ports."""

from __future__ import annotations

import functools
from ipaddress import IPv4Address, ip_address, ip_interface
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple, replace

from clusterprep.facts import Fact, file
from clusterprep.facts.parts import read_once
from clusterprep.model import Read
from clusterprep.remote.untrusted import require_device_name

ARPHRD_ETHER, ARPHRD_INFINIBAND = 1, 32  # linux/if_arp.h
IFF_UP, IFF_LOOPBACK = 0x1, 0x8  # linux/if.h
# Of linux/if_arp.h: PPP, IP in IP of both versions, SIT, GRE of both versions, and NONE, as tun and
# WireGuard have.
TUNNELS = frozenset({512, 768, 769, 776, 778, 823, 65534})
Family = Literal["AF_INET", "AF_INET6"]  # as NCCL_SOCKET_FAMILY has them
LINK_LOCAL_IPV4 = "169.254."  # how addresses of one cable begin
LINK = 253  # linux/rtnetlink.h: the scope of an address that holds on one link


class Interface(Struct, frozen=True):
    """One network interface as the kernel shows it.

    `speed` in Mbit/s, `duplex` full or half; both None where the driver does not report them.
    `master` names the bond or bridge that it is a port of.
    `ipv4` has addresses of global scope such as "10.0.0.1/24", `ipv6` such as "fd00::1/64".
    `link_local` is an IPv6 address of this link, "fe80::1/64", if there is none of global scope.
    `duplicates` are IPv6 addresses that another machine has: the kernel found that out, and does
    not use them.
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
    link_local: str | None = None
    duplicates: tuple[str, ...] = ()
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
    def addresses(self) -> tuple[str, ...]:
        """The addresses that lead to other machines: those of IPv4, without any those of IPv6."""
        return self.ipv4 or self.ipv6

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks of `addresses`."""
        return tuple(map(network_of, self.addresses))

    @property
    def bound(self) -> str | None:
        """The address with its prefix that NCCL binds: the kernel's first of this interface.

        The kernel lists IPv4 before IPv6, and link-local addresses of IPv6 last.
        """
        if self.first:
            return self.first
        return self.addresses[0] if self.addresses else self.link_local

    @property
    def binds_link_local(self) -> bool:
        """Whether that address holds on one cable only, so that other machines cannot reach it."""
        bound = self.bound
        if bound is None:
            return False
        if ":" in bound:
            return ip_interface(bound).is_link_local
        return bound.startswith(LINK_LOCAL_IPV4)

    @property
    def has_ipv4(self) -> bool:
        """Whether it has an IPv4 address of any scope, which NCCL takes before one of IPv6."""
        return bool(self.ipv4 or self.first)

    def seen_in(self, family: Family) -> Interface:
        """Return the interface with global addresses of one family alone, as NCCL then sees it."""
        if family == "AF_INET6":
            return replace(self, ipv4=(), first=None) if self.has_ipv4 else self
        return replace(self, ipv6=()) if self.ipv6 else self


@functools.lru_cache(maxsize=1 << 15)  # addresses of ten thousand nodes, asked for many times
def network_of(address: str) -> str:
    """Return «10.0.0.0/24» of «10.0.0.7/24»."""
    host, _, length = address.partition("/")
    if ":" in host or not length:
        return str(ip_interface(address).network)
    # Without a network of `ipaddress`, which takes longer.
    others = 32 - int(length)  # bits that tell the addresses of the network apart
    number = int(IPv4Address(host)) >> others << others
    return f"{IPv4Address(number)}/{length}"


class _Row(Struct):
    """A row of the agent without the hardware address.

    That differs on each node, and is no part of the value.
    """

    addresses: Raw | UnsetType = UNSET
    bridge: Raw | UnsetType = UNSET
    carrier: Raw | UnsetType = UNSET
    carrier_changes: Raw | UnsetType = UNSET
    duplex: Raw | UnsetType = UNSET
    flags: Raw | UnsetType = UNSET
    ifindex: Raw | UnsetType = UNSET
    master: Raw | UnsetType = UNSET
    mtu: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET
    operstate: Raw | UnsetType = UNSET
    physical: Raw | UnsetType = UNSET
    speed: Raw | UnsetType = UNSET
    type: Raw | UnsetType = UNSET


def parse_interfaces(rows: list[Any]) -> tuple[Interface, ...]:
    """Parse the agent's rows.

    A row without any value is no interface: one that went while the others were read, as ends of
    containers do, or the file bonding_masters that the bonding driver puts into /sys/class/net.
    """
    interfaces = map(_interface_or_none, rows)
    return tuple([interface for interface in interfaces if interface is not None])


@read_once
def _interface_or_none(row: dict[str, Any]) -> Interface | None:
    if any(row[key] is not None for key in ("mtu", "type", "flags")):
        return _interface(row)
    return None


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
    ipv6, link_local = _ipv6(row["addresses"])
    if ipv4 or ipv6:
        link_local = None
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
        ipv6=ipv6,
        link_local=link_local,
        duplicates=tuple(map(_with_prefix, filter(_is_duplicate, row["addresses"]))),
        index=int(row["ifindex"] or 0),
    )


def _is_usable(address: dict[str, Any]) -> bool:
    """Return whether an IPv4 address has global scope (0 of rtnetlink) and is not link-local."""
    if address["scope"] != 0:
        return False
    return not address["address"].startswith(LINK_LOCAL_IPV4)


def _is_duplicate(address: dict[str, Any]) -> bool:
    return bool(address.get("duplicate"))


def _with_prefix(address: dict[str, Any]) -> str:
    # Without an interface of `ipaddress`, which works out a network that is not needed.
    ip, prefix = ip_address(address["address"]), address["prefix"]
    if type(prefix) is not int or not 0 <= prefix <= ip.max_prefixlen:
        raise ValueError(f"{prefix!r:.40} is no length of a prefix")
    return f"{ip}/{prefix}"


def _ipv6(addresses: list[dict[str, Any]]) -> tuple[tuple[str, ...], str | None]:
    """Return the IPv6 addresses of global scope, and the first of link scope."""
    found = []
    link_local = None
    for address in addresses:
        if ":" not in address["address"] or _is_duplicate(address):
            continue
        if address["scope"] == 0:
            found.append(_with_prefix(address))
        elif address["scope"] == LINK and link_local is None:
            link_local = _with_prefix(address)
    return tuple(found), link_local


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


INTERFACES = Fact(
    "net.interfaces",
    lambda node, inventory: (Read("interfaces"),),
    parse_interfaces,
    pieces=(list[_Row],),
)
PORT_RANGE = Fact(
    "net.port_range", file("/proc/sys/net/ipv4/ip_local_port_range"), parse_port_range
)
PEER = Fact("ssh.peer", stage="open")
