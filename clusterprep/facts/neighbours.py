"""The kernel's tables of neighbours, of ARP and of IPv6: limits, and whether one was ever full."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Node, Read

LIMITS = "/proc/sys/net/ipv4/neigh/default/gc_thresh"
STATISTICS = "/proc/net/stat/arp_cache"
LIMITS_OF_IPV6 = "/proc/sys/net/ipv6/neigh/default/gc_thresh"
STATISTICS_OF_IPV6 = "/proc/net/stat/ndisc_cache"


class NeighbourTable(Struct, frozen=True):
    """The table of a kernel, which all its network namespaces share.

    `keep`, `crowded` and `most` are gc_thresh1 to gc_thresh3: so many entries are left alone, above
    so many old ones are thrown out at once, and more there never are. `entries` are those of now,
    and `refused` counts since boot how often there was no place for one.
    """

    keep: int
    crowded: int
    most: int
    entries: int
    refused: int


def parse_table(first: Any, second: Any, third: Any, statistics: Any) -> NeighbourTable | Absent:
    """Parse three limits and /proc/net/stat/arp_cache, or ndisc_cache, which is like it.

    The kernel shows them in its first network namespace alone: a container sees none of them. Those
    of IPv6 do not exist either in a kernel without IPv6. The statistics are hexadecimal, a row for
    each CPU; the number of entries is the same on all rows.
    """
    texts = (first, second, third, statistics)
    if any(text is None for text in texts):
        return Absent("not_applicable", "the host alone sees the limits of its table of neighbours")
    keep, crowded, most = _limit(first), _limit(second), _limit(third)
    header, *rows = statistics.splitlines()
    names = header.split()
    entries = 0
    refused = 0
    for row in rows:
        values = dict(zip(names, row.split(), strict=True))
        entries = int(values["entries"], 16)
        # Kernels before 3.19 do not count what was refused.
        refused += int(values.get("table_fulls", "0"), 16)
    if not rows or most <= 0:
        raise ValueError("no statistics of the table of neighbours")
    return NeighbourTable(keep, crowded, most, entries, refused)


def _limit(text: Any) -> int:
    """Return one limit; the kernel writes a number and the end of the line."""
    if not isinstance(text, str) or re.fullmatch(r"\d{1,10}\n", text, re.ASCII) is None:
        raise ValueError(f"no limit of the table: {text!r:.40}")
    return int(text)


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return _reads_of(LIMITS, STATISTICS)


def _reads_of_ipv6(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return _reads_of(LIMITS_OF_IPV6, STATISTICS_OF_IPV6)


def _reads_of(limits: str, statistics: str) -> tuple[Read, ...]:
    files = (f"{limits}1", f"{limits}2", f"{limits}3", statistics)
    return tuple(Read("file", (path,)) for path in files)


TABLE = Fact("net.neighbours", _reads, parse_table, moves=True)
TABLE_OF_IPV6 = Fact("net.neighbours6", _reads_of_ipv6, parse_table, moves=True)
