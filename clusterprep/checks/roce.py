"""RoCE: every rail has an address to be found by, and answers go out by the rail that was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.ib import FACTS, NOT_KNOWN
from clusterprep.facts.network import Interface
from clusterprep.facts.rdma import Gid, Rail, RdmaDevice
from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Node
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.gids import DYNAMIC, addresses_of, roce_rails, usable_gid
from clusterprep.nccl.rails import RdmaRail, TrainingSet, training_sets

WANTED = "a RoCE v2 GID of an IPv4 address that its interface has"


def gid(context: CheckContext) -> Iterable[Outcome]:
    """Each Ethernet port of the training set has a RoCE v2 GID of an IPv4 address that exists."""
    sets = training_sets(context.fleet)
    indices: dict[str, dict[str, int]] = {}
    for node in context.nodes:
        training = sets[node.name]
        if isinstance(training, Absent):
            yield Outcome(
                "unknown", (node.name,), training.detail or NOT_KNOWN, reason=training.reason
            )
            continue
        rails = roce_rails(training)
        if not rails:
            yield Outcome(
                "skip", (node.name,), "the training set is not RoCE", reason="not_applicable"
            )
            continue
        held = addresses_of(context.value(node, "net.interfaces"))
        found = {rail.name: _good(node, rail, held) for rail in rails}
        missing = [rail for rail in rails if found[rail.name] is None]
        if missing:
            yield _missing(node, missing)
        else:
            indices[node.name] = {
                name: entry.index for name, entry in found.items() if entry is not None
            }
    yield from _indices(context, indices)


def _good(node: Node, rail: RdmaRail, held: Mapping[str, set[str]]) -> Gid | None:
    """The first entry that NCCL can use; one that the inventory names, where it names one."""
    declared = node.env.get("NCCL_IB_GID_INDEX")
    family = node.env.get("NCCL_IB_ADDR_FAMILY")
    gids = [g for g in rail.port.gids if declared is None or declared.value == str(g.index)]
    if family is not None and family.value == "AF_INET6":
        return next(
            (g for g in gids if g.kind == "RoCE v2" and g.routable and g.ipv4 is None), None
        )
    return usable_gid(replace(rail.port, gids=tuple(gids)), held)


def _missing(node: Node, rails: list[RdmaRail]) -> Outcome:
    names = ", ".join(rail.name for rail in rails)
    seen = "; ".join(f"{rail.name}: {_shown(rail)}" for rail in rails)
    interface = next((name for rail in rails for name in rail.device.interfaces), "NAME")
    cure = f"ip address add ADDRESS/PREFIX dev {interface}; show_gids   # and in the network configuration"
    if "NCCL_IB_GID_INDEX" in node.env:
        cure = "take NCCL_IB_GID_INDEX out of `env:`: NCCL finds the index by itself from 2.21 on"
    return Outcome(
        "fail",
        (node.name,),
        f"{names}: no GID by which the port can be reached",
        seen,
        WANTED,
        cure,
    )


def _shown(rail: RdmaRail) -> str:
    return (
        ", ".join(f"{g.index} {g.ipv4 or g.address} {g.kind}" for g in rail.port.gids) or "no GID"
    )


def _indices(context: CheckContext, indices: Mapping[str, Mapping[str, int]]) -> Iterable[Outcome]:
    """One index for all is what NCCL before 2.21 needs, which reads a single NCCL_IB_GID_INDEX."""
    everywhere = {index for found in indices.values() for index in found.values()}
    for name, found in indices.items():
        own = sorted(set(found.values()))
        seen = (
            f"index {own[0]}"
            if len(own) == 1
            else ", ".join(f"{rail} {index}" for rail, index in found.items())
        )
        version = _nccl(context, name)
        if len(own) > 1 and version is not None and leading_numbers(version)[:2] < DYNAMIC:
            message = f"the index differs from port to port, and NCCL {version} takes one for all"
            cure = (
                "python -m pip install -U torch   # NCCL 2.21 or newer finds the index of each port"
            )
            yield Outcome("fail", (name,), message, seen, "one index, or NCCL 2.21", cure)
        elif len(everywhere) > 1:
            message = "every port has its GID; the index differs, so NCCL must find it or be told per node"
            yield Outcome("pass", (name,), message, seen, WANTED)
        else:
            yield Outcome(
                "pass",
                (name,),
                "every port has its GID, at the same index everywhere",
                seen,
                WANTED,
            )


def _nccl(context: CheckContext, name: str) -> str | None:
    build = context.fleet.fact(name, "torch.build")
    return build.nccl if isinstance(build, Torch) else None


# ---------------------------------------------------------------- routes


def route(context: CheckContext) -> Iterable[Outcome]:
    """A packet from a rail's address leaves by that rail; where rails share a network, only the owner answers ARP."""
    sets = training_sets(context.fleet)
    for node in context.nodes:
        training = sets[node.name]
        if isinstance(training, Absent):
            yield Outcome(
                "unknown", (node.name,), training.detail or NOT_KNOWN, reason=training.reason
            )
            continue
        names = _interfaces(training, context.value(node, "net.interfaces"))
        rails = [rail for rail in context.value(node, "rdma.rails") if rail.interface in names]
        if len(rails) < 2:
            yield Outcome(
                "skip",
                (node.name,),
                "there are no several RoCE rails with addresses",
                reason="not_applicable",
            )
        else:
            yield _routed(node, rails)


