"""Which interface carries NCCL's and gloo's sockets on each node: declared, or one network that reaches all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from ipaddress import IPv4Interface

from clusterprep.facts.network import Interface
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.colocation import neighbours, one_machine
from clusterprep.model.memoize import once_per_fleet
from clusterprep.nccl.rails import FACTS as RAILS
from clusterprep.nccl.rails import interfaces_of
from clusterprep.runtime.lazy_dataclass import dataclass

# Names of interfaces that never lead to another machine of the cluster, or not by the way that was meant:
# container bridges and their ends, overlay networks, tunnels, management of the board.
NEVER = (
    "lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "cilium", "weave", "podman", "nerdctl", "lxdbr",
    "lxcbr", "vboxnet", "vmnet", "kube-ipvs", "nodelocal", "vxlan", "tun", "tap", "wg", "tailscale", "zt", "sit",
    "ip6tnl", "dummy", "ifb", "usb", "idrac", "gre", "erspan", "tunl", "ipip", "vti", "ppp", "genev", "ovs-system",
    "antrea", "nebula", "tmfifo_net",
)  # fmt: skip


FACTS = ("net.interfaces", *RAILS)
"""Names of the facts that the choice looks at; whoever asks for the first gets the others too."""

VARIABLE = "NCCL_SOCKET_IFNAME"
Place = tuple[Interface, str]  # an interface and one of its addresses


@dataclass(frozen=True)
class Pick:
    """The interface chosen on one node and why; `value` is what NCCL_SOCKET_IFNAME says, `name` the plain name."""

    name: str
    address: str
    mtu: int
    value: str
    why: str


@dataclass(frozen=True)
class Choice:
    """The choice for a fleet: a pick, a problem or not knowing per node, and the reason of the whole."""

    picks: Mapping[str, Pick] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Absent] = field(default_factory=dict)
    why: str = ""
    network: str | None = None


def candidates(interfaces: tuple[Interface, ...]) -> tuple[Interface, ...]:
    """Interfaces that could carry a job: up, with a global IPv4 address, not of a container, tunnel or board."""
    return tuple(
        i
        for i in interfaces
        if i.up
        and i.running
        and i.ipv4
        and not (i.loopback or i.master or i.name.startswith(NEVER))
        if not (i.tunnel or i.binds_link_local)
        if not i.bridge or _has_uplink(i, interfaces)
    )


def _has_uplink(bridge: Interface, interfaces: tuple[Interface, ...]) -> bool:
    """Whether a bridge leads out: one of its ports, or of a bond that is its port, is a card."""
    inside = {bridge.name} | {i.name for i in interfaces if i.master == bridge.name}
    return any(i.physical and i.master in inside for i in interfaces)


@once_per_fleet
def choose(fleet: Fleet) -> Choice:
    """Choose for every node reached. Pure; the answer for a node is in exactly one of picks, problems, unknown."""
    known: dict[str, tuple[Interface, ...]] = {}
    unknown: dict[str, Absent] = {}
    picks: dict[str, Pick] = {}
    problems: dict[str, str] = {}
    usable: dict[str, tuple[Interface, ...]] = {}
    alone = _alone(fleet)
    for node in fleet.reached:
        value = fleet.fact(node.name, "net.interfaces")
        if isinstance(value, Absent):
            unknown[node.name] = value
            continue
        known[node.name] = value
        asked = _asked(node, value, alone=alone)
        if isinstance(asked, Pick):
            picks[node.name] = asked
        elif isinstance(asked, str):
            problems[node.name] = asked
        else:
            usable[node.name] = asked
    network, why = None, "declared as interfaces.nccl"
    if usable:
        given = {
            name: tuple(i for i in known[name] if i.name == pick.name)
            for name, pick in picks.items()
        }
        found, lacking, network, why = _derived(usable, known, given, fleet)
        picks, problems = {**picks, **found}, {**problems, **lacking}
    return Choice(picks, problems, unknown, why, network)


def _alone(fleet: Fleet) -> bool:
    """Whether loopback leads to every node: there is no other machine."""
    return len(fleet.inventory.nodes) == 1 or one_machine(fleet.inventory.nodes)


def _asked(
    node: Node, interfaces: tuple[Interface, ...], *, alone: bool
) -> Pick | str | tuple[Interface, ...]:
    """What the inventory says: an interface or why there is none; nothing leaves those that could carry a job."""
    said = node.env.get(VARIABLE)
    if said is not None and len(said.value) > 1:  # NCCL takes a value of one character for none
        return _by_variable(said.value, interfaces, alone=alone)
    if node.interfaces.nccl is not None:
        return _by_name(node.interfaces.nccl, interfaces, alone=alone)
    return candidates(interfaces)


def _by_name(wanted: str, interfaces: tuple[Interface, ...], *, alone: bool) -> Pick | str:
    match = next((i for i in interfaces if i.name == wanted), None)
    if match is None:
        names = (
            ", ".join(i.name for i in candidates(interfaces))
            or "none that is up with an IPv4 address"
        )
        return f"{wanted} does not exist (there is: {names})"
    if not (match.up and match.running):
        return f"{wanted} is down"
    if not (match.ipv4 or (alone and match.loopback and match.bound)):
        return f"{wanted} has no IPv4 address"
    if match.binds_link_local:
        return f"{wanted} has {plain(str(match.bound))} before {match.address}, and NCCL binds the first address"
    return _pick(match, plain(str(match.bound)), interfaces, "declared as interfaces.nccl")


def _by_variable(value: str, interfaces: tuple[Interface, ...], *, alone: bool) -> Pick | str:
    """Of all that a variable lets in NCCL binds the first in the kernel's order, whatever the order of a list."""
    there = taken_by(
        value, tuple(i for i in interfaces if i.up and i.running and i.bound is not None)
    )
    if not there:
        names = ", ".join(i.name for i in candidates(interfaces)) or "none"
        return f"{VARIABLE}={value} matches no interface that is up with an IPv4 address (there is: {names})"
    first = min(there, key=lambda i: i.index)
    if first.loopback and not alone:
        return f"{VARIABLE}={value} lets {first.name} in, which NCCL then takes, and which leads to no other node"
    return Pick(first.name, plain(str(first.bound)), first.mtu, value, f"declared as {VARIABLE}")


