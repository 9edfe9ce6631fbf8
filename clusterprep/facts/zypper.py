"""Simulate zypper: which packages a request would install, change and remove.

`zypper --xmlout install --dry-run` says it in XML. Repositories are not refreshed, so that plan and
apply see the same packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from clusterprep.facts.package_manager import only_for
from clusterprep.facts.rpm import KERNEL_NAME, SCRIPT, parse_states, parts_of, shown_version
from clusterprep.model import Absent, Read
from clusterprep.model.packages import Package, PackageChange, Simulation

LIMIT = 120.0  # seconds, with those that it waits for another process
LOCK = 60  # seconds to wait for another process with the lock of zypper
MISSING = "there is no zypper"  # why a simulation failed
LOCKED = "7"  # exit codes: another process has the lock
# No update is missing, some are, some are for security, a reboot or a restart is suggested.
FINE = ("0", "100", "101", "102", "103")

# The arguments are the state, the version or nothing, and the names. Of the versions that match a
# pattern the first one in zypper's list is the newest. `zypper install` takes a newer version for a
# package that is there, so only those that are missing are named.
_ARGUMENTS = "state=$1 version=$2; shift 2\n"
_SIMULATION = rf"""
command -v zypper >/dev/null || exit 127
ZYPP_LOCK_TIMEOUT={LOCK}; export ZYPP_LOCK_TIMEOUT
ask() {{ zypper --non-interactive --no-refresh --xmlout "$@" 2>&1 </dev/null; }}
offered() {{ ask search --details --match-exact --type package "$@"; }}
mark states; states "$@"
mark locks; ask locks
case $state in
absent) set -- remove --no-clean-deps --dry-run $(states "$@" | sed 's/ .*//') ;;
latest) set -- install --dry-run "$@" ;;
*) if [ -n "$version" ]; then
       edition=$(offered "$1" | sed -nE 's/.* edition="([^"]+)".*/\1/p' |
           while read -r edition; do
               case $edition in $version|$version-*) echo "$edition"; break ;; esac
           done)
       set -- install --dry-run --oldpackage "$1=${{edition:-$version}}"
   else set -- install --dry-run $(missing "$@"); fi ;;
esac
case $state$version in absent) least=3 ;; present) least=2 ;; *) least=0 ;; esac
if [ $# -gt $least ]; then
    out=$(ask "$@"); code=$?
    mark summary $code; printf '%s\n' "$out"
    set -- $(printf '%s\n' "$out" | sed -nE 's/^<solvable type="package" name="([^"]+)".*/\1/p')
    mark changed; states "$@"
    mark offered; [ $# -eq 0 ] || offered "$@"
fi
mark end
"""
SIMULATE = only_for("zypper") + SCRIPT + _ARGUMENTS + _SIMULATION
# The argument is the name of a package, or there is none for that of the running kernel.
KERNEL = only_for("zypper") + SCRIPT + KERNEL_NAME + "state=latest version=\n" + _SIMULATION
_SECTION = re.compile(r"<(to-[a-z-]+)>(.*?)</\1>", re.DOTALL)
_SOLVABLE = re.compile(r"<solvable ([^>]*)>")
_ATTRIBUTE = re.compile(r'([a-z-]+)="([^"]*)"')
_ERROR = re.compile(r'<message type="error">(.*?)</message>', re.DOTALL)
_PROBLEM = re.compile(r"<description>(?:\d+ )?(Problem: [^\n<]*)")
_LOCK = re.compile(r"<lock [^>]*>\s*<name>([^<*?]+)</name>")
_ESCAPES = {"&apos;": "'", "&quot;": '"', "&lt;": "<", "&gt;": ">", "&amp;": "&"}


def simulated(state: str, version: str, names: Sequence[str]) -> Read:
    """Return the read that asks zypper what it would do."""
    return Read("alone", ("sh", "-c", SIMULATE, "sh", state, version, *names), LIMIT)


def kernel_simulated(names: Sequence[str]) -> Read:
    """Return the read that asks for the newest kernel, of this package or the running one's."""
    return Read("alone", ("sh", "-c", KERNEL, "sh", *names), LIMIT)


def parse_answer(code: int, text: str) -> tuple[dict[str, Package], Simulation] | Absent:
    """Return the packages of the request as they are, and what zypper would do.

    Absent if another process had zypper's lock all the time. Raises ValueError for an answer that
    was cut off.
    """
    if code == 127:
        return {}, Simulation(failed=(MISSING,))
    parts = parts_of(text)
    held = _LOCK.findall(parts["locks"][1])
    packages = parse_states(parts["states"][1], held)
    if "summary" not in parts:
        return packages, Simulation()
    exit_code, summary = parts["summary"]
    failed: tuple[str, ...] = ()
    if exit_code not in FINE:
        failed = _reasons(summary) or (f"zypper --dry-run ended with {exit_code}",)
    if exit_code == LOCKED:
        return Absent("timed_out", "; ".join(failed))
    # A package that changes its architecture or vendor is in two sections.
    changes = dict.fromkeys(_changes(summary))
    return packages, Simulation(
        tuple(changes),
        failed,
        states=parse_states(parts["changed"][1], held),
        versions=_offered(parts["offered"][1]),
    )


def _changes(summary: str) -> Iterator[PackageChange]:
    for section, body in _SECTION.findall(summary):
        if section == "to-reinstall":
            continue
        for solvable in _solvables(body):
            if solvable.get("type") != "package":
                continue
            version = shown_version(solvable["edition"])
            before = solvable.get("edition-old")
            former = shown_version(before) if before else None
            after: str | None = version
            if section == "to-remove":
                former, after = version, None
            architecture = solvable["arch"]
            other = solvable.get("arch-old", architecture)
            change = PackageChange(solvable["name"], former, after, architecture)
            yield change if other == architecture else replace(change, architecture_before=other)


def _solvables(text: str) -> Iterator[dict[str, str]]:
    for attributes in _SOLVABLE.findall(text):
        yield dict(_ATTRIBUTE.findall(attributes))


def _reasons(summary: str) -> tuple[str, ...]:
    """Return up to four sentences that say why zypper refuses."""
    sentences = [*_ERROR.findall(summary), *_PROBLEM.findall(summary)]
    reasons = []
    for sentence in sentences[:4]:
        text = " ".join(sentence.split())
        for escape, character in _ESCAPES.items():
            text = text.replace(escape, character)
        reasons.append(text)
    return tuple(dict.fromkeys(reasons))


def _offered(text: str) -> dict[str, tuple[str, ...]]:
    """Return the versions that repositories have, by package; what is only installed is none."""
    versions: dict[str, list[str]] = {}
    for solvable in _solvables(text):
        if not solvable.get("repository", "").startswith("("):
            edition = shown_version(solvable["edition"])
            versions.setdefault(solvable["name"], []).append(edition)
    return {name: tuple(dict.fromkeys(offered)) for name, offered in versions.items()}
