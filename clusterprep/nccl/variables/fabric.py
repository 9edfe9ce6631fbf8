"""NCCL_CROSS_NIC: rings stay on their rail if no router joins the networks of the rails."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.facts.rdma import Rail
from clusterprep.model import Absent, Fleet, Node
from clusterprep.nccl.gids import (
    GidRules,
    addresses_of,
    declared_rules,
    entry_in_use,
    roce_family,
    roce_rails,
)
from clusterprep.nccl.rails import TrainingSet, training_sets
from clusterprep.nccl.variables import Basis, Derived, ValueAndReason, grouped, not_known

NAME = "NCCL_CROSS_NIC"

Networks = tuple[str, ...]


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield 0 if every node has the same networks, one for each rail, and no router between them.

    Otherwise NCCL decides. Ranks must agree on the value, so if one node declares it, the
    inventory decides for all nodes. No node knows how the rails of InfiniBand are cabled: nothing
    is yielded for InfiniBand.
    """
    nodes = basis.fleet.reached
    if len(nodes) < 2 or any(NAME in node.env for node in nodes):
        return
    gaps: dict[str, ValueAndReason] = {}
    fabrics: set[Networks] = set()
    for node in nodes:
        networks = _networks(basis.fleet, node)
        if isinstance(networks, Absent):
            gaps[node.name] = (None, not_known("the routes of its rails are", networks))
        elif not networks:
            return
        else:
            fabrics.add(networks)
    if len(fabrics) != 1:
        return
    yield from grouped(NAME, gaps)
    if not gaps:
        why = (
            "each rail is a network of its own and no router leads to another: "
            "a queue pair across them times out"
        )
        yield Derived(NAME, "0", basis.names, why)


def _networks(fleet: Fleet, node: Node) -> Networks | Absent:
    """Return the network of each rail, in order; empty if the rails are not shown to be apart."""
    training = training_sets(fleet)[node.name]
    interfaces = fleet.fact(node.name, "net.interfaces")
    routes = fleet.fact(node.name, "rdma.rails")
    if isinstance(training, Absent):
        return training
    if isinstance(interfaces, Absent):
        return interfaces
    if isinstance(routes, Absent):
        return routes
    rules = declared_rules(node, roce_family(fleet))
    networks = _unrouted_networks(training, addresses_of(interfaces), routes, rules)
    if len(networks) < 2 or len(networks) != len(set(networks)):
        return ()
    if len(networks) != len(training.rails):
        return ()
    return networks


def _unrouted_networks(
    training: TrainingSet,
    addresses: dict[str, set[str]],
    routes: tuple[Rail, ...],
    rules: GidRules,
) -> Networks:
    """Return the networks of the RoCE rails from which no router leads to another rail."""
    networks = []
    for rail in roce_rails(training):
        entry = entry_in_use(rail.port, addresses, rules)
        route = None if entry is None else _route(entry.text, routes)
        if route is not None and route.router is False:
            networks.append(route.network)
    return tuple(networks)


def _route(address: str, routes: tuple[Rail, ...]) -> Rail | None:
    for route in routes:
        if route.address == address:
            return route
    return None
