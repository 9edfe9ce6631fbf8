"""Which addresses may connect to which ports, as ranges of numbers and as networks."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    summarize_address_range,
)

from msgspec import Struct

Ranges = tuple[tuple[int, int], ...]  # first and last, in order, none next to another


class WantedRules(Struct, frozen=True):
    """Which addresses may connect to which ports, all as numbers."""

    ipv4: Ranges
    ipv6: Ranges
    ports: Ranges
    ssh: Ranges


def merge_ranges(spans: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges in order, with those that overlap or touch as one."""
    ranges: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        first, last = low, high
        if ranges:
            former_first, former_last = ranges[-1]
            if low <= former_last + 1:
                ranges.pop()
                first = former_first
                last = max(former_last, high)
        ranges.append((first, last))
    return tuple(ranges)


def ends_of(network: IPv4Network | IPv6Network) -> tuple[int, int]:
    """Return the first and the last address of a network as numbers."""
    return int(network.network_address), int(network.broadcast_address)


def ports_without_ssh(wanted: WantedRules) -> Ranges:
    """Return the ports of a job, but none that sshd listens on.

    Rules of a firewall's owner that open a port open it for good, and those that close it could
    lock the administrator out.
    """
    ranges = list(wanted.ports)
    for first, last in wanted.ssh:
        remaining = []
        for low, high in ranges:
            if low < first:
                remaining.append((low, min(high, first - 1)))
            if high > last:
                remaining.append((max(low, last + 1), high))
        ranges = remaining
    return merge_ranges((low, high) for low, high in ranges if low <= high)


def ipv4_networks(ranges: Ranges) -> list[str]:
    """Return addresses and networks, such as 10.0.0.4 and 10.0.0.8/29, for ranges of addresses."""
    networks: list[IPv4Network] = []
    for low, high in ranges:
        networks.extend(summarize_address_range(IPv4Address(low), IPv4Address(high)))
    return [str(net).removesuffix("/32") for net in networks]


def ipv6_networks(ranges: Ranges) -> list[str]:
    """Return addresses and networks of IPv6 for ranges of addresses."""
    networks: list[IPv6Network] = []
    for low, high in ranges:
        networks.extend(summarize_address_range(IPv6Address(low), IPv6Address(high)))
    return [str(net).removesuffix("/128") for net in networks]


def too_many(count: int, most: int, owner: str) -> str:
    """Return that an owner takes no more rules, empty if it does."""
    if count <= most:
        return ""
    return (
        f"the addresses of the nodes are {count} networks, and {owner} shall have {most} at most: "
        "`allow:` of the step with the cluster's network makes them one"
    )
