"""Compute the environment: derived values, and declared values over them. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from clusterprep.model import EnvValue, Fleet
from clusterprep.model.memoize import once_per_fleet
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.variables import Basis, Derived
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.runtime.plugins import modules


@dataclass(frozen=True)
class Environment:
    """The values for a fleet. `gaps` says of a node what could not be derived, and why."""

    values: tuple[EnvValue, ...]
    gaps: Mapping[str, str]

    def of(self, node: str) -> Mapping[str, EnvValue]:
        """Return name → value for one node, sorted by name."""
        return self._by_node.get(node, {})

    @functools.cached_property
    def _by_node(self) -> Mapping[str, Mapping[str, EnvValue]]:
        """Return node → name → value. Nodes with the same values share one mapping."""
        places: dict[str, list[int]] = {}  # node -> places of its values
        for place, value in enumerate(self.values):
            for node in value.nodes:
                places.setdefault(node, []).append(place)
        shared: dict[tuple[int, ...], Mapping[str, EnvValue]] = {}
        by_node = {}
        for node, of_node in places.items():
            key = tuple(of_node)
            if key not in shared:
                shared[key] = self._by_name(key)
            by_node[node] = shared[key]
        return by_node

    def _by_name(self, places: Iterable[int]) -> Mapping[str, EnvValue]:
        values = {}
        for place in places:
            value = self.values[place]
            values[value.name] = value
        return dict(sorted(values.items()))


FACTS = (
    "net.interfaces", "ssh.peer", "rdma.devices", "rdma.rails", "pci.tree", "torch.build",
    "gpu.nvml", "gpu.mig", "nvlink.links", "nvlink.pairs",
)  # fmt: skip
"""Names of the facts that the families of variables use."""


def render(fleet: Fleet) -> Environment:
    """Return the environment of the nodes that were reached."""
    basis = Basis(fleet, choose(fleet))
    derived: list[Derived] = []
    for family in modules("clusterprep.nccl.variables"):
        if hasattr(family, "derive"):
            derived.extend(family.derive(basis))
    declared = {node.name: node.env for node in fleet.reached}
    values = [_undeclared(item, declared) for item in derived if item.value is not None]
    values.extend(_declared(fleet))
    written = tuple(value for value in values if value.nodes)
    return Environment(written, _gaps(derived, declared))


@once_per_fleet
def planned_environment(fleet: Fleet) -> Environment:
    """Return `render(fleet)`, computed once.

    Checks compare what they see with what would be written.
    """
    return render(fleet)


def _undeclared(item: Derived, declared: Mapping[str, Mapping[str, object]]) -> EnvValue:
    """Return a derived value for the nodes that do not declare it."""
    nodes = tuple(node for node in item.nodes if item.name not in declared[node])
    return EnvValue(item.name, item.value or "", nodes, item.why)


def _declared(fleet: Fleet) -> list[EnvValue]:
    nodes_by_setting: dict[tuple[str, str, str], list[str]] = {}
    for node in fleet.reached:
        for name, setting in node.env.items():
            key = (name, setting.value, setting.layer)
            nodes_by_setting.setdefault(key, []).append(node.name)
    values = []
    for (name, value, layer), nodes in sorted(nodes_by_setting.items()):
        why = f"declared under {layer}"
        values.append(EnvValue(name, value, tuple(nodes), why, declared=True))
    return values


def _gaps(derived: list[Derived], declared: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Return node → the first variable that could not be derived there, and why."""
    gaps: dict[str, str] = {}
    for item in derived:
        if item.value is not None:
            continue
        for node in item.nodes:
            if item.name not in declared[node]:
                gaps.setdefault(node, f"{item.name}: {item.why}")
    return gaps
