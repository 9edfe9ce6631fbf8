"""How processors choose their clock: the governor of every frequency policy, now and at boot."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Read
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write

POLICIES = "/sys/devices/system/cpu/cpufreq"
CURRENT, AVAILABLE = "scaling_governor", "scaling_available_governors"
# systemd-tmpfiles writes it at every boot; `w` takes a pattern of files, tmpfiles.d(5).
FILE = "/etc/tmpfiles.d/clusterprep-governor.conf"
HEAD = "# Written by clusterprep apply, which overwrites this file.\n"
LIMIT = 30.0  # seconds
# Writes its first argument to the files that follow; the kernel takes it or refuses it.
SET = 'value=$1; shift; for file; do echo "$value" > "$file" || exit; done'
_NAME = re.compile(r"[a-z_]{1,15}")


class Governors(Struct, frozen=True):
    """The governor of each policy by its folder, and those that every policy could have."""

    current: Mapping[str, str]
    available: frozenset[str]


def parse_governors(files: Mapping[str, str]) -> Governors | Absent:
    """Return the governors of a node; Absent where the system sets no clocks."""
    current = {}
    choices = []
    for path, text in files.items():
        folder, name = posixpath.split(path)
        if name == CURRENT:
            current[folder] = text.strip()
        else:
            choices.append(frozenset(text.split()))
    if not current:
        return Absent("not_applicable", "the system does not set this machine's clocks")
    available = frozenset.intersection(*choices) if choices else frozenset()
    return Governors(current, available)


GOVERNORS = Fact(
    "governor:policies",
    lambda node, inventory: (
        Read("files", (f"{POLICIES}/*/{CURRENT}", f"{POLICIES}/*/{AVAILABLE}")),
    ),
    parse_governors,
    lenient=True,
)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (GOVERNORS,)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (FILE,)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("governor", ""),)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    if not _NAME.fullmatch(str(params["name"])):
        yield "name", "expected the name of a governor such as performance"


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    wanted = str(params["name"])
    governors: Governors | Absent = context.facts[GOVERNORS.name]
    operations: list[Operation] = []
    changes = []
    if isinstance(governors, Absent):
        if governors.reason != "not_applicable":
            raise NoPlan(governors.reason, governors.detail)
        changes.append("nothing: this machine's clocks are set elsewhere")
    else:
        _refuse_unknown(wanted, governors)
        former = _others(governors, wanted)
        if former:
            operations.append(_set_all(former, wanted))
            words = [f"{name} of {len(folders)} policies" for name, folders in former.items()]
            changes.append(f"{', '.join(words)} → {wanted}")
        operations.extend(_at_boot(context, wanted))
        if len(operations) > bool(former):
            changes.append(f"{wanted} at boot")
    node = context.node.name
    yield StepAction(
        node,
        "governor",
        wanted,
        "update",
        tuple(operations),
        ", ".join(changes) if operations else "",
    )


def _refuse_unknown(wanted: str, governors: Governors) -> None:
    if governors.available and wanted not in governors.available:
        known = ", ".join(sorted(governors.available))
        raise NoPlan("cannot", f"this machine has no governor {wanted}; it has {known}")


def _others(governors: Governors, wanted: str) -> dict[str, list[str]]:
    """Return the files of the policies that have another governor, by its name."""
    former: dict[str, list[str]] = {}
    for folder, name in sorted(governors.current.items()):
        if name != wanted:
            former.setdefault(name, []).append(f"{folder}/{CURRENT}")
    return former


def _set_all(former: Mapping[str, Sequence[str]], wanted: str) -> RunCommand:
    """Return the command for all of these files; its undo gives each the governor that it had."""
    undo = []
    files: list[str] = []
    for name, of_name in former.items():
        files.extend(of_name)
        undo.append(_set(name, of_name))
    return replace(_set(wanted, files), undo=tuple(undo))


def _set(name: str, files: Iterable[str]) -> RunCommand:
    return RunCommand(("sh", "-c", SET, "sh", name, *files), LIMIT)


def _at_boot(context: PlanContext, wanted: str) -> Iterable[Write]:
    file = context.files[FILE]
    content = f"{HEAD}w {POLICIES}/policy*/{CURRENT} - - - - {wanted}\n".encode()
    if file.content != content:
        yield Write(FILE, file.content, content)


RESOURCE = StepResource(
    "governor",
    plan,
    facts=facts,
    paths=paths,
    parts=parts,
    wrong=wrong,
    texts=True,
    inapplicable=True,
)
