"""Which interface sockets use: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.nccl.interfaces import VARIABLE, Choice
from clusterprep.nccl.variables import Basis, Derived, ValueAndReason, grouped


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield the interface of each node for NCCL and for gloo.

    NCCL matches by prefix and gloo by the whole name, so the values may differ by a leading `=`.
    """
    nccl: dict[str, ValueAndReason] = {}
    gloo: dict[str, ValueAndReason] = {}
    for name in basis.names:
        pick = basis.choice.picks.get(name)
        if pick is None:
            gap = (None, _no_interface(basis.choice, name))
            nccl[name] = gloo[name] = gap
            continue
        why = pick.why
        if pick.value != pick.name and pick.why != f"declared as {VARIABLE}":
            why = f"{why}; another interface starts with the same letters"
        nccl[name] = (pick.value, why)
        why = "the same interface as NCCL; without it gloo publishes whatever the host name is"
        gloo[name] = (pick.name, why)
    yield from grouped("NCCL_SOCKET_IFNAME", nccl)
    yield from grouped("GLOO_SOCKET_IFNAME", gloo)


def _no_interface(choice: Choice, node: str) -> str:
    """Return why no interface was chosen for a node."""
    problem = choice.problems.get(node)
    if problem:
        return problem
    absent = choice.unknown.get(node)
    if absent is None:
        return "no interface"
    return f"{absent.reason}: {absent.detail}"
