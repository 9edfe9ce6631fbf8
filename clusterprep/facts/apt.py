"""Simulate apt: which packages a request would install, change and remove.

`apt-get -s` changes nothing and takes no lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterprep.facts.package_manager import only_for
from clusterprep.model import Read
from clusterprep.model.packages import (
    Package,
    PackageChange,
    Simulation,
    without_architecture,
)

# Seconds. apt reads some 50 MB of lists, from a slow disk where they are not in the page cache.
LIMIT = 60.0
MISSING = "there is no dpkg and apt"  # why a simulation failed

# Constant text for sh: the request comes as arguments, and nothing is put into the text.
# `look NAMES…` simulates, and prints the state and the available versions of every package that
# would change.
SIMULATE = r"""
look() {
    out=$(LC_ALL=C apt-get -s -y "$@" 2>&1); code=$?
    printf '%s\n== %s\n' "$out" "$code"
    set -- $(printf '%s\n' "$out" | sed -nE 's/^(Inst|Remv|Purg) ([^ ]+).*/\2/p')
    [ $# -gt 0 ] || return 0
    dpkg-query -W -f '${db:Status-Status} ${db:Status-Want} ${binary:Package} ${Version}\n' \
        "$@" 2>/dev/null
    echo ==
    LC_ALL=C apt-cache policy "$@"
}
"""
INSTALL = only_for("apt") + SIMULATE + 'look "$@"'
# The first argument is an option that allows apt more, or empty. The others are names, of which
# those that are not installed are left out.
REMOVE = (
    only_for("apt")
    + SIMULATE
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
# Lines of `apt-cache policy`: « *** 39.0-1 500» has a version (*** marks the installed one), and
# «        500 http://… Packages» below it one of its sources.
_VERSION_LINE = re.compile(r" (?:\*\*\*|   ) (\S+) -?\d+.*")
_SOURCE_LINE = re.compile(r" {8,}-?\d+ (\S+).*")
_HELD = re.compile(r"The following held packages will be changed:\n((?:  .*\n)*)")


def installed(names: Iterable[str]) -> Read:
    """Return the read that asks dpkg for the state of packages."""
    output_format = "${db:Status-Status} ${db:Status-Want} ${binary:Package} ${Version}\n"
    return Read("command", ("dpkg-query", "-W", "-f", output_format, *names), 10.0)


def simulated(script: str, *arguments: str) -> Read:
    """Return the read that runs one of the scripts above."""
    return Read("alone", ("sh", "-c", script, "sh", *arguments), LIMIT)


def parse_states(text: str) -> dict[str, Package]:
    """Parse lines such as «installed hold libc6:amd64 2.36-9».

    A name without its architecture is the first package of that name.
    """
    packages: dict[str, Package] = {}
    for line in text.splitlines():
        match = _STATE.fullmatch(line.strip())
        if match is None:
            continue
        status, wish, name, version = match.groups()
        package = Package(status, version, held=wish == "hold")
        packages[name] = package
        packages.setdefault(without_architecture(name), package)
    return packages


def parse_outlook(text: str) -> Simulation:
    """Parse the output of one simulation. Raises ValueError where it was cut off."""
    if not text.strip():
        return Simulation()
    output, mark, rest = text.partition("\n== ")
    code, _, listings = rest.partition("\n")
    if not mark or not code.isdigit():
        raise ValueError(f"apt-get did not come to an end: {text[-200:]!r}")
    if code == "127":  # sh found no such command
        return Simulation(failed=(MISSING,))
    failed: tuple[str, ...] = ()
    if code != "0":
        failed = _reasons(output) or (f"apt-get -s ended with {code}",)
    changes = tuple(_package_changes(output))
    states, _, policy = listings.partition("==\n")
    return Simulation(
        changes,
        failed,
        _held_packages(output),
        parse_states(states),
        _policy(policy),
    )


def _package_changes(output: str) -> Iterable[PackageChange]:
    """Yield what apt-get would install and remove."""
    for line in output.splitlines():
        match = _MOVE.fullmatch(line)
        if match is None:
            continue
        action, name, before, after = match.groups()
        removed = action != "Inst"
        version = before if removed else after
        if version is None:
            raise ValueError(f"apt-get says '{line[:200]}'")
        if removed:
            after = None
        yield PackageChange(name, before, after)


def _held_packages(output: str) -> tuple[str, ...]:
    """Return the names of packages that are held back."""
    match = _HELD.search(output)
    if match is None:
        return ()
    return tuple(match[1].split())


def _reasons(output: str) -> tuple[str, ...]:
    """Return the lines of errors, then up to four dependencies that cannot be met."""
    errors = []
    unmet = []
    for line in output.splitlines():
        if line.startswith("E: "):
            errors.append(line[3:].strip())
        if re.match(r" \S+ : \S", line):
            unmet.append(line.strip())
    return (*errors, *unmet[:4])


def _policy(text: str) -> dict[str, tuple[str, ...]]:
    """Return the versions that a source offers, by package, from the output of `apt-cache policy`.

    dpkg's own record of what is installed, /var/lib/dpkg/status, is no source.
    """
    versions: dict[str, list[str]] = {}
    package = version = ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            package = line.strip().rstrip(":")
            versions[package] = []
            continue
        version_line = _VERSION_LINE.fullmatch(line)
        if version_line:
            version = version_line[1]
            continue
        source_line = _SOURCE_LINE.fullmatch(line)
        if source_line and source_line[1] != "/var/lib/dpkg/status":
            versions.setdefault(package, []).append(version)
    return {name: tuple(dict.fromkeys(offered)) for name, offered in versions.items()}
