"""Judges whether the kernel's tables of neighbours have a place for every node of the fleet."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from clusterprep.checks import Check, CheckContext, Outcome, Proof, failed, unknown
from clusterprep.facts.neighbours import TABLE, TABLE_OF_IPV6, NeighbourTable
from clusterprep.facts.network import Interface, network_of
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import columns
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.model.units import pluralize
from clusterprep.nccl.interfaces import choose
from clusterprep.remedies import Remedy, shell_line

INTERFACES = "net.interfaces"
# Of the entries that there may be: so near to the limit the table is full in a moment. With more
# than there may be, and none refused, there are permanent ones, which no limit counts since Linux
# 5.0 (gc_entries of net/core/neighbour.c), as Cilium makes them.
NEARLY = 0.9


def neighbours(context: CheckContext) -> Iterable[Outcome]:
    """Judge the tables of each node by the nodes that share a network with it, and by counts.

    The kernel has one table for IPv4 and one for IPv6.
    """
    networks_of_ipv4, networks_of_ipv6 = _networks(context)
    needed = _needed(networks_of_ipv4)
    needed_of_ipv6 = _needed(networks_of_ipv6)
    well: dict[str, list[str]] = {}
    of_ipv4 = context.values(TABLE.name)
    of_ipv6 = context.values(TABLE_OF_IPV6.name)
    for node in context.nodes:
        tables = [
            _judge(node, of_ipv4[node.name], needed[node.name]),
            _judge_ipv6(node, of_ipv6[node.name], needed_of_ipv6[node.name]),
        ]
        outcomes = [outcome for outcome in tables if outcome is not None]
        if outcomes:
            yield from outcomes
            continue
        seen = _places(context, node, needed[node.name], needed_of_ipv6[node.name])
        well.setdefault(seen, []).append(node.name)
    for seen, names in well.items():
        message = "the kernel's table of neighbours has a place for every node"
        yield Outcome("pass", tuple(names), message, seen)


def _needed(networks: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Return how many other nodes a job reaches by these networks of each node, by its name.

    A job over the whole fleet takes one entry per peer and rail.
    """
    members = Counter(itertools.chain.from_iterable(networks.values()))
    needed = {}
    for name, own in networks.items():
        needed[name] = sum([members[network] - 1 for network in own])
    return needed


def _networks(context: CheckContext) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the networks of each node's interfaces that are up, of IPv4 and of IPv6.

    Those of IPv6 count where the job speaks it: on interfaces without IPv4, and on all if its
    sockets are of that family. A node whose interfaces are not known has none.
    """
    of_ipv4: dict[str, set[str]] = {}
    of_ipv6: dict[str, set[str]] = {}
    speaks_ipv6 = choose(context.fleet).family == "AF_INET6"
    column = columns(context.fleet).values_of(INTERFACES)
    for node, interfaces in zip(context.fleet.reached, column, strict=True):
        own = of_ipv4[node.name] = set()
        own_of_ipv6 = of_ipv6[node.name] = set()
        if isinstance(interfaces, Absent):
            continue
        for interface in interfaces:
            if not _has_neighbours(interface):
                continue
            own.update(map(network_of, interface.ipv4))
            if speaks_ipv6 or not interface.ipv4:
                own_of_ipv6.update(map(network_of, interface.ipv6))
    return of_ipv4, of_ipv6


def _has_neighbours(interface: Interface) -> bool:
    return interface.up and not interface.loopback and not interface.tunnel


def _places(context: CheckContext, node: Node, needed: int, needed_of_ipv6: int) -> str:
    """Return how many places the tables have that the fleet needs, and for how many nodes."""
    table: NeighbourTable = context.value(node, TABLE.name)
    seen = f"{table.most} places, {pluralize(needed, 'neighbour')} of this fleet"
    if not needed_of_ipv6:
        return seen
    table = context.value(node, TABLE_OF_IPV6.name)
    return f"{seen}; IPv6: {table.most} places, {pluralize(needed_of_ipv6, 'neighbour')}"


def _judge_ipv6(node: Node, table: NeighbourTable | Absent, needed: int) -> Outcome | None:
    """Judge the table of IPv6 as that of IPv4; it may be unknown where no node is reached by it."""
    if not isinstance(table, Absent):
        return _judge(node, table, needed, is_ipv6=True)
    if not needed:
        return None
    message = table.detail or "the kernel's table of IPv6 neighbours is not known"
    return unknown(node, message, table.reason)


def _judge(node: Node, table: NeighbourTable, needed: int, is_ipv6: bool = False) -> Outcome | None:
    """Return the failure of a table that is full or too small, None for one that is neither."""
    places = max(needed, table.entries)
    if not table.refused and needed <= table.crowded and places < NEARLY * table.most:
        return None  # as of most nodes
    kind = "IPv6 neighbours" if is_ipv6 else "neighbours"
    wanted = f"more than {pluralize(places, 'place')}"
    if table.refused and table.entries >= NEARLY * table.most:
        message = f"the kernel's table of {kind} is full: connections to other nodes fail"
    elif NEARLY * table.most <= table.entries <= table.most:
        message = f"the kernel's table of {kind} is nearly full: then connections to others fail"
    elif needed >= table.most:
        message = f"the kernel's table of {kind} has no place for all nodes of this network"
    elif needed > table.crowded or (table.refused and table.entries > table.crowded):
        message = (
            f"the kernel's table of {kind} is crowded: entries are thrown out while they are needed"
        )
        wanted = f"gc_thresh2 above {needed}"
    else:
        return None
    full = f", no place {table.refused:,} times since boot" if table.refused else ""
    seen = f"gc_thresh3 {table.most}, entries now {table.entries:,}{full}"
    cure = raise_limits(places, table.most, is_ipv6)
    return failed(node, message, seen, wanted, cure, fix=_fix(places, table.most, is_ipv6))


def raise_limits(needed: int, present: int, is_ipv6: bool = False) -> Remedy:
    """Return the limits that hold four times what is needed and what is allowed at present.

    They relate to each other as the kernel's own limits do.
    """
    most = _enough(needed, present)
    return shell_line(
        "sysctl -w net.{family}.neigh.default.gc_thresh1={first} "
        "net.{family}.neigh.default.gc_thresh2={second} "
        "net.{family}.neigh.default.gc_thresh3={third}"
        "   # and the same in /etc/sysctl.d; all network namespaces of the host share the table",
        family=_name(is_ipv6),
        first=most // 8,
        second=most // 2,
        third=most,
    )


def _name(is_ipv6: bool) -> str:
    """Return how the kernel's settings name the family."""
    return "ipv6" if is_ipv6 else "ipv4"


