"""zypper, of SLES and openSUSE."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from clusterprep.changes.package_managers import (
    LIMIT,
    LOCK,
    LOCK_LIMIT,
    PackageManager,
    PackageRequest,
    Packages,
)
from clusterprep.changes.rpm_commands import erase_new, finish_changes, matches
from clusterprep.facts.zypper import MISSING, parse_answer, simulated
from clusterprep.model import Absent, Json, Read
from clusterprep.model.operations import RunCommand
from clusterprep.model.packages import Simulation

ZYPPER = ("zypper", "--non-interactive", "--no-refresh", "--quiet")
WAIT = (("ZYPP_LOCK_TIMEOUT", str(LOCK)),)
# zypper ends with these where it has done its work and suggests a reboot or a restart of itself.
DONE = (0, 102, 103)
_NO_SOURCE = ("No provider of", "not found in package names")


def reads(request: PackageRequest) -> tuple[Read, ...]:
    """Return the read that asks zypper what it would do."""
    return (simulated(request.state, request.version, request.names),)


def parse(request: PackageRequest, answer: Json) -> Packages | Absent:
    """Return the packages, or why they are not known."""
    if isinstance(answer, Absent):
        return answer
    parsed = parse_answer(int(answer["code"]), str(answer["out"]))
    if isinstance(parsed, Absent):
        return parsed
    states, outlook = parsed
    return Packages(states, outlook)


def refusal(outlook: Simulation) -> str:
    """Return why zypper would refuse, and what helps."""
    reasons = "; ".join(outlook.failed)
    if any(text in reasons for text in _NO_SOURCE):
        cure = "zypper refresh there, or a repository that is missing"
        return f"{reasons}: no repository of this node has it; {cure}"
    return reasons


def objection(request: PackageRequest, pending: Sequence[str], packages: Packages) -> str:
    """Return why zypper cannot change a package: its lock cannot be left out for one command."""
    held = [name for name in pending if packages.state(name).held]
    if not held:
        return ""
    names = ", ".join(held)
    cure = "`hold: false` in a step of its own before this one lets it go"
    return f"{names} is locked in zypper and would change; {cure}"


def install(
    request: PackageRequest, names: Sequence[str], packages: Packages
) -> tuple[RunCommand, ...]:
    """Return the command that installs packages in the versions that zypper has announced."""
    requested = []
    for name in names:
        version = packages.outlook.new(name)
        requested.append(f"{name}={version}" if version else name)
    options = ("--oldpackage",) if request.version else ()
    run = _zypper("install", *options, *requested)
    return (replace(run, undo=undo(packages.outlook)),)


def remove(names: Sequence[str], packages: Packages) -> tuple[RunCommand, ...]:
    """Return the command that removes packages, and those that need them."""
    run = _zypper("remove", "--no-clean-deps", *names)
    return (replace(run, undo=undo(packages.outlook)),)


def undo(outlook: Simulation) -> tuple[RunCommand, ...] | None:
    """Return the commands that restore the former packages; None if a version is not available.

    Where a new package stands for a former one, the same command removes it: `!` before its name.
    """
    if outlook.failed or not all(map(outlook.returns, outlook.moves)):
        return None
    former = []
    new = []
    is_replaced = False
    for move in outlook.moves:
        if move.before is None:
            new.append(f"!{move.name}")
            continue
        former.append(f"{move.name}={move.before}")
        is_replaced = is_replaced or move.after is None
    runs = finish_changes(outlook.moves)
    if former:
        removals = new if is_replaced else []
        runs.append(_zypper("install", "--oldpackage", *former, *removals))
    runs += erase_new(outlook.moves)
    return tuple(runs)


def _zypper(*words: str) -> RunCommand:
    return RunCommand((*ZYPPER, *words), LIMIT, codes=DONE, env=WAIT)


def hold(names: Sequence[str]) -> RunCommand:
    """Return the command that locks packages."""
    return RunCommand((*ZYPPER, "addlock", "--type", "package", *names), LOCK_LIMIT, env=WAIT)


def release(names: Sequence[str]) -> RunCommand:
    """Return the command that lets packages change again."""
    return RunCommand((*ZYPPER, "removelock", "--type", "package", *names), LOCK_LIMIT, env=WAIT)


MANAGER = PackageManager(
    name="zypper",
    missing=MISSING,
    sources="/etc/zypp/repos.d/",
    reads=reads,
    parse=parse,
    install=install,
    remove=remove,
    hold=hold,
    release=release,
    releases=False,
    refusal=refusal,
    matches=matches,
    objection=objection,
)
