"""The GPUs of each node, and the GPU that each rank of a job would get. Pure.

Ranks are numbered in the order of the inventory: a launcher starts as many on a node as are
declared, else one for each GPU that the job's session shows. The n-th rank of a node takes the n-th
GPU that it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterprep.facts.gpu import Nvml
from clusterprep.facts.nvlink import NvLinks
from clusterprep.facts.visible_gpus import bus_address, numa_nodes, session_of, visible_gpus
from clusterprep.model import Absent, Fleet, GpuSeat, Node, RankGpu, RankPlace
from clusterprep.nccl.rails import training_sets

SWITCH = "PCIe switch"


def gpu_seats(fleet: Fleet) -> tuple[GpuSeat, ...] | None:
    """Return the GPUs of all nodes, equal ones of several nodes as one; None if none were seen."""
    nodes_by_seat: dict[tuple[Any, ...], list[str]] = {}
    for node in fleet.reached:
        for seat in _seats_of_node(fleet, node):
            nodes_by_seat.setdefault(seat, []).append(node.name)
    if not nodes_by_seat:
        return None
    return tuple(GpuSeat(tuple(nodes), *seat) for seat, nodes in nodes_by_seat.items())


def _seats_of_node(fleet: Fleet, node: Node) -> list[tuple[Any, ...]]:
    """Return index, model, address, NUMA node, NVLinks that are up, and near RDMA ports of GPUs."""
    gpus = _gpus(fleet, node)
    links = fleet.fact(node.name, "nvlink.links")
    seats = []
    for index, gpu in gpus.items():
        of_gpu = None if isinstance(links, Absent) else links.get(index)
        number = len(of_gpu.up) if isinstance(of_gpu, NvLinks) else None
        near = _near_ports(fleet, node, gpu.pci)
        seats.append((index, _model(fleet, node, index), gpu.pci, gpu.numa, number, near))
    return seats


def _gpus(fleet: Fleet, node: Node) -> dict[int, RankGpu]:
    """Return the GPUs that NVML lists, by its index; none where it was not asked or is silent."""
    nvml = fleet.fact(node.name, "gpu.nvml")
    functions = fleet.fact(node.name, "gpu.functions")
    if not isinstance(nvml, Nvml):
        return {}
    places: Mapping[str, int | None] = {}
    if not isinstance(functions, Absent):
        places = {function.pci: function.numa for function in functions}
    numa = numa_nodes(nvml, places)
    gpus = {}
    for gpu in nvml.gpus:
        address = bus_address(gpu.pci, places)
        gpus[gpu.index] = RankGpu(gpu.uuid, gpu.index, address, numa[gpu.index])
    return gpus


def _model(fleet: Fleet, node: Node, index: int) -> str:
    nvml: Nvml = fleet.fact(node.name, "gpu.nvml")
    return next(gpu.name for gpu in nvml.gpus if gpu.index == index)


def _near_ports(fleet: Fleet, node: Node, pci: str) -> tuple[str, ...]:
    """Return the training ports under one PCIe switch with a GPU."""
    tree = fleet.fact(node.name, "pci.tree")
    if isinstance(tree, Absent) or isinstance(fleet.fact(node.name, "rdma.devices"), Absent):
        return ()
    training = training_sets(fleet)[node.name]
    gpu = tree.device(pci)
    if isinstance(training, Absent) or gpu is None:
        return ()
    near = []
    for rail in training.rails:
        card = tree.device(rail.device.pci)
        if card is not None and card.under_one_switch(gpu):
            near.append(rail.name)
    return tuple(near)


# ---------------------------------------------------------------- ranks


def rank_places(fleet: Fleet) -> tuple[RankPlace, ...] | None:
    """Return every rank with its GPU; None where no node was seen to have GPUs.

    The table ends at the first node whose number of ranks is not known, as all ranks behind it
    are not known then either.
    """
    rows: list[RankPlace] = []
    has_gpus = False
    for node in fleet.inventory.nodes:
        gpus = _gpus(fleet, node) if node.name in fleet.snapshots else {}
        has_gpus = has_gpus or bool(gpus)
        order, why = _in_cuda_order(fleet, node, gpus)
        count = _rank_count(node, order)
        if count is None:
            break
        for local in range(count):
            gpu = _gpu_of_rank(gpus, order, local)
            reason = "" if gpu else why or "there is no further GPU for it"
            rows.append(RankPlace(len(rows), local, node.name, gpu, reason))
    return tuple(rows) if has_gpus else None


def _rank_count(node: Node, order: Sequence[int] | None) -> int | None:
    """Return how many ranks a node runs: as declared, else one for each GPU; None if not known."""
    if node.nproc_per_node is not None:
        return node.nproc_per_node
    if order is not None:
        return len(order)
    if node.gpus is not None:
        return node.gpus.used or 1
    return None


def _gpu_of_rank(
    gpus: Mapping[int, RankGpu], order: Sequence[int] | None, local: int
) -> RankGpu | None:
    """Return the GPU of a local rank; None if it is not known or there is none for it."""
    if order is None or local >= len(order):
        return None
    return gpus.get(order[local])


def _in_cuda_order(
    fleet: Fleet, node: Node, gpus: Mapping[int, RankGpu]
) -> tuple[tuple[int, ...] | None, str]:
    """Return NVML's indices of the GPUs that the job sees, in CUDA's order, or None and why."""
    if node.name not in fleet.snapshots or not gpus:
        return None, "the GPUs of this node are not known"
    if node.gpus is not None and node.gpus.use is not None:
        return node.gpus.use, ""
    session = session_of(fleet.fact(node.name, "env.paths"))
    visible = visible_gpus(session.value, fleet.fact(node.name, "gpu.nvml"), session.order)
    if visible.unknown:
        return None, visible.unknown
    return visible.indices, ""
