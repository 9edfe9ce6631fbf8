"""Write to the console the GPUs of the nodes, and the GPU that each rank would get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterprep.model import GpuSeat, RankPlace
from clusterprep.model.units import pluralize
from clusterprep.reports.page import ReportPage
from clusterprep.reports.plain import fold_nodes, fold_ranks, safe_text

INDENT = 2
KINDS = 4  # groups of nodes with equal GPUs shown without -v
NODES = 32  # characters of their names then
RANKS = 16  # ranks shown without -v, where they are worth a look

Kind = tuple[tuple[str, ...], tuple[GpuSeat, ...]]  # nodes with the same GPUs, and these


def write_gpus(page: ReportPage, seats: Sequence[GpuSeat] | None) -> None:
    """Write for each group of nodes with equal GPUs: model, NUMA nodes, near RDMA ports.

    Without -v it is one line with the models.
    """
    if not seats:
        return
    kinds = _kinds(seats)
    if not page.verbose:
        _write_models(page, kinds)
        return
    page.blank()
    page.row(("GPUs", "bold"))
    for nodes, gpus in kinds:
        name = fold_nodes(nodes)
        label = " " * INDENT + name
        page.row(label, _summary(gpus), indent=len(label) + 2)


def _write_models(page: ReportPage, kinds: Sequence[Kind]) -> None:
    """Write one line: the models of the GPUs, and the nodes that have them."""
    texts = []
    for nodes, gpus in kinds[:KINDS]:
        texts.append(f"{fold_nodes(nodes, NODES)} {_models(gpus)}")
    if len(kinds) > KINDS:
        texts.append(f"… {len(kinds) - KINDS} more groups of nodes (-v)")
    page.line(("GPUs", "bold"), "; ".join(texts))


def _kinds(seats: Iterable[GpuSeat]) -> list[Kind]:
    """Return groups of nodes that have the same GPUs, with these."""
    by_node: dict[str, list[GpuSeat]] = {}
    for seat in seats:
        for node in seat.nodes:
            by_node.setdefault(node, []).append(seat)
    nodes_by_gpus: dict[tuple[GpuSeat, ...], list[str]] = {}
    for node, gpus in by_node.items():
        ordered = tuple(sorted(gpus, key=lambda gpu: gpu.index))
        nodes_by_gpus.setdefault(ordered, []).append(node)
    return [(tuple(nodes), gpus) for gpus, nodes in nodes_by_gpus.items()]


def _summary(gpus: Sequence[GpuSeat]) -> str:
    """Return «8 × NVIDIA H200, 18 NVLinks; NUMA 0: GPU 0-3 (mlx5_0, mlx5_3, …); …»."""
    by_numa: dict[int | None, list[GpuSeat]] = {}
    for gpu in gpus:
        by_numa.setdefault(gpu.numa, []).append(gpu)
    places = [_place_words(numa, there) for numa, there in by_numa.items()]
    return "; ".join([_models(gpus), *places])


def _models(gpus: Sequence[GpuSeat]) -> str:
    """Return «8 × NVIDIA H200, 18 NVLinks»."""
    by_model: dict[str, list[GpuSeat]] = {}
    for gpu in gpus:
        by_model.setdefault(gpu.model, []).append(gpu)
    models = [_model_words(model, same) for model, same in by_model.items()]
    return " and ".join(models)


def _model_words(model: str, gpus: Sequence[GpuSeat]) -> str:
    text = f"{len(gpus)} × {safe_text(model, 64)}"
    links = sorted({gpu.nvlinks for gpu in gpus if gpu.nvlinks})
    if links:
        text += f", {'/'.join(map(str, links))} NVLinks"
    return text


def _place_words(numa: int | None, gpus: Sequence[GpuSeat]) -> str:
    number = "?" if numa is None else numa
    text = f"NUMA {number}: GPU {fold_ranks(gpu.index for gpu in gpus)}"
    near = dict.fromkeys(port for gpu in gpus for port in gpu.near)
    if near:
        text += f" ({', '.join(safe_text(port, 24) for port in near)})"
    return text


def write_ranks(page: ReportPage, ranks: Sequence[RankPlace] | None) -> None:
    """Write the GPU of each rank: with -v always, else where it is not simply the next one."""
    if not ranks or (not page.verbose and _is_plain(ranks)):
        return
    page.blank()
    page.row(("Ranks", "bold"), "  the GPU that each would get", indent=INDENT)
    for place in page.shown(ranks, RANKS):
        node = safe_text(place.node, 64)
        text = f"{node} local {place.local_rank}, {_device(place)}"
        page.row(f"  rank {place.rank}", text, indent=INDENT + 12)
    if len(ranks) > RANKS and not page.verbose:
        more = pluralize(len(ranks) - RANKS, "more rank")
        page.under((f"… {more} (-v)", "dim"), indent=INDENT)


def _is_plain(ranks: Iterable[RankPlace]) -> bool:
    """Return whether every rank has the GPU of its local number."""
    return all(place.gpu is not None and place.gpu.index == place.local_rank for place in ranks)


def _device(place: RankPlace) -> str:
    gpu = place.gpu
    if gpu is None:
        return f"no GPU: {safe_text(place.why)}"
    numa = "?" if gpu.numa is None else gpu.numa
    uuid = safe_text(gpu.uuid, 64)
    return f"GPU {gpu.index}, {uuid}, {safe_text(gpu.pci, 32)}, NUMA {numa}"