def _interfaces(training: TrainingSet, interfaces: Iterable[Interface]) -> set[str]:
    """The interfaces of the Ethernet rails, and the bonds that they are in."""
    rails = roce_rails(training)
    own = {name for rail in rails for name in rail.device.interfaces}
    own |= {
        entry.interface for rail in rails for entry in rail.port.gids if entry.interface is not None
    }
    return own | {i.master for i in interfaces if i.name in own and i.master is not None}


def _routed(node: Node, rails: list[Rail]) -> Outcome:
    wanted = "own device; arp_ignore ≥ 1 and arp_announce 2 where rails share a network"
    astray = [rail for rail in rails if rail.leaves is not None and rail.leaves != rail.interface]
    if astray:
        seen = "; ".join(
            f"{rail.address} of {rail.interface} leaves by {rail.leaves or 'nothing'}"
            for rail in astray
        )
        if strict := [rail.interface for rail in astray if rail.rp_filter == 1]:
            seen += f"; rp_filter is strict on {', '.join(strict)}"
        return Outcome(
            "fail",
            (node.name,),
            "packets do not leave by their own rail",
            seen,
            wanted,
            _rule(astray[0]),
        )
    loose = [rail for rail in _sharing(rails) if rail.arp_ignore < 1 or rail.arp_announce < 2]
    if loose:
        seen = "; ".join(
            f"{r.interface} arp_ignore {r.arp_ignore}, arp_announce {r.arp_announce}" for r in loose
        )
        cure = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2   # and in /etc/sysctl.d"
        message = "rails share a network, and each answers for the addresses of the others"
        return Outcome("fail", (node.name,), message, seen, wanted, cure)
    seen = ", ".join(rail.interface for rail in rails)
    return Outcome("pass", (node.name,), "every rail sends by its own device", seen, wanted)


def _rule(rail: Rail) -> str:
    network = IPv4Interface(f"{rail.address}/{rail.prefix}").network
    return (
        f"ip route add {network} dev {rail.interface} src {rail.address} table 101 && "
        f"ip rule add from {rail.address} table 101   # one table for each rail"
    )


def _sharing(rails: list[Rail]) -> list[Rail]:
    networks = [IPv4Interface(f"{rail.address}/{rail.prefix}").network for rail in rails]
    return [
        rail for rail, network in zip(rails, networks, strict=True) if networks.count(network) > 1
    ]


def _without_v2(devices: tuple[RdmaDevice, ...]) -> tuple[RdmaDevice, ...]:
    """For the proof: one training port that lost its IPv4 address, and the entries of the table with it."""
    return tuple(
        replace(
            d,
            ports=tuple(
                replace(p, gids=tuple(g for g in p.gids if g.ipv4 is None)) for p in d.ports
            ),
        )
        if d.name == "mlx5_3"
        else d
        for d in devices
    )


GID = Check(
    "roce.gid",
    facts=(*FACTS, "net.interfaces"),
    judge=gid,
    severity="error",
    title="RoCE ports can be reached by an IPv4 address",
    why="Without a RoCE v2 entry for an IPv4 address NCCL falls back to index 0, RoCE v1 or link-local: queue pairs "
    "time out with error 12 or 110 after minutes of silence.",
    how="gids, gid_attrs/types and gid_attrs/ndevs of the Ethernet ports of the training set, against the addresses of "
    "the interfaces. NCCL from 2.21 finds the index by itself; older ones need the same index on all ports.",
    remedy="show_gids; ip address show",
    proof=Proof("rdma.devices", _without_v2, fleet="hgx-h100-roce"),
)
ROUTE = Check(
    "roce.route",
    facts=(*FACTS, "net.interfaces", "rdma.rails"),
    judge=route,
    severity="warning",
    title="Every RoCE rail sends by its own device",
    why="With several rails in one network the kernel sends all of them by the first: one link carries everything, and "
    "strict reverse-path filters drop what comes back.",
    how="The kernel is asked for the route from each rail's address to a neighbour; arp_ignore and arp_announce where "
    "rails share a network. Nodes with one RoCE address have nothing to get wrong.",
    remedy="ip rule add from ADDRESS table N; ip route add NETWORK dev NAME src ADDRESS table N",
    proof=Proof(
        "rdma.rails",
        lambda rails: (rails[0], replace(rails[1], leaves=rails[0].interface), *rails[2:]),
        fleet="hgx-h100-roce",
    ),
)