def _enough(needed: int, present: int) -> int:
    return max(4096, 4 * max(needed, present))


def _fix(needed: int, present: int, is_ipv6: bool) -> Fix:
    """Return the same limits as settings of the kernel."""
    most = _enough(needed, present)
    limit = f"net.{_name(is_ipv6)}.neigh.default.gc_thresh"
    limits = {
        f"{limit}1": str(most // 8),
        f"{limit}2": str(most // 2),
        f"{limit}3": str(most),
    }
    return fix_of(wanted_state("sysctl", **limits))


CHECK = Check(
    "net.neigh",
    facts=(TABLE.name,),
    uses=(TABLE_OF_IPV6.name, INTERFACES),
    judge=neighbours,
    severity="warning",
    title="The tables of neighbours",
    why="A kernel whose table of neighbours (ARP, or NDP of IPv6) is full cannot reach nodes that "
    "it has not just talked to: ports look closed and collectives time out, here and there.",
    how="gc_thresh1 to gc_thresh3 of net.ipv4.neigh.default against the nodes of the fleet in each "
    "network of this node, and entries and table_fulls of /proc/net/stat/arp_cache. The same for "
    "net.ipv6.neigh.default and ndisc_cache, with the networks by which the job speaks IPv6: those "
    "of interfaces without IPv4, or all if its sockets are IPv6. All network namespaces of a host "
    "share the tables. Containers do not see them.",
    remedy=shell_line(
        "sysctl -w net.ipv4.neigh.default.gc_thresh3=8192 net.ipv4.neigh.default.gc_thresh2=4096"
        "   # and the same in /etc/sysctl.d"
    ),
    proof=Proof(
        TABLE.name,
        lambda table: NeighbourTable(table.keep, table.crowded, table.most, table.most, 5127),
        machine={
            "files": {
                "/proc/sys/net/ipv4/neigh/default/gc_thresh1": "128\n",
                "/proc/sys/net/ipv4/neigh/default/gc_thresh2": "512\n",
                "/proc/sys/net/ipv4/neigh/default/gc_thresh3": "1024\n",
                "/proc/net/stat/arp_cache": "entries allocs destroys table_fulls\n"
                "00000012 00005e2d 00005369 00000000\n",
                "/proc/sys/net/ipv6/neigh/default/gc_thresh1": "128\n",
                "/proc/sys/net/ipv6/neigh/default/gc_thresh2": "512\n",
                "/proc/sys/net/ipv6/neigh/default/gc_thresh3": "1024\n",
                "/proc/net/stat/ndisc_cache": "entries allocs destroys table_fulls\n"
                "00000004 00003c28 00003bb5 00000000\n",
            }
        },
    ),
)
