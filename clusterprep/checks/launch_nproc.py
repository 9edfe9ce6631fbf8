"""How many processes a launcher would start on each node, from what its launch paths and the inventory say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.checks import Check, CheckContext, Outcome, Proof, uniform
from clusterprep.checks.env import BASHRC, by_place, cure, holes, known, place, planted, said
from clusterprep.facts.environment import Paths, Setting
from clusterprep.model import Absent, Node

COUNTS = ("PET_NPROC_PER_NODE", "NPROC_PER_NODE")  # the first is torchrun's own and wins there
DEVICES = "CUDA_VISIBLE_DEVICES"
NOT_OURS = ("nccl", "slurm")  # nobody counts by nccl.conf, and Slurm hands out devices itself
WHAT = "the number of processes"


def started(context: CheckContext) -> Iterable[Outcome]:
    """Equal on all nodes, as declared, and not more than there are GPUs."""
    yield from holes(context)
    numbers: dict[str, str] = {}
    for node in context.nodes:
        gpus = gpus_of(context, node)
        if gpus is None:
            reason = context.fleet.fact(node.name, "gpu.nvml").reason
            message = (
                f"{WHAT} of a launcher is not known: neither declared, nor can GPUs be counted"
            )
            yield Outcome("unknown", (node.name,), message, reason=reason)
            continue
        paths = context.value(node, "env.paths")
        numbers[node.name] = str(node.nproc_per_node or _of_all(by_path(paths, gpus)))
        yield from _alone(node, paths, gpus)
    remedy = "clusterprep apply INVENTORY   # with nproc_per_node declared, and out with the lines that set others"
    yield from uniform(
        numbers, f"{WHAT} that a launcher starts", len(context.inventory.nodes), remedy
    )


def gpus_of(context: CheckContext, node: Node) -> int | None:
    """GPUs that a launcher would count; 0 without a driver, None where that is not known."""
    if node.gpus is not None:
        return node.gpus.used
    nvml = context.fleet.fact(node.name, "gpu.nvml")
    if isinstance(nvml, Absent):
        return 0 if nvml.reason == "missing_tool" or node.nproc_per_node else None
    return 0 if nvml is None else len(nvml.gpus)


def by_path(paths: Paths, gpus: int) -> dict[str, str]:
    """What a launcher would start in each launch path: as set there, else one per visible GPU, else one."""
    found = {}
    for path, settings in known(paths).items():
        if path not in NOT_OURS:
            values = {setting.name: setting.value for setting in settings}
            explicit = next(
                (values[name] for name in COUNTS if values.get(name, "").isdigit()), None
            )
            found[path] = explicit or str(_visible(values.get(DEVICES), gpus) or 1)
    return found


def _visible(devices: str | None, gpus: int) -> int:
    """As many as a list has items; that it has holes is for env.cuda_visible. A machine without GPUs shows none."""
    return (
        gpus
        if devices is None or not gpus
        else len([item for item in devices.split(",") if item.strip()])
    )


def _of_all(values: Mapping[str, str]) -> str:
    """One number where all launch paths agree."""
    if len(set(values.values())) < 2:
        return next(iter(values.values()), "1")
    return ", ".join(f"{value} in {path}" for path, value in values.items())


def _alone(node: Node, paths: Paths, gpus: int) -> Iterable[Outcome]:
    """What is wrong with one node, whatever the others have."""
    declared = node.nproc_per_node
    for setting, where in by_place(paths).items():
        count = _count(setting) if set(where) - set(NOT_OURS) else None
        if count is None:
            continue
        if declared is not None and count != declared:
            message = (
                f"{place(setting)} says another {WHAT.removeprefix('the ')} than the inventory"
            )
            yield Outcome(
                "fail", (node.name,), message, said(setting, where), str(declared), cure(setting)
            )
        elif declared is None and gpus and count > gpus:
            message = f"{place(setting)} starts more processes than there are GPUs"
            yield Outcome(
                "fail",
                (node.name,),
                message,
                said(setting, where),
                f"at most {gpus}",
                cure(setting),
            )
    if declared is not None and gpus and declared > gpus:
        message = "the inventory declares more processes than GPUs"
        yield Outcome(
            "fail", (node.name,), message, f"nproc_per_node: {declared}", f"at most {gpus}"
        )


def _count(setting: Setting) -> int | None:
    return int(setting.value) if setting.name in COUNTS and setting.value.isdigit() else None


NPROC = Check(
    "launch.nproc",
    facts=("env.paths",),
    uses=("gpu.nvml",),
    judge=started,
    severity="error",
    title="Processes that a launcher starts",
    why="torchrun takes for granted that all nodes start as many processes as the first. Where a node starts fewer, "
    "the others wait for ranks that never come; where it starts more than it has GPUs, two share one or one fails.",
    how="nproc_per_node, else NPROC_PER_NODE or PET_NPROC_PER_NODE of each launch path, else the devices in "
    "CUDA_VISIBLE_DEVICES, else the GPUs: equal on all nodes, as declared, not more than GPUs.",
    remedy="clusterprep apply INVENTORY   # with nproc_per_node and gpus declared",
    proof=Proof("env.paths", planted("login shell", Setting("NPROC_PER_NODE", "4", BASHRC, 3))),
)
