"""A module of the kernel: loaded now, and at every boot by a file of its own in /etc/modules-load.d."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Json, Read
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write

LIMIT = 60.0  # seconds; a driver that brings up its hardware takes some
HEAD = "# Written by clusterprep apply, which overwrites this file.\n"


def place(name: str) -> str:
    """The file that systemd-modules-load reads."""
    return f"/etc/modules-load.d/clusterprep-{name}.conf"


def is_loaded(loaded: str | None, answer: Json) -> bool:
    """Whether a module is in the kernel, or built into it. ValueError where it is neither and cannot be loaded.

    `loaded` is the module's initstate below /sys/module, `answer` that of a `modprobe -n -v`, which loads nothing: its
    lines are what it would do, and «builtin NAME» for what needs no loading.
    """
    if loaded is not None and loaded.strip() == "live":
        return True
    if isinstance(answer, Absent):
        raise ValueError(f"{answer.reason}: {answer.detail}")  # noqa: TRY004 - an answer, not a wrong call
    if answer["code"] != 0:
        raise ValueError(
            str(answer["err"]).strip()[-300:] or f"modprobe ended with {answer['code']}"
        )
    return not [
        line for line in str(answer["out"]).splitlines() if line.startswith(("insmod ", "install "))
    ]


def looked(loaded: str | Absent | None, answer: Json) -> bool | str:
    """Whether it is there, or why it cannot be loaded."""
    try:
        return is_loaded(None if isinstance(loaded, Absent) else loaded, answer)
    except ValueError as error:
        return str(error)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    name = str(params["name"])
    state = Read("file", (f"/sys/module/{name.replace('-', '_')}/initstate",))
    reads = (state, Read("command", ("modprobe", "-n", "-v", "--", name), 10.0))
    return (Fact(f"module:{name}", lambda node, _: reads, looked, lenient=True),)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (place(str(params["name"])),)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((f"module {params['name']}", ""),)


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    name = str(params["name"])
    there = known.facts[f"module:{name}"]
    if isinstance(there, str):
        if not known.awaits("package", "kernel", "reboot", "command"):
            raise NoPlan("cannot", f"{name} cannot be loaded: {there}")
        there = False
    file = known.files[place(name)]
    wanted = f"{HEAD}{name}\n".encode()
    operations: list[Operation] = []
    if not there:
        undo = RunCommand(("modprobe", "-r", "--", name), LIMIT)
        operations.append(RunCommand(("modprobe", "--", name), LIMIT, undo=(undo,), halfway=False))
    if file.content != wanted:
        operations.append(Write(file.path, file.content, wanted))
    words = [
        *([] if there else ["loaded"]),
        *([] if file.content == wanted else ["loaded at boot"]),
    ]
    yield StepAction(known.node.name, "module", name, "update", tuple(operations), ", ".join(words))


RESOURCE = StepResource("module", plan, facts=facts, paths=paths, parts=parts, texts=True)
