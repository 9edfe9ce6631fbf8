"""The NUMA nodes of the job's GPUs: those declared or visible, on one node where one has enough."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.gpu import WITHOUT_UUIDS, Function, Nvml
from clusterprep.facts.visible_gpus import NAME, numa_nodes, session_of, visible_gpus
from clusterprep.model import NOT_ASKED, Absent, Node
from clusterprep.remedies import sentence

ALL_UNLESS = "all GPUs are used, unless the job's session shows fewer, which was not asked"

Places = dict[int, int | None]
"""Index of a GPU → its NUMA node, None if the machine does not say."""


def span(context: CheckContext) -> Iterable[Outcome]:
    """Judge that a part of the devices does not span NUMA nodes where one node has enough."""
    looked_at = ("gpu.nvml", "gpu.functions", "env.paths")
    for nodes in context.alike(*looked_at, parts=[WITHOUT_UUIDS]):
        outcome = _span_of_node(context, nodes[0])
        # A remedy names the node, and a session may name its GPUs by their own numbers.
        if outcome.verdict == "fail" or _names_uuids(context, nodes[0]):
            yield from [_span_of_node(context, node) for node in nodes]
        else:
            yield from about_all(nodes, [outcome])


def _names_uuids(context: CheckContext, node: Node) -> bool:
    """Return whether the session of a node says by their UUIDs which GPUs are visible."""
    paths = context.value(node, "env.paths")
    visible = None if isinstance(paths, Absent) else session_of(paths).value
    return "gpu-" in (visible or "").lower()


def _span_of_node(context: CheckContext, node: Node) -> Outcome:
    nvml: Nvml | None = context.value(node, "gpu.nvml")
    functions: tuple[Function, ...] = context.value(node, "gpu.functions")
    places = _places(nvml, functions)
    if nvml is None or not places:
        return skipped(node, "no GPU here")
    job = _job_devices(context, node, nvml)
    if job.unknown:
        return unknown(node, f"{job.what} are not known: {job.unknown}", job.reason)
    if not job.used:
        return skipped(node, f"no GPU is visible to the job: {job.setting}")
    missing = [index for index in job.used if index not in places]
    if missing:
        return unknown(node, _not_answering(missing), "gpu.lost")
    known = {index for index in job.used if places[index] is not None}
    if not known:
        message = (
            "the machine does not say which NUMA node a GPU is on (one node, or a virtual machine)"
        )
        return skipped(node, message)
    if len(known) < len(job.used):
        message = "the machine does not say of all GPUs which NUMA node they are on"
        reason = "numa_node of PCI devices is -1"
        return unknown(node, message, reason, _seen(places, job.used))
    return _judge_used(node, places, job, nvml)


class _JobDevices(Struct, frozen=True):
    """The GPUs of a node that its job uses, by NVML's index, and what says so.

    `doubt` and `unknown` as in Visible; `reason` is that of an unknown.
    """

    used: tuple[int, ...]
    what: str = "the GPUs of this job"
    setting: str = ""
    doubt: str = ""
    unknown: str = ""
    reason: str = "not_asked"


def _job_devices(context: CheckContext, node: Node, nvml: Nvml) -> _JobDevices:
    """Return the devices that `use:` declares, else those that the job's session shows.

    The session is looked at where other checks asked for it: to ask takes the job's shells, which a
    check of hardware should not wait for.
    """
    if node.gpus is not None and node.gpus.use is not None:
        use = ",".join(map(str, node.gpus.use))
        return _JobDevices(node.gpus.use, setting=f"`use: {use}`")
    paths = context.fleet.fact(node.name, "env.paths")
    everything = tuple(gpu.index for gpu in nvml.gpus)
    if paths == NOT_ASKED:
        return _JobDevices(everything, ALL_UNLESS)
    if isinstance(paths, Absent):
        why = paths.detail or paths.reason
        return _JobDevices(everything, unknown=why, reason=paths.reason)
    session = session_of(paths)
    if session.value is None:
        return _JobDevices(everything)
    visible = visible_gpus(session.value, nvml, session.order)
    return _JobDevices(
        visible.indices,
        f"the GPUs that {NAME} shows",
        f"{NAME}={session.value}",
        visible.doubt,
        visible.unknown,
    )


def _places(nvml: Nvml | None, functions: tuple[Function, ...]) -> Places:
    if nvml is None:
        return {}
    return numa_nodes(nvml, {function.pci: function.numa for function in functions})


def _judge_used(node: Node, places: Places, job: _JobDevices, nvml: Nvml) -> Outcome:
    used = job.used
    seen = _seen(places, used)
    if len(used) == len(places):
        message = ALL_UNLESS if job.what == ALL_UNLESS else "all GPUs are used"
        return passed(node, message, seen, "as declared")
    tail = f", with holes in {job.setting}" if _has_holes(used) else ""
    if job.doubt:
        tail += f" ({job.doubt})"
    if len({places[index] for index in used}) == 1:
        return passed(node, f"{job.what} are on one NUMA node{tail}", seen, "one NUMA node")
    fitting = _fitting(places, used, nvml)
    if fitting is None:
        message = f"no NUMA node has {len(used)} GPUs of one model{tail}"
        return passed(node, message, seen, "one NUMA node where one is enough")
    total = node.gpus.count if node.gpus else len(places)
    better = _as_use(fitting)
    names = {gpu.index: gpu.name for gpu in nvml.gpus}
    other = ""
    if names[fitting[0]] not in {names[index] for index in used}:
        other = f" ({names[fitting[0]]})"
    message = f"{job.what} span NUMA nodes, and {better}{other} would not{tail}"
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


def _fitting(places: Places, used: tuple[int, ...], nvml: Nvml) -> tuple[int, ...] | None:
    """Return the first devices of one model and NUMA node that are enough.

    Those of a model that the job uses go first.
    """
    names = {gpu.index: gpu.name for gpu in nvml.gpus}
    in_use = {names[index] for index in used}
    groups: dict[tuple[str, int | None], list[int]] = {}
    for index in places:
        groups.setdefault((names[index], places[index]), []).append(index)
    for (_, numa_node), indices in sorted(
        groups.items(), key=lambda group: group[0][0] not in in_use
    ):
        if numa_node is not None and len(indices) >= len(used):
            return tuple(indices[: len(used)])
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


def _with_moved_gpu(functions: tuple[Function, ...]) -> tuple[Function, ...]:
    """Return functions of which the last GPU sits at the other socket, for the proof."""
    last = max(functions, key=lambda function: function.pci)
    moved = replace(last, numa=0)
    return tuple(moved if function is last else function for function in functions)


SPAN = Check(
    "gpu.numa_span",
    facts=("gpu.nvml", "gpu.functions"),
    judge=span,
    severity="warning",
    title="NUMA nodes of the job's GPUs",
    why="GPUs on two sockets talk through the link between them; with four of ten that is seldom "
    "what was meant.",
    how="numa_node of each GPU's PCI device. All devices in use: as meant. A part, declared by "
    " `gpus: {use: …}` or else shown by the session's CUDA_VISIBLE_DEVICES: on one NUMA node "
    "where one has enough of a model.",
    remedy=sentence(
        "name devices of one NUMA node under gpus, use of the inventory: nvidia-smi topo -m"
    ),
    proof=Proof("gpu.functions", _with_moved_gpu, fleet="l20-mixed-box"),
)
