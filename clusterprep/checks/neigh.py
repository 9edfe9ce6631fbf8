"""Judges whether the kernel's table of neighbours has a place for every node of the fleet."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from clusterprep.checks import Check, CheckContext, Outcome, Proof, failed
from clusterprep.facts.neighbours import NeighbourTable
from clusterprep.facts.network import Interface, network_of
from clusterprep.model import Absent, Node
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.model.units import pluralize
from clusterprep.remedies import Remedy, shell_line

INTERFACES = "net.interfaces"
# Of the entries that there may be: so near to the limit the table is full in a moment.
NEARLY = 0.9


def neighbours(context: CheckContext) -> Iterable[Outcome]:
    """Judge the table of each node by the nodes that share a network with it, and by its counts."""
    networks = {node.name: _networks(context, node) for node in context.fleet.reached}
    members = Counter(itertools.chain.from_iterable(networks.values()))
    well: dict[str, list[str]] = {}
    for node in context.nodes:
        table: NeighbourTable = context.value(node, "net.neighbours")
        # A job over the whole fleet takes one entry per peer and rail.
        needed = sum(members[network] - 1 for network in networks[node.name])
        outcome = _judge(node, table, needed)
        if outcome is None:
            seen = f"{table.most} places, {pluralize(needed, 'neighbour')} of this fleet"
            well.setdefault(seen, []).append(node.name)
        else:
            yield outcome
    for seen, names in well.items():
        message = "the kernel's table of neighbours has a place for every node"
        yield Outcome("pass", tuple(names), message, seen)


def _networks(context: CheckContext, node: Node) -> set[str]:
    """Return the IPv4 networks of the interfaces that are up; none where they are not known."""
    interfaces = context.value(node, INTERFACES)
    if isinstance(interfaces, Absent):
        return set()
    networks: set[str] = set()
    for interface in interfaces:
        if interface.ipv4 and _has_neighbours(interface):
            networks.update(map(network_of, interface.ipv4))
    return networks


def _has_neighbours(interface: Interface) -> bool:
    return interface.up and not interface.loopback and not interface.tunnel


def _judge(node: Node, table: NeighbourTable, needed: int) -> Outcome | None:
    """Return the failure of a table that is full or too small, None for one that is neither."""
    places = max(needed, table.entries)
    wanted = f"more than {pluralize(places, 'place')}"
    if table.entries >= NEARLY * table.most:
        message = "the kernel's table of neighbours is full: connections to other nodes fail"
    elif needed >= table.most:
        message = "the kernel's table of neighbours has no place for all nodes of this network"
    elif needed > table.crowded or (table.refused and table.entries > table.crowded):
        message = (
            "the kernel's table of neighbours is crowded: entries are thrown out while they are "
            "needed"
        )
        wanted = f"gc_thresh2 above {needed}"
    else:
        return None
    full = f", no place {table.refused:,} times since boot" if table.refused else ""
    seen = f"gc_thresh3 {table.most}, entries now {table.entries:,}{full}"
    cure = raise_limits(places, table.most)
    return failed(node, message, seen, wanted, cure, fix=_fix(places, table.most))


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
        family="ipv6" if is_ipv6 else "ipv4",
        first=most // 8,
        second=most // 2,
        third=most,
    )


def _enough(needed: int, present: int) -> int:
    return max(4096, 4 * max(needed, present))


def _fix(needed: int, present: int) -> Fix:
    """Return the same limits as settings of the kernel."""
    most = _enough(needed, present)
    limits = {
        "net.ipv4.neigh.default.gc_thresh1": str(most // 8),
        "net.ipv4.neigh.default.gc_thresh2": str(most // 2),
        "net.ipv4.neigh.default.gc_thresh3": str(most),
    }
    return fix_of(wanted_state("sysctl", **limits))


CHECK = Check(
    "net.neigh",
    facts=("net.neighbours",),
    uses=(INTERFACES,),
    judge=neighbours,
    severity="warning",
    title="The table of neighbours",
    why="A kernel whose table of neighbours (ARP) is full cannot reach nodes that it has not just "
    "talked to: ports look closed and collectives time out, here and there.",
    how="gc_thresh1 to gc_thresh3 of net.ipv4.neigh.default against the nodes of the fleet in each "
    "network of this node, and entries and table_fulls of /proc/net/stat/arp_cache. All network "
    "namespaces of a host share the table. Containers do not see it.",
    remedy=shell_line(
        "sysctl -w net.ipv4.neigh.default.gc_thresh3=8192 net.ipv4.neigh.default.gc_thresh2=4096"
        "   # and the same in /etc/sysctl.d"
    ),
    proof=Proof(
        "net.neighbours",
        lambda table: NeighbourTable(table.keep, table.crowded, table.most, table.most, 5127),
        machine={
            "files": {
                "/proc/sys/net/ipv4/neigh/default/gc_thresh1": "128\n",
                "/proc/sys/net/ipv4/neigh/default/gc_thresh2": "512\n",
                "/proc/sys/net/ipv4/neigh/default/gc_thresh3": "1024\n",
                "/proc/net/stat/arp_cache": "entries allocs destroys table_fulls\n"
                "00000012 00005e2d 00005369 00000000\n",
            }
        },
    ),
)
