"""NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD: one TCP stream does not fill a fast network."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.facts.network import Interface
from clusterprep.model import Absent, Node
from clusterprep.nccl.rails import is_rdma_switched_off
from clusterprep.nccl.variables import Basis, Derived
from clusterprep.nccl.variables.rdma import ports_of

FAST = 100_000  # Mbit/s
# NVIDIA's guide for generic 100G networks (docs/userguide/source/env.rst): four of each. NCCL
# allows 16 threads, and 64 sockets in all (src/transport/net_socket.cc).
COUNTS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
# PCI vendors of cards for which NCCL has numbers of its own: ENA and gVNIC.
OWN = {"0x1d0f": "ENA", "0x1ae0": "gVNIC"}


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield both counts if sockets carry the training on every node, over links known to be fast.

    Otherwise NCCL's default is right. The listening side decides for both ends, so all nodes get
    the same values or none does.
    """
    nodes = basis.fleet.reached
    if len(basis.fleet.inventory.nodes) < 2:
        return
    if any(name in node.env for node in nodes for name in COUNTS):
        return
    speeds = []
    for node in nodes:
        speed = _socket_speed(basis, node)
        if speed is None or speed < FAST:
            return
        speeds.append(speed)
    if not speeds:
        return
    why = (
        f"sockets carry the training over {min(speeds) // 1000} Gbit/s, "
        "which one stream for each connection does not fill"
    )
    for name, value in COUNTS.items():
        yield Derived(name, value, basis.names, why)


def _socket_speed(basis: Basis, node: Node) -> int | None:
    """Return the speed of the chosen interface in Mbit/s.

    None if the speed is not known, NCCL has its own numbers for the card, or RDMA is there.
    """
    pick = basis.choice.picks.get(node.name)
    if pick is None:
        return None
    interfaces = basis.fleet.fact(node.name, "net.interfaces")
    tree = basis.fleet.fact(node.name, "pci.tree")
    if isinstance(interfaces, Absent) or isinstance(tree, Absent):
        return None
    if not _sockets_only(basis, node):
        return None
    if any(device.vendor in OWN for device in tree.devices):
        return None
    return _speed_of(pick.name, interfaces)


def _speed_of(name: str, interfaces: Iterable[Interface]) -> int | None:
    for interface in interfaces:
        if interface.name == name:
            return interface.speed
    return None


def _sockets_only(basis: Basis, node: Node) -> bool:
    """Return whether sockets, and not RDMA, carry the training on a node."""
    if is_rdma_switched_off(node):
        return True
    if "NCCL_IB_DISABLE" in node.env:  # RDMA is declared on, whatever devices there are
        return False
    ports = ports_of(basis.fleet, node)
    if isinstance(ports, Absent):
        return False
    return not ports.names and not ports.foreign
