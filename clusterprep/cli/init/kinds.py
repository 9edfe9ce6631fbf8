"""Kinds of nodes: what each has that the others may not have, and a name for each kind. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from clusterprep.facts.gpu import Nvml
from clusterprep.model import Absent, Fleet, Node
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.rails import training_sets
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class MachineKind:
    """What an inventory can say of a node. None is what is not known; `unknown` says why, in sentences."""

    gpus: tuple[int, str | None] | None  # how many, and their model where it is one
    nccl: str | None
    rdma: tuple[str, ...] | None
    gpus_why: str = ""
    nccl_why: str = ""
    rdma_why: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def key(self) -> object:
        return (self.gpus, self.nccl, self.rdma)

    @property
    def gpus_written(self) -> object:
        count, model = self.gpus or (0, None)
        return count if model is None else {"count": count, "model": model}


def kind_of(fleet: Fleet, node: Node) -> MachineKind:
    unknown: list[str] = []
    gpus, gpus_why = _gpus(fleet, node, unknown)
    chosen = choose(fleet)
    pick = chosen.picks.get(node.name)
    if pick is None:
        why = (
            chosen.problems.get(node.name)
            or f"the interfaces are not known: {_reason(chosen.unknown.get(node.name))}"
        )
        unknown.append(f"interfaces.nccl could not be chosen: {why}")
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent):
        unknown.append(f"interfaces.rdma is not known: {_reason(training)}")
        rdma, rdma_why = None, ""
    else:
        rdma, rdma_why = tuple(rail.name for rail in training.rails), training.why
    name, why = (pick.name, pick.why) if pick else (None, "")
    return MachineKind(gpus, name, rdma, gpus_why, why, rdma_why, tuple(unknown))


def kind_groups(
    kinds: Mapping[str, MachineKind], taken: Collection[str]
) -> list[tuple[str, MachineKind, tuple[str, ...]]]:
    """(name, kind, nodes) of every kind, where there are several; most nodes first."""
    members: dict[object, list[str]] = {}
    for name, kind in kinds.items():
        members.setdefault(kind.key, []).append(name)
    if len(members) < 2:
        return []
    used = {*taken, *kinds}
    found = []
    for names in sorted(members.values(), key=len, reverse=True):
        kind = kinds[names[0]]
        name = _free(_name(kind), used)
        used.add(name)
        found.append((name, kind, tuple(names)))
    return found


def _gpus(
    fleet: Fleet, node: Node, unknown: list[str]
) -> tuple[tuple[int, str | None] | None, str]:
    nvml, pci = fleet.fact(node.name, "gpu.nvml"), fleet.fact(node.name, "gpu.pci")
    if isinstance(nvml, Absent):
        unknown.append(f"gpus are not known: {_reason(nvml)}")
        return None, ""
    if nvml is None:
        if isinstance(pci, Absent) or pci:
            seen = (
                _reason(pci)
                if isinstance(pci, Absent)
                else f"{len(pci)} on the PCI bus, and no driver answers"
            )
            unknown.append(f"gpus are not known: {seen}")
            return None, ""
        return (0, None), "no GPU was found"
    return _listed(nvml, unknown)


def _listed(nvml: Nvml, unknown: list[str]) -> tuple[tuple[int, str | None], str]:
    models = sorted({gpu.name for gpu in nvml.gpus})
    if nvml.lost:
        unknown.append(f"a GPU does not answer and is counted all the same: {'; '.join(nvml.lost)}")
    count = len(nvml.gpus) + len(nvml.lost) + len(nvml.denied)
    why = f"{_by_model(nvml)}; add `use` with those of this job" if len(models) > 1 else ""
    return (count, models[0] if len(models) == 1 else None), why


def _by_model(nvml: Nvml) -> str:
    indices: dict[str, list[str]] = {}
    for gpu in nvml.gpus:
        indices.setdefault(gpu.name, []).append(str(gpu.index))
    return "; ".join(f"{model} are {','.join(found)}" for model, found in indices.items())


def _reason(absent: Absent | None) -> str:
    return "nobody asked" if absent is None else f"{absent.reason} {absent.detail}".strip()


def _name(kind: MachineKind) -> str:
    """h100-80gb-hbm3-x8 for eight NVIDIA H100 80GB HBM3, cpu where there is none."""
    if kind.gpus is None:
        return "unknown"
    count, model = kind.gpus
    if not count:
        return "cpu"
    words = re.findall(r"[a-z0-9]+", (model or "gpu").lower())
    return (
        f"{'-'.join(word for word in words if word not in ('nvidia', 'tesla', 'geforce'))}-x{count}"
    )


def _free(name: str, used: Collection[str]) -> str:
    number = 2
    found = name
    while found in used:
        found, number = f"{name}-{number}", number + 1
    return found
