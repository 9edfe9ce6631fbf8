"""Simulate dnf 4: which packages a request would install, change and remove.

`dnf --assumeno` resolves everything, prints its table and stops. Its metadata is taken as it is, so
that plan and apply see the same packages; dnf fetches only what it has never fetched. An answer is
the table, because dnf's own interface differs between its releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from clusterprep.facts.package_manager import only_for
from clusterprep.facts.rpm import (
    KERNEL_NAME,
    SCRIPT,
    parse_architectures,
    parse_states,
    parts_of,
    shown_version,
)
from clusterprep.model import Read
from clusterprep.model.packages import GONE, Package, PackageChange, Simulation

# Seconds. dnf waits for others that hold its lock, and reads some 100 MB of metadata.
LIMIT = 120.0
FIXED = "--setopt=metadata_expire=-1"
WITHOUT_LOCKS = "--disableplugin=versionlock"
UNSUPPORTED = "there is no dnf 4"  # why a simulation failed
NO_LOCKS = "dnf has no command versionlock"
OLD_LIST = "/etc/dnf/plugins/versionlock.list"

# The arguments are the state, the version or nothing, whether the step decides about holds («hold»
# or nothing), and the names.
_ARGUMENTS = "state=$1 version=$2 hold=$3; shift 3\n"
# What dnf says of packages that a module hides; before 4.2.18 it finds no match for them.
_HIDDEN = (
    "s/^All matches were filtered out by modular filtering for argument: (.+)/\\1/p;"
    "s/^ +- package ([^ ]+)( from [^ ]+)? is filtered out by modular filtering$/\\1/p;"
    "s/^(No match for argument|Error: Unable to find a match): (.+)/\\2/p"
)
MOST = 20  # packages whose modules are asked for
_SIMULATION = rf"""
case $(readlink -f "$(command -v dnf)") in */dnf-[34]) ;; *) exit 127 ;; esac
ask() {{ dnf {FIXED} ${{hold:+{WITHOUT_LOCKS}}} "$@" 2>&1 </dev/null; }}
mark states; states "$@"
mark locks; cat {OLD_LIST} 2>/dev/null
[ -z "$hold" ] || dnf -q -C versionlock list >/dev/null 2>&1 || mark no-locks
case $state in
absent) set -- remove --noautoremove "$@" ;;
latest) set -- install --best "$@" ;;
*) if [ -n "$version" ]; then set -- install "$1-$version"
   else set -- install $(missing "$@"); fi ;;
