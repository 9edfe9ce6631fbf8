"""Inventory and facts become the environment: derived values, with what is declared laid over them. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from clusterprep.model import EnvValue, Fleet
from clusterprep.model.memoize import once_per_fleet
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.variables import Basis, Derived
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.runtime.plugins import modules


@dataclass(frozen=True)
class Environment:
    """The values for a fleet, and for each node what could not be derived and why."""

    values: tuple[EnvValue, ...]
    gaps: Mapping[str, str]

    def of(self, node: str) -> Mapping[str, EnvValue]:
        """The variables of one node by name, sorted."""
        return self._by_node.get(node, {})

    @functools.cached_property
    def _by_node(self) -> Mapping[str, Mapping[str, EnvValue]]:
        """Nodes that get the same values share them."""
        places: dict[str, list[int]] = {}
        for place, value in enumerate(self.values):
            for node in value.nodes:
                places.setdefault(node, []).append(place)
        alike: dict[tuple[int, ...], Mapping[str, EnvValue]] = {}
        for mine in map(tuple, places.values()):
            if mine not in alike:
                values = {self.values[place].name: self.values[place] for place in mine}
                alike[mine] = dict(sorted(values.items()))
        return {node: alike[tuple(mine)] for node, mine in places.items()}


FACTS = (
    "net.interfaces", "ssh.peer", "rdma.devices", "rdma.rails", "pci.tree", "torch.build",
    "gpu.nvml", "gpu.mig", "nvlink.links", "nvlink.pairs",
)  # fmt: skip
"""Names of the facts that derivation looks at."""


def render(fleet: Fleet) -> Environment:
    """The environment of the nodes reached."""
    basis = Basis(fleet, choose(fleet))
    derived = [
        d
        for module in modules("clusterprep.nccl.variables")
        if hasattr(module, "derive")
        for d in module.derive(basis)
    ]
    declared = {node.name: node.env for node in fleet.reached}
    values = [_undeclared(item, declared) for item in derived if item.value is not None]
    values.extend(_declared(fleet))
    return Environment(tuple(value for value in values if value.nodes), _gaps(derived, declared))


@once_per_fleet
def planned_environment(fleet: Fleet) -> Environment:
    """The same for those who ask again and again: checks judge what they see against what apply would write."""
    return render(fleet)


def _undeclared(item: Derived, declared: Mapping[str, Mapping[str, object]]) -> EnvValue:
    nodes = tuple(node for node in item.nodes if item.name not in declared[node])
    return EnvValue(item.name, item.value or "", nodes, item.why)


def _declared(fleet: Fleet) -> list[EnvValue]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for node in fleet.reached:
        for name, setting in node.env.items():
            found.setdefault((name, setting.value, setting.layer), []).append(node.name)
    return [
        EnvValue(name, value, tuple(nodes), f"declared under {layer}", declared=True)
        for (name, value, layer), nodes in sorted(found.items())
    ]


def _gaps(derived: list[Derived], declared: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    gaps: dict[str, str] = {}
    for item in derived:
        for node in item.nodes if item.value is None else ():
            if item.name not in declared[node]:
                gaps.setdefault(node, f"{item.name}: {item.why}")
    return gaps
