"""The NUMA nodes of the job's GPUs: the declared devices, or one NUMA node where one is enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.gpu import Function, Nvml
from clusterprep.model import Node
from clusterprep.remedies import sentence

Places = dict[int, int | None]
"""Index of a GPU → its NUMA node, None if the machine does not say."""


def span(
    context: CheckContext, node: Node, nvml: Nvml | None, functions: tuple[Function, ...]
) -> Outcome:
    """Judge that a part of the devices does not span NUMA nodes where one node has enough."""
    places = _places(nvml, functions)
    if not places:
        return skipped(node, "no GPU here")
    used = tuple(places)
    if node.gpus is not None and node.gpus.use is not None:
        used = node.gpus.use
    missing = [index for index in used if index not in places]
    if missing:
        return unknown(node, _not_answering(missing), "gpu.lost")
    known = {index for index in used if places[index] is not None}
    if not known:
        message = (
            "the machine does not say which NUMA node a GPU is on (one node, or a virtual machine)"
        )
        return skipped(node, message)
    if len(known) < len(used):
        message = "the machine does not say of all GPUs which NUMA node they are on"
        reason = "numa_node of PCI devices is -1"
        return unknown(node, message, reason, _seen(places, used))
    return _judge_used(node, places, used)


def _places(nvml: Nvml | None, functions: tuple[Function, ...]) -> Places:
    places: Places = {}
    if nvml is not None:
        numa_nodes = {function.pci: function.numa for function in functions}
        for gpu in nvml.gpus:
            places[gpu.index] = numa_nodes.get(_address(gpu.pci))
    return places


def _judge_used(node: Node, places: Places, used: tuple[int, ...]) -> Outcome:
    seen = _seen(places, used)
    if len(used) == len(places):
        return passed(node, "all GPUs are used", seen, "as declared")
    holes = ""
    if _has_holes(used):
        use = ",".join(map(str, used))
        holes = f", with holes in `use: {use}`"
    if len({places[index] for index in used}) == 1:
        message = f"the GPUs of this job are on one NUMA node{holes}"
        return passed(node, message, seen, "one NUMA node")
    fitting = _fitting(places, len(used))
    if fitting is None:
        message = f"no NUMA node has {len(used)} GPUs{holes}"
        return passed(node, message, seen, "one NUMA node where one is enough")
    total = node.gpus.count if node.gpus else len(places)
    better = _as_use(fitting)
    message = f"the GPUs of this job span NUMA nodes, and {better} would not{holes}"
    remedy = sentence(
        'set `gpus: {{count: {total}, use: "{better}"}}` for {name}',
        total=total,
        better=better,
        name=node.name,
    )
    return failed(
        node,
        message,
        seen,
        f"one NUMA node: {better}",
        remedy,
    )


def _by_numa_node(places: Places, indices: Iterable[int]) -> dict[int | None, list[int]]:
    groups: dict[int | None, list[int]] = {}
    for index in indices:
        groups.setdefault(places[index], []).append(index)
    return groups


def _fitting(places: Places, size: int) -> tuple[int, ...] | None:
    """Return the first devices of a NUMA node that has enough of them."""
    for numa_node, indices in _by_numa_node(places, places).items():
        if numa_node is not None and len(indices) >= size:
            return tuple(indices[:size])
    return None


def _has_holes(indices: tuple[int, ...]) -> bool:
    return max(indices) - min(indices) >= len(indices)


def _as_use(indices: tuple[int, ...]) -> str:
    """Return indices as `use:` is written: «0-3» or «0,2»."""
    if len(indices) > 1 and not _has_holes(indices):
        return f"{indices[0]}-{indices[-1]}"
    return ",".join(map(str, indices))


def _not_answering(indices: list[int]) -> str:
    if len(indices) == 1:
        return f"device {indices[0]} of `use:` does not answer"
    numbers = ", ".join(map(str, indices))
    return f"devices {numbers} of `use:` do not answer"


def _seen(places: Places, used: tuple[int, ...]) -> str:
    """Return «NUMA 0: GPU 0,1; NUMA 1: GPU 2»."""
    parts = []
    for numa_node, indices in _by_numa_node(places, used).items():
        name = "?" if numa_node is None else numa_node
        gpus = ",".join(map(str, indices))
        parts.append(f"NUMA {name}: GPU {gpus}")
    return "; ".join(parts)


def _address(pci: str) -> str:
    """Return NVML's «00000000:18:00.0» as the kernel writes it."""
    domain, _, rest = pci.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _with_moved_gpu(functions: tuple[Function, ...]) -> tuple[Function, ...]:
    """Return functions of which the last GPU sits at the other socket, for the proof."""
    last = max(functions, key=lambda function: function.pci)
    moved = replace(last, numa=0)
    return tuple(moved if function is last else function for function in functions)


SPAN = Check(
    "gpu.numa_span",
    facts=("gpu.nvml", "gpu.functions"),
    judge=each(span, "gpu.nvml", "gpu.functions"),
    severity="warning",
    title="NUMA nodes of the job's GPUs",
    why="GPUs on two sockets talk through the link between them; with four of ten that is seldom "
    "what was meant.",
    how="numa_node of each GPU's PCI device. All devices in use: as meant. A part of them (`gpus: "
    "{use: …}`): on one NUMA node where one has enough.",
    remedy=sentence(
        'set `gpus: {{count: N, use: "…"}}` to devices of one NUMA node: nvidia-smi topo -m'
    ),
    proof=Proof("gpu.functions", _with_moved_gpu, fleet="l20-mixed-box"),
)
