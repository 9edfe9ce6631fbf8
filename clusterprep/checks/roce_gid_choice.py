"""Judges the GID that NCCL would take in each launch path, by the variables that are set there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
from clusterprep.checks.env import BASHRC, place, removal_command, with_settings
from clusterprep.checks.ib import FACTS, training_not_known
from clusterprep.checks.roce import WANTED, describe_gid, without_roce_together
from clusterprep.facts.environment import Paths, Setting, in_effect
from clusterprep.facts.network import Family
from clusterprep.facts.rdma import Gid
from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Inventory, Node
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.gids import (
    DYNAMIC,
    FAMILY_VARIABLE,
    GidRules,
    addresses_of,
    entry_taken,
    gid_rules,
    roce_family,
    roce_rails_by_node,
    usable_gid,
)
from clusterprep.nccl.interfaces import FAMILIES
from clusterprep.nccl.rails import RdmaRail, is_rdma_switched_off, training_sets
from clusterprep.remedies import Remedy, shell_line

INDEX = "NCCL_IB_GID_INDEX"
RANGE = "NCCL_IB_ADDR_RANGE"
VERSION = "NCCL_IB_ROCE_VERSION_NUM"
CONF = "nccl"  # NCCL's own files, which every launch path reads
# It is not known whether a unit of systemd runs a job of many nodes.
LESSER = "systemd"
Settings = Mapping[str, Setting]
Held = Mapping[str, set[str]]


class WrongChoice(Struct, frozen=True):
    """An entry that NCCL would take on a port, and that others do not reach it by."""

    rail: RdmaRail
    entry: Gid
    settings: Settings


def gid_choice(context: CheckContext) -> Iterable[Outcome]:
    """Compare the entry that NCCL would take in every launch path with one that others reach."""
    sets = training_sets(context.fleet)
    rails_by_node = roce_rails_by_node(context.fleet)
    family = roce_family(context.fleet)
    for nodes in without_roce_together(context):
        node = nodes[0]
        training = sets[node.name]
        if isinstance(training, Absent):
            yield training_not_known(node, training)
            continue
        rails = rails_by_node[node.name]
        if not rails or is_rdma_switched_off(node):
            yield from about_all(nodes, [skipped(node, "the job does not use RoCE")])
            continue
        held = addresses_of(context.value(node, "net.interfaces"))
        # A port without a usable entry is for roce.gid.
        usable = [rail for rail in rails if usable_gid(rail.port, held, family) is not None]
        if usable:
            yield from _judge(context, node, usable, held)
        else:
            yield unknown(node, "no port has a GID that others reach", "roce.gid")


def _judge(
    context: CheckContext, node: Node, rails: list[RdmaRail], held: Held
) -> Iterable[Outcome]:
    """Judge the launch paths of one node: the wrong ones, else those that are not known."""
    paths: Paths = context.value(node, "env.paths")
    is_old = _is_old(context, node)
    wrong: dict[str, WrongChoice] = {}
    unanswered: Absent | None = None
    for path, answer in paths.items():
        if path == CONF:
            continue
        if isinstance(answer, Absent):
            if answer.reason != "not_applicable":
                unanswered = unanswered or answer
            continue
        found = _wrong_choice(rails, held, in_effect(paths, path), is_old)
        if found is not None:
            wrong[path] = found
    if wrong:
        yield _failure(context, node, wrong, is_old)
    elif unanswered is not None:
        message = "the variables of a launch path are not known"
        yield unknown(node, unanswered.detail or message, unanswered.reason)
    else:
        family = roce_family(context.fleet)
        message = "NCCL would take a GID that others reach, in every launch path"
        yield passed(node, message, _describe_indices(rails, held, family), WANTED[family])


def _is_old(context: CheckContext, node: Node) -> bool:
    """Return whether the job's NCCL cannot find the entry by itself; one not known is no old."""
    build = context.value(node, "torch.build")
    if not isinstance(build, Torch) or build.nccl is None:
        return False
    return leading_numbers(build.nccl)[:2] < DYNAMIC


