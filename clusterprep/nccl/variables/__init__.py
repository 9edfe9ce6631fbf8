"""The NCCL environment: one module per family of variables.

Each module has a function `derive`, which yields values with their reasons. Imports `interfaces`,
`rails` and `gids` of this package. Begin with `rdma`, which derives NCCL_IB_HCA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from clusterprep.model import Absent, Fleet
from clusterprep.nccl.interfaces import Choice

# The value of a variable on one node, or None if it could not be derived, and the reason.
ValueAndReason = tuple[str | None, str]


class Derived(Struct, frozen=True):
    """The value of a variable on some nodes, and why.

    A value of None means that it could not be derived; `why` then says the reason.
    """

    name: str
    value: str | None
    nodes: tuple[str, ...]
    why: str


class Basis(Struct, frozen=True):
    """What derivation uses: the fleet and the chosen interfaces."""

    fleet: Fleet
    choice: Choice

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the nodes that were reached."""
        return tuple(node.name for node in self.fleet.reached)


def grouped(name: str, values: Mapping[str, ValueAndReason]) -> Iterable[Derived]:
    """Yield one Derived per distinct value and reason of `values`, which is by node."""
    nodes_by_value: dict[ValueAndReason, list[str]] = {}
    for node, value_and_reason in values.items():
        nodes_by_value.setdefault(value_and_reason, []).append(node)
    for (value, why), nodes in nodes_by_value.items():
        yield Derived(name, value, tuple(nodes), why)


def not_known(subject: str, absent: Absent) -> str:
    """Return e.g. «addresses are not known: denied /sys/class/net», for a missing fact."""
    text = f"{subject} not known: {absent.reason} {absent.detail}"
    return text.strip()
