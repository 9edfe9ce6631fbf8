"""What every job should have: a word from NCCL when it fails, errors that end ranks, one order of devices."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.env import Basis, Derived, grouped
from clusterprep.model import Absent, Fleet
from clusterprep.versions import leading_numbers

RENAMED = (2, 2)  # torch 2.2 put TORCH_ in front of its own NCCL_ names


def derive(basis: Basis) -> Iterable[Derived]:
    """Constants with their reasons, and what the inventory declares about devices and processes."""
    names = basis.names
    yield Derived("NCCL_DEBUG", "WARN", names, "NCCL says why it failed, and nothing else")
    why = "a failed collective ends the rank instead of leaving it waiting; torchrun sets the same"
    yield Derived(_error_handling(basis.fleet), "1", names, why)
    why = "device numbers then mean the same to CUDA, nvidia-smi and NVML"
    yield Derived("CUDA_DEVICE_ORDER", "PCI_BUS_ID", names, why)
    yield from _declared(basis)


def _error_handling(fleet: Fleet) -> str:
    builds = [fleet.fact(node.name, "torch.build") for node in fleet.reached]
    versions = [leading_numbers(build.version) for build in builds if not isinstance(build, Absent) and build.version]
    old = bool(versions) and all(() < version[:2] < RENAMED for version in versions)
    return "NCCL_ASYNC_ERROR_HANDLING" if old else "TORCH_NCCL_ASYNC_ERROR_HANDLING"


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
