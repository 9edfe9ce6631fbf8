"""Judges RoCE: every rail has an address that others reach, and sends by its own device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    passed,
    skipped,
)
from clusterprep.checks.ib import FACTS, training_not_known
from clusterprep.facts.network import Family, Interface
from clusterprep.facts.rdma import Gid, Port, Rail, RdmaDevice
from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Node
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.gids import (
    DYNAMIC,
    GidRules,
    addresses_of,
    declared_rules,
    entry_in_use,
    entry_taken,
    leads_to_others,
    roce_family,
    roce_rails_by_node,
    usable_gid,
)
from clusterprep.nccl.rails import RdmaRail, training_sets
from clusterprep.remedies import Remedy, sentence, shell_line

WANTED: Mapping[Family, str] = {
    "AF_INET": "a RoCE v2 GID of an IPv4 address that its interface has",
    "AF_INET6": "a RoCE v2 GID of a global IPv6 address that its interface has",
}
Indices = Mapping[str, int]
"""The index of the GID that NCCL can use, by port."""


def gid(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether each Ethernet port of the training set has a usable GID."""
    sets = training_sets(context.fleet)
    rails_by_node = roce_rails_by_node(context.fleet)
    indices_by_node: dict[str, Indices] = {}
    for nodes in without_roce_together(context):
        node = nodes[0]
        training = sets[node.name]
        if isinstance(training, Absent):
            yield training_not_known(node, training)
            continue
        rails = rails_by_node[node.name]
        if not rails:
            yield from about_all(nodes, [skipped(node, "the training set is not RoCE")])
            continue
        addresses = addresses_of(context.value(node, "net.interfaces"))
        rules = declared_rules(node, roce_family(context.fleet))
        indices: dict[str, int] = {}
        missing: list[RdmaRail] = []
        for rail in rails:
            entry = _find_gid(rail, addresses, rules)
            if entry is None:
                missing.append(rail)
            else:
                indices[rail.name] = entry.index
        others = _taken_instead(rails, rules)
        if missing:
            yield _missing_gids(node, missing, rules)
        elif others:
            yield _wrong_entry(node, others, rules)
        else:
            indices_by_node[node.name] = indices
    yield from _judge_indices(context, indices_by_node)


def without_roce_together(context: CheckContext) -> Iterable[tuple[Node, ...]]:
    """Return classes of nodes: those without RoCE together, each other node by itself.

    A node of which the training ports are not known is by itself too.
    """
    sets = training_sets(context.fleet)
    rails_by_node = roce_rails_by_node(context.fleet)

    def apart(node: Node) -> str:
        is_unknown = isinstance(sets[node.name], Absent)
        return node.name if is_unknown or rails_by_node[node.name] else ""

    return context.alike_by(apart)


def _find_gid(rail: RdmaRail, addresses: Mapping[str, set[str]], rules: GidRules) -> Gid | None:
    """Return the first GID that NCCL can use, among those that the inventory's index allows."""
    port = rail.port
    if rules.index is not None:
        gids = tuple(gid for gid in port.gids if gid.index == rules.index)
        port = replace(port, gids=gids)
    return usable_gid(port, addresses, rules.family, rules.version)


def _taken_instead(rails: Iterable[RdmaRail], rules: GidRules) -> dict[str, Gid]:
    """Return the entries that NCCL takes although they lead to no other node, by port."""
    others = {}
    for rail in rails:
        entry = entry_taken(rail.port, rules)
        if not leads_to_others(entry, rules):
            others[rail.name] = entry
    return others


def _wrong_entry(node: Node, others: Mapping[str, Gid], rules: GidRules) -> Outcome:
    """Return the failure of ports that have a usable GID, of which NCCL takes another one."""
    name, entry = next(iter(others.items()))
    what = f"index {entry.index}, {describe_gid(entry)}" if entry.kind else "an empty entry"
    message = f"{', '.join(others)}: NCCL would not take the GID by which the port can be reached"
    cure = sentence(
        "take NCCL_IB_ADDR_RANGE out of `env:`, or write the network of the ports' addresses"
    )
    return failed(node, message, f"{name}: {what}", WANTED[rules.family], cure)


