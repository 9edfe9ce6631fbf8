"""Commands of rpm that take back what dnf or zypper did.

rpm refuses to remove what other packages have come to need, and dnf and zypper would remove those
as well. The texts for the shell are constant, and packages are words behind them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from clusterprep.changes.package_managers import LIMIT
from clusterprep.facts.rpm import without_epoch
from clusterprep.model.operations import RunCommand
from clusterprep.model.packages import PackageChange

# Remove those of the packages that are there.
_ERASE = r"""
here=
for package; do
    ! rpm -q "$package" >/dev/null 2>&1 || here="$here $package"
done
[ -z "$here" ] || exec rpm -e $here
"""
# Each two words are one package before and after a change. Where both are installed, the change was
# cut off between them; it is brought to its end.
_FINISH = r"""
code=0
while [ $# -gt 1 ]; do
    ! rpm -q "$1" "$2" >/dev/null 2>&1 || rpm -e --nodeps "$1" || code=1
    shift 2
done
exit $code
"""


def erase_new(moves: Iterable[PackageChange]) -> list[RunCommand]:
    """Return the command that removes the packages that were new, none if there were none."""
    packages = []
    for move in moves:
        if move.before is None and move.after is not None:
            packages.append(_full_name(move.name, move.after, move.architecture))
    if not packages:
        return []
    return [RunCommand(("sh", "-c", _ERASE, "sh", *packages), LIMIT)]


def finish_changes(moves: Iterable[PackageChange]) -> list[RunCommand]:
    """Return the command that brings changes to their end that were cut off."""
    pairs: list[str] = []
    for move in moves:
        if move.before is not None and move.after is not None:
            pairs.append(_full_name(move.name, move.before, former_architecture(move)))
            pairs.append(_full_name(move.name, move.after, move.architecture))
    if not pairs:
        return []
    return [RunCommand(("sh", "-c", _FINISH, "sh", *pairs), LIMIT)]


def former_architecture(move: PackageChange) -> str:
    """Return the architecture of the version before a change."""
    return move.architecture_before or move.architecture


def _full_name(name: str, version: str, architecture: str) -> str:
    """Return «name-version-release.architecture», as rpm names an installed package."""
    return f"{name}-{without_epoch(version)}.{architecture}"


def matches(version: str, wanted: str) -> bool:
    """Return whether a version is the one that is wanted: with or without epoch and release.

    `wanted` may end in `*`.
    """
    short = without_epoch(version)
    upstream = short.rpartition("-")[0]
    forms = (version, short, upstream)
    return any(fnmatch.fnmatchcase(form, wanted) for form in forms)
