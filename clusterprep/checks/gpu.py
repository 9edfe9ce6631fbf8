"""GPUs: as many as declared, none lost, none hidden from this session, all of one model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    names_of,
    passed,
    skipped,
    uniform,
    unknown,
)
from clusterprep.checks.gpu_health import by_text, of_job
from clusterprep.facts.gpu import (
    MISSING,
    WITHOUT_UUIDS,
    DeviceNodes,
    Function,
    Gone,
    Listed,
    Model,
    Nvml,
)
from clusterprep.facts.visible_gpus import session_of, visible_gpus
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import equal_values
from clusterprep.model.units import format_size
from clusterprep.remedies import Remedy, sentence, shell_line

# Memory of one model differs by this part at most: ECC on GDDR takes a sixteenth of it.
ALIKE = 0.10
ALL_OPEN = "all may be opened"
RESET = shell_line(
    "nvidia-smi --gpu-reset   # with no process on any GPU; on an HGX board of all, or reboot"
)
KERNEL_LOG = shell_line("dmesg | grep -e NVRM -e Xid   # then reboot, or power cycle the node")
NOT_STARTED = shell_line(
    "nvidia-smi; dmesg | grep -e NVRM -e Xid"
    "   # in a container: start it again, as a reload of systemd takes its GPUs away; else reboot"
)
NO_LIBRARY = shell_line(
    "find / -xdev -name 'libnvidia-ml.so.*'"
    "   # where the driver lives in a container, look at the nodes from the job's container; else "
    "install the driver's libraries"
)
NO_DRIVER = shell_line(
    "cat /proc/driver/nvidia/version; lspci -k -d 10de:   # then modprobe nvidia, or install it"
)
NO_CARD = shell_line(
    "lspci -d 10de:   # none: take `gpus:` out of the inventory, or look at cards and pass-through"
)
FREE = shell_line(
    "srun --jobid=JOB --overlap clusterprep check --local"
    "   # or exempt ssh sessions from the scheduler's device cgroup"
)

Sizes = Mapping[tuple[str, str], list[int]]
"""Name and compute capability of a model → the sizes of memory that are told apart, ascending."""


# ---------------------------------------------------------------- count


def count(
    context: CheckContext,
    node: Node,
    nvml: Nvml | None,
    pci: tuple[str, ...],
    functions: tuple[Function, ...],
    nodes: DeviceNodes,
) -> Outcome:
    """Judge that NVML, PCI and the inventory agree on the number of GPUs.

    Lost devices count here, because gpu.lost reports them.
    """
    declared = None if node.gpus is None else node.gpus.count
    listed = _count_listed(nvml)
    visible = listed + _unlisted_lost(functions, pci, listed)
    seen = f"{listed} by NVML, {len(pci)} on PCI"
    wanted = "as many by NVML as on PCI"
    if declared is not None:
        wanted = f"{declared} declared"
    if not declared and not pci and not visible:
        return skipped(node, "no GPU here", seen, wanted)
    if _hidden(nodes, listed, declared):
        message = "GPUs are hidden from this session, so they cannot be counted"
        return unknown(
            node,
            message,
            "hidden",
            seen,
            wanted,
            FREE,
            severity="warning",
        )
    expected = declared
    if expected is None:
        # A container may be given GPUs and no view of the bus.
        expected = len(pci) or visible
    if nvml is None and expected and not nodes.bound:
        if pci:
            message = "no driver has the GPUs: it is not loaded, or its library is missing"
            return failed(node, message, seen, wanted, NO_DRIVER)
        message = "there is no GPU of NVIDIA on the PCI bus, and the inventory declares some"
        return failed(node, message, seen, wanted, NO_CARD)
    if visible < expected:
        remedy = shell_line(
            "dmesg | grep -e NVRM -e Xid   # fell off the bus: reseat or power cycle"
        )
        return failed(
            node,
            "GPUs are missing from the driver",
            seen,
            wanted,
            remedy,
        )
    # A bus that is seen never has fewer functions than NVML.
    if visible > expected or 0 < len(pci) < visible:
        remedy = sentence("set `gpus:` right")
        return failed(
            node,
            "there are more GPUs than declared",
            seen,
            wanted,
            remedy,
        )
    return passed(node, "all GPUs are there", seen, wanted)


def _count_listed(nvml: Nvml | None) -> int:
    """Return how many devices NVML lists, with those that do not answer or are denied."""
    if nvml is None:
        return 0
    return len(nvml.gpus) + len(nvml.lost) + len(nvml.denied)


def _unlisted_lost(functions: Iterable[Function], pci: tuple[str, ...], listed: int) -> int:
    """Return how many lost devices NVML does not list any more."""
    gone = [function for function in functions if function.gone and not function.switch]
    unlisted = max(0, len(pci) - listed)
    return min(len(gone), unlisted)


def counts(context: CheckContext) -> Iterable[Outcome]:
    """Judge each node by itself; nodes without a declaration must have equally many GPUs."""
    yield from each(
        count,
        "gpu.nvml",
        "gpu.pci",
        "gpu.functions",
        "gpu.nodes",
        parts=(WITHOUT_UUIDS,),
    )(context)
    numbers: dict[str, str] = {}
    for nodes in context.alike(parts=[WITHOUT_UUIDS]):
        node = nodes[0]
        listed = _count_listed(context.value(node, "gpu.nvml"))
        if node.gpus is not None or not listed:
            continue
        if not _hidden(context.value(node, "gpu.nodes"), listed, None):
            numbers.update(dict.fromkeys(names_of(nodes), str(listed)))
    if len(numbers) < 2:
        return
    fleet_size = len(context.inventory.nodes)
    remedy = shell_line("lspci -d 10de:   # then set `gpus:`")
    for outcome in uniform(numbers, "the number of GPUs", fleet_size, remedy):
        if outcome.verdict == "fail":
            yield outcome


# ---------------------------------------------------------------- hidden and lost


def _hidden(nodes: DeviceNodes, listed: int | None, declared: int | None) -> str:
    """Return which GPUs are hidden.

    The text is empty where none are, or only some that the inventory does not count on.
    """
    if declared and listed == declared:
        return ""
    devices = _devices_in_state(nodes, "hidden")
    if devices:
        return f"{devices} may not be opened"
    in_dev = len(nodes.nodes)
    bound = len(nodes.bound)
    # NVML contradicts this where it lists GPUs that have no device node.
    if in_dev < bound and (listed is None or in_dev <= listed < bound):
        return f"{in_dev} of the {bound} GPUs that the driver has are in /dev"
    return ""


def _devices_in_state(nodes: DeviceNodes, state: str) -> str:
    """Return «/dev/nvidia[0,3]» of the device nodes in a state; empty if there are none."""
    minors = sorted(minor for minor, value in nodes.nodes.items() if value == state)
    if not minors:
        return ""
    return f"/dev/nvidia[{','.join(map(str, minors))}]"


def hidden(
    context: CheckContext,
    node: Node,
    nodes: DeviceNodes,
    listed: Listed | None,
    functions: tuple[Function, ...],
) -> Outcome:
    """Judge that this session may open all GPUs. Never a failure: the GPUs themselves are there."""
    if not nodes.nodes and not nodes.bound:
        if listed:  # the driver makes its device nodes where it finds them missing
            return passed(node, "NVML sees them, whatever /dev shows", "", ALL_OPEN)
        if any(not function.switch for function in functions):
            return skipped(node, "the driver has no GPU here")
        return skipped(node, "no GPU here")
    denied = _devices_in_state(nodes, "denied")
    if denied:
        message = "the mode of the device nodes shuts this user out"
        user = node.job_user or node.ssh.user or "USER"
        remedy = shell_line(
            "usermod -aG video {user}   # or as ls -l /dev/nvidia* tells", user=user
        )
        return unknown(
            node,
            message,
            "denied",
            denied,
            ALL_OPEN,
            remedy,
        )
    declared = node.gpus.count if node.gpus else None
    seen = _hidden(nodes, listed.count if listed else None, declared)
    if not seen and listed and listed.denied:
        seen = f"NVML may not show GPU {', '.join(map(str, listed.denied))}"
    if seen:
        message = "a device cgroup hides GPUs from this session"
        return unknown(
            node,
            message,
            "hidden",
            seen,
            ALL_OPEN,
            FREE,
        )
    return passed(node, "no GPU of this job is hidden", "", ALL_OPEN)


def lost(context: CheckContext, node: Node, gone: Gone) -> Iterable[Outcome]:
    """Judge that every GPU can be used, as far as NVML and the bus say which cannot."""
    wanted = "every device answers"
    kinds = (
        ("the GPU is gone", gone.lost, None),
        ("the GPU must be reset before it can be used again", gone.reset, RESET),
        ("the driver cannot use the GPU", gone.broken, KERNEL_LOG),
    )
    found = False
    for message, texts, remedy in kinds:
        if texts:
            found = True
            yield failed(
                node,
                message,
                "; ".join(texts),
                wanted,
                remedy,
            )
    if gone.stopped:
        found = True
        message = "the driver is there, and NVML does not start: nothing is known of the GPUs"
        yield failed(
            node,
            message,
            gone.stopped,
            wanted,
            NOT_STARTED,
        )
    if gone.missing:
        found = True
        yield unknown(
            node,
            gone.missing,
            MISSING,
            "",
            wanted,
            NO_LIBRARY,
        )
    if gone.silent:
        found = True
        message = "NVML does not say what is wrong with the GPU"
        yield unknown(
            node,
            message,
            "nvml_error",
            "; ".join(gone.silent),
            wanted,
            KERNEL_LOG,
        )
    if not found:
        yield passed(node, "no GPU is lost", "", wanted)


# ---------------------------------------------------------------- models


def model_mix(context: CheckContext) -> Iterable[Outcome]:
    """Judge that a node has one model of GPU, the declared one, and equal nodes the same."""
    sizes = _sizes(context)
    names_by_kind: dict[str | None, dict[str, str]] = {}
    for nodes in context.alike():
        node = nodes[0]
        outcome = _mix_of_node(context, node, sizes)
        if outcome is not None:
            for member in nodes:  # a remedy has the node's name, and what its session shows
                yield _mix_of_node(context, member, sizes) or outcome
            continue
        declared = _declared_model(node)
        name = next(iter(_names(context, node, sizes).values()))
        same = dict.fromkeys([member.name for member in nodes], name)
        names_by_kind.setdefault(declared, {}).update(same)
    for declared, names in names_by_kind.items():
        size = len(names) + _unknown_nodes(context, declared)
        yield from _compare_nodes(names, size)


def _mix_of_node(context: CheckContext, node: Node, sizes: Sizes) -> Outcome | None:
    """Return what is wrong with the models of a node; None if it has one, which may be judged."""
    for model in of_job(node, context.value(node, "gpu.model")).values():
        if isinstance(model, Absent):
            return unknown(node, model.detail, model.reason)
    names = _names(context, node, sizes)
    if not names:
        return skipped(node, "no GPU of this job here")
    declared = _declared_model(node)
    if declared:
        wrong = {index: name for index, name in names.items() if not fits(declared, name)}
        if wrong:
            seen = by_text(wrong, len(names))
            return failed(node, "GPUs are not of the model that is declared", seen, declared)
    if len(set(names.values())) > 1:
        message = "the GPUs of this job are of different models"
        seen = by_text(names, len(names))
        return failed(
            node,
            message,
            seen,
            "one model",
            _use_like_devices(node, names, _shown(context, node)),
        )
    return None


def _declared_model(node: Node) -> str | None:
    return node.gpus.model if node.gpus else None


def _names(context: CheckContext, node: Node, sizes: Sizes) -> dict[int, str]:
    """Return the models of the job's GPUs as text, by index."""
    names = {}
    for index, model in of_job(node, context.value(node, "gpu.model")).items():
        if isinstance(model, Model):
            names[index] = _describe_model(model, sizes)
    return names