def _missing_gids(node: Node, rails: list[RdmaRail], rules: GidRules) -> Outcome:
    """Return the failure of ports without a usable GID."""
    wanted = WANTED[rules.family]
    names = [rail.name for rail in rails]
    seen = _describe_rails(rails)
    message = f"{', '.join(names)}: no GID by which the port can be reached"
    if rules.index is not None:
        cure = sentence(
            "take NCCL_IB_GID_INDEX out of `env:`: NCCL finds the index by itself from 2.21 on"
        )
        return failed(
            node,
            message,
            seen,
            wanted,
            cure,
        )
    cure = shell_line(
        "ip address show dev {interface}; show_gids"
        "   # give it an address of its rail's network, also in the network configuration",
        interface=_first_interface(rails),
    )
    return failed(
        node,
        message,
        seen,
        wanted,
        cure,
    )


def _first_interface(rails: list[RdmaRail]) -> str:
    """Return the first interface of these ports, or NAME as a placeholder."""
    for rail in rails:
        if rail.device.interfaces:
            return rail.device.interfaces[0]
    return "NAME"


def _describe_rails(rails: Iterable[RdmaRail]) -> str:
    return "; ".join(f"{rail.name}: {_describe_gids(rail.port)}" for rail in rails)


def _describe_gids(port: Port) -> str:
    entries = [f"{gid.index} {describe_gid(gid)}" for gid in port.gids]
    return ", ".join(entries) or "no GID"


def describe_gid(gid: Gid) -> str:
    """Return «10.0.0.1 RoCE v2»."""
    return f"{gid.text} {gid.kind}"


def _judge_indices(
    context: CheckContext, indices_by_node: Mapping[str, Indices]
) -> Iterable[Outcome]:
    """Judge nodes whose ports all have a GID.

    NCCL before 2.21 reads a single NCCL_IB_GID_INDEX, so there all ports of a node need one index.
    """
    family = roce_family(context.fleet)
    everywhere: set[int] = set()
    for indices in indices_by_node.values():
        everywhere.update(indices.values())
    for name, indices in indices_by_node.items():
        own = set(indices.values())
        seen = _describe_indices(indices)
        version = _nccl_version(context, name)
        is_old = version is not None and leading_numbers(version)[:2] < DYNAMIC
        if len(own) > 1 and is_old:
            message = f"the index differs from port to port, and NCCL {version} takes one for all"
            cure = shell_line(
                "python -m pip install -U torch   # NCCL 2.21 or newer finds the index of each port"
            )
            yield Outcome(
                "fail",
                (name,),
                message,
                seen,
                "one index, or NCCL 2.21",
                cure,
            )
            continue
        message = "every port has its GID, at the same index everywhere"
        if len(everywhere) > 1:
            effect = "the index differs, so NCCL must find it or be told per node"
            message = f"every port has its GID; {effect}"
        if family == "AF_INET6":
            message = f"{message}; it is IPv6, so the job needs NCCL_IB_ADDR_FAMILY=AF_INET6"
        yield Outcome(
            "pass",
            (name,),
            message,
            seen,
            WANTED[family],
        )


def _describe_indices(indices: Indices) -> str:
    """Return the index if all ports have the same, else the index of each port."""
    different = set(indices.values())
    if len(different) == 1:
        return f"index {different.pop()}"
    return ", ".join(f"{port} {index}" for port, index in indices.items())


def _nccl_version(context: CheckContext, name: str) -> str | None:
    build = context.fleet.fact(name, "torch.build")
    return build.nccl if isinstance(build, Torch) else None


# ---------------------------------------------------------------- routes