@dataclass(frozen=True)
class NameList:
    """A list as NCCL reads it: one `^` and then one `=` at the start hold for all of it, names match by prefix.

    A port matters where the item has one too.
    """

    negated: bool
    exact: bool
    items: tuple[str, ...]  # with the ports that may stand behind them

    def takes(self, name: str, port: str = "") -> bool:
        hit = any(
            (name == item[0] if self.exact else name.startswith(item[0]))
            and (not port or item[1:2] in ([], [""], [port]))
            for item in (item.split(":") for item in self.items)
            if item[0]
        )
        return hit != self.negated


def name_list(value: str) -> NameList:
    rest = value.removeprefix("^")
    items = rest.removeprefix("=").split(",")
    return NameList(
        value.startswith("^"), rest.startswith("="), tuple(item for item in items if item)
    )


def taken_by(value: str, interfaces: tuple[Interface, ...]) -> tuple[Interface, ...]:
    """The interfaces that NCCL takes where its variable has this value."""
    return tuple(interface for interface in interfaces if admits(value, interface.name))


def admits(value: str, name: str, port: str = "") -> bool:
    """Whether a list of NCCL's lets an interface in, or a port of an RDMA device."""
    return name_list(value).takes(name, port)


def _pick(chosen: Interface, address: str, interfaces: tuple[Interface, ...], why: str) -> Pick:
    # NCCL matches names by prefix: `eth1` would take eth10 too, so a leading = asks for the whole name. It takes a
    # value of one character for none at all.
    ambiguous = any(i.name != chosen.name and i.name.startswith(chosen.name) for i in interfaces)
    exact = ambiguous or len(chosen.name) == 1
    return Pick(chosen.name, address, chosen.mtu, f"={chosen.name}" if exact else chosen.name, why)