def _unknown_nodes(context: CheckContext, declared: str | None) -> int:
    """Return how many nodes may have GPUs of a declared model, of which nothing is known."""
    reached = {node.name for node in context.fleet.reached}
    number = 0
    for node in context.inventory.nodes:
        if _declared_model(node) != declared:
            continue
        if node.name not in reached:
            number += 1
            continue
        model = context.fleet.fact(node.name, "gpu.model")
        if isinstance(model, Absent) and model.reason != "not_applicable":
            number += 1
    return number


def _compare_nodes(names: dict[str, str], size: int) -> Iterable[Outcome]:
    """Compare the models of `size` nodes; a single one passes. `names` has the model by node."""
    if size > 1:
        remedy = sentence("put these nodes into an inventory of their own")
        yield from uniform(names, "the GPU model", size, remedy)
        return
    for name, model in names.items():
        yield Outcome(
            "pass",
            (name,),
            "the GPUs are of one model",
            model,
            "one model",
        )


def _shown(context: CheckContext, node: Node) -> tuple[int, ...]:
    """Return the GPUs that the job's session shows; none where that is not known.

    It is asked for by other checks, and names the better of two remedies here.
    """
    nvml = context.fleet.fact(node.name, "gpu.nvml")
    session = session_of(context.fleet.fact(node.name, "env.paths"))
    if not isinstance(nvml, Nvml) or session.value is None:
        return ()
    return visible_gpus(session.value, nvml, session.order).indices


