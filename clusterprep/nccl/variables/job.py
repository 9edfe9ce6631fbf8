"""What every job should have: a word from NCCL when it fails, errors that end ranks, one order of devices."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Fleet
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.variables import Basis, Derived, grouped

RENAMED = (2, 2)  # torch 2.2 put TORCH_ in front of its own NCCL_ names
OLD, NEW = "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def derive(basis: Basis) -> Iterable[Derived]:
    """Constants with their reasons, and what the inventory declares about devices and processes."""
    names = basis.names
    yield Derived("NCCL_DEBUG", "WARN", names, "NCCL says why it failed, and nothing else")
    yield from _error_handling(basis.fleet)
    why = "device numbers then mean the same to CUDA, nvidia-smi and NVML"
    yield Derived("CUDA_DEVICE_ORDER", "PCI_BUS_ID", names, why)
    yield from _declared(basis)


def _error_handling(fleet: Fleet) -> Iterable[Derived]:
    """Under the name that each node's torch reads; nodes without torch get that of the others, for one will come."""
    found = {node.name: _reads_old(fleet.fact(node.name, "torch.build")) for node in fleet.reached}
    known = [old for old in found.values() if isinstance(old, bool)]
    why = "a failed collective ends the rank instead of leaving it waiting; torchrun sets the same"
    values: dict[str, dict[str, tuple[str | None, str]]] = {NEW: {}, OLD: {}}
    for node in fleet.reached:
        old = found[node.name]
        if {OLD, NEW} & set(
            node.env
        ):  # torch takes the new name first: beside it the declared old one would not count
            continue
        if isinstance(old, str):
            values[NEW][node.name] = (None, f"which name torch reads is not known: {old}")
        elif old or (old is None and known and all(known)):
            values[OLD][node.name] = ("1", f"{why}; torch before 2.2 reads this name")
        else:
            values[NEW][node.name] = ("1", why)
    for name, mine in values.items():
        yield from grouped(name, mine)


def _reads_old(build: Torch | Absent) -> bool | str | None:
    """Whether this torch reads the old name; None: there is no torch; a text: why that is not known."""
    if isinstance(build, Absent):
        return None if build.reason == "missing_tool" else f"{build.reason} {build.detail}".strip()
    if build.version is None:
        return None
    version = leading_numbers(build.version)
    return version[:2] < RENAMED if version else f"{build.version} is no version"


def _declared(basis: Basis) -> Iterable[Derived]:
    nproc: dict[str, tuple[str | None, str]] = {}
    devices: dict[str, tuple[str | None, str]] = {}
    for node in basis.fleet.reached:
        if node.nproc_per_node is not None:
            nproc[node.name] = (str(node.nproc_per_node), "declared as nproc_per_node")
        if node.gpus is not None and node.gpus.use is not None:
            devices[node.name] = (",".join(map(str, node.gpus.use)), "declared as gpus.use")
    yield from grouped("NPROC_PER_NODE", nproc)
    yield from grouped("CUDA_VISIBLE_DEVICES", devices)
