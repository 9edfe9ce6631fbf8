"""What rpm knows of packages: the part that dnf and zypper have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from clusterprep.model.packages import Package

# Constant text for sh. `states NAMES…` prints a line for each installed package of these names,
# `mark NAME` begins a part of the answer. rpm has no epoch for most packages.
SCRIPT = r"""
LC_ALL=C; export LC_ALL
mark() { printf '\n== %s\n' "$*"; }
states() {
    [ $# -eq 0 ] || rpm -q --qf 'installed %{NAME} %{ARCH} %|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\n' \
        "$@" 2>/dev/null | sed -n 's/^installed //p'
}
# Print those of the names that are not installed.
missing() {
    for name; do rpm -q "$name" >/dev/null 2>&1 || echo "$name"; done
}
"""  # noqa: E501 - a format of rpm is one line
# Without a name take the package of the running kernel; «kernel-core» comes with «kernel». The name
# is printed, and is the only argument behind these lines. There is none for a kernel of no package.
KERNEL_NAME = r"""
if [ $# -eq 0 ]; then
    release=$(cat /proc/sys/kernel/osrelease) name=
    for file in "/lib/modules/$release/vmlinuz" "/boot/vmlinuz-$release"; do
        [ -n "$name" ] || name=$(rpm -q --qf '%{NAME}' -f "$file" 2>/dev/null) || name=
    done
    [ -n "$name" ] || exit 0
    set -- "${name%-core}"
fi
mark kernel "$1"
"""
_PART = re.compile(r"^== (\S+)(?: (\S+))?\n", re.MULTILINE)


def parts_of(text: str) -> dict[str, tuple[str, str]]:
    """Return the word and the text behind each «== NAME WORD» of an answer, by name.

    Raises ValueError if the last of them, «end», is missing.
    """
    pieces = _PART.split(text)
    parts = {}
    for name, word, content in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        parts[name] = (word or "", content)
    if "end" not in parts:
        raise ValueError(f"the answer does not come to an end: {text[-200:]!r}")
    return parts


def without_epoch(version: str) -> str:
    """Return a version without its epoch."""
    return version.rpartition(":")[2]


def shown_version(version: str) -> str:
    """Return a version as rpm shows it: an epoch of 0 is none."""
    return version.removeprefix("0:").removeprefix("(none):")


def parse_states(text: str, held: Iterable[str] = ()) -> dict[str, Package]:
    """Parse the lines of `states` above, by name and by «name.architecture».

    Of several versions that are installed at once, such as kernels, the last one counts.
    """
    locked = set(held)
    packages = {}
    for name, architecture, version in _state_lines(text):
        package = Package("installed", version, held=name in locked)
        packages[name] = package
        packages[f"{name}.{architecture}"] = package
    return packages


def parse_architectures(text: str) -> dict[str, str]:
    """Return the architecture of each package in the lines of `states`; the last one counts."""
    return {name: architecture for name, architecture, _ in _state_lines(text)}


def _state_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, architecture and version of each line of `states`."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3:
            name, architecture, version = words
            yield name, architecture, version
