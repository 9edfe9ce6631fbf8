"""What runs prove about other sets of nodes. Pure.

A set that passed has no part that fails, and what holds a set that failed fails too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct, field

Ended = Literal["passed", "failed", "hung"]


class Outcome(Struct, frozen=True):
    """How one run of the command ended, and after how many seconds."""

    ended: Ended
    seconds: float
    why: str = ""  # the first failure, for people


class Fault(Struct, frozen=True):
    """One or two nodes with which the command fails, in inventory order."""

    nodes: tuple[str, ...]
    slow: bool = False  # it does not fail, it takes long


class Evidence(Struct):
    """The sets that are known to pass and to fail."""

    passing: list[frozenset[str]] = field(default_factory=list)
    failing: list[frozenset[str]] = field(default_factory=list)

    def implied(self, nodes: Iterable[str]) -> bool | None:
        """Return whether a run on these nodes would fail; None if that is not known."""
        wanted = frozenset(nodes)
        if any(failing <= wanted for failing in self.failing):
            return True
        if any(wanted <= passing for passing in self.passing):
            return False
        return None

    def add(self, nodes: Iterable[str], bad: bool) -> None:
        kind = self.failing if bad else self.passing
        kind.append(frozenset(nodes))

    def contradiction(self, faults: Iterable[Fault]) -> tuple[frozenset[str], bool] | None:
        """Return a set that these faults do not explain, and whether it failed; None if all are.

        A set has to fail if it holds a fault, and only then.
        """
        sets = [frozenset(fault.nodes) for fault in faults]
        for passing in self.passing:
            if any(fault <= passing for fault in sets):
                return passing, False
        for failing in self.failing:
            if not any(fault <= failing for fault in sets):
                return failing, True
        return None


def hitting_sets(faults: Sequence[Fault]) -> list[frozenset[str]]:
    """Return the smallest sets of nodes without which none of these faults is whole.

    If all other nodes pass without each of them, there is no further fault.
    """
    sets: list[frozenset[str]] = [frozenset()]
    for fault in faults:
        extended: list[frozenset[str]] = []
        for one in sets:
            if one.isdisjoint(fault.nodes):
                extended.extend(one | {node} for node in fault.nodes)
            else:
                extended.append(one)
        sets = _minimal(extended)
    return sets


def _minimal(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Return the sets that hold no other one, each once, in their order."""
    distinct = list(dict.fromkeys(sets))
    kept = []
    for one in distinct:
        if not any(other < one for other in distinct):
            kept.append(one)
    return kept
