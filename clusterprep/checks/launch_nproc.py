"""Judges how many processes a launcher would start on each node.

The number follows from the node's launch paths and from the inventory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    uniform,
    unknown,
)
from clusterprep.checks.env import (
    BASHRC,
    describe_setting,
    known_settings,
    place,
    removal_command,
    removal_fix,
    removal_fix_of_odd,
    settings_by_place,
    unread_paths,
    with_settings,
)
from clusterprep.facts.environment import Paths, Setting
from clusterprep.facts.gpu import WITHOUT_UUIDS
from clusterprep.model import Absent, Node
from clusterprep.remedies import shell_line

COUNTS = ("PET_NPROC_PER_NODE", "NPROC_PER_NODE")  # the first is torchrun's own and wins there
DEVICES = "CUDA_VISIBLE_DEVICES"
# Only NCCL reads nccl.conf, and Slurm hands out devices itself.
NOT_OURS = ("nccl", "slurm")
WHAT = "the number of processes"


def started(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether the number is equal on all nodes, as declared, and not above the GPUs."""
    yield from unread_paths(context)
    numbers: dict[str, str] = {}
    for nodes in context.alike(parts=[WITHOUT_UUIDS]):
        node = nodes[0]
        gpus = gpus_of(context, node)
        if gpus is None:
            nvml = context.fleet.fact(node.name, "gpu.nvml")
            cause = "neither declared, nor can GPUs be counted"
            message = f"{WHAT} of a launcher is not known: {cause}"
            yield from about_all(nodes, [unknown(node, message, nvml.reason)])
            continue
        paths: Paths = context.value(node, "env.paths")
        declared = node.nproc_per_node
        number = str(declared or _join_counts(by_path(paths, gpus)))
        numbers.update(dict.fromkeys(names_of(nodes), number))
        yield from about_all(nodes, _judge_node(context, node, paths, gpus))
    advice = "with nproc_per_node declared, and out with the lines that set others"
    remedy = shell_line("clusterprep apply INVENTORY   # {advice}", advice=advice)
    what = f"{WHAT} that a launcher starts"
    for outcome in uniform(numbers, what, len(context.inventory.nodes), remedy):
        fix = None
        if outcome.verdict == "fail":
            fix = removal_fix_of_odd(context, outcome.nodes, COUNTS)
        yield replace(outcome, fix=fix)


def gpus_of(context: CheckContext, node: Node) -> int | None:
    """Return the number of GPUs that a launcher counts: 0 without a driver, None if unknown."""
    if node.gpus is not None:
        return node.gpus.used
    nvml = context.fleet.fact(node.name, "gpu.nvml")
    if nvml is None:
        return 0
    if not isinstance(nvml, Absent):
        return len(nvml.gpus)
    if nvml.reason == "missing_tool" or node.nproc_per_node:
        return 0
    return None


def by_path(paths: Paths, gpus: int) -> dict[str, str]:
    """Return how many processes a launcher would start, for each launch path.

    As many as a variable says there, else one for each visible GPU, else one.
    """
    counts = {}
    for path, settings in known_settings(paths).items():
        if path in NOT_OURS:
            continue
        values = {setting.name: setting.value for setting in settings}
        visible = _count_visible(values.get(DEVICES), gpus)
        count = str(visible or 1)
        # Backwards, so that the first of the names wins.
        for name in reversed(COUNTS):
            value = values.get(name, "")
            if value.isdigit():
                count = value
        counts[path] = count
    return counts


def _count_visible(devices: str | None, gpus: int) -> int:
    """Return the number of items in CUDA_VISIBLE_DEVICES; all GPUs where it is not set.

    Gaps in the list are for env.cuda_visible. A machine without GPUs shows none.
    """
    if devices is None or not gpus:
        return gpus
    items = [item for item in devices.split(",") if item.strip()]
    return len(items)


def _join_counts(counts: Mapping[str, str]) -> str:
    """Return the number if all launch paths agree, else a text with the number of each path."""
    different = set(counts.values())
    if not different:
        return "1"
    if len(different) == 1:
        return different.pop()
    return ", ".join(f"{count} in {path}" for path, count in counts.items())


def _judge_node(context: CheckContext, node: Node, paths: Paths, gpus: int) -> Iterable[Outcome]:
    """Yield the faults of one node that do not depend on other nodes."""
    declared = node.nproc_per_node
    limit = f"at most {gpus}"
    for setting, path_names in settings_by_place(paths).items():
        if set(path_names) <= set(NOT_OURS):
            continue
        count = _read_count(setting)
        if count is None:
            continue
        seen = describe_setting(setting, path_names)
        if declared is not None and count != declared:
            message = f"{place(setting)} says another number of processes than the inventory"
            yield failed(
                node,
                message,
                seen,
                str(declared),
                removal_command(setting, context.inventory),
                fix=removal_fix(setting, context.inventory),
            )
        elif declared is None and gpus and count > gpus:
            message = f"{place(setting)} starts more processes than there are GPUs"
            yield failed(
                node,
                message,
                seen,
                limit,
                removal_command(setting, context.inventory),
                fix=removal_fix(setting, context.inventory),
            )
    if declared is not None and gpus and declared > gpus:
        message = "the inventory declares more processes than GPUs"
        yield failed(node, message, f"nproc_per_node: {declared}", limit)


def _read_count(setting: Setting) -> int | None:
    if setting.name in COUNTS and setting.value.isdigit():
        return int(setting.value)
    return None


NPROC = Check(
    "launch.nproc",
    facts=("env.paths",),
    uses=("gpu.nvml",),
    judge=started,
    severity="error",
    follows=("env.cuda_visible",),
    title="Processes that a launcher starts",
    why="torchrun takes for granted that all nodes start as many processes as the first. Where a "
    "node starts fewer, the others wait for ranks that never come; where it starts more than it "
    "has GPUs, two share one or one fails.",
    how="nproc_per_node, else NPROC_PER_NODE or PET_NPROC_PER_NODE of each launch path, else the "
    "devices in CUDA_VISIBLE_DEVICES, else the GPUs: equal on all nodes, as declared, not more "
    "than GPUs.",
    remedy=shell_line("clusterprep apply INVENTORY   # with nproc_per_node and gpus declared"),
    proof=Proof(
        "env.paths", with_settings("login shell", Setting("NPROC_PER_NODE", "4", BASHRC, 3))
    ),
)
