"""Group nodes by what an inventory says of their hardware, and name each kind. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from clusterprep.facts.gpu import Nvml
from clusterprep.model import Absent, Fleet, Node
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.rails import training_sets

GpuCount = tuple[int, str | None]  # number of GPUs, and their model if all have the same

# Words in a GPU's name that do not tell models apart.
BRANDS = ("nvidia", "tesla", "geforce")


class MachineKind(Struct, frozen=True):
    """The hardware of a node. None is not known; `unknown` says why, in sentences."""

    gpus: GpuCount | None
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
        """The value of `gpus` in an inventory."""
        count, model = self.gpus or (0, None)
        if model is None:
            return count
        return {"count": count, "model": model}


KindGroup = tuple[str, MachineKind, tuple[str, ...]]  # name, kind, nodes
DistributionGroup = tuple[str, str, tuple[str, ...]]  # name, ID and VERSION_ID, nodes
LONGEST_NAME = 40  # letters of a group's name that come from a node's own words


def kind_of(fleet: Fleet, node: Node) -> MachineKind:
    """Return what a node's facts say of its hardware."""
    unknown: list[str] = []
    gpus, gpus_why = _gpus(fleet, node, unknown)
    nccl, nccl_why = _nccl_interface(fleet, node, unknown)
    rdma, rdma_why = _rdma_devices(fleet, node, unknown)
    return MachineKind(
        gpus=gpus,
        nccl=nccl,
        rdma=rdma,
        gpus_why=gpus_why,
        nccl_why=nccl_why,
        rdma_why=rdma_why,
        unknown=tuple(unknown),
    )


def kind_groups(kinds: Mapping[str, MachineKind], taken: Collection[str]) -> list[KindGroup]:
    """Return (name, kind, nodes) for every kind, most nodes first; nothing if there is only one.

    `taken` holds names of groups that a kind must not get.
    """
    members: dict[object, list[str]] = {}
    for name, kind in kinds.items():
        members.setdefault(kind.key, []).append(name)
    if len(members) < 2:
        return []
    used = {*taken, *kinds}
    groups: list[KindGroup] = []
    for names in sorted(members.values(), key=len, reverse=True):
        kind = kinds[names[0]]
        group = _free_name(_kind_name(kind), used)
        used.add(group)
        groups.append((group, kind, tuple(names)))
    return groups


def distribution_groups(fleet: Fleet, taken: Collection[str]) -> list[DistributionGroup]:
    """Return (name, distribution, nodes) for every distribution, most nodes first.

    Nothing if there is only one. `taken` holds names that a group must not get.
    """
    members: dict[str, list[str]] = {}
    for node in fleet.reached:
        release = fleet.fact(node.name, "os.release")
        if isinstance(release, str) and release:
            members.setdefault(release, []).append(node.name)
    if len(members) < 2:
        return []
    used = set(taken)
    groups: list[DistributionGroup] = []
    for release, names in sorted(members.items(), key=lambda row: -len(row[1])):
        words = re.findall(r"[a-z0-9.]+", release.lower())
        group = _free_name("-".join(words)[:LONGEST_NAME] or "distribution", used)
        used.add(group)
        groups.append((group, release, tuple(names)))
    return groups


# ---------------------------------------------------------------- what a node has


def _gpus(fleet: Fleet, node: Node, unknown: list[str]) -> tuple[GpuCount | None, str]:
    """Return the GPUs of a node and why; adds to `unknown` what is not known."""
    nvml = fleet.fact(node.name, "gpu.nvml")
    if isinstance(nvml, Absent):
        unknown.append(f"gpus are not known: {_reason(nvml)}")
        return None, ""
    if nvml is not None:
        return _gpus_of_nvml(nvml, unknown)
    pci = fleet.fact(node.name, "gpu.pci")
    if isinstance(pci, Absent):
        unknown.append(f"gpus are not known: {_reason(pci)}")
        return None, ""
    if pci:
        unknown.append(f"gpus are not known: {len(pci)} on the PCI bus, and no driver answers")
        return None, ""
    return (0, None), "no GPU was found"


def _gpus_of_nvml(nvml: Nvml, unknown: list[str]) -> tuple[GpuCount, str]:
    """Return the GPUs that NVML lists and a remark; adds to `unknown` those that do not answer."""
    if nvml.lost:
        lost = "; ".join(nvml.lost)
        unknown.append(f"a GPU does not answer and is counted all the same: {lost}")
    count = len(nvml.gpus) + len(nvml.lost) + len(nvml.denied)
    indices: dict[str, list[str]] = {}
    for gpu in nvml.gpus:
        index = str(gpu.index)
        indices.setdefault(gpu.name, []).append(index)
    if len(indices) > 1:
        return (count, None), f"{_by_model(indices)}; add `use` with those of this job"
    model = next(iter(indices), None)
    return (count, model), ""


def _by_model(indices: Mapping[str, Sequence[str]]) -> str:
    """Return `A100 are 0,1; H100 are 2,3`."""
    parts: list[str] = []
    for model, numbers in indices.items():
        joined = ",".join(numbers)
        parts.append(f"{model} are {joined}")
    return "; ".join(parts)


def _nccl_interface(fleet: Fleet, node: Node, unknown: list[str]) -> tuple[str | None, str]:
    """Return the interface for NCCL's sockets and why; adds to `unknown` what is not known."""
    choice = choose(fleet)
    pick = choice.picks.get(node.name)
    if pick is not None:
        return pick.name, pick.why
    why = choice.problems.get(node.name)
    if not why:
        reason = _reason(choice.unknown.get(node.name))
        why = f"the interfaces are not known: {reason}"
    unknown.append(f"interfaces.nccl could not be chosen: {why}")
    return None, ""


def _rdma_devices(
    fleet: Fleet, node: Node, unknown: list[str]
) -> tuple[tuple[str, ...] | None, str]:
    """Return the RDMA devices for training and why; adds to `unknown` what is not known."""
    training = training_sets(fleet)[node.name]
    if isinstance(training, Absent):
        unknown.append(f"interfaces.rdma is not known: {_reason(training)}")
        return None, ""
    return tuple(rail.name for rail in training.rails), training.why


def _reason(absent: Absent | None) -> str:
    return "not asked" if absent is None else f"{absent.reason} {absent.detail}".strip()


# ---------------------------------------------------------------- names


def _kind_name(kind: MachineKind) -> str:
    """Return h100-80gb-hbm3-x8 for eight NVIDIA H100 80GB HBM3, and cpu for a node without GPUs."""
    if kind.gpus is None:
        return "unknown"
    count, model = kind.gpus
    if not count:
        return "cpu"
    words = re.findall(r"[a-z0-9]+", (model or "gpu").lower())
    distinguishing = "-".join(word for word in words if word not in BRANDS)
    return f"{distinguishing}-x{count}"


def _free_name(name: str, used: Collection[str]) -> str:
    """Return the name, or name-2, name-3 … if it is used."""
    free = name
    number = 2
    while free in used:
        free = f"{name}-{number}"
        number += 1
    return free
