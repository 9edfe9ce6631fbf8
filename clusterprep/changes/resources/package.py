"""Packages of Debian and Ubuntu: there, of a version, the latest, gone, on hold. Apt says before what it will do."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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

LIMIT = (
    1800.0  # seconds; a driver of 1 GB over a slow line, and a module that is built for each kernel
)
LOCK = 300  # seconds to wait for whoever holds the lock of dpkg, such as unattended upgrades
# Nobody is there to be asked, and services of others are not restarted on the way (needrestart's «list only»).
QUIET = (
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("NEEDRESTART_MODE", "l"),
    ("APT_LISTCHANGES_FRONTEND", "none"),
)
OLD = ("--force-confdef", "--force-confold")  # files of settings stay as they are
WAIT = ("-o", f"DPkg::Lock::Timeout={LOCK}")
APT = ("apt-get", "-q", "-y", *WAIT, *(f"-oDpkg::Options::={word}" for word in OLD))
MARK = ("apt-mark", *WAIT)
# Debian Policy 5.6.1, and an architecture. A minus at the end would ask apt to take the package away.
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+](?::[a-z0-9-]+)?")
BRINGERS = ("package", "command")  # resources whose deeds may bring a package into reach
OTHERS = (
    "there is no dpkg and apt here, and packages of other distributions are not handled: use a step such as "
    "command: {run: dnf -y install NAME, unless: rpm -q NAME, undo: dnf -y remove NAME}"
)


@dataclass(frozen=True)
class Apt:
    """The packages of a step as they are, and what apt would do about them."""

    states: dict[str, Package]
    outlook: Simulation

    def state(self, name: str) -> Package:
        return self.states.get(name, GONE)


def names_of(params: Params) -> tuple[str, ...]:
    given = params["name"]
    return tuple(dict.fromkeys([given] if isinstance(given, str) else given))


def state_of(params: Params) -> str:
    return str(params.get("state", "present"))


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    reads = (installed(names_of(params)), asked(params))
    return (Fact(fact_name(params), lambda node, _: reads, looked, lenient=True),)


def fact_name(params: Params) -> str:
    return "package:" + " ".join((state_of(params), *requests(params), *flags(params)))


def asked(params: Params) -> Read:
    """What apt would do to bring this about."""
    if state_of(params) == "absent":
        return simulated(REMOVE, " ".join(flags(params)), *names_of(params))
    return simulated(INSTALL, *flags(params), "install", *requests(params))


def requests(params: Params) -> tuple[str, ...]:
    if "version" in params:
        return tuple(f"{name}={params['version']}" for name in names_of(params))
    return names_of(params)


def flags(params: Params) -> tuple[str, ...]:
    """What apt is allowed: an older version where one is named, and packages on hold where the step decides on that."""
    found = []
    if state_of(params) == "present" and "version" not in params:
        found.append("--no-upgrade")
    if "version" in params:
        found.append("--allow-downgrades")
    if "hold" in params:
        found.append("--allow-change-held-packages")
    return tuple(found)


def looked(states: Json, outlook: Json) -> Apt | Absent:
    for answer in (states, outlook):
        if isinstance(answer, Absent):
            return (
                Apt({}, Simulation(failed=(MISSING,)))
                if answer.reason == "missing_tool"
                else answer
            )
    return Apt(parse_states(str(states["out"])), parse_outlook(str(outlook["out"])))


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return tuple((f"package {name}", "") for name in names_of(params))


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    state = state_of(params)
    for name in names_of(params):
        if not _NAME.fullmatch(name):
            yield "name", f"expected the name of a package, such as rdma-core; seen '{name}'"
    if "version" in params and state != "present":
        yield "version", f"expected no version with state: {state}"
    if "version" in params and len(names_of(params)) > 1:
        yield "version", "expected one name with a version; give each package a step of its own"
    if params.get("hold") and state == "absent":
        yield "hold", "a package that is to be gone cannot be kept on hold"


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    found: Apt = known.facts[fact_name(params)]
    coming = known.awaits(*BRINGERS) or any(path.startswith("/etc/apt/") for path in known.written)
    names, state = names_of(params), state_of(params)
    if MISSING in found.outlook.failed:
        raise NoPlan("cannot", OTHERS)
    wanting = tuple(name for name in names if needs(params, found, name))
    if wanting and found.outlook.failed and not coming:
        raise NoPlan("cannot", refusal(found.outlook))
    moves = found.outlook.moves if wanting else ()
    if state == "absent":
        operations: list[Operation] = [*removal(wanting, found.outlook)] if wanting else []
    else:
        if not found.outlook.failed:
            refuse_others(wanting, found)
        allowed = tuple(flag for flag in flags(params) if flag.startswith("--allow"))
        operations = (
            [*installation(wanting, found.outlook, found.states, allowed)] if wanting else []
        )
    words = [*(str(move) for move in in_order(moves, names)), *way_back(moves, found.outlook)]
    if wanting and not moves:
        words.extend(f"install {name}" for name in wanting)
    for name_of_hold, operation in holds(params, found, wanting):
        operations.append(operation)
        words.append(name_of_hold)
    yield StepAction(
        known.node.name,
        "package",
        ", ".join(names),
        does(state, moves),
        tuple(operations),
        "\n".join(words),
    )


def does(state: str, moves: Sequence[PackageChange]) -> Action:
    if state == "absent":
        return "delete"
    return "update" if not moves or any(move.before for move in moves) else "create"


def needs(params: Params, found: Apt, name: str) -> bool:
    """Whether apt has to do something about a package."""
    package, state = found.state(name), state_of(params)
    if state == "absent":
        return not package.gone
    if not package.there:
        return True
    if "version" in params:
        return not fnmatch.fnmatchcase(package.version, str(params["version"]))
    return state == "latest" and (bool(found.outlook.failed) or found.outlook.new(name) is not None)


def refusal(outlook: Simulation) -> str:
    """Why apt would not do it, and what helps."""
    text = "; ".join(outlook.failed)
    if outlook.held or "held packages" in text.lower():
        held = f"{', '.join(outlook.held)}: " if outlook.held else ""
        cure = "`hold: false` in the step lets it go, `hold: true` keeps it so afterwards"
        return f"{held}{text}: a package on hold would change; {cure}"
    if "Unable to locate" in text or "was not found" in text or "no installation candidate" in text:
        return f"{text}: no source of apt on this node has it; apt-get update there, or a source that is missing"
    return text


def refuse_others(wanting: Sequence[str], found: Apt) -> None:
    """Stop where apt would do something about another package than was named, or change one on hold besides."""
    for name in wanting:
        if found.state(name).gone and found.outlook.new(name) is None:
            others = ", ".join(move.name for move in found.outlook.moves if move.before is None)
            raise NoPlan(
                "cannot",
                f"there is no package of the name {name}; apt would take {others or 'none'} for it",
            )
    held = sorted(
        set(map(without_architecture, found.outlook.held)) - set(map(without_architecture, wanting))
    )
    if held:
        raise NoPlan("cannot", f"{', '.join(held)} would change as well, and is on hold")


def in_order(moves: Iterable[PackageChange], names: Sequence[str]) -> list[PackageChange]:
    """What was asked for first, and then what comes with it."""
    return sorted(
        moves,
        key=lambda move: (
            without_architecture(move.name) not in map(without_architecture, names),
            move.after is None,
            move.name,
        ),
    )


def way_back(moves: Iterable[PackageChange], outlook: Simulation) -> Iterator[str]:
    """What an undo could not bring back."""
    for move in moves:
        if not outlook.returns(move):
            yield f"no way back: {move.name} {move.before} is in no source"


# ---------------------------------------------------------------- what is done


def installation(
    names: Sequence[str],
    outlook: Simulation,
    states: dict[str, Package],
    allowed: Sequence[str] = (),
) -> Iterator[RunCommand]:
    """Bring packages in the versions that apt told."""
    exact = [f"{name}={version}" if (version := outlook.new(name)) else name for name in names]
    held = tuple(name for name in names if states.get(name, GONE).held)
    yield RunCommand(
        (*APT, *allowed, "install", "--", *exact), LIMIT, env=QUIET, undo=undo(outlook, held)
    )


def removal(names: Sequence[str], outlook: Simulation) -> Iterator[RunCommand]:
    """Take packages away, and leave their files of settings."""
    held = tuple(move.name for move in outlook.moves if outlook.state(move.name).held)
    allowed = ("--allow-change-held-packages",) if held else ()
    yield RunCommand(
        (*APT, *allowed, "remove", "--", *names), LIMIT, env=QUIET, undo=undo(outlook, held)
    )


def undo(outlook: Simulation, held: Sequence[str]) -> tuple[RunCommand, ...] | None:
    """The commands that bring back what was there; None where a version is not to be had any more.

    What was not there is taken away by dpkg, which refuses where others have come to need it; apt would remove those
    as well. Settings go along, but for packages whose settings were there before.
    """
    if outlook.failed or not all(map(outlook.returns, outlook.moves)):
        return None
    old = [f"{move.name}={move.before}" for move in outlook.moves if move.before is not None]
    new = [move.name for move in outlook.moves if move.before is None]
    kept = [name for name in new if outlook.state(name).status == "config-files"]
    # A lock is waited for by apt alone; and what dpkg noted when it was cut off, without which apt does nothing, is
    # taken up by a call that sets up no package: whatever hung there would hang again.
    runs = [
        RunCommand(("apt-get", "-q", *WAIT, "check"), LOCK + 60.0, codes=(0, 100), env=QUIET),
        RunCommand(("dpkg", "--triggers-only", "-a"), LIMIT, codes=(0, 1, 2), env=QUIET),
    ]
    if old:
        argv = (*APT, "--allow-downgrades", "--allow-change-held-packages", "install", "--", *old)
        runs.append(RunCommand((*argv, *(f"{name}-" for name in new)), LIMIT, env=QUIET))
    for verb, group in (
        ("--remove", kept),
        ("--purge", [name for name in new if name not in kept]),
    ):
        if group:
            runs.append(RunCommand(("dpkg", verb, *group), LIMIT, env=QUIET))
    if held:
        runs.append(RunCommand((*MARK, "hold", *held), LOCK + 60.0, env=QUIET))
    return tuple(runs)


def holds(params: Params, found: Apt, wanting: Sequence[str]) -> Iterator[tuple[str, RunCommand]]:
    """What has to be put on hold or let go; apt takes the hold of what it changes."""
    wanted = params.get("hold")
    if wanted is None or state_of(params) == "absent":
        return
    names = names_of(params)
    if wanted:
        free = [name for name in names if not found.state(name).held]
        lost = [name for name in names if found.state(name).held and name in wanting]
        if free or lost:
            back = (_marked("unhold", free),) if free else ()
            words = "\n".join(f"hold {name}" for name in free) or "stays on hold"
            yield (
                words,
                RunCommand((*MARK, "hold", *free, *lost), LOCK + 60.0, env=QUIET, undo=back),
            )
    elif on_hold := [name for name in names if found.state(name).held]:
        words = "\n".join(f"no hold {name}" for name in on_hold)
        yield (
            words,
            RunCommand(
                (*MARK, "unhold", *on_hold),
                LOCK + 60.0,
                env=QUIET,
                undo=(_marked("hold", on_hold),),
            ),
        )


def _marked(verb: str, names: Sequence[str]) -> RunCommand:
    return RunCommand((*MARK, verb, *names), LOCK + 60.0, env=QUIET)


RESOURCE = StepResource(
    "package",
    plan,
    facts=facts,
    parts=parts,
    wrong=wrong,
    texts={"name": True, "version": True, "state": True},
)
