"""Version comparison: PEP 440 for packages and drivers, leading numbers for kernels."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

VERSION_EXPECTED = "a version such as 2.6.0 or conditions such as >=2.6,<3"
KERNEL_EXPECTED = "a kernel version such as 5.15 or conditions such as >=5.5,<7"

_NUMBERS = re.compile(r"\d+(?:\.\d+)*", re.ASCII)
_CLAUSE = re.compile(r"(===|~=|==|!=|<=|>=|<|>)?\s*([0-9A-Za-z]\S*)")


def satisfies(seen: str, wanted: str) -> bool:
    """Return whether a version meets the conditions; a bare version in `wanted` means ==.

    Pre-releases count like any other version, because they were installed on purpose. A text
    without a version satisfies nothing. Raises ValueError if `wanted` cannot be read.
    """
    conditions = conditions_of(wanted)
    version = _version(seen)
    return version is not None and conditions.contains(version, prereleases=True)


def kernel_satisfies(release: str, wanted: str) -> bool:
    """Return whether a kernel release (`uname -r`) meets the conditions.

    Only the leading numbers are compared: 5.4.0-150-generic counts as 5.4.0. Raises ValueError if
    `wanted` cannot be read.
    """
    conditions = kernel_conditions(wanted)
    numbers = _NUMBERS.match(release)
    return numbers is not None and conditions.contains(numbers[0])


def leading_numbers(text: str) -> tuple[int, ...]:
    """Return (5, 4, 0) for '5.4.0-150-generic', and () for a text that starts with no number."""
    match = _NUMBERS.match(text)
    if match is None:
        return ()
    return tuple(int(part) for part in match[0].split("."))


@functools.cache
def conditions_of(wanted: str) -> SpecifierSet:
    """Return the conditions of a `require:` value. Raises ValueError that says what is expected."""
    clauses = [operator + version for operator, version in _clauses(wanted)]
    return _specifiers(clauses, wanted, VERSION_EXPECTED)


@functools.cache
def kernel_conditions(wanted: str) -> SpecifierSet:
    """Return the conditions on a kernel, of each version only the leading numbers.

    `==5.15.*` keeps its star. Raises ValueError that says what is expected.
    """
    clauses = []
    for operator, version in _clauses(wanted):
        numbers = _NUMBERS.match(version)
        if numbers is None or operator == "===":
            raise ValueError(f"expected {KERNEL_EXPECTED}; seen '{wanted}'")
        rest = version[numbers.end() :]
        suffix = ".*" if rest == ".*" else ""
        clauses.append(operator + numbers[0] + suffix)
    return _specifiers(clauses, wanted, KERNEL_EXPECTED)


def _clauses(wanted: str) -> list[tuple[str, str]]:
    """Return (operator, version) of each condition. Raises ValueError."""
    clauses = []
    for part in wanted.split(","):
        match = _CLAUSE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"expected {VERSION_EXPECTED}; seen '{wanted}'")
        clauses.append((match[1] or "==", match[2]))
    return clauses


def _specifiers(clauses: list[str], wanted: str, expected: str) -> SpecifierSet:
    """Return conditions such as ">=2.6". Raises ValueError, which shows `wanted` and `expected`."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(",".join(clauses))
    except InvalidSpecifier:
        raise ValueError(f"expected {expected}; seen '{wanted}'") from None


@functools.cache
def _version(seen: str) -> Version | None:
    """Return the version that a text is or begins with, None if there is none."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(seen.strip())
    except InvalidVersion:
        # Builds of vendors such as "12.4.r12.4" are not PEP 440 versions, but start with one.
        numbers = _NUMBERS.match(seen.strip())
        return Version(numbers[0]) if numbers else None