def _derived(
    usable: Mapping[str, tuple[Interface, ...]],
    known: Mapping[str, tuple[Interface, ...]],
    given: Mapping[str, tuple[Interface, ...]],
    fleet: Fleet,
) -> tuple[dict[str, Pick], dict[str, str], str | None, str]:
    """Picks for nodes that declare none; `given` has the interfaces of those that do, which must be reached too."""
    nodes = [node for node in fleet.reached if node.name in usable]
    if _alone(fleet) and not any(usable.values()):
        return _by_loopback(nodes, known)
    problems = {
        name: "no interface is up with an IPv4 address"
        for name, found in usable.items()
        if not found
    }
    login = {
        node.name: _login_interface(node, usable[node.name], fleet)
        for node in nodes
        if usable[node.name]
    }
    network, why = _common_network(
        _once_each({**given, **usable}, usable, fleet), login, _rail_networks(known, fleet)
    )
    picks = {}
    for name, by_login in login.items():
        chosen = _in_network(usable[name], network) if network else by_login
        if chosen is not None:
            interface, address = chosen
            picks[name] = _pick(interface, address, known[name], why)
        else:
            problems[name] = _outside(usable[name], network)
    return picks, problems, network, why


def _outside(interfaces: tuple[Interface, ...], network: str | None) -> str:
    """Why none of a node's interfaces will do."""
    for interface in interfaces:
        for address in interface.ipv4:
            if network is not None and str(IPv4Interface(address).network) == network:
                own = plain(str(interface.bound))
                return f"{interface.name} has {plain(address)} in {network}, but NCCL binds its first address, {own}"
    there = ", ".join(f"{i.name} {i.ipv4[0]}" for i in interfaces)
    return f"no interface in {network or 'a network that reaches all'} (there is: {there})"


def _by_loopback(
    nodes: Sequence[Node], known: Mapping[str, tuple[Interface, ...]]
) -> tuple[dict[str, Pick], dict[str, str], None, str]:
    who = "the only node has" if len(nodes) == 1 else "all nodes are this machine, which has"
    why = f"{who} no network; loopback reaches all its ranks"
    picks, problems = {}, {}
    for node in nodes:
        loopback = next((i for i in known[node.name] if i.loopback), None)
        if loopback is None:
            problems[node.name] = "no interface is up with an IPv4 address"
        else:
            picks[node.name] = _pick(loopback, "127.0.0.1", known[node.name], why)
    return picks, problems, None, why


def _once_each(
    found: dict[str, tuple[Interface, ...]],
    usable: Mapping[str, tuple[Interface, ...]],
    fleet: Fleet,
) -> dict[str, tuple[Interface, ...]]:
    """Nodes that share this machine have the same addresses, and count as the one that they are."""
    here = [node.name for node in neighbours(fleet.inventory.nodes) if node.name in found]
    speaks = next((name for name in here if usable.get(name)), None)
    return {
        name: there
        for name, there in found.items()
        if speaks is None or name not in here or name == speaks
    }


def _login_interface(node: Node, usable: tuple[Interface, ...], fleet: Fleet) -> Place | None:
    """The interface that holds the address by which the controller reached the node, and that address."""
    addresses = (fleet.fact(node.name, "ssh.peer"), node.address)
    held = ((interface, plain(address)) for interface in usable for address in interface.ipv4)
    return next((place for place in held if place[1] in addresses), None)


def plain(address: str) -> str:
    """«10.0.0.1» of «10.0.0.1/24»."""
    return address.partition("/")[0]


def _rail_networks(known: Mapping[str, tuple[Interface, ...]], fleet: Fleet) -> frozenset[str]:
    """Networks of training ports, or of bonds of them: RDMA carries the data there."""
    found: set[str] = set()
    for node in fleet.reached:
        names, interfaces = interfaces_of(fleet, node), known.get(node.name, ())
        bonds = {i.master for i in interfaces if i.name in names}
        found.update(
            net for i in interfaces if i.name in names or i.name in bonds for net in i.networks
        )
    return frozenset(found)