def route(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether a packet from a rail's address leaves by that rail."""
    sets = training_sets(context.fleet)
    rails_by_node = roce_rails_by_node(context.fleet)
    for nodes in without_roce_together(context):
        node = nodes[0]
        training = sets[node.name]
        if isinstance(training, Absent):
            yield training_not_known(node, training)
            continue
        rails = _rails_of_job(context, node, rails_by_node[node.name])
        if len({rail.interface for rail in rails}) < 2:
            why = _why_no_rails(context, node, rails_by_node[node.name])
            yield from about_all(nodes, [skipped(node, why)])
        else:
            yield _judge_routes(node, rails)


def _rails_of_job(
    context: CheckContext, node: Node, rails_of_training: Sequence[RdmaRail]
) -> list[Rail]:
    """Return the addresses of the training's interfaces that RoCE sends from.

    An interface may have several of IPv6. Where NCCL takes one of them, the others do not matter.
    """
    interfaces: tuple[Interface, ...] = context.value(node, "net.interfaces")
    rules = declared_rules(node, roce_family(context.fleet))
    names = _training_interfaces(rails_of_training, interfaces)
    by_interface: dict[str, list[Rail]] = {}
    for rail in context.value(node, "rdma.rails"):
        if rail.interface in names and rail.family == rules.family:
            by_interface.setdefault(rail.interface, []).append(rail)
    taken = _addresses_taken(rails_of_training, interfaces, rules)
    rails: list[Rail] = []
    for own in by_interface.values():
        sent_from = [rail for rail in own if rail.address in taken]
        rails.extend(sent_from or own)
    return rails


def _addresses_taken(
    rails: Iterable[RdmaRail], interfaces: Iterable[Interface], rules: GidRules
) -> set[str]:
    """Return the addresses that NCCL takes on these ports, where others reach them."""
    held = addresses_of(interfaces)
    taken = set()
    for rail in rails:
        entry = entry_in_use(rail.port, held, rules)
        if entry is not None:
            taken.add(entry.text)
    return taken


def _why_no_rails(context: CheckContext, node: Node, rails_of_training: Sequence[RdmaRail]) -> str:
    """Return that there are no rails to compare, and which of them are link-local alone."""
    interfaces: tuple[Interface, ...] = context.value(node, "net.interfaces")
    rules = declared_rules(node, roce_family(context.fleet))
    kind = "global IPv6" if rules.family == "AF_INET6" else "IPv4"
    why = f"there are no several RoCE rails with {kind} addresses"
    names = _training_interfaces(rails_of_training, interfaces)
    local = [each.name for each in interfaces if each.name in names and each.link_local]
    if not local:
        return why
    return f"{why}; link-local ones hold on one cable only, and {', '.join(local)} has no other"


def _training_interfaces(rails: Iterable[RdmaRail], interfaces: Iterable[Interface]) -> set[str]:
    """Return the interfaces of the Ethernet ports, and the bonds that they belong to."""
    names: set[str] = set()
    for rail in rails:
        names.update(rail.device.interfaces)
        for gid in rail.port.gids:
            if gid.interface is not None:
                names.add(gid.interface)
    bonds = set()
    for interface in interfaces:
        if interface.name in names and interface.master is not None:
            bonds.add(interface.master)
    return names | bonds


def _judge_routes(node: Node, rails: list[Rail]) -> Outcome:
    """Judge whether packets leave by their own rail, and ARP answers for one rail alone."""
    wanted = "own device; arp_ignore ≥ 1 and arp_announce 2 where rails share a network"
    if rails[0].family == "AF_INET6":
        wanted = "own device"
    misrouted = [rail for rail in rails if rail.leaves not in (None, rail.interface)]
    if misrouted:
        message = "packets do not leave by their own rail"
        cure = _routing_rule(misrouted[0])
        return failed(
            node,
            message,
            _describe_misrouted(misrouted),
            wanted,
            cure,
        )
    arp_faults = _arp_faults(rails)
    if arp_faults:
        cure = shell_line(
            "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
            "   # and in /etc/sysctl.d"
        )
        message = "rails share a network, and each answers for the addresses of the others"
        return failed(
            node,
            message,
            "; ".join(arp_faults),
            wanted,
            cure,
        )
    seen = ", ".join(dict.fromkeys(rail.interface for rail in rails))
    return passed(node, "every rail sends by its own device", seen, wanted)


def _arp_faults(rails: list[Rail]) -> list[str]:
    """Return the rails that answer ARP for the addresses of others in their network.

    With IPv6 an interface answers for its own addresses alone (ndisc_recv_ns of net/ipv6/ndisc.c).
    """
    faults = []
    for rail in _rails_in_one_network(rails):
        if rail.arp_ignore is None or rail.arp_announce is None:
            continue
        if rail.arp_ignore < 1 or rail.arp_announce < 2:
            settings = f"arp_ignore {rail.arp_ignore}, arp_announce {rail.arp_announce}"
            faults.append(f"{rail.interface} {settings}")
    return faults


def _describe_misrouted(rails: list[Rail]) -> str:
    """Return by which device each rail's packets leave, and where rp_filter is strict."""
    routes = []
    strict = []
    for rail in rails:
        device = rail.leaves or "nothing"
        routes.append(f"{rail.address} of {rail.interface} leaves by {device}")
        if rail.rp_filter == 1:
            strict.append(rail.interface)
    text = "; ".join(routes)
    if not strict:
        return text
    return f"{text}; rp_filter is strict on {', '.join(strict)}"


def _routing_rule(rail: Rail) -> Remedy:
    """Return the lines that send packets from an address by its own rail."""
    if rail.family == "AF_INET6":
        return shell_line(
            "ip -6 route add {network} dev {interface} table 101 "
            "&& ip -6 rule add from {address} table 101   # one table for each rail",
            network=rail.network,
            interface=rail.interface,
            address=rail.address,
        )
    return shell_line(
        "ip route add {network} dev {interface} src {address} table 101 "
        "&& ip rule add from {address} table 101   # one table for each rail",
        network=rail.network,
        interface=rail.interface,
        address=rail.address,
    )


def _rails_in_one_network(rails: list[Rail]) -> list[Rail]:
    """Return the rails whose network another interface has too."""
    interfaces: dict[str, set[str]] = {}
    for rail in rails:
        interfaces.setdefault(rail.network, set()).add(rail.interface)
    return [rail for rail in rails if len(interfaces[rail.network]) > 1]


def _without_v2(devices: tuple[RdmaDevice, ...]) -> tuple[RdmaDevice, ...]:
    """Return the devices with one that lost its IPv4 address and its GIDs; for the proof."""
    changed = []
    for device in devices:
        if device.name == "mlx5_3":
            ports = tuple(_without_ipv4(port) for port in device.ports)
            changed.append(replace(device, ports=ports))
        else:
            changed.append(device)
    return tuple(changed)


def _without_ipv4(port: Port) -> Port:
    gids = tuple(gid for gid in port.gids if gid.ipv4 is None)
    return replace(port, gids=gids)


GID = Check(
    "roce.gid",
    facts=(*FACTS, "net.interfaces"),
    judge=gid,
    severity="error",
    follows=("roce.route",),
    title="RoCE ports can be reached by an address",
    why="Without a RoCE v2 entry for an address that others reach NCCL falls back to index 0, RoCE "
    "v1 or link-local: queue pairs time out with error 12 or 110 after minutes of silence.",
    how="gids, gid_attrs/types and gid_attrs/ndevs of the Ethernet ports of the training set, "
    "against the addresses of the interfaces: those of IPv4, or global ones of IPv6 where no port "
    "of the fleet has IPv4 or NCCL_IB_ADDR_FAMILY is declared so. NCCL from 2.21 finds the index "
    "by itself; older ones need the same index on all ports.",
    remedy=shell_line("show_gids; ip address show"),
    proof=Proof("rdma.devices", _without_v2, fleet="hgx-h100-roce"),
)
ROUTE = Check(
    "roce.route",
    facts=(*FACTS, "net.interfaces", "rdma.rails"),
    judge=route,
    severity="warning",
    title="Every RoCE rail sends by its own device",
    why="With several rails in one network the kernel sends all of them by the first: one link "
    "carries everything, and strict reverse-path filters drop what comes back.",
    how="The kernel is asked for the route from the address that NCCL takes of each rail, IPv4 or "
    "IPv6, to a neighbour; arp_ignore and arp_announce where rails share a network of IPv4: with "
    "IPv6 an interface answers for its own addresses alone. Link-local addresses, which hold on "
    "one cable only, are left out. Nodes with one RoCE address have nothing to get wrong.",
    remedy=shell_line(
        "ip rule add from ADDRESS table N; ip route add NETWORK dev NAME src ADDRESS table N"
    ),
    proof=Proof(
        "rdma.rails",
        lambda rails: (rails[0], replace(rails[1], leaves=rails[0].interface), *rails[2:]),
        fleet="hgx-h100-roce",
    ),
)
