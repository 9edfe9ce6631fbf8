"""RoCE ports of the training set, and the GID table entry that NCCL can use. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.facts.network import Family, Interface
from clusterprep.facts.rdma import Gid, Port
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.alike import alike_nodes
from clusterprep.model.memoize import once_per_fleet
from clusterprep.nccl.rails import HARDWARE, RdmaRail, TrainingSet, training_sets

FAMILY_VARIABLE = "NCCL_IB_ADDR_FAMILY"

# From this version on NCCL finds the index itself (src/transport/net_ib.cc, ncclIbGetGidIndex).
DYNAMIC = (2, 21)
# An empty slot of the table, which NCCL takes for an IPv6 address.
EMPTY = Gid(0, IPv6Address(0), "", None)
_VERSIONS = {"IB/RoCE v1": 1, "RoCE v1": 1, "RoCE v2": 2}
Network = IPv4Network | IPv6Network


class GidRules(Struct, frozen=True):
    """What NCCL goes by when it looks for the entry of a port, as its variables say.

    `index` is a fixed one, `addresses` those that an entry may have, where there is such a limit.
    """

    family: Family = "AF_INET"
    version: int = 2
    index: int | None = None
    addresses: Network | None = None


def declared_rules(node: Node, family: Family) -> GidRules:
    """Return the rules that the inventory declares for a node; `family` where it declares none."""
    return gid_rules({name: setting.value for name, setting in node.env.items()}, family)


def gid_rules(env: Mapping[str, str], family: Family = "AF_INET") -> GidRules:
    """Return the rules that variables make; `family` where they say nothing of it.

    NCCL takes a variable without a value as unset, and IPv4 for a family that it does not know.
    """
    declared = env.get(FAMILY_VARIABLE)
    if declared:
        family = "AF_INET6" if declared == "AF_INET6" else "AF_INET"
    index = _number(env.get("NCCL_IB_GID_INDEX") or "-1")
    return GidRules(
        family=family,
        version=_number(env.get("NCCL_IB_ROCE_VERSION_NUM") or "2"),
        index=None if index < 0 else index,
        addresses=_addresses_allowed(env.get("NCCL_IB_ADDR_RANGE") or "", family),
    )


def _number(text: str) -> int:
    """Return the decimal number that a text begins with, 0 if it begins with something else."""
    match = re.match(r"\s*([+-]?\d{1,9})", text, re.ASCII)
    return 0 if match is None else int(match[1])


def _addresses_allowed(text: str, family: Family) -> Network | None:
    """Return the network of NCCL_IB_ADDR_RANGE, None where NCCL ignores what is written."""
    address, slash, length = text.partition("/")
    if not slash:
        return None
    try:
        network = ip_network(f"{address}/{_number(length)}", strict=False)
    except ValueError:
        return None
    wanted = 6 if family == "AF_INET6" else 4
    return network if network.version == wanted else None


def entry_taken(port: Port, rules: GidRules) -> Gid:
    """Return the entry that NCCL from 2.21 on takes; an empty one where there is none.

    It goes through the table from the second entry on and leaves the first for one of the wanted
    family, then for one of the wanted version, then it stays.
    """
    entries = {entry.index: entry for entry in port.gids}
    if rules.index is not None:
        return entries.get(rules.index, EMPTY)
    taken = entries.get(0, EMPTY)
    for index in range(1, max(entries, default=0) + 1):
        candidate = entries.get(index, EMPTY)
        if _family(candidate) != rules.family or not _is_allowed(candidate, rules):
            continue
        is_better = leads_to_others(candidate, rules) and not leads_to_others(taken, rules)
        if is_better or _family(taken) != rules.family:
            taken = candidate
    return taken


def _family(entry: Gid) -> Family:
    return "AF_INET6" if entry.ipv4 is None else "AF_INET"


def _is_allowed(entry: Gid, rules: GidRules) -> bool:
    if rules.addresses is None:
        return True
    address = entry.address if entry.ipv4 is None else entry.address.ipv4_mapped
    return address in rules.addresses


def _is_valid(entry: Gid) -> bool:
    return entry.routable and int(entry.address) != 0


def leads_to_others(entry: Gid, rules: GidRules) -> bool:
    """Return whether an entry is of the family and version that the rules want, and routable."""
    if not _is_valid(entry) or _family(entry) != rules.family:
        return False
    return _VERSIONS.get(entry.kind) == rules.version


def roce_rails(training: TrainingSet) -> list[RdmaRail]:
    """Return the active Ethernet ports of a training set.

    Empty if most ports are InfiniBand: a single Ethernet port among them is for ib.link_layer.
    Empty too if none has an address: that is for ib.configured.
    """
    active = training.active
    ethernet = [rail for rail in active if rail.port.link_layer == "Ethernet"]
    if 2 * len(ethernet) < len(active):
        return []
    if not any(rail.port.addressed for rail in ethernet):
        return []
    return ethernet


@once_per_fleet
def roce_family(fleet: Fleet) -> Family:
    """Return the family of addresses by which RoCE ports reach each other, IPv4 or IPv6.

    It is what NCCL_IB_ADDR_FAMILY declares on some node, else IPv4, which NCCL takes by itself. It
    is IPv6 only where no port of the fleet can be reached by IPv4: a port without such an address
    beside others that have one has lost it.
    """
    for node in fleet.reached:
        if FAMILY_VARIABLE in node.env:
            return declared_rules(node, "AF_INET").family
    with_ipv6 = False
    for node in fleet.reached:
        rails = roce_rails_by_node(fleet)[node.name]
        addresses = _addresses(fleet, node) if rails else {}
        for rail in rails:
            if usable_gid(rail.port, addresses) is not None:
                return "AF_INET"
            if usable_gid(rail.port, addresses, "AF_INET6") is not None:
                with_ipv6 = True
    return "AF_INET6" if with_ipv6 else "AF_INET"


@once_per_fleet
def roce_rails_by_node(fleet: Fleet) -> Mapping[str, list[RdmaRail]]:
    """Return `roce_rails` of every node that was reached, none where its ports are not known."""
    sets = training_sets(fleet)
    rails: dict[str, list[RdmaRail]] = {}
    for nodes in alike_nodes(fleet, fleet.reached, (HARDWARE, "pci.tree")):
        # Their training sets differ in addresses alone, so all of them are RoCE or none is.
        first = sets[nodes[0].name]
        rails.update({node.name: [] for node in nodes})
        if isinstance(first, Absent) or not roce_rails(first):
            continue
        for node in nodes:
            training = sets[node.name]
            if not isinstance(training, Absent):
                rails[node.name] = roce_rails(training)
    return rails


def _addresses(fleet: Fleet, node: Node) -> Mapping[str, set[str]]:
    interfaces = fleet.fact(node.name, "net.interfaces")
    return {} if isinstance(interfaces, Absent) else addresses_of(interfaces)


def addresses_of(interfaces: Iterable[Interface]) -> dict[str, set[str]]:
    """Return interface → its addresses of both families, without their prefixes."""
    addresses = {}
    for interface in interfaces:
        every = (*interface.ipv4, *interface.ipv6)
        addresses[interface.name] = {address.partition("/")[0] for address in every}
    return addresses


def usable_gid(
    port: Port, held: Mapping[str, set[str]], family: Family = "AF_INET", version: int = 2
) -> Gid | None:
    """Return the first entry of RoCE v2 and this family whose address its interface has, or None.

    `held` is interface → addresses. With `version` 1 the entry is one of RoCE v1.
    """
    rules = GidRules(family, version)
    for entry in port.gids:
        if not leads_to_others(entry, rules):
            continue
        if entry.text in _held(entry, held):
            return entry
    return None


def entry_in_use(port: Port, held: Mapping[str, set[str]], rules: GidRules) -> Gid | None:
    """Return the entry that NCCL takes by these rules, None where others do not reach it."""
    alone = replace(port, gids=(entry_taken(port, rules),))
    return usable_gid(alone, held, rules.family, rules.version)


def _held(entry: Gid, held: Mapping[str, set[str]]) -> set[str]:
    """Return the addresses of the entry's interface, or all if the kernel does not name it."""
    if entry.interface is not None:
        return held.get(entry.interface, set())
    return set().union(*held.values())
