"""NCCL_IB_GID_INDEX: which entry of a RoCE port's table an NCCL before 2.21 shall use, which cannot find it itself."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.model import Absent, Node
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.gids import DYNAMIC, addresses_of, roce_rails, usable_gid
from clusterprep.nccl.rails import RdmaRail, switched_off, training_sets
from clusterprep.nccl.variables import Basis, Derived, grouped

NAME = "NCCL_IB_GID_INDEX"


def derive(basis: Basis) -> Iterable[Derived]:
    """Per node, for the index is one of a table of its own; nothing where NCCL finds it by itself.

    One value serves all ports of a node. Where their indices differ none can be right, and `roce.gid` says so.
    """
    values: dict[str, tuple[str | None, str]] = {}
    for node in basis.fleet.reached:
        training = training_sets(basis.fleet)[node.name]
        if isinstance(training, Absent) or switched_off(
            node
        ):  # a gap of NCCL_IB_HCA, or nobody would read it
            continue
        rails = roce_rails(training)
        answer = _index(basis, node, rails) if rails else None
        if answer is not None:
            values[node.name] = answer
    yield from grouped(NAME, values)


def _index(basis: Basis, node: Node, rails: list[RdmaRail]) -> tuple[str | None, str] | None:
    build = basis.fleet.fact(node.name, "torch.build")
    if isinstance(build, Absent):
        return (
            None,
            f"whether this NCCL needs it is not known: {build.reason} {build.detail}".strip(),
        )
    if build.nccl is None and build.cuda is None:  # no torch, or one for CPUs: nobody would read it
        return None
    version = leading_numbers(build.nccl or "")
    if not version:
        why = f"the NCCL of torch {build.version} does not say its version, and needs this before 2.21: declare {NAME}"
        return None, why
    if version[:2] >= DYNAMIC:
        return None
    interfaces = basis.fleet.fact(node.name, "net.interfaces")
    if isinstance(interfaces, Absent):
        return None, f"addresses are not known: {interfaces.reason} {interfaces.detail}".strip()
    entries = [usable_gid(rail.port, addresses_of(interfaces)) for rail in rails]
    indices = {entry.index for entry in entries if entry is not None}
    if len(indices) != 1:
        return None
    why = f"the RoCE v2 entry of the ports' IPv4 addresses, which NCCL {build.nccl} does not look for; from 2.21 it does"
    return str(indices.pop()), why
