"""InfiniBand and RoCE: the ports that carry the training, or none, decided over the whole fleet."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.facts.rdma import RdmaDevice
from clusterprep.model import Absent, Fleet, Node
from clusterprep.nccl.rails import TrainingSet, switched_off, training_sets
from clusterprep.nccl.variables import Basis, Derived, grouped
from clusterprep.runtime.lazy_dataclass import dataclass

LAYERS = (
    "InfiniBand",
    "Ethernet",
)  # link layers that NCCL's own transport takes (src/transport/net_ib/init.cc)


@dataclass(frozen=True)
class Ports:
    """What a node has for NCCL_IB_HCA and why; `foreign`: RDMA that a plug-in drives and NCCL itself cannot, as EFA."""

    names: tuple[str, ...]
    value: str
    why: str
    foreign: bool = False


def derive(basis: Basis) -> Iterable[Derived]:
    """NCCL_IB_HCA where every node has training ports, NCCL_IB_DISABLE=1 where none has; a mix is left alone.

    One node on sockets and its peer on InfiniBand never connect, so a mixed fleet is a fault to repair and no
    reason to slow the others down. For the same reason both are decided once: what the inventory says of them on one
    node is an answer for all.
    """
    if all(
        switched_off(node) for node in basis.fleet.reached
    ):  # a list of devices would be one nobody reads
        return
    ports: dict[str, Ports] = {}
    gaps: dict[str, tuple[str | None, str]] = {}
    for node in basis.fleet.reached:
        found = ports_of(basis.fleet, node)
        if isinstance(found, Absent):
            gaps[node.name] = (
                None,
                f"RDMA ports are not known: {found.reason} {found.detail}".strip(),
            )
        else:
            ports[node.name] = found
    if gaps:
        yield from grouped("NCCL_IB_HCA", gaps)
    elif all(found.names for found in ports.values()):
        yield from grouped(
            "NCCL_IB_HCA", {name: (found.value, found.why) for name, found in ports.items()}
        )
    elif not any(found.names or found.foreign for found in ports.values()) and not _wanted(
        basis.fleet
    ):
        declared = all(node.interfaces.rdma is not None for node in basis.fleet.reached)
        why = "no node has a usable RDMA port; without this NCCL may try a dead device and wait"
        yield Derived(
            "NCCL_IB_DISABLE",
            "1",
            basis.names,
            "declared as interfaces.rdma: none" if declared else why,
        )


def _wanted(fleet: Fleet) -> bool:
    """Whether a node says NCCL_IB_DISABLE=0: the others cannot be told the opposite."""
    return any("NCCL_IB_DISABLE" in node.env and not switched_off(node) for node in fleet.reached)


def ports_of(fleet: Fleet, node: Node) -> Ports | Absent:
    """The training ports of a node: by its inventory, where that says so, else those that `rails` finds."""
    devices = fleet.fact(node.name, "rdma.devices")
    declared = node.env.get("NCCL_IB_HCA")
    if declared is not None:
        return Ports((declared.value,), declared.value, f"declared under {declared.layer}")
    if node.interfaces.rdma is not None:
        there = None if isinstance(devices, Absent) else devices
        return Ports(
            node.interfaces.rdma, _value(node.interfaces.rdma, there), "declared as interfaces.rdma"
        )
    if isinstance(devices, Absent):
        return devices
    if not devices:
        return Ports((), "", "there is no RDMA device")
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent):
        return training
    names = tuple(rail.name for rail in training.rails if rail.port.link_layer in LAYERS)
    return Ports(names, _value(names, devices), _why(training), bool(training.rails) and not names)


def _value(names: tuple[str, ...], devices: tuple[RdmaDevice, ...] | None) -> str:
    """NCCL matches devices by prefix: mlx5_1 would take mlx5_10 too, which may be there where nobody could look."""
    there = [(device.name, port.number) for device in devices or () for port in device.ports]
    items = [
        (name, int(port) if port.isdecimal() else None)
        for name, _, port in (n.partition(":") for n in names)
    ]
    exact = {(d, p) for d, p in there for name, port in items if d == name and port in (None, p)}
    taken = {
        (d, p) for d, p in there for name, port in items if d.startswith(name) and port in (None, p)
    }
    return ("=" if devices is None or taken != exact else "") + ",".join(names)


def _why(training: TrainingSet) -> str:
    reasons: dict[str, list[str]] = {}
    for name, reason in training.left_out.items():
        reasons.setdefault(reason, []).append(name)
    left = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    return f"{training.why}; left out: {left}" if left else training.why