def _use_like_devices(node: Node, names: Mapping[int, str], shown: tuple[int, ...]) -> Remedy:
    """Return `gpus:` with the largest set of like devices, among those that the session shows."""
    candidates = {index: names[index] for index in shown if index in names} or names
    texts = list(candidates.values())
    usual = max(dict.fromkeys(texts), key=texts.count)
    use = ",".join(str(index) for index, text in candidates.items() if text == usual)
    total = node.gpus.count if node.gpus else len(names)
    return sentence(
        'set `gpus: {{count: {total}, use: "{use}"}}` for {node}',
        total=total,
        use=use,
        node=node.name,
    )


def fits(declared: str, name: str) -> bool:
    """Return whether all words of the declared model are among those of the name.

    «H100» fits «NVIDIA H100 80GB HBM3», and «L40» does not fit «NVIDIA L40S».
    """
    separators = r"[\s-]+"
    required = re.split(separators, declared.lower().strip())
    existing = re.split(separators, name.lower())
    return set(required) <= set(existing)


def _sizes(context: CheckContext) -> Sizes:
    """Return for each name and capability the sizes of memory that are told apart."""
    seen: dict[tuple[str, str], set[int]] = {}
    for nodes in context.alike():
        first = nodes[0]
        models = of_job(first, context.value(first, "gpu.model"))
        for model in models.values():
            if isinstance(model, Model) and model.memory is not None:
                key = (model.name, model.capability)
                seen.setdefault(key, set()).add(model.memory)
    return {key: _distinct_sizes(memories) for key, memories in seen.items()}


