"""GPUs: as many as declared, none lost, none hidden from this session, all of one model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, uniform
from clusterprep.checks.gpu_health import by_text, of_job
from clusterprep.facts.gpu import DeviceNodes, Function, Model, Nvml
from clusterprep.model import Absent, Node
from clusterprep.model.units import format_size

ALIKE = (
    0.10  # memory of one model differs by this much at most: ECC on GDDR takes a sixteenth of it
)
FREE = "srun --jobid=JOB --overlap clusterprep check --local   # or exempt ssh sessions from the scheduler's device cgroup"


def count(
    context: CheckContext,
    node: Node,
    nvml: Nvml | None,
    pci: tuple[str, ...],
    functions: tuple[Function, ...],
    nodes: DeviceNodes,
) -> Outcome:
    """NVML, PCI and the inventory must say the same number; lost devices count, for they are gpu.lost's."""
    declared = None if node.gpus is None else node.gpus.count
    listed = _listed(nvml)
    gone = sum(function.gone and not function.switch for function in functions)
    visible = listed + min(
        gone, max(0, len(pci) - listed)
    )  # one that answers nothing may be listed no more
    seen = f"{listed} by NVML, {len(pci)} on PCI"
    wanted = f"{declared} declared" if declared is not None else "as many by NVML as on PCI"
    if not declared and not pci and not visible:
        return Outcome("skip", (node.name,), "no GPU here", seen, wanted, reason="not_applicable")
    if _hidden(nodes, listed, declared):
        message = "GPUs are hidden from this session, so they cannot be counted"
        return Outcome("unknown", (node.name,), message, seen, wanted, FREE, "hidden")
    # A container may be given GPUs and no view of the bus; a bus that is seen never has fewer functions than NVML.
    expected = (len(pci) or visible) if declared is None else declared
    if visible == expected and (not pci or len(pci) >= visible):
        return Outcome("pass", (node.name,), "all GPUs are there", seen, wanted)
    message = (
        "GPUs are missing from the driver"
        if visible < expected
        else "there are more GPUs than declared"
    )
    cure = "dmesg | grep -e NVRM -e Xid   # fell off the bus: reseat or power cycle"
    return Outcome(
        "fail",
        (node.name,),
        message,
        seen,
        wanted,
        cure if visible < expected else "set `gpus:` right",
    )


def counts(context: CheckContext) -> Iterable[Outcome]:
    """Each node by itself; where nothing is declared, nodes with GPUs must have equally many."""
    yield from each(count, "gpu.nvml", "gpu.pci", "gpu.functions", "gpu.nodes")(context)
    undeclared = {
        n.name: _listed(context.value(n, "gpu.nvml")) for n in context.nodes if n.gpus is None
    }
    hidden = {
        n.name
        for n in context.nodes
        if _hidden(context.value(n, "gpu.nodes"), undeclared.get(n.name, 0), None)
    }
    with_gpus = {
        name: str(number) for name, number in undeclared.items() if number and name not in hidden
    }
    if len(with_gpus) > 1:
        compared = uniform(
            with_gpus,
            "the number of GPUs",
            len(context.inventory.nodes),
            "lspci -d 10de:; set `gpus:`",
        )
        yield from (outcome for outcome in compared if outcome.verdict == "fail")


def _listed(nvml: Nvml | None) -> int:
    return 0 if nvml is None else len(nvml.gpus) + len(nvml.lost) + len(nvml.denied)


def _hidden(nodes: DeviceNodes, listed: int | None, declared: int | None) -> str:
    """What is hidden, in words; empty where nothing is, or just what the inventory does not count on."""
    if declared and listed == declared:
        return ""
    shut = sorted(minor for minor, state in nodes.nodes.items() if state == "hidden")
    if shut:
        return f"/dev/nvidia[{','.join(map(str, shut))}] may not be opened"
    few = len(nodes.nodes) < len(nodes.bound)  # without NVML nobody contradicts that
    if few and (listed is None or len(nodes.nodes) <= listed < len(nodes.bound)):
        return f"{len(nodes.nodes)} of the {len(nodes.bound)} GPUs that the driver has are in /dev"
    return ""


