"""InfiniBand and RoCE: the devices to use, or none, decided over the whole fleet."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.env import Basis, Derived, grouped
from clusterprep.model import Absent, Node
from clusterprep.network import usable_rdma


def derive(basis: Basis) -> Iterable[Derived]:
    """NCCL_IB_HCA where every node has a usable port, NCCL_IB_DISABLE=1 where none has; a mix is left alone.

    One node on sockets and its peer on InfiniBand never connect, so a mixed fleet is a fault to repair and no
    reason to slow the others down.
    """
    devices: dict[str, tuple[str, ...]] = {}
    gaps: dict[str, tuple[str | None, str]] = {}
    for node in basis.fleet.reached:
        found = _devices(basis, node)
        if isinstance(found, Absent):
            gaps[node.name] = (None, f"RDMA ports are not known: {found.reason} {found.detail}".strip())
        else:
            devices[node.name] = found
    if gaps:
        yield from grouped("NCCL_IB_HCA", gaps)
        return
    with_ports = [name for name, found in devices.items() if found]
    if not with_ports:
        declared = all(node.interfaces.rdma is not None for node in basis.fleet.reached)
        why = "no node has a usable RDMA port; without this NCCL may try a dead device and wait"
        yield Derived("NCCL_IB_DISABLE", "1", basis.names, "declared as interfaces.rdma: none" if declared else why)
    elif len(with_ports) == len(devices):
        values = {n: (_value(found, _all_devices(basis, n)), _why(basis, n)) for n, found in devices.items()}
        yield from grouped("NCCL_IB_HCA", values)


def _devices(basis: Basis, node: Node) -> tuple[str, ...] | Absent:
    if node.interfaces.rdma is not None:
        return node.interfaces.rdma
    ports = basis.fleet.fact(node.name, "rdma.ports")
    return ports if isinstance(ports, Absent) else usable_rdma(ports)


def _all_devices(basis: Basis, name: str) -> set[str] | None:
    ports = basis.fleet.fact(name, "rdma.ports")
    return None if isinstance(ports, Absent) else {port.device for port in ports}


def _value(used: tuple[str, ...], present: set[str] | None) -> str:
    # NCCL matches devices by prefix: mlx5_1 would take mlx5_10 too, which may be there where nobody could look.
    others = None if present is None else present - set(used)
    ambiguous = others is None or any(other.startswith(d) and other != d for d in used for other in others)
    return ("=" if ambiguous else "") + ",".join(used)


def _why(basis: Basis, name: str) -> str:
    node = next(n for n in basis.fleet.reached if n.name == name)
    return "declared as interfaces.rdma" if node.interfaces.rdma is not None else "the devices with an active port"
