"""InfiniBand and RoCE: which ports carry the training, or none, decided over the whole fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from clusterprep.facts.rdma import RdmaDevice
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.alike import alike_nodes
from clusterprep.nccl.rails import HARDWARE, TrainingSet, is_rdma_switched_off, training_sets
from clusterprep.nccl.variables import Basis, Derived, ValueAndReason, grouped, not_known

# Link layers that NCCL's own transport takes (src/transport/net_ib/init.cc).
LAYERS = ("InfiniBand", "Ethernet")


class Ports(Struct, frozen=True):
    """What a node has for NCCL_IB_HCA, and why.

    `foreign` means RDMA that a plug-in drives and NCCL itself cannot, such as EFA.
    """

    names: tuple[str, ...]
    value: str
    why: str
    foreign: bool = False


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield NCCL_IB_HCA if every node has training ports, NCCL_IB_DISABLE=1 if no node has any.

    A mixed fleet gets neither. A node on sockets and its peer on InfiniBand never connect, so a
    mixed fleet is a fault to repair and no reason to slow the others down. For the same reason
    both are decided once: what the inventory says of them on one node is an answer for all.
    """
    # A list of devices would have no reader.
    if all(is_rdma_switched_off(node) for node in basis.fleet.reached):
        return
    ports_by_node: dict[str, Ports] = {}
    gaps: dict[str, ValueAndReason] = {}
    of_all = _ports_of_all(basis.fleet)
    for node in basis.fleet.reached:
        ports = of_all[node.name]
        if isinstance(ports, Absent):
            gaps[node.name] = (None, not_known("RDMA ports are", ports))
        else:
            ports_by_node[node.name] = ports
    if gaps:
        yield from grouped("NCCL_IB_HCA", gaps)
    elif all(ports.names for ports in ports_by_node.values()):
        yield from _device_lists(ports_by_node)
    elif not _any_rdma(ports_by_node) and not _is_declared_on(basis.fleet):
        yield _ib_disable(basis)


def _ports_of_all(fleet: Fleet) -> Mapping[str, Ports | Absent]:
    """Return `ports_of` for every node that was reached, asked once for nodes that are alike."""
    ports: dict[str, Ports | Absent] = {}
    for nodes in alike_nodes(fleet, fleet.reached, (HARDWARE, "pci.tree")):
        names = [node.name for node in nodes]
        ports.update(dict.fromkeys(names, ports_of(fleet, nodes[0])))
    return ports


def _device_lists(ports_by_node: Mapping[str, Ports]) -> Iterable[Derived]:
    values: dict[str, ValueAndReason] = {}
    for name, ports in ports_by_node.items():
        values[name] = (ports.value, ports.why)
    yield from grouped("NCCL_IB_HCA", values)


def _any_rdma(ports_by_node: Mapping[str, Ports]) -> bool:
    return any(ports.names or ports.foreign for ports in ports_by_node.values())


def _ib_disable(basis: Basis) -> Derived:
    why = "no node has a usable RDMA port; without this NCCL may try a dead device and wait"
    if all(node.interfaces.rdma is not None for node in basis.fleet.reached):
        why = "declared as interfaces.rdma: none"
    return Derived("NCCL_IB_DISABLE", "1", basis.names, why)


def _is_declared_on(fleet: Fleet) -> bool:
    """Return whether a node says NCCL_IB_DISABLE=0: the others cannot be told the opposite."""
    return any(
        "NCCL_IB_DISABLE" in node.env and not is_rdma_switched_off(node) for node in fleet.reached
    )


def ports_of(fleet: Fleet, node: Node) -> Ports | Absent:
    """Return the training ports of a node.

    The inventory decides if it declares them. Otherwise they are those of `training_sets`.
    """
    devices = fleet.fact(node.name, "rdma.devices")
    setting = node.env.get("NCCL_IB_HCA")
    if setting is not None:
        return Ports((setting.value,), setting.value, f"declared under {setting.layer}")
    declared = node.interfaces.rdma
    if declared is not None:
        value = _hca_list(declared, None if isinstance(devices, Absent) else devices)
        return Ports(declared, value, "declared as interfaces.rdma")
    if isinstance(devices, Absent):
        return devices
    if not devices:
        return Ports((), "", "there is no RDMA device")
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent):
        return training
    names = tuple(rail.name for rail in training.rails if rail.port.link_layer in LAYERS)
    foreign = bool(training.rails) and not names
    return Ports(names, _hca_list(names, devices), _reasons(training), foreign)


def _hca_list(names: tuple[str, ...], devices: tuple[RdmaDevice, ...] | None) -> str:
    """Return the list for NCCL_IB_HCA, with a leading = if it must be read as whole names.

    NCCL matches devices by prefix: mlx5_1 would take mlx5_10 too. Without knowledge of the devices
    (None) such a device may exist, and the list is exact.
    """
    value = ",".join(names)
    if devices is None or _prefix_takes_more(names, devices):
        return f"={value}"
    return value


def _prefix_takes_more(names: tuple[str, ...], devices: tuple[RdmaDevice, ...]) -> bool:
    """Return whether matching by prefix takes a port that whole names do not take."""
    by_name: set[tuple[str, int]] = set()
    by_prefix: set[tuple[str, int]] = set()
    for name_and_port in names:
        name, _, number = name_and_port.partition(":")
        for device in devices:
            if not device.name.startswith(name):
                continue
            for port in device.ports:
                if number.isdecimal() and int(number) != port.number:
                    continue
                by_prefix.add((device.name, port.number))
                if device.name == name:
                    by_name.add((device.name, port.number))
    return by_prefix != by_name


def _reasons(training: TrainingSet) -> str:
    """Return why these ports are the training set, and why others are left out."""
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in training.left_out.items():
        names_by_reason.setdefault(reason, []).append(name)
    if not names_by_reason:
        return training.why
    groups = []
    for reason, names in names_by_reason.items():
        groups.append(f"{', '.join(names)} ({reason})")
    return f"{training.why}; left out: {'; '.join(groups)}"