def hidden(
    context: CheckContext,
    node: Node,
    nodes: DeviceNodes,
    listed: int | None,
    functions: tuple[Function, ...],
) -> Outcome:
    """Never a failure: the GPUs are there, and this session may not see them."""
    if not nodes.nodes and not nodes.bound:
        if listed:  # the driver makes its nodes where it finds them missing
            return Outcome(
                "pass", (node.name,), "NVML sees them, whatever /dev shows", "", "all may be opened"
            )
        text = (
            "the driver has no GPU here" if any(not f.switch for f in functions) else "no GPU here"
        )
        return Outcome("skip", (node.name,), text, reason="not_applicable")
    shut = sorted(minor for minor, state in nodes.nodes.items() if state == "denied")
    if shut:
        seen = f"/dev/nvidia[{','.join(map(str, shut))}]"
        message = "the mode of the device nodes shuts this user out"
        cure = f"usermod -aG video {node.job_user or node.ssh.user or '$USER'}   # or as `ls -l /dev/nvidia*` tells"
        return Outcome("unknown", (node.name,), message, seen, "all may be opened", cure, "denied")
    words = _hidden(nodes, listed, node.gpus.count if node.gpus else None)
    if words:
        message = "a device cgroup hides GPUs from this session"
        return Outcome("unknown", (node.name,), message, words, "all may be opened", FREE, "hidden")
    return Outcome("pass", (node.name,), "no GPU of this job is hidden", "", "all may be opened")


def lost(context: CheckContext, node: Node, gone: tuple[str, ...]) -> Outcome:
    if not gone:
        return Outcome("pass", (node.name,), "no GPU is lost", "", "every device answers")
    return Outcome("fail", (node.name,), "the GPU is gone", "; ".join(gone), "every device answers")


# ---------------------------------------------------------------- models


def model_mix(context: CheckContext) -> Iterable[Outcome]:
    """One model among the devices of a node, the one that is declared, and one on all nodes of the same kind."""
    sizes = _sizes(context)
    alike: dict[str | None, dict[str, str]] = {}
    for node in context.nodes:
        mine = {
            i: _named(m, sizes)
            for i, m in of_job(node, context.value(node, "gpu.model")).items()
            if _is(m)
        }
        unknown = [
            v
            for v in of_job(node, context.value(node, "gpu.model")).values()
            if isinstance(v, Absent)
        ]
        declared = node.gpus.model if node.gpus else None
        wrong = sorted(i for i, text in mine.items() if declared and not fits(declared, text))
        if unknown:
            yield Outcome("unknown", (node.name,), unknown[0].detail, reason=unknown[0].reason)
        elif not mine:
            yield Outcome("skip", (node.name,), "no GPU of this job here", reason="not_applicable")
        elif wrong:
            seen = by_text({i: mine[i] for i in wrong}, len(mine))
            yield Outcome(
                "fail",
                (node.name,),
                "GPUs are not of the model that is declared",
                seen,
                declared or "",
            )
        elif len(set(mine.values())) > 1:
            message = "the GPUs of this job are of different models"
            yield Outcome(
                "fail",
                (node.name,),
                message,
                by_text(mine, len(mine)),
                "one model",
                _cure(node, mine),
            )
        else:
            alike.setdefault(declared, {})[node.name] = next(iter(mine.values()))
    for kind, names in alike.items():
        yield from _between(names, len(names) + _unknown(context, kind))


def _unknown(context: CheckContext, kind: str | None) -> int:
    """How many nodes for which this model is declared may have GPUs of which nothing is known."""
    known = {
        node.name: context.fleet.fact(node.name, "gpu.model") for node in context.fleet.reached
    }
    number = 0
    for node in context.inventory.nodes:
        model = known.get(node.name, Absent("not_reached"))
        dark = isinstance(model, Absent) and model.reason != "not_applicable"
        number += dark and (node.gpus.model if node.gpus else None) == kind
    return number


def _between(names: dict[str, str], size: int) -> Iterable[Outcome]:
    if size > 1:
        yield from uniform(
            names, "the GPU model", size, "put these nodes into an inventory of their own"
        )
    else:
        yield Outcome(
            "pass",
            tuple(names),
            "the GPUs are of one model",
            next(iter(names.values())),
            "one model",
        )


def _is(model: object) -> bool:
    return isinstance(model, Model)