def _distinct_sizes(memories: Iterable[int]) -> list[int]:
    """Return sizes that differ by more than those of one model do, ascending."""
    distinct: list[int] = []
    for memory in sorted(memories):
        if not distinct or memory > distinct[-1] * (1 + ALIKE):
            distinct.append(memory)
    return distinct


def _describe_model(model: Model, sizes: Sizes) -> str:
    """Return «NVIDIA H100 80GB HBM3 (80 GiB, 9.0)», with the memory in whole GiB.

    A GPU without memory of its own is «NVIDIA GB10 (12.1)».
    """
    if model.memory is None:
        return f"{model.name} ({model.capability})"
    smaller = [size for size in sizes[model.name, model.capability] if size <= model.memory]
    gigabytes = round(max(smaller) / (1 << 30))
    return f"{model.name} ({format_size(gigabytes << 30)}, {model.capability})"


COUNT = Check(
    "gpu.count",
    facts=("gpu.nvml", "gpu.pci", "gpu.functions", "gpu.nodes"),
    judge=counts,
    severity="error",
    follows=("gpu.lost",),
    title="The number of GPUs",
    why="A launcher starts one rank per visible GPU: seven of eight on one node, and torchrun "
    "waits for ever.",
    how="NVML's count, NVIDIA display and 3D controllers on the PCI bus, and `gpus:` of the "
    "inventory; without it the nodes that have GPUs must have equally many. GPUs that are lost "
    "are counted here and told by gpu.lost.",
    remedy=shell_line("nvidia-smi -L; lspci -d 10de:"),
    proof=Proof("gpu.nvml", lambda nvml: replace(nvml, gpus=nvml.gpus[:-1])),
)
HIDDEN = Check(
    "gpu.hidden",
    facts=("gpu.nodes", "gpu.listed", "gpu.functions"),
    judge=each(
        hidden, "gpu.nodes", "gpu.listed", "gpu.functions", parts=(equal_values("gpu.listed"),)
    ),
    severity="warning",
    title="GPUs hidden from this session",
    why="Schedulers keep ssh sessions away from GPUs by a device cgroup; what is not seen there "
    "is not broken.",
    how="access(2) on /dev/nvidiaN, which the device cgroup refuses although the mode allows it, "
    "and GPUs that the driver has and /dev lacks (a container). Never a failure: unknown, as all "
    "that the GPUs would say.",
    remedy=FREE,
    proof=Proof(
        "gpu.nodes", lambda found: replace(found, nodes={**found.nodes, 3: "denied"}), "unknown"
    ),
)
LOST = Check(
    "gpu.lost",
    facts=("gpu.gone",),
    judge=each(lost, "gpu.gone", parts=(equal_values("gpu.gone"),)),
    severity="error",
    title="GPUs that are gone",
    why="A GPU that fell off the bus stays away until a power cycle, and every rank that is given "
    "it fails.",
    how="Any call of NVML answers «GPU is lost» or «reset required», or the device's PCI "
    "configuration reads all ones (lspci: «rev ff»). Another code that a GPU answers is unknown, "
    "with the code; a driver that is loaded while NVML does not start at all is one failure.",
    remedy=shell_line(
        "nvidia-smi --gpu-reset   # else power cycle the node (not only reboot), then reseat or "
        "return the board"
    ),
    proof=Proof("gpu.gone", lambda gone: replace(gone, lost=("GPU 3: gpu_lost",))),
)
MODEL_MIX = Check(
    "gpu.model_mix",
    facts=("gpu.model",),
    judge=model_mix,
    severity="warning",
    title="One model of GPU",
    why="The slowest GPU sets the pace of all, and the one with the least memory is out of it "
    "first.",
    how="NVML's name, memory and compute capability of the devices that `gpus: {use: …}` names "
    "(else of all): one model in a node, that of `gpus: {model: …}`, and one on all nodes for "
    "which the same is declared.",
    remedy=sentence(
        "declare which devices to use: `gpus: {{count: 8, model: …, use: 0-3}}`, or split the "
        "inventory"
    ),
    proof=Proof(
        "gpu.model",
        lambda models: {**models, 3: replace(models[3], name="NVIDIA H100 NVL", memory=93 << 30)},
    ),
)
