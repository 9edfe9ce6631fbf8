"""Which interface sockets use, and which family of addresses.

That is NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and NCCL_SOCKET_FAMILY.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.model import Absent, Fleet
from clusterprep.model.nodeset import fold
from clusterprep.nccl.interfaces import FAMILY_VARIABLE, VARIABLE, Choice, taken_by
from clusterprep.nccl.variables import Basis, Derived, ValueAndReason, grouped


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield the interface of each node for NCCL and for gloo, and the family where it is needed.

    NCCL matches by prefix and gloo by the whole name, so the values may differ by a leading `=`.
    """
    with_ipv4 = _nodes_where_ipv4_wins(basis.fleet, basis.choice)
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
        if name not in with_ipv4:
            # There gloo would bind the interface's IPv4 address, as it has no variable for the
            # family. Without this one it binds the address of the host name.
            why = "the same interface as NCCL; without it gloo publishes whatever the host name is"
            gloo[name] = (pick.name, why)
    yield from grouped("NCCL_SOCKET_IFNAME", nccl)
    yield from grouped("GLOO_SOCKET_IFNAME", gloo)
    if with_ipv4:
        why = f"IPv6 reaches all, and NCCL would bind IPv4 on {fold(with_ipv4)}"
        yield Derived(FAMILY_VARIABLE, basis.choice.family, tuple(basis.choice.picks), why)


def _nodes_where_ipv4_wins(fleet: Fleet, choice: Choice) -> tuple[str, ...]:
    """Return the nodes on which NCCL left alone would bind IPv4, where IPv6 was chosen."""
    names: list[str] = []
    if choice.family == "AF_INET":
        return ()
    for name, pick in choice.picks.items():
        interfaces = fleet.fact(name, "net.interfaces")
        if isinstance(interfaces, Absent):
            continue
        if any(interface.has_ipv4 for interface in taken_by(pick.value, interfaces)):
            names.append(name)
    return tuple(names)


def _no_interface(choice: Choice, node: str) -> str:
    """Return why no interface was chosen for a node."""
    problem = choice.problems.get(node)
    if problem:
        return problem
    absent = choice.unknown.get(node)
    if absent is None:
        return "no interface"
    return f"{absent.reason}: {absent.detail}"