def _cure(node: Node, mine: dict[int, str]) -> str:
    """The largest set of like devices, as `gpus:` is written."""
    models = list(mine.values())
    usual = max(dict.fromkeys(models), key=models.count)
    use = ",".join(str(index) for index, text in mine.items() if text == usual)
    total = node.gpus.count if node.gpus else len(mine)
    return f'set `gpus: {{count: {total}, use: "{use}"}}` for {node.name}'


def fits(declared: str, name: str) -> bool:
    """Whether all words of the declared model are among those of the name: «H100», but not «L40» for an L40S."""
    words = set(re.split(r"[\s-]+", name.lower()))
    return all(word in words for word in re.split(r"[\s-]+", declared.lower().strip()))


def _sizes(context: CheckContext) -> dict[tuple[str, str], list[int]]:
    """For each name and capability the sizes of memory that are told apart."""
    seen: dict[tuple[str, str], set[int]] = {}
    for node in context.nodes:
        for model in of_job(node, context.value(node, "gpu.model")).values():
            if isinstance(model, Model):
                seen.setdefault((model.name, model.capability), set()).add(model.memory)
    sizes: dict[tuple[str, str], list[int]] = {}
    for key, values in seen.items():
        for value in sorted(values):
            if not sizes.get(key) or value > sizes[key][-1] * (1 + ALIKE):
                sizes.setdefault(key, []).append(value)
    return sizes


def _named(model: Model, sizes: dict[tuple[str, str], list[int]]) -> str:
    size = max(value for value in sizes[model.name, model.capability] if value <= model.memory)
    return f"{model.name} ({format_size(round(size / (1 << 30)) << 30)}, {model.capability})"


COUNT = Check(
    "gpu.count",
    facts=("gpu.nvml", "gpu.pci", "gpu.functions", "gpu.nodes"),
    judge=counts,
    severity="error",
    title="The number of GPUs",
    why="A launcher starts one rank per visible GPU: seven of eight on one node, and torchrun waits for ever.",
    how="NVML's count, NVIDIA display and 3D controllers on the PCI bus, and `gpus:` of the inventory; without "
    "it the nodes that have GPUs must have equally many. GPUs that are lost are counted here and told by gpu.lost.",
    remedy="nvidia-smi -L; lspci -d 10de:",
    proof=Proof("gpu.nvml", lambda nvml: replace(nvml, gpus=nvml.gpus[:-1])),
)
HIDDEN = Check(
    "gpu.hidden",
    facts=("gpu.nodes", "gpu.listed", "gpu.functions"),
    judge=each(hidden, "gpu.nodes", "gpu.listed", "gpu.functions"),
    severity="error",
    title="GPUs hidden from this session",
    why="Schedulers keep ssh sessions away from GPUs by a device cgroup; what is not seen there is not broken.",
    how="access(2) on /dev/nvidiaN, which the device cgroup refuses although the mode allows it, and GPUs that the "
    "driver has and /dev lacks (a container). Never a failure: unknown, as all that the GPUs would say.",
    remedy=FREE,
    proof=Proof(
        "gpu.nodes", lambda found: replace(found, nodes={**found.nodes, 3: "denied"}), "unknown"
    ),
)
LOST = Check(
    "gpu.lost",
    facts=("gpu.gone",),
    judge=each(lost, "gpu.gone"),
    severity="error",
    title="GPUs that are gone",
    why="A GPU that fell off the bus stays away until a power cycle, and every rank that is given it fails.",
    how="NVML answers «GPU is lost», or the device's PCI configuration reads all ones (lspci: «rev ff»).",
    remedy="nvidia-smi --gpu-reset; else power cycle the node (not only reboot), then reseat or return the board",
    proof=Proof("gpu.gone", lambda _: ("GPU 3: gpu_lost",)),
)
MODEL_MIX = Check(
    "gpu.model_mix",
    facts=("gpu.model",),
    judge=model_mix,
    severity="warning",
    title="One model of GPU",
    why="The slowest GPU sets the pace of all, and the one with the least memory is out of it first.",
    how="NVML's name, memory and compute capability of the devices that `gpus: {use: …}` names (else of all): one "
    "model in a node, that of `gpus: {model: …}`, and one on all nodes for which the same is declared.",
    remedy="declare which devices to use: `gpus: {count: 8, model: …, use: 0-3}`, or split the inventory",
    proof=Proof(
        "gpu.model",
        lambda models: {**models, 3: replace(models[3], name="NVIDIA H100 NVL", memory=93 << 30)},
    ),
)
