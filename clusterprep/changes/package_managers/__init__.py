"""Package managers: one file for each, found by its folder. `package` and `kernel` use them.

A manager is asked, by its own simulation, what it would do, so dependencies, conflicts and holds
are its own answers. Begin with `PackageManager` below and `dnf` as an example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from clusterprep.facts.package_manager import NOT_MINE
from clusterprep.model import Absent, Json, Read
from clusterprep.model.operations import RunCommand
from clusterprep.model.packages import (
    GONE,
    Package,
    PackageChange,
    Simulation,
    without_architecture,
)
from clusterprep.runtime.plugins import modules

# Seconds for a driver of 1 GB over a slow line, and a module that is built for each kernel.
LIMIT = 1800.0
# Seconds to wait for another process with the manager's lock, such as unattended upgrades.
LOCK = 300
LOCK_LIMIT = LOCK + 60.0  # seconds for a short command that may have to wait for the lock


class PackageRequest(Struct, frozen=True):
    """What a step wants of packages; `hold` is None where it does not decide about that."""

    names: tuple[str, ...]
    state: str = "present"
    version: str = ""
    hold: bool | None = None


class Packages(Struct, frozen=True):
    """The packages of a step as they are, and what their manager would do about them."""

    states: dict[str, Package]
    outlook: Simulation

    def state(self, name: str) -> Package:
        return self.states.get(name, GONE)


def no_objection(request: PackageRequest, pending: Sequence[str], packages: Packages) -> str:
    """Return that nothing speaks against a request."""
    return ""


class PackageManager(Struct, frozen=True):
    """How one package manager is asked and told.

    * `reads(request)` returns what asks it; the last read is the script that simulates. That script
      ends with NOT_MINE where another manager is in charge, and `parse` is not called then.
    * `parse(request, *answers)` returns the packages, or why they are not known.
    * `install(request, names, packages)` and `remove(names, packages)` return the commands, in the
      order in which they run, with their undo.
    * `hold(names)` and `release(names)` return commands without undo.
    * `releases`: it takes the hold off a package that it changes.
    * `refusal(outlook)` says why it would refuse, and what helps.
    * `objection(request, pending, packages)` says why it cannot do what a step wants.
    * `matches(version, wanted)`: a version is the one that is wanted, which may end in `*`.
    * `missing` is the reason of a simulation on a node that lacks the manager.
    * `sources` is the folder with the files that name its sources.
    """

    name: str
    missing: str
    sources: str
    reads: Callable[[PackageRequest], tuple[Read, ...]]
    parse: Callable[..., Packages | Absent]
    install: Callable[[PackageRequest, Sequence[str], Packages], tuple[RunCommand, ...]]
    remove: Callable[[Sequence[str], Packages], tuple[RunCommand, ...]]
    hold: Callable[[Sequence[str]], RunCommand]
    release: Callable[[Sequence[str]], RunCommand]
    releases: bool
    refusal: Callable[[Simulation], str]
    matches: Callable[[str, str], bool]
    objection: Callable[[PackageRequest, Sequence[str], Packages], str] = no_objection


class Answered(Struct, frozen=True):
    """What the package manager of a node answered."""

    manager: str
    packages: Packages


@functools.cache
def package_managers() -> dict[str, PackageManager]:
    """Return the package managers that exist, by name."""
    by_name = {}
    for module in modules(__name__):
        manager: PackageManager = module.MANAGER
        by_name[manager.name] = manager
    return by_name


def reads_of(request: PackageRequest) -> tuple[Read, ...]:
    """Return the reads that ask all package managers; on a node one of them answers."""
    reads: list[Read] = []
    for manager in package_managers().values():
        reads.extend(manager.reads(request))
    return tuple(reads)


def parse_answers(request: PackageRequest, *answers: Json) -> Answered | Absent | None:
    """Return what the manager in charge answered; None where none that is known is in charge."""
    rest = list(answers)
    for manager in package_managers().values():
        count = len(manager.reads(request))
        own, rest = rest[:count], rest[count:]
        if _is_for_another(own[-1]):
            continue
        packages = manager.parse(request, *own)
        if isinstance(packages, Absent):
            return packages
        return Answered(manager.name, packages)
    return None


def _is_for_another(answer: Json) -> bool:
    return not isinstance(answer, Absent) and answer["code"] == NOT_MINE


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
    lines.extend(f"enable module {stream}" for stream in outlook.enabled)
    for move in outlook.moves:
        if not outlook.returns(move):
            former = f"{move.name} {move.before}"
            lines.append(f"no way back: {former} is in no source")
    return lines
