"""Packages of Debian and Ubuntu: installed, at a version, the latest, removed, on hold.

apt is asked, by `apt-get -s`, what it would do, so dependencies, conflicts and holds are its own
answers. The text that asks is constant, and names are words behind it. Undo uses dpkg and not apt:
dpkg refuses to remove what other packages have come to need, and apt would remove those as well.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.facts.apt import (
    GONE,
    INSTALL,
    MISSING,
    REMOVE,
    Package,
    PackageChange,
    Simulation,
    installed,
    parse_outlook,
    parse_states,
    simulated,
    without_architecture,
)
from clusterprep.model import Absent, Inventory, Json, Read
from clusterprep.model.operations import Action, Operation, RunCommand, StepAction

# Seconds for a driver of 1 GB over a slow line, and a module that is built for each kernel.
LIMIT = 1800.0
# Seconds to wait for another process with the lock of dpkg, such as unattended upgrades.
LOCK = 300
LOCK_LIMIT = LOCK + 60.0  # seconds for a short command that may have to wait for the lock
# apt must not ask questions, and must not restart other services on the way (needrestart's «list
# only»).
QUIET = (
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("NEEDRESTART_MODE", "l"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
)
OLD = ("--force-confdef", "--force-confold")  # files of settings stay as they are
WAIT = ("-o", f"DPkg::Lock::Timeout={LOCK}")
APT = ("apt-get", "-q", "-y", *WAIT, *(f"-oDpkg::Options::={word}" for word in OLD))
MARK = ("apt-mark", *WAIT)
ALLOW_HELD = "--allow-change-held-packages"
# Debian Policy 5.6.1, and an architecture. A minus at the end would ask apt to remove the package.
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+](?::[a-z0-9-]+)?")
_NO_SOURCE = ("Unable to locate", "was not found", "no installation candidate")
BRINGERS = ("package", "command")  # resources whose steps may make a package available
OTHERS = (
    "there is no dpkg and apt here, and packages of other distributions are not handled: "
    "use a step such as "
    "command: {run: dnf -y install NAME, unless: rpm -q NAME, undo: dnf -y remove NAME}"
)


class Apt(Struct, frozen=True):
    """The packages of a step as they are, and what apt would do about them."""

    states: dict[str, Package]
    outlook: Simulation

    def state(self, name: str) -> Package:
        return self.states.get(name, GONE)


# ---------------------------------------------------------------- parameters


def names_of(params: Params) -> tuple[str, ...]:
    names = params["name"]
    if isinstance(names, str):
        return (names,)
    return tuple(dict.fromkeys(names))


def state_of(params: Params) -> str:
    return str(params.get("state", "present"))


def requests(params: Params) -> tuple[str, ...]:
    """Return the packages as apt-get takes them, with the version if one is given."""
    names = names_of(params)
    if "version" not in params:
        return names
    return tuple(f"{name}={params['version']}" for name in names)


def flags(params: Params) -> tuple[str, ...]:
    """Return the options that allow apt more or less.

    An older version is allowed where the step names one, a change of packages on hold where the
    step decides about that.
    """
    options = []
    if "version" in params:
        options.append("--allow-downgrades")
    elif state_of(params) == "present":
        options.append("--no-upgrade")
    if "hold" in params:
        options.append(ALLOW_HELD)
    return tuple(options)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return tuple((f"package {name}", "") for name in names_of(params))


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    state = state_of(params)
    names = names_of(params)
    for name in names:
        if not _NAME.fullmatch(name):
            yield "name", f"expected the name of a package, such as rdma-core; seen '{name}'"
    if "version" in params and state != "present":
        yield "version", f"expected no version with state: {state}"
    if "version" in params and len(names) > 1:
        yield "version", "expected one name with a version; give each package a step of its own"
    if params.get("hold") and state == "absent":
        yield "hold", "a package that is to be gone cannot be kept on hold"


# ---------------------------------------------------------------- what has to be known


def fact_name(params: Params) -> str:
    words = [state_of(params)]
    words += requests(params)
    words += flags(params)
    return f"package:{' '.join(words)}"


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    reads = (installed(names_of(params)), simulation(params))
    name = fact_name(params)
    return (Fact(name, lambda node, _: reads, parse_apt, lenient=True),)


def simulation(params: Params) -> Read:
    """Return the read that asks apt what it would do for these parameters."""
    options = flags(params)
    if state_of(params) == "absent":
        return simulated(REMOVE, " ".join(options), *names_of(params))
    return simulated(INSTALL, *options, "install", *requests(params))


def parse_apt(states: Json, outlook: Json) -> Apt | Absent:
    for answer in (states, outlook):
        if not isinstance(answer, Absent):
            continue
        if answer.reason != "missing_tool":
            return answer
        return Apt({}, Simulation(failed=(MISSING,)))
    return Apt(parse_states(str(states["out"])), parse_outlook(str(outlook["out"])))


# ---------------------------------------------------------------- plan


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    apt: Apt = context.facts[fact_name(params)]
    outlook = apt.outlook
    if MISSING in outlook.failed:
        raise NoPlan("cannot", OTHERS)
    names = names_of(params)
    pending = tuple(name for name in names if needs_apt(params, apt, name))
    if pending and outlook.failed and not _may_come(context):
        raise NoPlan("cannot", refusal(outlook))
    state = state_of(params)
    if state != "absent" and not outlook.failed:
        refuse_others(pending, apt)
    operations: list[Operation] = []
    lines: list[str] = []
    moves: tuple[PackageChange, ...] = ()
    if pending:
        moves = outlook.moves
        operations.append(_apt_command(params, pending, apt))
        lines.extend(move_lines(outlook, names))
    if not moves:
        lines.extend(f"install {name}" for name in pending)
    hold = change_of_hold(params, apt, pending)
    if hold is not None:
        line, operation = hold
        lines.append(line)
        operations.append(operation)
    node = context.node.name
    action = action_of(state, moves)
    target = ", ".join(names)
    diff = "\n".join(lines)
    yield StepAction(
        node,
        "package",
        target,
        action,
        tuple(operations),
        diff,
    )


def _may_come(context: PlanContext) -> bool:
    """Return whether an earlier step may make a package available."""
    if context.awaits(*BRINGERS):
        return True
    return any(path.startswith("/etc/apt/") for path in context.written)


def _apt_command(params: Params, names: Sequence[str], apt: Apt) -> RunCommand:
    if state_of(params) == "absent":
        return remove_command(names, apt.outlook)
    options = flags(params)
    allowed = tuple(option for option in options if option.startswith("--allow"))
    return install_command(names, apt.outlook, apt.states, allowed)


def action_of(state: str, moves: Sequence[PackageChange]) -> Action:
    if state == "absent":
        return "delete"
    changes_existing = any(move.before for move in moves)
    return "update" if changes_existing or not moves else "create"


def needs_apt(params: Params, apt: Apt, name: str) -> bool:
    """Return whether apt has to do something about a package."""
    package = apt.state(name)
    state = state_of(params)
    if state == "absent":
        return not package.gone
    if not package.there:
        return True
    if "version" in params:
        return not fnmatch.fnmatchcase(package.version, str(params["version"]))
    if state != "latest":
        return False
    return bool(apt.outlook.failed) or apt.outlook.new(name) is not None


def refusal(outlook: Simulation) -> str:
    """Return why apt would refuse, and what helps."""
    reasons = "; ".join(outlook.failed)
    if outlook.held or "held packages" in reasons.lower():
        held = f"{', '.join(outlook.held)}: " if outlook.held else ""
        cure = "`hold: false` in the step lets it go, `hold: true` keeps it so afterwards"
        return f"{held}{reasons}: a package on hold would change; {cure}"
    if any(text in reasons for text in _NO_SOURCE):
        cure = "apt-get update there, or a source that is missing"
        return f"{reasons}: no source of apt on this node has it; {cure}"
    return reasons


def refuse_others(names: Sequence[str], apt: Apt) -> None:
    """Raise NoPlan if apt would take another package for a name, or change others on hold."""
    outlook = apt.outlook
    for name in names:
        if not apt.state(name).gone or outlook.new(name) is not None:
            continue
        new = [move.name for move in outlook.moves if move.before is None]
        others = ", ".join(new) or "none"
        lack = f"there is no package of the name {name}"
        raise NoPlan("cannot", f"{lack}; apt would take {others} for it")
    held = set(map(without_architecture, outlook.held))
    held.difference_update(map(without_architecture, names))
    if held:
        others = ", ".join(sorted(held))
        raise NoPlan("cannot", f"{others} would change as well, and is on hold")


def move_lines(outlook: Simulation, names: Iterable[str]) -> list[str]:
    """Return a line for each package that changes, then for each that an undo cannot restore.

    Packages that were asked for by name are first, then those that come with them.
    """
    asked_for = set(map(without_architecture, names))

    def order(move: PackageChange) -> tuple[bool, bool, str]:
        comes_along = without_architecture(move.name) not in asked_for
        return comes_along, move.after is None, move.name

    lines = []
    for move in sorted(outlook.moves, key=order):
        lines.append(str(move))
    for move in outlook.moves:
        if not outlook.returns(move):
            former = f"{move.name} {move.before}"
            lines.append(f"no way back: {former} is in no source")
    return lines


# ---------------------------------------------------------------- what is done


def install_command(
    names: Sequence[str],
    outlook: Simulation,
    states: dict[str, Package],
    allowed: Sequence[str] = (),
) -> RunCommand:
    """Return the command that installs packages in the versions that apt has announced."""
    requested = []
    held = []
    for name in names:
        version = outlook.new(name)
        requested.append(f"{name}={version}" if version else name)
        if states.get(name, GONE).held:
            held.append(name)
    run = _quiet(
        *APT,
        *allowed,
        "install",
        "--",
        *requested,
    )
    return replace(run, undo=undo(outlook, held))


def remove_command(names: Sequence[str], outlook: Simulation) -> RunCommand:
    """Return the command that removes packages, and leaves their files of settings."""
    held = []
    for move in outlook.moves:
        if outlook.state(move.name).held:
            held.append(move.name)
    allowed = (ALLOW_HELD,) if held else ()
    run = _quiet(
        *APT,
        *allowed,
        "remove",
        "--",
        *names,
    )
    return replace(run, undo=undo(outlook, held))


def undo(outlook: Simulation, held: Sequence[str]) -> tuple[RunCommand, ...] | None:
    """Return the commands that restore the former packages; None if a version is not available.

    New packages are removed by dpkg, which refuses where other packages have come to need them; apt
    would remove those as well. Their files of settings go too, except those of packages that had
    such files before.
    """
    if outlook.failed or not all(map(outlook.returns, outlook.moves)):
        return None
    former = []
    new = []
    for move in outlook.moves:
        if move.before is None:
            new.append(move.name)
        else:
            former.append(f"{move.name}={move.before}")
    runs = _before_undo()
    if former:
        removals = [f"{name}-" for name in new]
        argv = (*APT, "--allow-downgrades", ALLOW_HELD, "install", "--", *former, *removals)
        runs.append(_quiet(*argv))
    had_settings = [name for name in new if outlook.state(name).status == "config-files"]
    if had_settings:
        runs.append(_quiet("dpkg", "--remove", *had_settings))
    purged = [name for name in new if name not in had_settings]
    if purged:
        runs.append(_quiet("dpkg", "--purge", *purged))
    if held:
        runs.append(_mark("hold", held))
    return tuple(runs)


def _before_undo() -> list[RunCommand]:
    """Return the commands that wait for the lock, and let dpkg finish what was cut off.

    Only apt can wait for the lock. Without the second command apt does nothing after dpkg was cut
    off. That command sets up no package, because what hung there would hang again.
    """
    check = _quiet(
        "apt-get",
        "-q",
        *WAIT,
        "check",
        limit=LOCK_LIMIT,
    )
    check = replace(check, codes=(0, 100))
    triggers = _quiet("dpkg", "--triggers-only", "-a")
    triggers = replace(triggers, codes=(0, 1, 2))
    return [check, triggers]


def change_of_hold(
    params: Params, apt: Apt, pending: Sequence[str]
) -> tuple[str, RunCommand] | None:
    """Return what to do about holds, None if nothing: the line of the diff, and the command.

    `pending` are the packages that apt changes before.
    """
    wanted = params.get("hold")
    if wanted is None or state_of(params) == "absent":
        return None
    names = names_of(params)
    held = [name for name in names if apt.state(name).held]
    if wanted:
        not_held = [name for name in names if name not in held]
        # apt takes the hold off a package that it changes.
        released = [name for name in held if name in pending]
        return _put_on_hold(not_held, released)
    if not held:
        return None
    lines = "\n".join(f"no hold {name}" for name in held)
    run = _mark("unhold", held)
    undo_run = _mark("hold", held)
    return lines, replace(run, undo=(undo_run,))


def _put_on_hold(not_held: list[str], released: list[str]) -> tuple[str, RunCommand] | None:
    """Return the line and the command that hold packages, None if there are none.

    Undo lets go the packages that were not held before. It leaves the hold on those that apt
    released: they had it.
    """
    if not not_held and not released:
        return None
    run = _mark("hold", not_held + released)
    if not not_held:
        return "stays on hold", replace(run, undo=())
    lines = "\n".join(f"hold {name}" for name in not_held)
    undo_run = _mark("unhold", not_held)
    return lines, replace(run, undo=(undo_run,))


def _mark(verb: str, names: Sequence[str]) -> RunCommand:
    return _quiet(*MARK, verb, *names, limit=LOCK_LIMIT)


def _quiet(*argv: str, limit: float = LIMIT) -> RunCommand:
    """Return a command that asks no questions."""
    return RunCommand(argv, limit, env=QUIET)


RESOURCE = StepResource(
    "package",
    plan,
    facts=facts,
    parts=parts,
    wrong=wrong,
    texts={"name": True, "version": True, "state": True},
)
