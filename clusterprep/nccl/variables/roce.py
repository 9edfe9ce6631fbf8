"""The GID table entry that NCCL takes on RoCE.

That is NCCL_IB_GID_INDEX for NCCL before 2.21, which cannot find the entry itself, and
NCCL_IB_ADDR_FAMILY for later ones, which look for one of IPv4.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.facts.torch import Torch
from clusterprep.model import Absent
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.gids import (
    DYNAMIC,
    FAMILY_VARIABLE,
    addresses_of,
    roce_family,
    roce_rails,
    usable_gid,
)
from clusterprep.nccl.rails import RdmaRail, is_rdma_switched_off, training_sets
from clusterprep.nccl.variables import Basis, Derived, ValueAndReason, grouped, not_known

NAME = "NCCL_IB_GID_INDEX"


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield the index per node, for each node has its own table; nothing if NCCL finds it itself.

    One value serves all ports of a node. If their indices differ no value can be right, and the
    check `roce.gid` says so. The family is one for the job, as both ends need entries of it.
    """
    values: dict[str, ValueAndReason] = {}
    with_rails: list[str] = []
    for node in basis.fleet.reached:
        training = training_sets(basis.fleet)[node.name]
        # An absent set is a gap of NCCL_IB_HCA. With RDMA off the index would have no reader.
        if isinstance(training, Absent) or is_rdma_switched_off(node):
            continue
        rails = roce_rails(training)
        if not rails or _is_without_nccl(basis, node.name):
            continue
        with_rails.append(node.name)
        answer = _index(basis, node.name, rails)
        if answer is not None:
            values[node.name] = answer
    yield from grouped(NAME, values)
    if with_rails and roce_family(basis.fleet) == "AF_INET6":
        why = "the RoCE ports have IPv6 addresses alone, and NCCL looks for IPv4 by itself"
        yield Derived(FAMILY_VARIABLE, "AF_INET6", tuple(with_rails), why)


def _is_without_nccl(basis: Basis, node: str) -> bool:
    """Return whether there is no torch, or one for CPUs: the variables would have no reader."""
    build = basis.fleet.fact(node, "torch.build")
    return isinstance(build, Torch) and build.nccl is None and build.cuda is None


def _index(basis: Basis, node: str, rails: list[RdmaRail]) -> ValueAndReason | None:
    """Return the index of a node's rails, or why it is not known; None if it needs no index."""
    build = basis.fleet.fact(node, "torch.build")
    if isinstance(build, Absent):
        return None, not_known("whether this NCCL needs it is", build)
    version = leading_numbers(build.nccl or "")
    if not version:
        problem = f"the NCCL of torch {build.version} does not say its version"
        return None, f"{problem}, and needs this before 2.21: declare {NAME}"
    if version[:2] >= DYNAMIC:
        return None
    interfaces = basis.fleet.fact(node, "net.interfaces")
    if isinstance(interfaces, Absent):
        return None, not_known("addresses are", interfaces)
    return _common_index(basis, rails, addresses_of(interfaces), build)


def _common_index(
    basis: Basis, rails: list[RdmaRail], addresses: dict[str, set[str]], build: Torch
) -> ValueAndReason | None:
    """Return the GID index that is right for all ports; None if no single one is."""
    family = roce_family(basis.fleet)
    indices = set()
    for rail in rails:
        entry = usable_gid(rail.port, addresses, family)
        if entry is not None:
            indices.add(entry.index)
    if len(indices) != 1:
        return None
    name = "IPv6" if family == "AF_INET6" else "IPv4"
    why = (
        f"the RoCE v2 entry of the ports' {name} addresses, "
        f"which NCCL {build.nccl} does not look for; from 2.21 it does"
    )
    return str(indices.pop()), why
