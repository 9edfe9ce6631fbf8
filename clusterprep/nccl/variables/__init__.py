"""The NCCL environment: one file per family of variables, each value derived with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.model import Fleet
from clusterprep.nccl.interfaces import Choice
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Derived:
    """A value for some nodes and why; a value of None means that it could not be derived, and `why` says so."""

    name: str
    value: str | None
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Basis:
    """What derivation stands on: the fleet and the chosen interfaces."""

    fleet: Fleet
    choice: Choice

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.fleet.reached)


def grouped(name: str, values: Mapping[str, tuple[str | None, str]]) -> Iterable[Derived]:
    """One Derived per distinct (value, reason) of a node → (value, reason) mapping."""
    groups: dict[tuple[str | None, str], list[str]] = {}
    for node, both in values.items():
        groups.setdefault(both, []).append(node)
    for (value, why), nodes in groups.items():
        yield Derived(name, value, tuple(nodes), why)
