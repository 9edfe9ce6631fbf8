"""Interfaces with their addresses, the range NCCL's own ports come from, and RDMA ports."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from typing import Any

from clusterprep.facts import Fact, file
from clusterprep.model import Read

ARPHRD_ETHER, ARPHRD_INFINIBAND = 1, 32  # linux/if_arp.h
IFF_UP, IFF_LOOPBACK = 0x1, 0x8  # linux/if.h
# Of linux/if_arp.h: PPP, IP in IP of both versions, SIT, GRE of both versions, and NONE, which is tun and WireGuard.
TUNNELS = frozenset({512, 768, 769, 776, 778, 823, 65534})


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface as the kernel shows it; `speed` in Mbit/s, None where the driver does not say."""

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
    ipv4: tuple[str, ...]  # "10.0.0.1/24", global scope only
    duplex: str | None = None  # full, half; None where the driver does not say
    carrier_changes: int | None = None  # since the interface was made, ups and downs together
    first: str | None = (
        None  # "10.0.0.1/24", of any scope: the kernel's first, which NCCL binds; None: the first above
    )
    tunnel: bool = False
    ipv6: tuple[str, ...] = ()  # "fd00::1", global scope only
    index: int = field(
        default=0, compare=False
    )  # the kernel's number, in whose order it lists interfaces

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(str(IPv4Interface(address).network) for address in self.ipv4)

    @property
    def address(self) -> str:
        return self.ipv4[0].split("/")[0]

    @property
    def bound(self) -> str | None:
        """The address with its prefix that NCCL's sockets bind: the kernel's first of this interface."""
        return self.first or (self.ipv4[0] if self.ipv4 else None)

    @property
    def binds_link_local(self) -> bool:
        """Whether that address holds on one cable only, which leads to no other machine of the cluster."""
        return self.bound is not None and IPv4Interface(self.bound).is_link_local


def parse_interfaces(rows: list[dict[str, Any]]) -> tuple[Interface, ...]:
    # A row of which nothing could be read is no interface: one that went while the others were read, as container
    # ends do, or the file bonding_masters that the bonding driver lays among them.
    there = (row for row in rows if any(row[key] is not None for key in ("mtu", "type", "flags")))
    return tuple(_interface(row) for row in there)


def _interface(row: dict[str, Any]) -> Interface:
    flags = int(row["flags"] or "0", 16)
    every = [a for a in row["addresses"] if "." in a["address"]]
    usable = [a for a in every if a["scope"] == 0 and not a["address"].startswith("169.254.")]
    return Interface(
        name=row["name"],
        up=bool(flags & IFF_UP),
        running=row["operstate"] in ("up", "unknown") and row["carrier"] != "0",
        loopback=bool(flags & IFF_LOOPBACK),
        physical=row["physical"],
        bridge=row["bridge"],
        master=row["master"],
        mtu=int(row["mtu"]),
        speed=int(row["speed"]) if row["speed"] and int(row["speed"]) > 0 else None,
        infiniband=int(row["type"]) == ARPHRD_INFINIBAND,
        ipv4=tuple(_written(a) for a in usable),
        duplex=row.get("duplex") if row.get("duplex") in ("full", "half") else None,
        carrier_changes=int(row["carrier_changes"]) if row.get("carrier_changes") else None,
        first=None if every[:1] == usable[:1] else _written(every[0]),
        tunnel=int(row["type"]) in TUNNELS,
        ipv6=tuple(
            a["address"] for a in row["addresses"] if ":" in a["address"] and a["scope"] == 0
        ),
        index=int(row["ifindex"] or 0),
    )


def _written(address: dict[str, Any]) -> str:
    return str(IPv4Interface(f"{address['address']}/{address['prefix']}"))


def parse_port_range(text: str | None) -> tuple[int, int]:
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
