"""Packages of the distribution: installed, at a version, the latest, removed, on hold.

What is done, and by which commands, is the business of the node's package manager
(`changes/package_managers/`): apt, dnf or zypper. The manager is asked what it would do before
anything is done, so the plan has every package that changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from clusterprep.changes.package_managers import (
    Answered,
    PackageManager,
    PackageRequest,
    Packages,
    move_lines,
    package_managers,
    parse_answers,
    reads_of,
)
from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Json
from clusterprep.model.operations import Action, Operation, RunCommand, StepAction
from clusterprep.model.packages import PackageChange, without_architecture

# What Debian and rpm allow, and an architecture. A minus at the end would ask apt to remove the
# package; names begin with nothing that is a sign for dnf or zypper.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*[A-Za-z0-9_+](?::[a-z0-9-]+)?")
BRINGERS = ("package", "command")  # resources whose steps may make a package available
UNKNOWN_MANAGER = "unknown package manager"
OTHERS = (
    "no package manager that is handled is here (apt, dnf 4, zypper): use a step such as "
    "command: {run: apk add NAME, unless: apk info -e NAME, undo: apk del NAME}"
)


# ---------------------------------------------------------------- parameters


def request_of(params: Params) -> PackageRequest:
    """Return what the parameters of a step ask for."""
    names = params["name"]
    names = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    state = str(params.get("state", "present"))
    version = str(params.get("version", ""))
    return PackageRequest(names, state, version, params.get("hold"))


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return tuple((f"package {name}", "") for name in request_of(params).names)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    request = request_of(params)
    for name in request.names:
        if not _NAME.fullmatch(name):
            yield "name", f"expected the name of a package, such as rdma-core; seen '{name}'"
    if request.version and request.state != "present":
        yield "version", f"expected no version with state: {request.state}"
    if request.version and len(request.names) > 1:
        yield "version", "expected one name with a version; give each package a step of its own"
    if request.hold and request.state == "absent":
        yield "hold", "a package that is to be gone cannot be kept on hold"


# ---------------------------------------------------------------- what has to be known


def fact_name(params: Params) -> str:
    request = request_of(params)
    words = [request.state, *request.names, request.version, str(request.hold)]
    return f"package:{' '.join(words)}"


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    request = request_of(params)
    reads = reads_of(request)

    def parse(*answers: Json) -> Answered | Absent | str:
        answered = parse_answers(request, *answers)
        return UNKNOWN_MANAGER if answered is None else answered

    return (Fact(fact_name(params), lambda node, _: reads, parse, lenient=True),)


# ---------------------------------------------------------------- plan


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    answered = context.facts[fact_name(params)]
    if answered == UNKNOWN_MANAGER:
        raise NoPlan("cannot", OTHERS)
    request = request_of(params)
    manager = package_managers()[answered.manager]
    packages: Packages = answered.packages
    outlook = packages.outlook
    if manager.missing in outlook.failed:
        raise NoPlan("cannot", manager.refusal(outlook))
    names = request.names
    pending = tuple(name for name in names if needs_change(request, manager, packages, name))
    _refuse(request, manager, packages, pending, context)
    operations: list[Operation] = []
    lines: list[str] = []
    moves: tuple[PackageChange, ...] = ()
    if pending:
        moves = outlook.moves
        operations.extend(_commands(request, manager, packages, pending))
        lines.extend(move_lines(outlook, names))
    if not moves:
        lines.extend(f"install {name}" for name in pending)
    hold = change_of_hold(request, manager, packages, pending)
    if hold is not None:
        line, operation = hold
        lines.append(line)
        if operation is not None:
            operations.append(operation)
    yield StepAction(
        context.node.name,
        "package",
        ", ".join(names),
        action_of(request.state, moves),
        tuple(operations),
        "\n".join(lines),
    )


def _refuse(
    request: PackageRequest,
    manager: PackageManager,
    packages: Packages,
    pending: Sequence[str],
    context: PlanContext,
) -> None:
    """Raise NoPlan if the manager refuses, or would do what the step does not say."""
    outlook = packages.outlook
    if not _may_come(manager, context):
        objection = manager.objection(request, pending, packages)
        if objection:
            raise NoPlan("cannot", objection)
        if pending and outlook.failed:
            raise NoPlan("cannot", manager.refusal(outlook))
    if request.state != "absent" and not outlook.failed:
        refuse_others(pending, manager, packages)


def _may_come(manager: PackageManager, context: PlanContext) -> bool:
    """Return whether an earlier step may make a package available."""
    if context.awaits(*BRINGERS):
        return True
    return any(path.startswith(manager.sources) for path in context.written)


def _commands(
    request: PackageRequest, manager: PackageManager, packages: Packages, names: Sequence[str]
) -> tuple[RunCommand, ...]:
    if request.state == "absent":
        return manager.remove(names, packages)
    return manager.install(request, names, packages)


def action_of(state: str, moves: Sequence[PackageChange]) -> Action:
    if state == "absent":
        return "delete"
    changes_existing = any(move.before for move in moves)
    return "update" if changes_existing or not moves else "create"


def needs_change(
    request: PackageRequest, manager: PackageManager, packages: Packages, name: str
) -> bool:
    """Return whether the manager has to do something about a package."""
    package = packages.state(name)
    if request.state == "absent":
        return not package.gone
    if not package.there:
        return True
    if request.version:
        return not manager.matches(package.version, request.version)
    if request.state != "latest":
        return False
    outlook = packages.outlook
    return bool(outlook.failed) or outlook.new(name) is not None


def refuse_others(names: Sequence[str], manager: PackageManager, packages: Packages) -> None:
    """Raise NoPlan if another package would be taken for a name, or others on hold change."""
    outlook = packages.outlook
    for name in names:
        if not packages.state(name).gone or outlook.new(name) is not None:
            continue
        new = [move.name for move in outlook.moves if move.before is None]
        others = ", ".join(new) or "none"
        lack = f"there is no package of the name {name}"
        raise NoPlan("cannot", f"{lack}; {manager.name} would take {others} for it")
    held = set(map(without_architecture, outlook.held))
    held.difference_update(map(without_architecture, names))
    if held:
        others = ", ".join(sorted(held))
        raise NoPlan("cannot", f"{others} would change as well, and is on hold")


# ---------------------------------------------------------------- holds


def change_of_hold(
    request: PackageRequest, manager: PackageManager, packages: Packages, pending: Sequence[str]
) -> tuple[str, RunCommand | None] | None:
    """Return what to do about holds, None if nothing: the line of the diff, and the command.

    `pending` are the packages that change before. Where the manager does not take the hold off
    these by itself, the commands before have done it, and their undo brings it back.
    """
    if request.hold is None or request.state == "absent":
        return None
    held = [name for name in request.names if packages.state(name).held]
    changed = [name for name in held if name in pending]
    if request.hold:
        not_held = [name for name in request.names if name not in held]
        return _put_on_hold(manager, not_held, changed)
    if not held:
        return None
    lines = "\n".join(f"no hold {name}" for name in held)
    if not manager.releases:
        held = [name for name in held if name not in changed]
    if not held:
        return lines, None
    return lines, replace(manager.release(held), undo=(manager.hold(held),))


def _put_on_hold(
    manager: PackageManager, not_held: list[str], changed: list[str]
) -> tuple[str, RunCommand] | None:
    """Return the line and the command that hold packages, None if there are none.

    Undo lets go the packages that were not held before. It leaves the hold on those that the
    manager has released by itself: they had it.
    """
    if not not_held and not changed:
        return None
    run = manager.hold(not_held + changed)
    undone = not_held if manager.releases else not_held + changed
    undo = (manager.release(undone),) if undone else ()
    lines = "\n".join(f"hold {name}" for name in not_held)
    return lines or "stays on hold", replace(run, undo=undo)


RESOURCE = StepResource(
    "package",
    plan,
    facts=facts,
    parts=parts,
    wrong=wrong,
    texts={"name": True, "version": True, "state": True},
)
