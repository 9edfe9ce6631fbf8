"""CUDA_VISIBLE_DEVICES: unset or as declared, the same in every launch path and on every node."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    kinds,
    names_of,
    passed,
    uniform,
)
from clusterprep.checks.env import (
    UNSET,
    known_settings,
    place,
    removal_command,
    removal_fix_of_odd,
    settings_by_place,
    unread_paths,
)
from clusterprep.facts.environment import Paths, Setting
from clusterprep.facts.gpu import Nvml
from clusterprep.facts.visible_gpus import NAME, NOT_CUDA, visible_gpus
from clusterprep.model import Node
from clusterprep.remedies import Remedy, shell_line

REMEDY = shell_line(
    "clusterprep apply INVENTORY   # with gpus: {{count: …, use: …}}; "
    "or take the line out that sets it"
)
EMPTY = "«»"
OF_UUID = ("GPU-", "MIG-")
_INDEX = re.compile(r"-?[0-9]{1,9}")


def visible(context: CheckContext) -> Iterable[Outcome]:
    """Judge the devices that a job sees: each node by itself, and nodes of a kind together."""
    yield from unread_paths(context)
    for part in kinds(context):
        yield from _judge_kind(part)


def _judge_kind(context: CheckContext) -> Iterable[Outcome]:
    """Judge nodes of one kind: what differs between them, then what is wrong on each."""
    differences = list(_differences(context))
    yield from differences
    blamed: set[str] = set()
    for outcome in differences:
        blamed.update(outcome.nodes)
    for nodes in _classes(context):
        outcomes = list(_judge_node(context, nodes[0]))
        # Nodes of a class have the same value, so the difference is about all of them or none.
        if nodes[0].name in blamed:
            # A warning would repeat what the difference says already.
            outcomes = [outcome for outcome in outcomes if outcome.severity is None]
        elif not outcomes:
            outcomes = [_good(context, nodes[0])]
        yield from about_all(nodes, outcomes)


def _classes(context: CheckContext) -> Iterable[tuple[Node, ...]]:
    """Yield the nodes that are judged alike.

    A list of UUIDs is compared with each node's own GPUs.
    """
    for nodes in context.alike("env.paths"):
        values = _values(context.value(nodes[0], "env.paths")).values()
        if any(value.startswith(OF_UUID) for value in values):
            for node in nodes:
                yield (node,)
        else:
            yield nodes


def _differences(context: CheckContext) -> Iterable[Outcome]:
    """Yield failures of nodes that differ and whose value is not declared."""
    seen: dict[str, str] = {}
    for nodes in context.alike("env.paths"):
        if _declared_value(context, nodes[0]) is None:
            seen.update(dict.fromkeys(names_of(nodes), _seen(context, nodes[0])))
    if len(set(seen.values())) < 2:
        return
    values: dict[str, str] = {}  # in the order of the nodes
    for name in context.names:
        if name in seen:
            values[name] = seen[name]
    for outcome in uniform(values, NAME, len(context.inventory.nodes), REMEDY):
        if outcome.verdict == "fail":
            places = _describe_places(context, outcome.nodes)
            message = f"{outcome.message}: nodes start different numbers of ranks{places}"
            fix = removal_fix_of_odd(context, outcome.nodes, (NAME,))
            yield replace(outcome, message=message, fix=fix)


def _describe_places(context: CheckContext, nodes: Iterable[str]) -> str:
    """Return « (file:line of n1; …)» for where these nodes set the variable; empty if unknown."""
    texts: dict[str, None] = {}  # an ordered set
    for name in nodes:
        for setting in settings_by_place(context.fleet.fact(name, "env.paths")):
            if setting.name == NAME:
                texts[f"{place(setting)} of {name}"] = None
    if not texts:
        return ""
    return f" ({'; '.join(texts)})"


def _declared_value(context: CheckContext, node: Node) -> str | None:
    """Return what `require`, `gpus.use` or `env` of the inventory declares, in this order."""
    wanted = context.wanted(node)
    if wanted is not None:
        return wanted
    if node.gpus is not None and node.gpus.use is not None:
        return ",".join(map(str, node.gpus.use))
    if NAME in node.env:
        return node.env[NAME].value
    return None


def _values(paths: Paths) -> dict[str, str]:
    """Return the value by launch path; «unset» where it is not set."""
    values = {}
    for path, settings in known_settings(paths).items():
        if path in NOT_CUDA:
            continue
        setting = _first_setting(settings)
        values[path] = UNSET if setting is None else _without_blanks(setting.value)
    return values


def _first_setting(settings: Iterable[Setting]) -> Setting | None:
    return next((setting for setting in settings if setting.name == NAME), None)


def _without_blanks(value: str) -> str:
    """Return a list of devices without blanks."""
    if not value.strip():
        return EMPTY
    return ",".join(item.strip() for item in value.split(","))


def _seen(context: CheckContext, node: Node) -> str:
    """Return the value, once where all launch paths agree."""
    values = _values(context.value(node, "env.paths"))
    if len(set(values.values())) < 2:
        return next(iter(values.values()), UNSET)
    return ", ".join(f"{value} in {path}" for path, value in values.items())


def _judge_node(context: CheckContext, node: Node) -> Iterable[Outcome]:
    """Yield what is wrong on one node, whatever the others have. Errors have no severity."""
    paths: Paths = context.value(node, "env.paths")
    values = set(_values(paths).values())
    declared = _declared_value(context, node)
    seen = _seen(context, node)
    setting = _first_setting(settings_by_place(paths))
    where = ""
    remedy: Remedy | None = None
    if setting is not None:
        where = f" ({place(setting)})"
        remedy = removal_command(setting, context.inventory)
    # Where it is declared, apply writes it to a file that not every launch path reads:
    # env_paths says which.
    allowed = {UNSET}
    if declared is not None:
        allowed.add(_without_blanks(declared))
    if declared is not None and not values <= allowed:
        yield failed(
            node,
            f"{NAME} is not as declared{where}",
            seen,
            declared,
            remedy,
        )
    elif declared is None and len(values) > 1:
        message = (
            f"{NAME} differs between launch paths{where}: how a job is started decides what it sees"
        )
        yield failed(
            node,
            message,
            seen,
            "the same in all launch paths",
            remedy,
        )
    others = tuple(sorted(values - allowed))
    for outcome in _judge_lists(context, node, others):
        yield replace(
            outcome,
            message=f"{outcome.message}{where}",
            seen=seen,
            wanted=declared or UNSET,
            remedy=remedy,
        )


def _judge_lists(context: CheckContext, node: Node, values: Iterable[str]) -> Iterable[Outcome]:
    """Yield which of the lists of devices, that are not declared, have a hole or hide GPUs."""
    declared = _declared_value(context, node)
    count = node.gpus.count if node.gpus is not None else None
    nvml = context.fleet.fact(node.name, "gpu.nvml")
    for value in values:
        hole = _hole(value, count) or _missing_uuid(value, nvml)
        if hole is not None:
            yield failed(node, hole)
        elif declared is None and not _is_full(value, count):
            message = f"{NAME} hides GPUs, and the inventory does not declare it"
            yield failed(node, message, severity="warning")


def _good(context: CheckContext, node: Node) -> Outcome:
    declared = _declared_value(context, node)
    seen = _seen(context, node)
    if declared is None:
        return passed(node, f"{NAME} is unset, or holds every GPU", seen, UNSET)
    return passed(node, f"{NAME} is as declared", seen, declared or UNSET)


def _hole(value: str, count: int | None) -> str | None:
    """Return why CUDA takes fewer devices than the list names; None if it takes all of them.

    CUDA stops at the first item that it cannot use. CUDA C++ Programming Guide, environment
    variables: an invalid index hides itself and all behind it, a doubled index hides all devices.
    """
    if value in (UNSET, EMPTY):
        return None
    items = value.split(",")
    if not all(_INDEX.fullmatch(item) or not item for item in items):
        return None  # UUIDs
    for number, item in enumerate(items, 1):
        if not item or not _is_device(int(item), count):
            return f"{NAME} has a hole: CUDA sees nothing from item {number} on, which is «{item}»"
    if len(set(map(int, items))) < len(items):
        return f"{NAME} names a device twice, and CUDA then sees none"
    return None


def _missing_uuid(value: str, nvml: Any) -> str | None:
    """Return which item of a list of UUIDs is no GPU of this node; None if all are, or unknown."""
    if not value.startswith(OF_UUID) or not isinstance(nvml, Nvml):
        return None
    if nvml.lost or nvml.denied:
        return None  # one of these may have that UUID
    visible = visible_gpus(value, nvml)
    if visible.ended is None:
        return None
    if not visible.indices and visible.item > 1:
        return f"{NAME} names a device twice, and CUDA then sees none"
    where = f"item {visible.item} on, which is «{visible.ended}»"
    return f"{NAME} has a hole: no GPU here has this UUID, and CUDA sees nothing from {where}"


def _is_device(index: int, count: int | None) -> bool:
    if index < 0:
        return False
    return count is None or index < count


def _is_full(value: str, count: int | None) -> bool:
    """Return whether a list of indices names every device of the node."""
    items = value.split(",")
    if count is None or not all(_INDEX.fullmatch(item) for item in items):
        return False
    return set(map(int, items)) == set(range(count))


def _with_hole(paths: Paths) -> Paths:
    """Return the launch paths with a list that has a hole, for the proof."""
    setting = Setting(NAME, "0,1,2,3,4,5,6,8", "/etc/environment", 2)
    changed = dict(paths)
    for path, settings in known_settings(paths).items():
        if path != "nccl":
            changed[path] = (*settings, setting)
    return changed


VISIBLE = Check(
    "env.cuda_visible",
    facts=("env.paths",),
    uses=("gpu.nvml",),
    judge=visible,
    severity="error",
    title="The GPUs that a job may see",
    why="The number of ranks of a node comes from the devices that are visible: where nodes "
    "differ they start different numbers and wait for ever for the missing ones. A list with a "
    "hole ends at the hole.",
    how=f"{NAME} in every launch path: unset, or what `gpus.use` or `env:` declares; the same "
    "everywhere, on nodes of a kind. A difference or a hole is an error, a list that hides GPUs "
    "everywhere alike a warning.",
    remedy=REMEDY,
    proof=Proof("env.paths", _with_hole),
)
