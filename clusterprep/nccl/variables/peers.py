"""NCCL_P2P_DISABLE: where GPUs are joined by NVLink and the driver says that they cannot reach each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.facts.gpu import Nvml, Readings
from clusterprep.facts.nvlink import NvLinks, joined
from clusterprep.model import Absent, Fleet, Node
from clusterprep.nccl.variables import Basis, Derived, grouped

FINE, UNKNOWN = 0, 6  # nvmlGpuP2PStatus_t


def derive(basis: Basis) -> Iterable[Derived]:
    """Per node: all ranks of a node must agree, and other nodes do not notice.

    Without NVLink between two GPUs NCCL finds out by itself what it can use, and cards without it are not broken.
    Where NVLink joins them and the driver refuses, NCCL ends with an error before the first collective
    (ncclTopoCheckP2p of src/graph/paths.cc); through memory of the host the job runs, slowly.
    """
    values: dict[str, tuple[str | None, str]] = {}
    for node in basis.fleet.reached:
        if pairs := broken(basis.fleet, node):
            names = ", ".join(f"{a} and {b}" for a, b in pairs)
            why = f"peer access is broken between GPUs {names}, which NVLink joins; this is slow, and goes once repaired"
            values[node.name] = ("1", why)
    yield from grouped("NCCL_P2P_DISABLE", values)


def broken(fleet: Fleet, node: Node) -> list[tuple[int, int]]:
    """Pairs of the job's GPUs that NVLink joins and that cannot reach each other; what is not known is not broken."""
    links, pairs, nvml, mig = (
        fleet.fact(node.name, name)
        for name in ("nvlink.links", "nvlink.pairs", "gpu.nvml", "gpu.mig")
    )
    if any(isinstance(value, Absent) for value in (links, pairs, nvml)):
        return []
    use = node.gpus.use if node.gpus is not None else None
    shared = _shared(mig)
    return [
        pair
        for pair, status in joined(pairs).items()
        if status not in (None, FINE, UNKNOWN)
        and (use is None or set(pair) <= set(use))
        and not shared & set(pair)
        and _linked(links, nvml, pair)
    ]


def _shared(mig: Readings | Absent) -> set[int]:
    """GPUs that are cut into instances, which have no peers by design."""
    if isinstance(mig, Absent):
        return set()
    return {index for index, modes in mig.items() if not isinstance(modes, Absent) and any(modes)}


def _linked(links: Mapping[int, NvLinks | Absent], nvml: Nvml, pair: tuple[int, int]) -> bool:
    first, second = (links.get(index) for index in pair)
    if (
        not isinstance(first, NvLinks)
        or not isinstance(second, NvLinks)
        or not (first.up and second.up)
    ):
        return False
    places = {gpu.index: _plain(gpu.pci) for gpu in nvml.gpus}
    return (first.switched and second.switched) or places.get(pair[1]) in {
        _plain(peer) for peer in first.peers
    }


def _plain(address: str) -> str:
    """NVML writes the domain with eight digits, or four, and letters of either case."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0')}:{rest}"
