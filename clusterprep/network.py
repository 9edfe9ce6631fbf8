"""Which interface carries NCCL's and gloo's sockets on each node: declared, or one network that reaches all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface

from clusterprep.derived import once_per_fleet
from clusterprep.facts.network import Interface, RdmaPort
from clusterprep.model import Absent, Fleet, Node

# Names of interfaces that never lead to another machine of the cluster, or not by the way that was meant:
# container bridges and their ends, overlay networks, tunnels, management of the board.
NEVER = (
    "lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "cilium", "weave", "podman", "nerdctl", "lxdbr",
    "lxcbr", "vboxnet", "vmnet", "kube-ipvs", "nodelocal", "vxlan", "tun", "tap", "wg", "tailscale", "zt", "sit",
    "ip6tnl", "dummy", "ifb", "usb", "idrac",
)  # fmt: skip


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
        if i.up and i.running and i.ipv4 and not (i.loopback or i.master or i.name.startswith(NEVER))
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
    for node in fleet.reached:
        value = fleet.fact(node.name, "net.interfaces")
        if isinstance(value, Absent):
            unknown[node.name] = value
        else:
            known[node.name] = value
    declared = [n for n in fleet.reached if n.name in known and n.interfaces.nccl is not None]
    derived = [n for n in fleet.reached if n.name in known and n.interfaces.nccl is None]
    picks, problems = _declared(declared, known)
    network, why = None, "declared as interfaces.nccl"
    if derived:
        given = {name: tuple(i for i in known[name] if i.name == pick.name) for name, pick in picks.items()}
        found, lacking, network, why = _derived(derived, known, given, fleet)
        picks, problems = {**picks, **found}, {**problems, **lacking}
    return Choice(picks, problems, unknown, why, network)


def _declared(nodes: list[Node], known: Mapping[str, tuple[Interface, ...]]) -> tuple[dict[str, Pick], dict[str, str]]:
    picks, problems = {}, {}
    for node in nodes:
        wanted = node.interfaces.nccl
        match = next((i for i in known[node.name] if i.name == wanted), None)
        if match is None:
            names = ", ".join(i.name for i in candidates(known[node.name])) or "none that is up with an IPv4 address"
            problems[node.name] = f"{wanted} does not exist (there is: {names})"
        elif not (match.up and match.running):
            problems[node.name] = f"{wanted} is down"
        elif not match.ipv4:
            problems[node.name] = f"{wanted} has no IPv4 address"
        else:
            picks[node.name] = _pick(match, match.address, known[node.name], "declared as interfaces.nccl")
    return picks, problems


def _pick(chosen: Interface, address: str, interfaces: tuple[Interface, ...], why: str) -> Pick:
    # NCCL matches names by prefix: `eth1` would take eth10 too, so a leading = asks for the whole name.
    ambiguous = any(i.name != chosen.name and i.name.startswith(chosen.name) for i in interfaces)
    return Pick(chosen.name, address, chosen.mtu, f"={chosen.name}" if ambiguous else chosen.name, why)


def _derived(
    nodes: list[Node],
    known: Mapping[str, tuple[Interface, ...]],
    given: Mapping[str, tuple[Interface, ...]],
    fleet: Fleet,
) -> tuple[dict[str, Pick], dict[str, str], str | None, str]:
    """Picks for nodes that declare none; `given` has the interfaces of those that do, which must be reached too."""
    usable = {node.name: candidates(known[node.name]) for node in nodes}
    if len(fleet.inventory.nodes) == 1 and not usable[nodes[0].name]:
        return _alone(nodes[0], known[nodes[0].name])
    problems = {name: "no interface is up with an IPv4 address" for name, found in usable.items() if not found}
    login = {node.name: _login_interface(node, usable[node.name], fleet) for node in nodes if usable[node.name]}
    network, why = _common_network({**given, **usable}, login)
    picks = {}
    for name, by_login in login.items():
        chosen = _in_network(usable[name], network) if network else by_login
        if chosen is not None:
            interface, address = chosen
            picks[name] = _pick(interface, address, known[name], why)
        else:
            there = ", ".join(f"{i.name} {i.ipv4[0]}" for i in usable[name])
            problems[name] = f"no interface in {network or 'a network that reaches all'} (there is: {there})"
    return picks, problems, network, why


def _alone(node: Node, interfaces: tuple[Interface, ...]) -> tuple[dict[str, Pick], dict[str, str], None, str]:
    loopback = next((i for i in interfaces if i.loopback), None)
    if loopback is None:
        return {}, {node.name: "no interface is up with an IPv4 address"}, None, ""
    why = "the only node has no network; loopback reaches all its ranks"
    return {node.name: _pick(loopback, "127.0.0.1", interfaces, why)}, {}, None, why


def _login_interface(node: Node, usable: tuple[Interface, ...], fleet: Fleet) -> Place | None:
    """The interface that holds the address by which the controller reached the node, and that address."""
    addresses = (fleet.fact(node.name, "ssh.peer"), node.address)
    held = ((interface, plain(address)) for interface in usable for address in interface.ipv4)
    return next((place for place in held if place[1] in addresses), None)


def plain(address: str) -> str:
    """«10.0.0.1» of «10.0.0.1/24»."""
    return address.partition("/")[0]


def _common_network(
    usable: Mapping[str, tuple[Interface, ...]], login: Mapping[str, Place | None]
) -> tuple[str | None, str]:
    """The network that most nodes share, the fastest first; None when every node sits in a network of its own."""
    shares: dict[str, int] = {}
    speeds: dict[str, int] = {}
    for interfaces in usable.values():
        for network in {n for i in interfaces for n in i.networks}:
            shares[network] = shares.get(network, 0) + 1
        for interface in interfaces:
            for network in interface.networks:
                slowest = min(speeds.get(network, 1 << 30), interface.speed or 0)
                speeds[network] = slowest
    logins = {n for place in login.values() if place is not None for n in place[0].networks}
    ranked = sorted(shares, key=lambda n: (-shares[n], -speeds[n], n not in logins, n))
    if not ranked:
        return None, ""
    best, holders = ranked[0], sum(bool(interfaces) for interfaces in usable.values())
    if holders > 1 and shares[best] == 1:
        return None, "every node is in a network of its own; the interface that the login uses is taken on each"
    if shares[best] < 2 * holders / 3 and holders > 2 and all(login.values()) and _routed(logins):
        return None, "the nodes are in several networks; the interface that the login uses is taken on each"
    reach = "all nodes" if shares[best] == len(usable) else f"{shares[best]} of {len(usable)} nodes"
    return best, f"{best} is the network that reaches {reach}"


def _routed(networks: set[str]) -> bool:
    """Whether the login networks differ: nodes in racks that routers join."""
    return len(networks) > 1


def _in_network(interfaces: tuple[Interface, ...], network: str) -> Place | None:
    held = ((interface, address) for interface in interfaces for address in interface.ipv4)
    return next(((i, plain(a)) for i, a in held if str(IPv4Interface(a).network) == network), None)


def usable_rdma(ports: tuple[RdmaPort, ...]) -> tuple[str, ...]:
    """Devices with at least one active port, in the kernel's order."""
    return tuple(dict.fromkeys(port.device for port in ports if port.active))


def has_rdma(fleet: Fleet, node: Node) -> bool:
    """Whether an RDMA device is present or declared, which makes MTU and locked memory a matter of error."""
    ports = fleet.fact(node.name, "rdma.ports")
    return node.declares_rdma or (not isinstance(ports, Absent) and bool(ports))


def may_have_rdma(fleet: Fleet, node: Node) -> bool:
    """The same where it is not known: what was not seen may be there."""
    return isinstance(fleet.fact(node.name, "rdma.ports"), Absent) or has_rdma(fleet, node)
