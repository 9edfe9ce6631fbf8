"""A service of systemd: started at boot or not, running or not; as a handler it is restarted, or told to read again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.model import Inventory, Json, Read
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.runtime.lazy_dataclass import dataclass

LIMIT = (
    120.0  # seconds for one word to systemd; a unit's own limit is 90 s unless it says otherwise
)
# What counts as started at boot: with the last three there is nothing to enable, others or a generator bring them up.
ENABLED = frozenset({"enabled", "alias", "static", "indirect", "generated"})
RUNNING = frozenset({"active", "reloading", "activating", "refreshing"})
UNITS = ("/etc/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/")
BRINGERS = ("package", "command")  # resources whose deeds may bring a unit


@dataclass(frozen=True)
class Unit:
    """A unit as `systemctl show` has it: LoadState, UnitFileState, ActiveState, and whether its file is newer."""

    load: str
    file: str
    active: str
    stale: bool

    @property
    def there(self) -> bool:
        return self.load not in ("not-found", "")


def unit_name(params: Params) -> str:
    """A name without a suffix is that of a service."""
    name = str(params["name"])
    suffixes = (".service", ".socket", ".timer", ".mount", ".path", ".target")
    return name if name.endswith(suffixes) else f"{name}.service"


def parse_unit(answer: Json) -> Unit:
    """The lines of `systemctl show -p …`, of which a unit that does not exist has some, too."""
    rows = dict(line.split("=", 1) for line in str(answer["out"]).splitlines() if "=" in line)
    if "LoadState" not in rows:
        raise ValueError(
            f"systemctl ended with {answer['code']}: {str(answer['err'])[-200:].strip()}"
        )
    reload = rows.get("NeedDaemonReload") == "yes"
    return Unit(
        rows["LoadState"], rows.get("UnitFileState", ""), rows.get("ActiveState", ""), reload
    )


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    unit = unit_name(params)
    argv = (
        "systemctl",
        "show",
        "-p",
        "LoadState,UnitFileState,ActiveState,NeedDaemonReload",
        "--",
        unit,
    )
    return (Fact(f"service:{unit}", lambda node, _: (Read("command", argv, 10.0),), parse_unit),)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((f"service {unit_name(params)}", ""),) if {"enabled", "running"} & set(params) else ()


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    if params.get("running") is False and params.get("reload"):
        yield "reload", "a service that is to be stopped reads nothing"


def only_handles(params: Params) -> str:
    if {"enabled", "running"} & set(params):
        return ""
    return "expected enabled or running; only a handler, which restarts the service, goes without"


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    name = unit_name(params)
    unit: Unit = known.facts[f"service:{name}"]
    coming = known.awaits(*BRINGERS) or any(f"{folder}{name}" in known.written for folder in UNITS)
    asked = known.notified or params.get("enabled") or params.get("running")
    if not unit.there and asked and not coming:  # what is not there is neither enabled nor running
        raise NoPlan(
            "cannot",
            f"systemd has no unit {name}: a package or a file step before this one may bring it",
        )
    if unit.load == "masked" and (params.get("enabled") or params.get("running")):
        raise NoPlan("cannot", f"{name} is masked: systemctl unmask {shlex.quote(name)}")
    changes = [*_boot(params, name, unit), *_now(params, name, unit, known.notified)]
    words = ", ".join(word for word, _ in changes)
    runs = tuple(run for _, run in changes)
    if runs and unit.stale:
        reload = RunCommand(("systemctl", "daemon-reload"), LIMIT)
        runs = (replace(reload, again=(reload,)), *runs)
    restarts = bool(changes) and changes[-1][0] in ("restarted", "read again")
    yield StepAction(
        known.node.name, "service", name, "restart" if restarts else "update", runs, words
    )


def _boot(params: Params, name: str, unit: Unit) -> Iterator[tuple[str, RunCommand]]:
    wanted = params.get("enabled")
    if wanted is True and unit.file not in ENABLED:
        yield "enabled", _told("enable", name, "disable")
    if wanted is False and unit.file in ("enabled", "enabled-runtime", "alias"):
        yield "disabled", _told("disable", name, "enable")


def _now(params: Params, name: str, unit: Unit, notified: bool) -> Iterator[tuple[str, RunCommand]]:
    wanted, runs = params.get("running"), unit.active in RUNNING
    if wanted is True and not runs:
        yield "started", _told("start", name, "stop")
    elif wanted is False and runs:
        yield "stopped", _told("stop", name, "start")
    elif notified and (runs or wanted is None):
        reads = bool(params.get("reload"))
        verb = "reload-or-restart" if reads else "restart"
        again = RunCommand(
            ("systemctl", f"try-{verb}", "--", name), LIMIT
        )  # an undo may have stopped it
        yield (
            "read again" if reads else "restarted",
            RunCommand(("systemctl", verb, "--", name), LIMIT, again=(again,)),
        )


def _told(verb: str, name: str, back: str) -> RunCommand:
    undo = RunCommand(("systemctl", back, "--", name), LIMIT)
    return RunCommand(("systemctl", verb, "--", name), LIMIT, undo=(undo,))


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
