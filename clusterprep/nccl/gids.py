"""RoCE ports of the training set, and the GID table entry that NCCL can use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.facts.network import Interface
from clusterprep.facts.rdma import Gid, Port
from clusterprep.nccl.rails import RdmaRail, TrainingSet

IPV6 = "ipv6"
"""The reason of what is not known of RoCE since ports have IPv6 addresses alone."""

# From this version on NCCL finds the index itself (src/transport/net_ib.cc, ncclIbGetGidIndex).
DYNAMIC = (2, 21)


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


def addresses_of(interfaces: Iterable[Interface]) -> dict[str, set[str]]:
    """Return interface → its IPv4 addresses, without their prefixes."""
    addresses = {}
    for interface in interfaces:
        addresses[interface.name] = {address.partition("/")[0] for address in interface.ipv4}
    return addresses


def usable_gid(port: Port, held: Mapping[str, set[str]]) -> Gid | None:
    """Return the first RoCE v2 entry whose IPv4 address its interface has, or None.

    `held` is interface → addresses.
    """
    for entry in port.gids:
        if entry.kind != "RoCE v2" or entry.ipv4 is None:
            continue
        if entry.ipv4 in _held(entry, held):
            return entry
    return None


def only_ipv6(rails: Iterable[RdmaRail], held: Mapping[str, set[str]]) -> bool:
    """Return whether all ports can be reached by IPv6 and none by IPv4.

    Which entry is right for IPv6 is not judged. A port without IPv4 beside one that has it has
    lost its address. `held` is as in `usable_gid`.
    """
    ports = [rail.port for rail in rails]
    return all(_has_ipv6(port) and usable_gid(port, held) is None for port in ports)


def _has_ipv6(port: Port) -> bool:
    for entry in port.gids:
        if entry.kind == "RoCE v2" and entry.routable and entry.ipv4 is None:
            return True
    return False


def _held(entry: Gid, held: Mapping[str, set[str]]) -> set[str]:
    """Return the addresses of the entry's interface, or all if the kernel does not name it."""
    if entry.interface is not None:
        return held.get(entry.interface, set())
    return set().union(*held.values())
