"""NCCL_P2P_DISABLE: for GPUs that NVLink joins while the driver refuses access between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.facts.gpu import Nvml, Readings
from clusterprep.facts.nvlink import NvLinks, pair_statuses
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.alike import alike_nodes
from clusterprep.nccl.variables import Basis, Derived, ValueAndReason, grouped

FINE, UNKNOWN = 0, 6  # nvmlGpuP2PStatus_t

Pair = tuple[int, int]  # indices of two GPUs


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield 1 for each node with broken peer access.

    Values are per node: all ranks of a node must agree, and other nodes do not notice.

    Without NVLink between two GPUs NCCL finds out by itself what it can use, and cards without
    NVLink are not broken. If NVLink joins them and the driver refuses, NCCL ends with an error
    before the first collective (ncclTopoCheckP2p of src/graph/paths.cc); through memory of the
    host the job runs, slowly.
    """
    values: dict[str, ValueAndReason] = {}
    refused = _nodes_with_refused_pairs(basis.fleet)
    for node in basis.fleet.reached:
        if node.name not in refused:
            continue
        pairs = broken_pairs(basis.fleet, node)
        if pairs:
            names = ", ".join(f"{first} and {second}" for first, second in pairs)
            why = (
                f"peer access is broken between GPUs {names}, which NVLink joins; "
                "this is slow, and goes once repaired"
            )
            values[node.name] = ("1", why)
    yield from grouped("NCCL_P2P_DISABLE", values)


def _nodes_with_refused_pairs(fleet: Fleet) -> set[str]:
    """Return the nodes on which the driver refuses access between some GPUs, for any reason."""
    names: set[str] = set()
    for nodes in alike_nodes(fleet, fleet.reached, ("nvlink.pairs",)):
        statuses = fleet.fact(nodes[0].name, "nvlink.pairs")
        if not isinstance(statuses, Absent) and _any_refused(statuses):
            names.update([node.name for node in nodes])
    return names


def _any_refused(statuses: Readings) -> bool:
    return any(map(_is_refused, pair_statuses(statuses).values()))


def _is_refused(status: int | None) -> bool:
    return status not in (None, FINE, UNKNOWN)


def broken_pairs(fleet: Fleet, node: Node) -> list[Pair]:
    """Return the pairs of the job's GPUs that NVLink joins and that cannot reach each other.

    A pair whose state is not known does not count as broken.
    """
    links = fleet.fact(node.name, "nvlink.links")
    statuses = fleet.fact(node.name, "nvlink.pairs")
    nvml = fleet.fact(node.name, "gpu.nvml")
    if any(isinstance(value, Absent) for value in (links, statuses, nvml)):
        return []
    use = None
    if node.gpus is not None:
        use = node.gpus.use
    partitioned = _partitioned_gpus(fleet.fact(node.name, "gpu.mig"))
    pairs = []
    for pair, status in pair_statuses(statuses).items():
        if not _is_refused(status):
            continue
        is_used = use is None or set(pair) <= set(use)
        if is_used and partitioned.isdisjoint(pair) and _are_linked(links, nvml, pair):
            pairs.append(pair)
    return pairs


def _partitioned_gpus(mig: Readings | Absent) -> set[int]:
    """Return the GPUs that are cut into instances, which have no peers by design."""
    if isinstance(mig, Absent):
        return set()
    indices = set()
    for index, modes in mig.items():
        if not isinstance(modes, Absent) and any(modes):
            indices.add(index)
    return indices


def _are_linked(links: Mapping[int, NvLinks | Absent], nvml: Nvml, pair: Pair) -> bool:
    """Return whether both GPUs have NVLinks up, to one switch or to each other."""
    first, second = (links.get(index) for index in pair)
    if not isinstance(first, NvLinks) or not isinstance(second, NvLinks):
        return False
    if not first.up or not second.up:
        return False
    if first.switched and second.switched:
        return True
    peers = {_normalized_address(peer) for peer in first.peers}
    for gpu in nvml.gpus:
        if gpu.index == pair[1]:
            return _normalized_address(gpu.pci) in peers
    return False


def _normalized_address(address: str) -> str:
    """Return a PCI address in one form.

    NVML writes the domain with eight digits, or four, and letters of either case.
    """
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0')}:{rest}"
