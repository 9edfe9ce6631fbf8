"""The NUMA nodes that the job's GPUs are on: all of them on purpose, or one where one is enough."""

from __future__ import annotations

from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.facts.gpu import Function, Nvml
from clusterprep.model import Node


def span(
    context: CheckContext, node: Node, nvml: Nvml | None, functions: tuple[Function, ...]
) -> Outcome:
    """A part of the devices that spans NUMA nodes although one node has enough of them is not what was meant."""
    places = {f.pci: f.numa for f in functions}
    numa = {gpu.index: places.get(_address(gpu.pci)) for gpu in (nvml.gpus if nvml else ())}
    if not numa:
        return Outcome("skip", (node.name,), "no GPU here", reason="not_applicable")
    use = node.gpus.use if node.gpus else None
    mine = tuple(numa) if use is None else use
    missing = [index for index in mine if index not in numa]
    if missing:
        message = f"device {', '.join(map(str, missing))} of `use:` does not answer"
        return Outcome("unknown", (node.name,), message, reason="gpu.lost")
    known = {index: numa[index] for index in mine if numa[index] is not None}
    if not known:
        message = (
            "the machine does not say which NUMA node a GPU is on (one node, or a virtual machine)"
        )
        return Outcome("skip", (node.name,), message, reason="not_applicable")
    if len(known) < len(mine):
        message = "the machine does not say of all GPUs which NUMA node they are on"
        return Outcome(
            "unknown",
            (node.name,),
            message,
            _seen(numa, mine),
            reason="numa_node of PCI devices is -1",
        )
    return _judged(node, numa, mine)


def _judged(node: Node, numa: dict[int, int | None], mine: tuple[int, ...]) -> Outcome:
    seen = _seen(numa, mine)
    holes = f", with holes in `use: {','.join(map(str, mine))}`" if _holes(mine) else ""
    if len(mine) == len(numa):
        return Outcome("pass", (node.name,), "all GPUs are used", seen, "as declared")
    if len({numa[index] for index in mine}) == 1:
        return Outcome(
            "pass",
            (node.name,),
            f"the GPUs of this job are on one NUMA node{holes}",
            seen,
            "one NUMA node",
        )
    fitting = _fitting(numa, len(mine))
    if fitting is None:
        message = f"no NUMA node has {len(mine)} GPUs{holes}"
        return Outcome("pass", (node.name,), message, seen, "one NUMA node where one is enough")
    total = node.gpus.count if node.gpus else len(numa)
    written = _written(fitting)
    cure = f'set `gpus: {{count: {total}, use: "{written}"}}` for {node.name}'
    message = f"the GPUs of this job span NUMA nodes, and {written} would not{holes}"
    return Outcome("fail", (node.name,), message, seen, f"one NUMA node: {written}", cure)


def _fitting(numa: dict[int, int | None], size: int) -> tuple[int, ...] | None:
    """The first devices of a NUMA node that has enough of them."""
    groups: dict[int | None, list[int]] = {}
    for index, place in numa.items():
        groups.setdefault(place, []).append(index)
    enough = [group for place, group in groups.items() if place is not None and len(group) >= size]
    return tuple(enough[0][:size]) if enough else None


def _holes(mine: tuple[int, ...]) -> bool:
    return max(mine) - min(mine) >= len(mine)


def _written(indices: tuple[int, ...]) -> str:
    if len(indices) > 1 and not _holes(indices):
        return f"{indices[0]}-{indices[-1]}"
    return ",".join(map(str, indices))


def _seen(numa: dict[int, int | None], mine: tuple[int, ...]) -> str:
    groups: dict[int | None, list[int]] = {}
    for index in mine:
        groups.setdefault(numa[index], []).append(index)
    return "; ".join(
        f"NUMA {'?' if n is None else n}: GPU {','.join(map(str, g))}" for n, g in groups.items()
    )


def _address(pci: str) -> str:
    """NVML's «00000000:18:00.0» as the kernel writes it."""
    domain, _, rest = pci.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _elsewhere(functions: tuple[Function, ...]) -> tuple[Function, ...]:
    """For the proof: the last GPU sits at the other socket."""
    last = max(functions, key=lambda function: function.pci)
    return tuple(replace(f, numa=0) if f is last else f for f in functions)


SPAN = Check(
    "gpu.numa_span",
    facts=("gpu.nvml", "gpu.functions"),
    judge=each(span, "gpu.nvml", "gpu.functions"),
    severity="warning",
    title="NUMA nodes of the job's GPUs",
    why="GPUs on two sockets talk through the link between them; with four of ten that is seldom what was meant.",
    how="numa_node of each GPU's PCI device. All devices in use: as meant. A part of them (`gpus: {use: …}`): on one "
    "NUMA node where one has enough.",
    remedy='set `gpus: {count: N, use: "…"}` to devices of one NUMA node: nvidia-smi topo -m',
    proof=Proof("gpu.functions", _elsewhere, fleet="l20-mixed-box"),
)
