"""CUDA_VISIBLE_DEVICES: unset or as declared, the same in every launch path and on every node."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, kinds, uniform
from clusterprep.checks.env import UNSET, by_place, cure, holes, known, place
from clusterprep.facts.environment import Paths, Setting
from clusterprep.model import Node

NAME = "CUDA_VISIBLE_DEVICES"
REMEDY = "clusterprep apply INVENTORY   # with gpus: {count: …, use: …}; or take the line out that sets it"
_INDEX = re.compile(r"-?[0-9]{1,9}")
NOT_OURS = ("nccl", "slurm")  # CUDA reads no nccl.conf, and Slurm hands out devices itself


def visible(context: CheckContext) -> Iterable[Outcome]:
    yield from holes(context)
    for part in kinds(context):
        yield from _of_a_kind(part)


def _of_a_kind(context: CheckContext) -> Iterable[Outcome]:
    blamed: set[str] = set()
    undeclared = {
        node.name: _seen(context, node)
        for node in context.nodes
        if _declared(context, node) is None
    }
    if len(set(undeclared.values())) > 1:
        for outcome in uniform(undeclared, NAME, len(context.inventory.nodes), REMEDY):
            if outcome.verdict == "fail":
                blamed.update(outcome.nodes)
                places = _places(context, outcome.nodes)
                message = f"{outcome.message}: nodes start different numbers of ranks{places}"
                yield replace(outcome, message=message)
    for node in context.nodes:
        outcomes = list(_of_one(context, node))
        if node.name not in blamed:
            yield from outcomes or [_good(context, node)]
        else:
            yield from (outcome for outcome in outcomes if outcome.severity is None)


def _places(context: CheckContext, nodes: Iterable[str]) -> str:
    found = dict.fromkeys(
        f"{place(setting)} of {name}"
        for name in nodes
        for setting in by_place(context.fleet.fact(name, "env.paths"))
        if setting.name == NAME
    )
    return f" ({'; '.join(found)})" if found else ""


def _declared(context: CheckContext, node: Node) -> str | None:
    """What the inventory says: `require`, `gpus.use`, `env`; None where it says nothing."""
    if (wanted := context.wanted(node)) is not None:
        return wanted
    if node.gpus is not None and node.gpus.use is not None:
        return ",".join(map(str, node.gpus.use))
    return node.env[NAME].value if NAME in node.env else None


def _values(paths: Paths) -> dict[str, str]:
    """By launch path; «unset» where it is not set."""
    found = {}
    for path, settings in known(paths).items():
        if path not in NOT_OURS:
            found[path] = next((_plain(s.value) for s in settings if s.name == NAME), UNSET)
    return found


def _plain(value: str) -> str:
    return ",".join(word.strip() for word in value.split(",")) if value.strip() else "«»"


def _seen(context: CheckContext, node: Node) -> str:
    """One word where all launch paths agree."""
    values = _values(context.value(node, "env.paths"))
    if len(set(values.values())) < 2:
        return next(iter(values.values()), UNSET)
    return ", ".join(f"{value} in {path}" for path, value in values.items())


def _of_one(context: CheckContext, node: Node) -> Iterable[Outcome]:
    """What is wrong on one node, whatever the others have; what carries no severity of its own is grave."""
    paths = context.value(node, "env.paths")
    values, wanted, seen = _values(paths), _declared(context, node), _seen(context, node)
    setting = next((s for s in by_place(paths) if s.name == NAME), None)
    fix = cure(setting) if setting is not None else None
    there = f" ({place(setting)})" if setting is not None else ""
    # Where it is declared, apply writes it to a file that not every launch path reads: env_paths says which.
    allowed = {UNSET} if wanted is None else {UNSET, _plain(wanted)}
    count = node.gpus.count if node.gpus is not None else None
    if wanted is not None and not set(values.values()) <= allowed:
        yield Outcome("fail", (node.name,), f"{NAME} is not as declared{there}", seen, wanted, fix)
    elif wanted is None and len(set(values.values())) > 1:
        message = (
            f"{NAME} differs between launch paths{there}: how a job is started decides what it sees"
        )
        yield Outcome("fail", (node.name,), message, seen, "the same in all launch paths", fix)
    for value in sorted(set(values.values()) - allowed):
        if (hole := _hole(value, count)) is not None:
            yield Outcome("fail", (node.name,), f"{hole}{there}", seen, wanted or UNSET, fix)
        elif wanted is None and not _full(value, count):
            message = f"{NAME} hides GPUs, and the inventory does not declare it{there}"
            yield Outcome("fail", (node.name,), message, seen, UNSET, fix, severity="warning")


def _good(context: CheckContext, node: Node) -> Outcome:
    wanted = _declared(context, node)
    message = f"{NAME} is {'unset, or holds every GPU' if wanted is None else 'as declared'}"
    return Outcome("pass", (node.name,), message, _seen(context, node), wanted or UNSET)


def _hole(value: str, count: int | None) -> str | None:
    """Why CUDA takes fewer devices than the list has: it stops at the first item that it cannot use.

    CUDA C++ Programming Guide, environment variables: an invalid index hides it and all behind it, a doubled one all.
    """
    items = value.split(",")
    if value in (UNSET, "«»") or not all(_INDEX.fullmatch(item) or not item for item in items):
        return None  # UUIDs, or nothing at all
    for at, item in enumerate(items):
        if not item or int(item) < 0 or (count is not None and int(item) >= count):
            return f"{NAME} has a hole: CUDA sees nothing from item {at + 1} on, which is «{item}»"
    if len({int(item) for item in items}) < len(items):
        return f"{NAME} names a device twice, and CUDA then sees none"
    return None


def _full(value: str, count: int | None) -> bool:
    items = value.split(",")
    return (
        count is not None
        and all(_INDEX.fullmatch(item) for item in items)
        and {*map(int, items)} == {*range(count)}
    )


VISIBLE = Check(
    "env.cuda_visible",
    facts=("env.paths",),
    judge=visible,
    severity="error",
    title="The GPUs that a job may see",
    why="The number of ranks of a node comes from the devices that are visible: where nodes differ they start "
    "different numbers and wait for ever for the missing ones. A list with a hole ends at the hole.",
    how=f"{NAME} in every launch path: unset, or what `gpus.use` or `env:` declares; the same everywhere, on nodes of "
    "a kind. A difference or a hole is an error, a list that hides GPUs everywhere alike a warning.",
    remedy=REMEDY,
    proof=Proof(
        "env.paths",
        lambda paths: {
            path: settings
            if path == "nccl"
            else (*settings, Setting(NAME, "0,1,2,3,4,5,6,8", "/etc/environment", 2))
            for path, settings in paths.items()
        },
    ),
)