esac
if [ $# -gt 1 ]; then
    out=$(ask --assumeno "$@"); code=$?
    mark table $code; printf '%s\n' "$out"
    set -- $(printf '%s\n' "$out" | sed -nE 's/^ ([^ ]+).*/\1/p; s/^ +replacing +([^ ]+)\.[^.]+ .*/\1/p')
    hidden=$(printf '%s\n' "$out" | sed -nE '{_HIDDEN}' | tr ' ' '\n' | sort -u | head -n {MOST})
    mark modules
    [ -z "$hidden" ] || dnf -q {FIXED} module provides $hidden 2>/dev/null
    mark changed; states "$@"
    mark offered
    [ $# -eq 0 ] || dnf -q {FIXED} {WITHOUT_LOCKS} repoquery --show-duplicates \
        --qf '%{{name}} %{{arch}} %{{epoch}}:%{{version}}-%{{release}}' "$@" 2>/dev/null
fi
mark end
"""  # noqa: E501 - sed takes it as one line
SIMULATE = only_for("dnf") + SCRIPT + _ARGUMENTS + _SIMULATION
# The argument is the name of a package, or there is none for that of the running kernel.
KERNEL = only_for("dnf") + SCRIPT + KERNEL_NAME + "state=latest version= hold=\n" + _SIMULATION
# «lab-tool-0:1.0-1.*» in the list of locks; one with «!» excludes a version.
_LOCK = re.compile(r"([A-Za-z0-9][\w.+-]*)-(?:\d+:)?[^\s:-]+-[^\s:-]+")
_ROW = re.compile(r" (?! )")
_REPLACED = re.compile(r" {2,}replacing +(\S+)\.([^.\s]+) (\S+)")
# «Error: Unable to find a match: x», or «Error: » with «Problem: …» and «  - …» below it.
_ERROR = re.compile(r"Error: +(\S.*)| *Problem(?: \d+)?: (\S.*)|  - (\S.*)")
_ADDED = ("Installing", "Upgrading", "Downgrading")
_HIDDEN_NAME = re.compile(
    r"^All matches were filtered out by modular filtering for argument: (\S+)$"
    r"|^ +- package (\S+)(?: from \S+)? is filtered out by modular filtering$",
    re.MULTILINE,
)
_NO_MATCH = re.compile(
    r"^(?:No match for argument|Error: Unable to find a match): (.+)$", re.MULTILINE
)
# «Module   : extras:el8:1:cccc:noarch»: the name, the stream, and what tells builds of it apart.
_STREAM = re.compile(r"^Module +: ([\w.+-]+:[\w.+-]+):", re.MULTILINE | re.ASCII)


def simulated(
    state: str, version: str, decides_hold: bool, names: Sequence[str], limit: float = LIMIT
) -> Read:
    """Return the read that asks dnf what it would do."""
    hold = "hold" if decides_hold else ""
    return Read("alone", ("sh", "-c", SIMULATE, "sh", state, version, hold, *names), limit)


def kernel_simulated(names: Sequence[str]) -> Read:
    """Return the read that asks dnf for the newest kernel, of this package or the running one's."""
    return Read("alone", ("sh", "-c", KERNEL, "sh", *names), LIMIT)


def parse_answer(code: int, text: str) -> tuple[dict[str, Package], Simulation]:
    """Return the packages of the request as they are, and what dnf would do.

    Raises ValueError for an answer that was cut off.
    """
    if code == 127:
        return {}, Simulation(failed=(UNSUPPORTED,))
    parts = parts_of(text)
    held = tuple(_locked(parts["locks"][1]))
    packages = parse_states(parts["states"][1], held)
    failed: tuple[str, ...] = ()
    if "no-locks" in parts:
        failed = (NO_LOCKS,)
    if "table" not in parts:
        return packages, Simulation(failed=failed)
    exit_code, table = parts["table"]
    before = parse_states(parts["changed"][1], held)
    architectures = parse_architectures(parts["changed"][1])
    changes = tuple(_changes(table, before, architectures))
    hidden: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    if exit_code != "0" and "Operation aborted." not in table:
        failed += _reasons(table) or (f"dnf --assumeno ended with {exit_code}",)
        _, modules = parts.get("modules", ("", ""))
        streams = tuple(dict.fromkeys(_STREAM.findall(modules)))
        hidden = _hidden(table, has_streams=bool(streams))
    return packages, Simulation(
        changes,
        failed,
        tuple(move.name for move in changes if before.get(move.name, GONE).held),
        states=before,
        versions=_offered(parts["offered"][1]),
        enabled=tuple(_enabled(table)),
        hidden=hidden,
        streams=streams,
    )


def _enabled(table: str) -> Iterator[str]:
    """Yield the streams of modules that dnf would enable, as «perl:5.26»."""
    for section, row in _rows(table):
        words = row.split()
        if section == "Enabling module streams" and len(words) == 2:
            yield ":".join(words)


def _hidden(table: str, has_streams: bool) -> tuple[str, ...]:
    """Return the packages that a module hides.

    A dnf that does not say so finds no match; they are hidden where a stream of a module has them.
    """
    names = []
    for argument, package in _HIDDEN_NAME.findall(table):
        names.append(argument or package)
    if not names and has_streams:
        for words in _NO_MATCH.findall(table):
            names.extend(words.split())
    return tuple(dict.fromkeys(names))


def _locked(text: str) -> Iterator[str]:
    """Yield the names of packages that are kept at a version."""
    for line in text.splitlines():
        match = _LOCK.fullmatch(line.strip())
        if match is not None:
            yield match[1]


def _changes(
    table: str, before: Mapping[str, Package], architectures: Mapping[str, str]
) -> Iterator[PackageChange]:
    """Yield what the table of a transaction says.

    It names the new architecture of a package: one that was for a processor may come for all.
    """
    for section, row in _rows(table):
        verb = section.partition(" ")[0]
        replaced = _REPLACED.fullmatch(row)
        if replaced is not None:
            name, architecture, version = replaced.groups()
            yield PackageChange(name, shown_version(version), None, architecture)
            continue
        words = row.split()
        if len(words) < 4:
            continue
        name, architecture, version = words[:3]
        version = shown_version(version)
        if verb == "Removing":
            yield PackageChange(name, version, None, architecture)
        elif verb in _ADDED:
            if verb == "Installing":
                yield PackageChange(name, None, version, architecture)
            elif f"{name}.{architecture}" in before:
                former = before[f"{name}.{architecture}"].version
                yield PackageChange(name, former, version, architecture)
            else:
                former = before[name].version
                other = architectures[name]
                yield PackageChange(name, former, version, architecture, other)


def _rows(table: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table with the heading above them.

    A row whose name is too long for its column goes on in the next line.
    """
    body = table.partition("Dependencies resolved.")[2].partition("\nTransaction Summary")[0]
    section = row = ""
    for line in body.splitlines():
        begins = _ROW.match(line) or _REPLACED.fullmatch(line)
        if begins or not line.startswith(" "):
            if row:
                yield section, row
            row = line if begins else ""
        elif row:
            row += line
        if line.endswith(":") and not line.startswith(" "):
            section = line[:-1]
    if row:
        yield section, row


def _reasons(output: str) -> tuple[str, ...]:
    """Return up to four sentences that say why dnf refuses."""
    reasons = []
    for line in output.splitlines():
        match = _ERROR.fullmatch(line)
        if match is not None and not _HIDDEN_NAME.fullmatch(line):
            reasons.append(match[1] or match[2] or match[3])
    return tuple(dict.fromkeys(reasons))[:4]


def _offered(text: str) -> dict[str, tuple[str, ...]]:
    """Return the versions that the repositories have, by package."""
    versions: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3:
            versions.setdefault(words[0], []).append(shown_version(words[2]))
    return {name: tuple(dict.fromkeys(offered)) for name, offered in versions.items()}