def _wrong_choice(
    rails: list[RdmaRail], held: Held, settings: Settings, is_old: bool
) -> WrongChoice | None:
    """Return the first port whose entry others do not reach; None if there is none."""
    values = {name: setting.value for name, setting in settings.items()}
    if _is_rdma_off(values):
        return None
    rules = gid_rules(values)
    if is_old:
        rules = GidRules(index=rules.index or 0)
    for rail in rails:
        entry = entry_taken(rail.port, rules)
        if not _is_reached(rail, entry, held, rules.version):
            return WrongChoice(rail, entry, settings)
    return None


def _is_rdma_off(values: Mapping[str, str]) -> bool:
    if values.get("NCCL_NET", "").lower() == "socket":
        return True
    return values.get("NCCL_IB_DISABLE", "0").strip() not in ("", "0")


def _is_reached(rail: RdmaRail, entry: Gid, held: Held, version: int) -> bool:
    """Return whether an entry has an address of its interface and the wanted version of RoCE."""
    alone = replace(rail.port, gids=(entry,))
    return any(usable_gid(alone, held, family, version) is not None for family in FAMILIES)


def _failure(
    context: CheckContext, node: Node, wrong: Mapping[str, WrongChoice], is_old: bool
) -> Outcome:
    """Return the failure of launch paths; the first of them stands for all."""
    family = roce_family(context.fleet)
    first = next(iter(wrong.values()))
    name = first.rail.name
    what = f"index {first.entry.index}, {describe_gid(first.entry)}"
    if not first.entry.kind:
        what = "an empty entry"
    decides = _deciding(first.settings, family, is_old)
    cause = f"{INDEX if is_old else FAMILY_VARIABLE} is not set"
    if decides is not None:
        cause = f"{decides.name}={decides.value} of {place(decides)}"
    message = f"{name}: NCCL would take {what} in {' and in '.join(wrong)}: {cause}"
    severity = "warning" if all(path.startswith(LESSER) for path in wrong) else None
    outcome = failed(
        node,
        message,
        f"{name}: {what}",
        WANTED[family],
        _remedy(decides, family, is_old, context.inventory),
        fix=None if decides else _fix(),
    )
    return replace(outcome, severity=severity)


def _deciding(settings: Settings, family: Family, is_old: bool) -> Setting | None:
    """Return the variable that decides, None where the one that should decide is not set."""
    rules = gid_rules({name: setting.value for name, setting in settings.items()})
    if rules.index is not None or is_old:
        return settings.get(INDEX)
    if rules.family != family:
        return settings.get(FAMILY_VARIABLE)
    return settings.get(RANGE) or settings.get(VERSION)


def _remedy(decides: Setting | None, family: Family, is_old: bool, inventory: Inventory) -> Remedy:
    """Return how to have NCCL take the right entry."""
    if decides is not None:
        return removal_command(decides, inventory)
    if is_old:
        return shell_line("clusterprep apply INVENTORY   # writes NCCL_IB_GID_INDEX")
    return shell_line(
        "clusterprep apply INVENTORY   # writes NCCL_IB_ADDR_FAMILY={family}", family=family
    )


def _fix() -> Fix:
    return fix_of(wanted_state("env"), everywhere=True)


def _describe_indices(rails: list[RdmaRail], held: Held, family: Family) -> str:
    """Return «index 3», or all indices where they differ."""
    indices = set()
    for rail in rails:
        entry = usable_gid(rail.port, held, family)
        if entry is not None:
            indices.add(entry.index)
    return f"index {', '.join(map(str, sorted(indices)))}"


CHECK = Check(
    "roce.gid_choice",
    facts=(*FACTS, "net.interfaces", "env.paths"),
    uses=("torch.build",),
    judge=gid_choice,
    severity="error",
    grade="a warning for units of systemd alone, else an error",
    follows=("roce.gid", "env.shadow"),
    title="The GID that NCCL would take",
    why="By a forgotten index or range, or on a fabric with IPv6 alone where nothing is set, NCCL "
    "takes a link-local or an empty entry: queue pairs time out with error 12 or 110.",
    how="NCCL's own rules with NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE and "
    "NCCL_IB_ROCE_VERSION_NUM of each launch path and of NCCL's files, on the GID tables of the "
    "training's Ethernet ports. NCCL before 2.21 takes the index alone, 0 where none is set.",
    remedy=shell_line("show_gids; env | grep NCCL_IB"),
    proof=Proof(
        "env.paths",
        with_settings("login shell", Setting(RANGE, "172.16.0.0/12", BASHRC, 3)),
        fleet="hgx-h100-roce",
    ),
)
