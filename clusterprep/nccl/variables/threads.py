"""NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD: one TCP stream does not fill a fast network."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.model import Absent, Node
from clusterprep.nccl.rails import switched_off
from clusterprep.nccl.variables import Basis, Derived
from clusterprep.nccl.variables.rdma import ports_of

FAST = 100_000  # Mbit/s
# NVIDIA's guide for generic 100G networks (docs/userguide/source/env.rst): four of each. NCCL allows 16 threads, and
# 64 sockets in all (src/transport/net_socket.cc).
COUNTS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
OWN = {
    "0x1d0f": "ENA",
    "0x1ae0": "gVNIC",
}  # PCI vendors of cards for which NCCL has numbers of its own


def derive(basis: Basis) -> Iterable[Derived]:
    """Only where sockets carry the training on every node, over a link known to be fast; else NCCL's default is right.

    The listening side decides for both ends, so all nodes get the same or none does.
    """
    nodes = basis.fleet.reached
    if len(basis.fleet.inventory.nodes) < 2 or any(set(COUNTS) & set(node.env) for node in nodes):
        return
    speeds = [_speed(basis, node) for node in nodes]
    if all(speed is not None and speed >= FAST for speed in speeds):
        slowest = min(speed for speed in speeds if speed is not None) // 1000
        why = f"sockets carry the training over {slowest} Gbit/s, which one stream for each connection does not fill"
        for name, value in COUNTS.items():
            yield Derived(name, value, basis.names, why)


def _speed(basis: Basis, node: Node) -> int | None:
    """In Mbit/s, of the interface chosen; None: not known, or NCCL has its own numbers, or there is RDMA."""
    pick, interfaces = (
        basis.choice.picks.get(node.name),
        basis.fleet.fact(node.name, "net.interfaces"),
    )
    tree = basis.fleet.fact(node.name, "pci.tree")
    if (
        pick is None
        or isinstance(interfaces, Absent)
        or isinstance(tree, Absent)
        or not _sockets_only(basis, node)
    ):
        return None
    if any(device.vendor in OWN for device in tree.devices):
        return None
    return next((i.speed for i in interfaces if i.name == pick.name), None)


def _sockets_only(basis: Basis, node: Node) -> bool:
    if switched_off(node):
        return True
    if "NCCL_IB_DISABLE" in node.env:  # switched on, whatever was found
        return False
    ports = ports_of(basis.fleet, node)
    return not isinstance(ports, Absent) and not ports.names and not ports.foreign
