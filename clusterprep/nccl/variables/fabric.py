"""NCCL_CROSS_NIC: rings stay on their rail where rails are networks that do not lead to each other."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.facts.rdma import Gid, Rail
from clusterprep.model import Absent, Fleet, Node
from clusterprep.nccl.gids import addresses_of, roce_rails, usable_gid
from clusterprep.nccl.rails import training_sets
from clusterprep.nccl.variables import Basis, Derived, grouped

NAME = "NCCL_CROSS_NIC"


def derive(basis: Basis) -> Iterable[Derived]:
    """0 where every node has the same networks, one for each rail, and no router between them; else NCCL decides.

    Ranks must agree on it, so what one node declares is left to the inventory for all. How the rails of InfiniBand are
    cabled no node knows: there it is not written.
    """
    nodes = basis.fleet.reached
    if len(nodes) < 2 or any(NAME in node.env for node in nodes):
        return
    found = {node.name: _networks(basis.fleet, node) for node in nodes}
    gaps = {name: networks for name, networks in found.items() if isinstance(networks, Absent)}
    fabrics = set(found.values()) - set(gaps.values())
    if len(fabrics) == 1 and () not in fabrics:
        reasons = {
            name: f"the routes of its rails are not known: {a.reason} {a.detail}"
            for name, a in gaps.items()
        }
        yield from grouped(NAME, {name: (None, why.strip()) for name, why in reasons.items()})
        if not gaps:
            why = "each rail is a network of its own and no router leads to another: a queue pair across them times out"
            yield Derived(NAME, "0", basis.names, why)


def _networks(fleet: Fleet, node: Node) -> tuple[str, ...] | Absent:
    """The network of each rail, in order; none where they are not shown to be apart."""
    training = training_sets(fleet)[node.name]
    interfaces, routes = (fleet.fact(node.name, name) for name in ("net.interfaces", "rdma.rails"))
    if isinstance(training, Absent):
        return training
    for known in (interfaces, routes):
        if isinstance(known, Absent):
            return known
    rails, held = roce_rails(training), addresses_of(interfaces)
    found = [_route(usable_gid(rail.port, held), routes) for rail in rails]
    networks = tuple(rail.network for rail in found if rail is not None and rail.router is False)
    whole = 2 <= len(training.rails) == len(networks) == len(set(networks))
    return networks if whole else ()


def _route(gid: Gid | None, routes: tuple[Rail, ...]) -> Rail | None:
    return next((rail for rail in routes if gid is not None and rail.address == gid.ipv4), None)
