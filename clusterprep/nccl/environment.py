"""Compute the environment: derived values, and declared values over them. Pure.

Job-wide values are decided over the fleet. If some nodes have usable RDMA and some do not, that is
a fault of the others: switching RDMA off everywhere would hide it, switching it off on some would
hang the job.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from msgspec import Struct

from clusterprep.model import EnvValue, Fleet
from clusterprep.model.memoize import once_per_fleet
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.variables import Basis, Derived
from clusterprep.runtime.plugins import modules


class Environment(Struct, frozen=True, dict=True):
    """The values for a fleet. `gaps` says of a node what could not be derived, and why."""

    values: tuple[EnvValue, ...]
    gaps: Mapping[str, str]

    def of(self, node: str) -> Mapping[str, EnvValue]:
        """Return name → value for one node, sorted by name."""
        return self._by_node.get(node, {})

    @functools.cached_property
    def _by_node(self) -> Mapping[str, Mapping[str, EnvValue]]:
        """Return node → name → value. Nodes with the same values share one mapping."""
        places_by_node: dict[str, list[int]] = {}  # places in `values`
        for place, value in enumerate(self.values):
            for node in value.nodes:
                places_by_node.setdefault(node, []).append(place)
        shared: dict[tuple[int, ...], Mapping[str, EnvValue]] = {}
        by_node = {}
        for node, places in places_by_node.items():
            key = tuple(places)
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
    "gpu.nvml", "gpu.mig", "nvlink.links", "nvlink.pairs", "nccl.plugins",
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
    values = []
    for item in derived:
        nodes = _nodes_without_declaration(item, declared)
        if item.value is not None and nodes:
            values.append(EnvValue(item.name, item.value, nodes, item.why))
    values.extend(_declared_values(fleet))
    return Environment(tuple(values), _gaps(derived, declared))


@once_per_fleet
def planned_environment(fleet: Fleet) -> Environment:
    """Return `render(fleet)`, computed once.

    Checks compare what they see with what would be written.
    """
    return render(fleet)


def _nodes_without_declaration(
    item: Derived, declared: Mapping[str, Mapping[str, object]]
) -> tuple[str, ...]:
    """Return the nodes of a derived value that do not declare its variable."""
    return tuple(node for node in item.nodes if item.name not in declared[node])


def _declared_values(fleet: Fleet) -> list[EnvValue]:
    """Return what the inventory declares, one value for all nodes of the same setting and layer."""
    nodes_by_setting: dict[tuple[str, str, str], list[str]] = {}
    for node in fleet.reached:
        for name, setting in node.env.items():
            key = (name, setting.value, setting.layer)
            nodes_by_setting.setdefault(key, []).append(node.name)
    values = []
    for key in sorted(nodes_by_setting):
        name, value, layer = key
        nodes = tuple(nodes_by_setting[key])
        values.append(
            EnvValue(
                name,
                value,
                nodes,
                f"declared under {layer}",
                declared=True,
            )
        )
    return values


def _gaps(derived: list[Derived], declared: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Return node → the first variable that could not be derived there, and why."""
    gaps: dict[str, str] = {}
    for item in derived:
        if item.value is not None:
            continue
        gap = f"{item.name}: {item.why}"
        for node in _nodes_without_declaration(item, declared):
            gaps.setdefault(node, gap)
    return gaps
