"""A service of systemd: enabled at boot or not, running or not; handlers restart or reload it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Json, Read
from clusterprep.model.operations import Action, RunCommand, StepAction

# Seconds for one systemctl command; a unit's own limit is 90 s unless it says otherwise.
LIMIT = 120.0
# States that count as started at boot. With the last three there is nothing to enable: other units
# or a generator start them.
ENABLED = frozenset({"enabled", "alias", "static", "indirect", "generated"})
RUNNING = frozenset({"active", "reloading", "activating", "refreshing"})
SUFFIXES = (".service", ".socket", ".timer", ".mount", ".path", ".target")
UNITS = ("/etc/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/")
NO_SYSTEMD = "has not been booted with systemd"  # systemctl, since version 226
WITHOUT_SYSTEMD = "services are told to systemd, and no systemd runs here"
BRINGERS = ("package", "command")  # resources whose steps may bring a unit


class Unit(Struct, frozen=True):
    """A unit's LoadState, UnitFileState and ActiveState, as `systemctl show` prints them.

    `stale`: its file is newer than what systemd has read.
    """

    load: str
    file: str
    active: str
    stale: bool

    @property
    def exists(self) -> bool:
        return self.load not in ("not-found", "")


def unit_name(params: Params) -> str:
    """Return the name of the unit. A name without a suffix is that of a service."""
    name = str(params["name"])
    if name.endswith(SUFFIXES):
        return name
    return f"{name}.service"


def show_command(unit: str) -> tuple[str, ...]:
    """Return the command whose answer `parse_unit` reads."""
    properties = "LoadState,UnitFileState,ActiveState,NeedDaemonReload"
    return "systemctl", "show", "-p", properties, "--", unit


def parse_unit(answer: Json) -> Unit | Absent:
    """Parse the lines of `systemctl show -p …`, which has some for a missing unit, too.

    The unit is absent on a node that runs another init system, or none.
    """
    if NO_SYSTEMD in str(answer["err"]):
        return Absent("cannot", WITHOUT_SYSTEMD)
    properties = {}
    for line in str(answer["out"]).splitlines():
        key, separator, value = line.partition("=")
        if separator:
            properties[key] = value
    if "LoadState" not in properties:
        error = str(answer["err"])[-200:].strip()
        raise ValueError(f"systemctl ended with {answer['code']}: {error}")
    file = properties.get("UnitFileState", "")
    active = properties.get("ActiveState", "")
    stale = properties.get("NeedDaemonReload") == "yes"
    return Unit(properties["LoadState"], file, active, stale)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    unit = unit_name(params)
    argv = show_command(unit)
    reads = (Read("command", argv, 10.0),)
    return (Fact(f"service:{unit}", lambda node, _: reads, parse_unit),)


def _names_state(params: Params) -> bool:
    return "enabled" in params or "running" in params


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    if not _names_state(params):
        return ()
    return ((f"service {unit_name(params)}", ""),)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    if params.get("running") is False and params.get("reload"):
        yield "reload", "a service that is to be stopped reads nothing"


def only_handles(params: Params) -> str:
    if _names_state(params):
        return ""
    return "expected enabled or running; only a handler, which restarts the service, goes without"


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    name = unit_name(params)
    unit: Unit = context.facts[f"service:{name}"]
    _refuse(params, context, name, unit)
    boot_changes = _boot_changes(params, name, unit)
    run_changes = _run_changes(params, name, unit, context.notified)
    diffs = []
    runs = []
    for diff, run in (*boot_changes, *run_changes):
        diffs.append(diff)
        runs.append(run)
    if runs and unit.stale:
        runs.insert(0, daemon_reload(LIMIT))
    action: Action = "update"
    if "restarted" in diffs or "read again" in diffs:
        action = "restart"
    node = context.node.name
    yield StepAction(
        node,
        "service",
        name,
        action,
        tuple(runs),
        ", ".join(diffs),
    )


def _refuse(params: Params, context: PlanContext, name: str, unit: Unit) -> None:
    """Raise NoPlan for a unit that is missing or masked."""
    to_be_up = params.get("enabled") or params.get("running")
    # A missing unit is neither enabled nor running, which is all that other steps want.
    needed = context.notified or to_be_up
    if needed and not unit.exists and not _may_come(context, name):
        cure = "a package or a file step before this one may bring it"
        raise NoPlan("cannot", f"systemd has no unit {name}: {cure}")
    if to_be_up and unit.load == "masked":
        cure = f"systemctl unmask {shlex.quote(name)}"
        raise NoPlan("cannot", f"{name} is masked: {cure}")


def _may_come(context: PlanContext, name: str) -> bool:
    """Return whether an earlier step may bring this unit."""
    for folder in UNITS:
        if f"{folder}{name}" in context.written:
            return True
    return context.awaits(*BRINGERS)


def _boot_changes(params: Params, name: str, unit: Unit) -> Iterator[tuple[str, RunCommand]]:
    wanted = params.get("enabled")
    if wanted is True and unit.file not in ENABLED:
        yield "enabled", reversible("enable", "disable", name, LIMIT)
    if wanted is False and unit.file in ("enabled", "enabled-runtime", "alias"):
        yield "disabled", reversible("disable", "enable", name, LIMIT)


def _run_changes(
    params: Params, name: str, unit: Unit, notified: bool
) -> Iterator[tuple[str, RunCommand]]:
    wanted = params.get("running")
    runs = unit.active in RUNNING
    if wanted is True and not runs:
        yield "started", reversible("start", "stop", name, LIMIT)
    elif wanted is False and runs:
        yield "stopped", reversible("stop", "start", name, LIMIT)
    elif notified and (runs or wanted is None):
        if params.get("reload"):
            yield "read again", restart("reload-or-restart", name, LIMIT)
        else:
            yield "restarted", restart("restart", name, LIMIT)


def systemctl(verb: str, unit: str, limit: float) -> RunCommand:
    """Return the command that does this to a unit."""
    return RunCommand(("systemctl", verb, "--", unit), limit)


def reversible(verb: str, undo_verb: str, unit: str, limit: float) -> RunCommand:
    """Return a command for a unit that the other verb undoes."""
    run = systemctl(verb, unit, limit)
    undo = systemctl(undo_verb, unit, limit)
    return replace(run, undo=(undo,))


def restart(verb: str, unit: str, limit: float) -> RunCommand:
    """Return a command that makes a service read its files, again after a rollback.

    A rollback may have stopped the service; the try- verbs leave a stopped one alone.
    """
    run = systemctl(verb, unit, limit)
    again = systemctl(f"try-{verb}", unit, limit)
    return replace(run, again=(again,))


def daemon_reload(limit: float) -> RunCommand:
    """Return the command that makes systemd read its units, again after a rollback."""
    run = RunCommand(("systemctl", "daemon-reload"), limit)
    return replace(run, again=(run,))


RESOURCE = StepResource(
    "service",
    plan,
    facts=facts,
    parts=parts,
    wrong=wrong,
    texts={"name": True},
    handles=True,
    only_handles=only_handles,
)
