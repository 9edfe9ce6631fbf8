"""RoCE ports of the training set, and the entry of a port's GID table that NCCL can use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.facts.network import Interface
from clusterprep.facts.rdma import Gid, Port
from clusterprep.nccl.rails import RdmaRail, TrainingSet

DYNAMIC = (
    2,
    21,
)  # NCCL from which the index is found by NCCL itself (src/transport/net_ib.cc, ncclIbGetGidIndex)


def roce_rails(training: TrainingSet) -> list[RdmaRail]:
    """The Ethernet ports.

    A single one among InfiniBand ports is a matter of ib.link_layer, and none with an address one of ib.configured.
    """
    ethernet = [rail for rail in training.active if rail.port.link_layer == "Ethernet"]
    if 2 * len(ethernet) < len(training.active) or not any(
        rail.port.addressed for rail in ethernet
    ):
        return []
    return ethernet


def addresses_of(interfaces: Iterable[Interface]) -> dict[str, set[str]]:
    """The IPv4 addresses of each interface, without their prefixes."""
    return {i.name: {address.partition("/")[0] for address in i.ipv4} for i in interfaces}


def usable_gid(port: Port, held: Mapping[str, set[str]]) -> Gid | None:
    """The first RoCE v2 entry of an IPv4 address that its interface has."""
    return next(
        (
            g
            for g in port.gids
            if g.kind == "RoCE v2" and g.ipv4 is not None and g.ipv4 in _of(g, held)
        ),
        None,
    )


def _of(entry: Gid, held: Mapping[str, set[str]]) -> set[str]:
    """The addresses of the entry's interface; of all where the kernel does not name it."""
    return (
        held.get(entry.interface, set())
        if entry.interface is not None
        else {a for all_ in held.values() for a in all_}
    )
