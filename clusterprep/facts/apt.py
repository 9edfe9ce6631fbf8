"""What apt would do, asked with -s, which changes nothing and takes no lock: packages that come, change and go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clusterprep.model import Read

LIMIT = 60.0  # seconds; apt reads some 50 MB of lists, from a slow disk when nobody has lately
MISSING = "there is no dpkg and apt"  # why a simulation failed

# Constant text for sh, with what is asked for as arguments and nothing put into it. `look NAMES…` simulates, and says
# of everything that would change in which state it is and which versions are to be had.
LOOK = r"""
look() {
    out=$(LC_ALL=C apt-get -s -y "$@" 2>&1); code=$?
    printf '%s\n== %s\n' "$out" "$code"
    set -- $(printf '%s\n' "$out" | sed -nE 's/^(Inst|Remv|Purg) ([^ ]+).*/\2/p')
    [ $# -gt 0 ] || return 0
    dpkg-query -W -f '${db:Status-Status} ${db:Status-Want} ${binary:Package} ${Version}\n' "$@" 2>/dev/null
    echo ==
    LC_ALL=C apt-cache policy "$@"
}
"""
INSTALL = LOOK + 'look "$@"'
# The first word is what apt is allowed, or empty; of the others only those that are there are looked at.
REMOVE = (
    LOOK
    + r"""
allowed=$1; shift
set -- "$@" -- $(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' "$@" 2>/dev/null |
    sed -nE '/^(config-files|not-installed) /!s/^[^ ]+ //p')
while [ "$1" != -- ]; do shift; done
shift
[ $# -eq 0 ] || look $allowed remove "$@"
"""
)

_MOVE = re.compile(r"(Inst|Remv|Purg) (\S+?)(?: \[([^\]]+)\])?(?: \((\S+) [^)]*\))?(?: .*)?")
_STATE = re.compile(r"(\S+) (\S+) (\S+) ?(\S*)")
_HELD = re.compile(r"The following held packages will be changed:\n((?:  .*\n)*)")


@dataclass(frozen=True)
class Package:
    """A package as dpkg has it: `status` such as installed or config-files; `held` is kept at its version."""

    status: str
    version: str
    held: bool = False

    @property
    def there(self) -> bool:
        return self.status in ("installed", "triggers-pending", "triggers-awaited")

    @property
    def gone(self) -> bool:
        return self.status in ("not-installed", "config-files")


GONE = Package("not-installed", "")


@dataclass(frozen=True)
class Move:
    """One package from a version to another, None for not there."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"install {self.name} {self.after}"
        return f"remove {self.name} {self.before}" if self.after is None else (
            f"change {self.name} {self.before} to {self.after}"
        )  # fmt: skip


@dataclass(frozen=True)
class Outlook:
    """What apt would do. `failed` says why it would not; `states` and `versions` are of all that would change."""

    moves: tuple[Move, ...] = ()
    failed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()  # packages on hold that would change
    states: Mapping[str, Package] = field(default_factory=dict)
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what the sources have

    def state(self, name: str) -> Package:
        return self.states.get(name, GONE)

    def returns(self, move: Move) -> bool:
        """Whether the version before is still to be had."""
        return move.before is None or move.before in self.versions.get(move.name, ())

    def new(self, name: str) -> str | None:
        """The version that would come of a package, None where it would not change."""
        return next((move.after for move in self.moves if bare(move.name) == bare(name)), None)


def bare(name: str) -> str:
    """A package's name without its architecture."""
    return name.partition(":")[0]


def installed(names: Iterable[str]) -> Read:
    """Asks dpkg for the state of packages."""
    form = "${db:Status-Status} ${db:Status-Want} ${binary:Package} ${Version}\n"
    return Read("command", ("dpkg-query", "-W", "-f", form, *names), 10.0)


def simulated(script: str, *words: str) -> Read:
    """Asks apt what it would do, by one of the texts above."""
    return Read("alone", ("sh", "-c", script, "sh", *words), LIMIT)


def parse_states(text: str) -> dict[str, Package]:
    """«installed hold libc6:amd64 2.36-9»; a name without its architecture is the first of that name."""
    found: dict[str, Package] = {}
    for line in text.splitlines():
        if match := _STATE.fullmatch(line.strip()):
            package = Package(match[1], match[4], match[2] == "hold")
            found[match[3]] = package
            found.setdefault(bare(match[3]), package)
    return found


def parse_outlook(text: str) -> Outlook:
    """One simulation. ValueError where it was cut off."""
    if not text.strip():
        return Outlook()
    said, mark, rest = text.partition("\n== ")
    code, _, after = rest.partition("\n")
    if not mark or not code.isdigit():
        raise ValueError(f"apt-get did not come to an end: {text[-200:]!r}")
    if code == "127":
        return Outlook(failed=(MISSING,))
    failed = () if code == "0" else _reasons(said) or (f"apt-get -s ended with {code}",)
    listed, _, policy = after.partition("==\n")
    held = _HELD.search(said)
    return Outlook(
        tuple(_moves(said)),
        failed,
        tuple(held[1].split()) if held else (),
        parse_states(listed),
        _policy(policy),
    )


def _moves(said: str) -> Iterable[Move]:
    for line in said.splitlines():
        match = _MOVE.fullmatch(line)
        if match is None:
            continue
        goes = match[1] != "Inst"
        if (match[3] if goes else match[4]) is None:
            raise ValueError(f"apt-get says '{line[:200]}'")
        yield Move(match[2], match[3], None if goes else match[4])


def _reasons(said: str) -> tuple[str, ...]:
    """The lines of errors, and what does not fit together."""
    lines = said.splitlines()
    errors = [line[3:].strip() for line in lines if line.startswith("E: ")]
    unmet = [line.strip() for line in lines if re.match(r" \S+ : \S", line)]
    return (*errors, *unmet[:4])


def _policy(text: str) -> dict[str, tuple[str, ...]]:
    """The versions of the table that a source has, which dpkg's own record of what is installed is not."""
    found: dict[str, list[str]] = {}
    name = version = ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            name = line.strip().rstrip(":")
            found[name] = []
        elif match := re.fullmatch(r" (?:\*\*\*|   ) (\S+) -?\d+.*", line):
            version = match[1]
        elif (match := re.fullmatch(r" {8,} *-?\d+ (\S+).*", line)) and match[
            1
        ] != "/var/lib/dpkg/status":
            found.setdefault(name, []).append(version)
    return {name: tuple(dict.fromkeys(versions)) for name, versions in found.items()}
