"""What every training job gets.

NCCL reports why it failed, an error ends the rank, and all devices are numbered in one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Fleet
from clusterprep.model.alike import alike_nodes
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.variables import Basis, Derived, ValueAndReason, grouped

RENAMED = (2, 2)  # torch 2.2 put TORCH_ in front of its own NCCL_ names
OLD, NEW = "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield constants with their reasons, and what the inventory declares about devices."""
    names = basis.names
    yield Derived("NCCL_DEBUG", "WARN", names, "NCCL says why it failed, and nothing else")
    yield from _error_handling(basis.fleet)
    why = "device numbers then mean the same to CUDA, nvidia-smi and NVML"
    yield Derived("CUDA_DEVICE_ORDER", "PCI_BUS_ID", names, why)
    yield from _declared_devices(basis)


def _error_handling(fleet: Fleet) -> Iterable[Derived]:
    """Yield the value under the name that each node's torch reads.

    A node without torch gets the name that the other nodes read: it will get their torch.
    """
    reads_old: dict[str, bool | str | None] = {}
    for nodes in alike_nodes(fleet, fleet.reached, ("torch.build",)):
        old = _reads_old(fleet.fact(nodes[0].name, "torch.build"))
        reads_old.update(dict.fromkeys([node.name for node in nodes], old))
    others_read_old = _all_read_old(reads_old)
    why = "a failed collective ends the rank instead of leaving it waiting; torchrun sets the same"
    with_new: dict[str, ValueAndReason] = {}
    with_old: dict[str, ValueAndReason] = {}
    for node in fleet.reached:
        # torch takes the new name first: with it set, a declared old name would not count.
        if OLD in node.env or NEW in node.env:
            continue
        old = reads_old[node.name]
        if old is None:
            old = others_read_old
        if isinstance(old, str):
            with_new[node.name] = (None, f"which name torch reads is not known: {old}")
        elif old:
            with_old[node.name] = ("1", f"{why}; torch before 2.2 reads this name")
        else:
            with_new[node.name] = ("1", why)
    yield from grouped(NEW, with_new)
    yield from grouped(OLD, with_old)


def _all_read_old(reads_old: Mapping[str, bool | str | None]) -> bool:
    """Return whether all nodes whose torch is known read the old name; False if there is none."""
    known = [old for old in reads_old.values() if isinstance(old, bool)]
    return bool(known) and all(known)


def _reads_old(build: Torch | Absent) -> bool | str | None:
    """Return whether this torch reads the old name.

    None means that there is no torch. A text says why the answer is not known.
    """
    if isinstance(build, Absent):
        if build.reason == "missing_tool":
            return None
        return f"{build.reason} {build.detail}".strip()
    if build.version is None:
        return None
    version = leading_numbers(build.version)
    if not version:
        return f"{build.version} is no version"
    return version[:2] < RENAMED


def _declared_devices(basis: Basis) -> Iterable[Derived]:
    """Yield how many ranks a node starts and which GPUs they use, where that is declared."""
    nproc: dict[str, ValueAndReason] = {}
    devices: dict[str, ValueAndReason] = {}
    for node in basis.fleet.reached:
        if node.nproc_per_node is not None:
            nproc[node.name] = (str(node.nproc_per_node), "declared as nproc_per_node")
        if node.gpus is not None and node.gpus.use is not None:
            indices = ",".join(map(str, node.gpus.use))
            devices[node.name] = (indices, "declared as gpus.use")
    yield from grouped("NPROC_PER_NODE", nproc)
    yield from grouped("CUDA_VISIBLE_DEVICES", devices)
