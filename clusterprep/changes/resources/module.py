"""A module of the kernel: loaded now, and at every boot by its own file in /etc/modules-load.d."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Json, Read
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write

LIMIT = 60.0  # seconds; a driver that initialises its hardware takes some
HEAD = "# Written by clusterprep apply, which overwrites this file.\n"
BRINGERS = ("package", "kernel", "reboot", "command")  # resources whose steps may bring a module


def conf_path(name: str) -> str:
    """Return the path of the file that systemd-modules-load reads for this module."""
    return f"/etc/modules-load.d/clusterprep-{name}.conf"


def is_loaded(state: str | None, answer: Json) -> bool:
    """Return whether a module is loaded or built into the kernel.

    `state` is the module's initstate below /sys/module. `answer` is that of `modprobe -n -v`, which
    loads nothing: its lines are what it would do, and «builtin NAME» for what needs no loading.
    Raises ValueError for a module that is neither, and cannot be loaded.
    """
    if state is not None and state.strip() == "live":
        return True
    if isinstance(answer, Absent):
        message = f"{answer.reason}: {answer.detail}"
        raise ValueError(message)  # noqa: TRY004 - an answer, not a wrong call
    if answer["code"] != 0:
        error = str(answer["err"]).strip()
        raise ValueError(error[-300:] or f"modprobe ended with {answer['code']}")
    for line in str(answer["out"]).splitlines():
        if line.startswith(("insmod ", "install ")):
            return False
    return True


def parse_module(state: str | Absent | None, answer: Json) -> bool | str:
    """Return whether a module is loaded, or why it cannot be loaded."""
    if isinstance(state, Absent):
        state = None
    try:
        return is_loaded(state, answer)
    except ValueError as error:
        return str(error)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    name = str(params["name"])
    folder = name.replace("-", "_")
    state = Read("file", (f"/sys/module/{folder}/initstate",))
    dry_run = Read("command", ("modprobe", "-n", "-v", "--", name), 10.0)
    reads = (state, dry_run)
    return (Fact(f"module:{name}", lambda node, _: reads, parse_module, lenient=True),)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (conf_path(str(params["name"])),)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((f"module {params['name']}", ""),)


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    name = str(params["name"])
    loaded = context.facts[f"module:{name}"]
    if isinstance(loaded, str):
        if not context.awaits(*BRINGERS):
            raise NoPlan("cannot", f"{name} cannot be loaded: {loaded}")
        loaded = False
    operations: list[Operation] = []
    changes = []
    if not loaded:
        undo = RunCommand(("modprobe", "-r", "--", name), LIMIT)
        load = RunCommand(("modprobe", "--", name), LIMIT, undo=(undo,), halfway=False)
        operations.append(load)
        changes.append("loaded")
    file = context.files[conf_path(name)]
    wanted = f"{HEAD}{name}\n".encode()
    if file.content != wanted:
        operations.append(Write(file.path, file.content, wanted))
        changes.append("loaded at boot")
    node = context.node.name
    diff = ", ".join(changes)
    yield StepAction(
        node,
        "module",
        name,
        "update",
        tuple(operations),
        diff,
    )


RESOURCE = StepResource("module", plan, facts=facts, paths=paths, parts=parts, texts=True)