def _common_network(
    usable: Mapping[str, tuple[Interface, ...]],
    login: Mapping[str, Place | None],
    rails: frozenset[str],
) -> tuple[str | None, str]:
    """The network that most nodes share, rails last, the fastest first; None when every node sits in one of its own.

    With RDMA sockets carry the start of communicators and little else: a rail that fails would take that with it, and
    NCCL left alone would bind the front end. Without RDMA sockets carry the data, and speed decides.
    """
    bound, shares, speeds = _tally(usable)
    logins = {n for place in login.values() if place is not None for n in place[0].networks}
    # Where NCCL binds counts before where a node can be reached: a second address is one that it will not use.
    ranked = sorted(
        shares, key=lambda n: (-bound[n], -shares[n], n in rails, -speeds[n], n not in logins, n)
    )
    if not ranked:
        return None, ""
    best, holders = ranked[0], sum(bool(interfaces) for interfaces in usable.values())
    if holders > 1 and shares[best] == 1:
        return (
            None,
            "every node is in a network of its own; the interface that the login uses is taken on each",
        )
    if shares[best] < 2 * holders / 3 and holders > 2 and all(login.values()) and _routed(logins):
        return (
            None,
            "the nodes are in several networks; the interface that the login uses is taken on each",
        )
    reach = "all nodes" if shares[best] == len(usable) else f"{shares[best]} of {len(usable)} nodes"
    left = "; those of the training ports are left to RDMA" if rails and best not in rails else ""
    return best, f"{best} is the network that reaches {reach}{left}"


def _tally(
    usable: Mapping[str, tuple[Interface, ...]],
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Of each network: how many nodes NCCL would bind there, how many are in it, and the speed of its slowest link.

    Nodes are told apart by their addresses: a network in which all have the same one, as of a card's own processor
    (tmfifo_net0 of a BlueField) or of containers, is one on every node and joins none.
    """
    bound: dict[str, set[str]] = {}
    there: dict[str, set[str]] = {}
    speeds: dict[str, int] = {}
    for interfaces in usable.values():
        mine: dict[str, str] = {}
        for interface in interfaces:
            for address, network in zip(interface.ipv4, interface.networks, strict=True):
                mine.setdefault(network, plain(address))
                speeds[network] = min(speeds.get(network, 1 << 30), interface.speed or 0)
        for network, address in mine.items():
            there.setdefault(network, set()).add(address)
            firsts = {address} if _in_network(interfaces, network) else set()
            bound.setdefault(network, set()).update(firsts)
    return {n: len(bound[n]) for n in bound}, {n: len(there[n]) for n in there}, speeds


def _routed(networks: set[str]) -> bool:
    """Whether the login networks differ: nodes in racks that routers join."""
    return len(networks) > 1


def common_networks(fleet: Fleet) -> tuple[Mapping[str, str], ...]:
    """Every network in which each machine reached has an address of its own: the name by node, as NCCL takes it."""
    found: dict[str, dict[str, Pick]] = {}
    for node in fleet.reached:
        known = fleet.fact(node.name, "net.interfaces")
        there = () if isinstance(known, Absent) else known
        for interface in candidates(there):
            if (network := _bound_network(interface)) is not None:
                pick = _pick(interface, plain(str(interface.bound)), there, "")
                found.setdefault(network, {}).setdefault(node.name, pick)
    nodes = len(fleet.reached)
    machines = nodes - max(0, len(neighbours(fleet.reached)) - 1)
    whole = (
        picks
        for picks in found.values()
        if len(picks) == nodes and len({pick.address for pick in picks.values()}) == machines
    )
    return tuple({name: pick.value for name, pick in picks.items()} for picks in whole)


def _bound_network(interface: Interface) -> str | None:
    return None if interface.bound is None else str(IPv4Interface(interface.bound).network)


def _in_network(interfaces: tuple[Interface, ...], network: str) -> Place | None:
    """The interface whose first address, which NCCL binds, is in the network."""
    return next(
        ((i, plain(str(i.bound))) for i in interfaces if _bound_network(i) == network), None
    )


def has_rdma(fleet: Fleet, node: Node) -> bool:
    """Whether an RDMA device is present or declared, which makes MTU and locked memory a matter of error."""
    devices = fleet.fact(node.name, "rdma.devices")
    return node.declares_rdma or (not isinstance(devices, Absent) and bool(devices))


def may_have_rdma(fleet: Fleet, node: Node) -> bool:
    """The same where it is not known: what was not seen may be there."""
    return isinstance(fleet.fact(node.name, "rdma.devices"), Absent) or has_rdma(fleet, node)
