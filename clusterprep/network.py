"""Which interface carries NCCL's and gloo's sockets on each node: declared, or one network that reaches all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from clusterprep.facts.network import Interface, RdmaPort
from clusterprep.model import Absent, Fleet, Node

# Names of interfaces that never lead to another machine of the cluster, or not by the way that was meant:
# container bridges and their ends, overlay networks, tunnels, management of the board.
NEVER = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel", "cali", "podman", "lxdbr", "lxcbr", "tun", "tap", "wg")
NEVER += ("tailscale", "zt", "kube-ipvs", "vxlan", "nerdctl", "usb", "idrac", "dummy", "ifb", "sit", "ip6tnl", "nodelocal")


@dataclass(frozen=True)
class Pick:
    """The interface chosen on one node; `value` is what NCCL_SOCKET_IFNAME says, `name` the plain name."""

    name: str
    address: str
    mtu: int
    value: str


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
        if i.up and i.running and i.ipv4 and not (i.loopback or i.bridge or i.master or i.name.startswith(NEVER))
    )


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
        found, lacking, network, why = _derived(derived, known, fleet)
        picks, problems = {**picks, **found}, {**problems, **lacking}
    return Choice(picks, problems, unknown, why, network)


def _declared(
    nodes: list[Node], known: Mapping[str, tuple[Interface, ...]]
) -> tuple[dict[str, Pick], dict[str, str]]:
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
            picks[node.name] = _pick(match, known[node.name])
    return picks, problems


def _pick(chosen: Interface, interfaces: tuple[Interface, ...]) -> Pick:
    # NCCL matches names by prefix: `eth1` would take eth10 too, so a leading = asks for the whole name.
    ambiguous = any(i.name != chosen.name and i.name.startswith(chosen.name) for i in interfaces)
    return Pick(chosen.name, chosen.address, chosen.mtu, f"={chosen.name}" if ambiguous else chosen.name)


def _derived(
    nodes: list[Node], known: Mapping[str, tuple[Interface, ...]], fleet: Fleet
) -> tuple[dict[str, Pick], dict[str, str], str | None, str]:
    usable = {node.name: candidates(known[node.name]) for node in nodes}
    if len(nodes) == 1 and not usable[nodes[0].name]:
        return _alone(nodes[0], known[nodes[0].name])
    problems = {name: "no interface is up with an IPv4 address" for name, found in usable.items() if not found}
    login = {node.name: _login_interface(node, usable[node.name], fleet) for node in nodes if usable[node.name]}
    network, why = _common_network(usable, login)
    picks = {}
    for name in login:
        chosen = _in_network(usable[name], network) if network else login[name]
        if chosen is not None:
            picks[name] = _pick(chosen, known[name])
        else:
            there = ", ".join(f"{i.name} {i.ipv4[0]}" for i in usable[name])
            problems[name] = f"no interface in {network or 'a network that reaches all'} (there is: {there})"
    return picks, problems, network, why


def _alone(node: Node, interfaces: tuple[Interface, ...]) -> tuple[dict[str, Pick], dict[str, str], None, str]:
    loopback = next((i for i in interfaces if i.loopback), None)
    if loopback is None:
        return {}, {node.name: "no interface is up with an IPv4 address"}, None, ""
    pick = Pick(loopback.name, "127.0.0.1", loopback.mtu, loopback.name)
    return {node.name: pick}, {}, None, "the only node has no network; loopback reaches all its ranks"


def _login_interface(node: Node, usable: tuple[Interface, ...], fleet: Fleet) -> Interface | None:
    """The interface that holds the address by which the controller reached the node."""
    peer = fleet.fact(node.name, "ssh.peer")
    addresses = {peer, node.address}
    return next((i for i in usable if any(a.split("/")[0] in addresses for a in i.ipv4)), None)


def _common_network(
    usable: Mapping[str, tuple[Interface, ...]], login: Mapping[str, Interface | None]
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
    logins = {n for i in login.values() if i is not None for n in i.networks}
    ranked = sorted(shares, key=lambda n: (-shares[n], -speeds[n], n not in logins, n))
    if not ranked:
        return None, ""
    best = ranked[0]
    if len(usable) > 1 and shares[best] == 1 and all(login.values()):
        return None, "every node is in a network of its own; the interface that the login uses is taken on each"
    if shares[best] < 2 * len(usable) / 3 and len(usable) > 2 and all(login.values()) and _routed(logins):
        return None, "the nodes are in several networks; the interface that the login uses is taken on each"
    reach = "all nodes" if shares[best] == len(usable) else f"{shares[best]} of {len(usable)} nodes"
    return best, f"{best} is the network that reaches {reach}"


def _routed(networks: set[str]) -> bool:
    """Whether the login networks differ: nodes in racks that routers join."""
    return len(networks) > 1


def _in_network(interfaces: tuple[Interface, ...], network: str) -> Interface | None:
    return next((i for i in interfaces if network in i.networks), None)


def same_network(address: str, network: str) -> bool:
    """Whether an address lies in a network."""
    return ip_address(address) in ip_network(network)


def usable_rdma(ports: tuple[RdmaPort, ...]) -> tuple[str, ...]:
    """Devices with at least one active port, in the kernel's order."""
    return tuple(dict.fromkeys(port.device for port in ports if port.active))


def has_rdma(fleet: Fleet, node: Node) -> bool:
    """Whether an RDMA device is present or declared, which makes MTU and locked memory a matter of error."""
    ports = fleet.fact(node.name, "rdma.ports")
    return node.declares_rdma or (not isinstance(ports, Absent) and bool(ports))
