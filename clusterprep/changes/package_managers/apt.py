"""apt, of Debian and Ubuntu.

Undo uses dpkg and not apt: dpkg refuses to remove what other packages have come to need, and apt
would remove those as well.
"""

from __future__ import annotations

import fnmatch
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
from clusterprep.facts.apt import (
    INSTALL,
    MISSING,
    REMOVE,
    installed,
    parse_outlook,
    parse_states,
    simulated,
)
from clusterprep.model import Absent, Json, Read
from clusterprep.model.operations import RunCommand
from clusterprep.model.packages import GONE, Package, Simulation

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
_NO_SOURCE = ("Unable to locate", "was not found", "no installation candidate")


def flags(request: PackageRequest) -> tuple[str, ...]:
    """Return the options that allow apt more or less.

    An older version is allowed where the step names one, a change of packages on hold where the
    step decides about that.
    """
    options = []
    if request.version:
        options.append("--allow-downgrades")
    elif request.state == "present":
        options.append("--no-upgrade")
    if request.hold is not None:
        options.append(ALLOW_HELD)
    return tuple(options)


def reads(request: PackageRequest) -> tuple[Read, ...]:
    """Return the reads that ask dpkg for the packages and apt what it would do."""
    return (installed(request.names), _simulation(request))


def _simulation(request: PackageRequest) -> Read:
    options = flags(request)
    if request.state == "absent":
        return simulated(REMOVE, " ".join(options), *request.names)
    names = request.names
    if request.version:
        names = tuple(f"{name}={request.version}" for name in names)
    return simulated(INSTALL, *options, "install", *names)


def parse(request: PackageRequest, states: Json, outlook: Json) -> Packages | Absent:
    """Return the packages, or why they are not known."""
    for answer in (states, outlook):
        if not isinstance(answer, Absent):
            continue
        if answer.reason != "missing_tool":
            return answer
        return Packages({}, Simulation(failed=(MISSING,)))
    return Packages(parse_states(str(states["out"])), parse_outlook(str(outlook["out"])))


def matches(version: str, wanted: str) -> bool:
    """Return whether a version is the one that is wanted, which may end in `*`."""
    return fnmatch.fnmatchcase(version, wanted)


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


def install(
    request: PackageRequest, names: Sequence[str], packages: Packages
) -> tuple[RunCommand, ...]:
    """Return the command that installs packages in the versions that apt has announced."""
    options = flags(request)
    allowed = tuple(option for option in options if option.startswith("--allow"))
    return (install_command(names, packages.outlook, packages.states, allowed),)


def remove(names: Sequence[str], packages: Packages) -> tuple[RunCommand, ...]:
    """Return the command that removes packages, and leaves their files of settings."""
    return (remove_command(names, packages.outlook),)


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


def _mark(verb: str, names: Sequence[str]) -> RunCommand:
    return _quiet(*MARK, verb, *names, limit=LOCK_LIMIT)


def _quiet(*argv: str, limit: float = LIMIT) -> RunCommand:
    """Return a command that asks no questions."""
    return RunCommand(argv, limit, env=QUIET)


def hold(names: Sequence[str]) -> RunCommand:
    """Return the command that keeps packages at their version."""
    return _mark("hold", names)


def release(names: Sequence[str]) -> RunCommand:
    """Return the command that lets packages change again."""
    return _mark("unhold", names)


MANAGER = PackageManager(
    name="apt",
    missing=MISSING,
    sources="/etc/apt/",
    reads=reads,
    parse=parse,
    install=install,
    remove=remove,
    hold=hold,
    release=release,
    releases=True,
    refusal=refusal,
    matches=matches,
)
