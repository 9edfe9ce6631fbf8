"""dnf 4, of RHEL 8 to 10 and their relatives."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from clusterprep.changes.package_managers import (
    LIMIT,
    LOCK_LIMIT,
    PackageManager,
    PackageRequest,
    Packages,
)
from clusterprep.changes.rpm_commands import (
    erase_new,
    finish_changes,
    former_architecture,
    matches,
)
from clusterprep.facts.dnf import (
    FIXED,
    NO_LOCKS,
    UNSUPPORTED,
    WITHOUT_LOCKS,
    parse_answer,
    simulated,
)
from clusterprep.model import Absent, Json, Read
from clusterprep.model.operations import RunCommand
from clusterprep.model.packages import Simulation

# dnf waits for its lock by itself. Metadata is not renewed, so that apply sees what plan has seen.
DNF = ("dnf", "-q", "-y", FIXED)
_NO_SOURCE = "Unable to find a match"
SHOWN = 3  # packages or streams that a refusal names


def reads(request: PackageRequest) -> tuple[Read, ...]:
    """Return the read that asks dnf what it would do."""
    decides = request.hold is not None
    return (simulated(request.state, request.version, decides, request.names),)


def parse(request: PackageRequest, answer: Json) -> Packages | Absent:
    """Return the packages, or why they are not known."""
    if isinstance(answer, Absent):
        return answer
    states, outlook = parse_answer(int(answer["code"]), str(answer["out"]))
    return Packages(states, outlook)


def refusal(outlook: Simulation) -> str:
    """Return why dnf would refuse, and what helps."""
    reasons = "; ".join(outlook.failed)
    if UNSUPPORTED in outlook.failed:
        return (
            f"{reasons} here, and yum 3 and dnf 5 are not handled: use a step such as "
            "command: {run: dnf -y install NAME, unless: rpm -q NAME, undo: dnf -y remove NAME}"
        )
    if outlook.hidden:
        return f"{reasons}: {_why_hidden(outlook)}"
    if _NO_SOURCE in reasons:
        return (
            f"{reasons}: no repository of this node has it; dnf makecache there brings newer "
            "lists, and a lock (dnf versionlock list) or `exclude=` may hide a version, or a "
            "module (dnf module list) the package"
        )
    return reasons


def _why_hidden(outlook: Simulation) -> str:
    """Return which packages a module hides, and what makes them visible."""
    names = _some(outlook.hidden)
    if not outlook.streams:
        return (
            f"a module hides {names}, which is of none itself: `dnf module list` on the node shows "
            "the module with packages of such names, and dnf -y module disable MODULE or a line "
            "module_hotfixes=1 in the repository's file makes it visible"
        )
    first = outlook.streams[0]
    module, _, stream = first.partition(":")
    return (
        f"dnf's modules hide {names}; what is needed is in {_some(outlook.streams)}, which is not "
        f"enabled: dnf -y module enable {first} on the node (after dnf -y module reset {module}, "
        f"where another stream of it is), or a step before this one such as command: {{run: dnf -y "
        f"module enable {first}, unless: grep -q ^stream={stream}$ /etc/dnf/modules.d/{module}"
        f".module, undo: dnf -y module reset {module}}}"
    )


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def objection(request: PackageRequest, pending: Sequence[str], packages: Packages) -> str:
    """Return why dnf cannot hold packages, empty if it can."""
    if NO_LOCKS in packages.outlook.failed:
        cure = "a step before this one may bring it (package python3-dnf-plugin-versionlock)"
        return f"{NO_LOCKS}: {cure}"
    return ""


def install(
    request: PackageRequest, names: Sequence[str], packages: Packages
) -> tuple[RunCommand, ...]:
    """Return the commands that install packages in the versions that dnf has announced.

    A lock is that of one version, so it goes first where the step decides about it.
    """
    outlook = packages.outlook
    options = []
    if request.state == "latest":
        options.append("--best")
    if request.hold is not None:
        options.append(WITHOUT_LOCKS)
    requested = []
    for name in names:
        version = outlook.new(name)
        requested.append(f"{name}-{version}" if version else name)
    held = [name for name in names if packages.state(name).held]
    run = RunCommand((*DNF, "install", *options, *requested), LIMIT)
    run = replace(run, undo=undo(outlook, held))
    if not held or request.hold is None:
        return (run,)
    return (replace(release(held), undo=(hold(held),)), run)


def remove(names: Sequence[str], packages: Packages) -> tuple[RunCommand, ...]:
    """Return the command that removes packages, and those that need them."""
    run = RunCommand((*DNF, "remove", "--noautoremove", *names), LIMIT)
    return (replace(run, undo=undo(packages.outlook, ())),)


def undo(outlook: Simulation, held: Sequence[str]) -> tuple[RunCommand, ...] | None:
    """Return the commands that restore the former packages; None if a version is not available.

    dnf may remove others only where a new package stands for a former one.
    """
    if outlook.failed or not all(map(outlook.returns, outlook.moves)):
        return None
    former = []
    is_replaced = False
    for move in outlook.moves:
        if move.before is None:
            continue
        former.append(f"{move.name}-{move.before}.{former_architecture(move)}")
        is_replaced = is_replaced or move.after is None
    runs = finish_changes(outlook.moves)
    if former:
        erasing = ("--allowerasing",) if is_replaced else ()
        argv = (*DNF, "install", WITHOUT_LOCKS, *erasing, *former)
        runs.append(RunCommand(argv, LIMIT))
    runs += erase_new(outlook.moves)
    if outlook.enabled:
        modules = [stream.partition(":")[0] for stream in outlook.enabled]
        runs.append(RunCommand((*DNF, "module", "reset", *modules), LOCK_LIMIT))
    return tuple(runs)


def hold(names: Sequence[str]) -> RunCommand:
    """Return the command that keeps packages at their version."""
    return RunCommand((*DNF, "versionlock", "add", *names), LOCK_LIMIT)


def release(names: Sequence[str]) -> RunCommand:
    """Return the command that lets packages change again."""
    return RunCommand((*DNF, "versionlock", "delete", *names), LOCK_LIMIT)


MANAGER = PackageManager(
    name="dnf",
    missing=UNSUPPORTED,
    sources="/etc/yum.repos.d/",
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
