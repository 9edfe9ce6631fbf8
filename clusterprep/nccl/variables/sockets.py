"""Which interface sockets use: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.nccl.interfaces import VARIABLE
from clusterprep.nccl.variables import Basis, Derived, grouped


def derive(basis: Basis) -> Iterable[Derived]:
    """NCCL matches by prefix and gloo by the whole name, so the two values may differ by a leading `=`."""
    nccl: dict[str, tuple[str | None, str]] = {}
    gloo: dict[str, tuple[str | None, str]] = {}
    choice = basis.choice
    for name in basis.names:
        if (pick := choice.picks.get(name)) is not None:
            ours = pick.value != pick.name and pick.why != f"declared as {VARIABLE}"
            exact = "; another interface starts with the same letters" if ours else ""
            nccl[name] = (pick.value, pick.why + exact)
            gloo[name] = (
                pick.name,
                "the same interface as NCCL; without it gloo publishes whatever the host name is",
            )
        else:
            absent = choice.unknown.get(name)
            why = choice.problems.get(name) or (
                f"{absent.reason}: {absent.detail}" if absent else "no interface"
            )
            nccl[name] = gloo[name] = (None, why)
    yield from grouped("NCCL_SOCKET_IFNAME", nccl)
    yield from grouped("GLOO_SOCKET_IFNAME", gloo)
