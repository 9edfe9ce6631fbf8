"""Which interface carries the sockets of NCCL and gloo on each node.

It is declared, or it is the interface in the one network that reaches all nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct, field

from clusterprep.facts.network import Family, Interface, network_of
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.colocation import neighbours, one_machine
from clusterprep.model.fact_columns import Part
from clusterprep.model.memoize import once_per_facts
from clusterprep.nccl.rails import FACTS as RAILS
from clusterprep.nccl.rails import interfaces_of

# Beginnings of names of interfaces that are never chosen: they do not lead to other machines of the
# cluster, or not by the intended way. They are container bridges and their ends, overlay networks,
# tunnels and board management.
NEVER = (
    "lo",
    "docker",
    "veth",
    "virbr",
    "br-",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "weave",
    "podman",
    "nerdctl",
    "lxdbr",
    "lxcbr",
    "vboxnet",
    "vmnet",
    "kube-ipvs",
    "nodelocal",
    "vxlan",
    "tun",
    "tap",
    "wg",
    "tailscale",
    "zt",
    "sit",
    "ip6tnl",
    "dummy",
    "ifb",
    "usb",
    "idrac",
    "gre",
    "erspan",
    "tunl",
    "ipip",
    "vti",
    "ppp",
    "genev",
    "ovs-system",
    "antrea",
    "nebula",
    "tmfifo_net",
)


FACTS = ("net.interfaces", *RAILS)
"""Names of the facts that the choice needs. A query for the first asks for the others too."""

# Fields of an interface whose values differ from node to node in every fleet.
_ADDRESSES = ("ipv4", "ipv6", "first", "link_local", "duplicates")
_SHAPE = attrgetter(
    *[name for name in Interface.__struct_fields__ if name not in (*_ADDRESSES, "index")]
)


def _without_addresses(interfaces: Iterable[Interface]) -> Hashable:
    """Return the interfaces without their addresses, but whether they have any of each kind."""
    rows = []
    for each in interfaces:
        has_none = (
            not each.ipv4,
            not each.ipv6,
            not each.first,
            not each.link_local,
            not each.duplicates,
        )
        rows.append((_SHAPE(each), has_none))
    return tuple(rows)


INTERFACES = Part("net.interfaces", _without_addresses)
"""Nodes that are alike in it have the same interfaces, but for addresses."""

VARIABLE = "NCCL_SOCKET_IFNAME"
FAMILY_VARIABLE = "NCCL_SOCKET_FAMILY"
NO_INTERFACE = "no interface is up with a global address"
FAMILIES: tuple[Family, ...] = ("AF_INET", "AF_INET6")
FAMILY_NAMES: Mapping[Family, str] = {"AF_INET": "IPv4", "AF_INET6": "IPv6"}
ONE_CABLE = "it holds on one cable only, and other nodes cannot tell which"
TAKEN = "which another machine has too, so the kernel does not use it"
Place = tuple[Interface, str]  # an interface and one of its addresses


class Pick(Struct, frozen=True):
    """The interface chosen on one node, and why.

    `name` is its plain name, `value` that of NCCL_SOCKET_IFNAME.
    """

    name: str
    address: str
    mtu: int
    value: str
    why: str

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.address


class Choice(Struct, frozen=True):
    """The choice for a fleet.

    Each node that was reached is in `picks`, in `problems` with why no interface will do, or in
    `unknown`, as its interfaces are not known. `network` is the common network, and `why` the
    reason for it. All addresses are of `family`.
    """

    picks: Mapping[str, Pick] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Absent] = field(default_factory=dict)
    why: str = ""
    network: str | None = None
    family: Family = "AF_INET"

    def name_on(self, node: Node) -> str | None:
        """Return the name of the interface that is chosen on a node, None if none is."""
        pick = self.picks.get(node.name)
        return None if pick is None else pick.name


def candidates(interfaces: tuple[Interface, ...]) -> tuple[Interface, ...]:
    """Return the interfaces that could carry a job.

    They are up, have a global address, and belong to no container, tunnel or board management.
    """
    return tuple([each for each in interfaces if _could_carry_a_job(each, interfaces)])


def _could_carry_a_job(interface: Interface, interfaces: tuple[Interface, ...]) -> bool:
    """Return whether `candidates` has this one of a node's interfaces."""
    if not interface.addresses or interface.binds_link_local:
        return False
    return _leads_to_others(interface, interfaces)


def _leads_to_others(interface: Interface, interfaces: tuple[Interface, ...]) -> bool:
    """Return whether an interface is up and leads to other machines, whatever addresses it has.

    A port of a bond or bridge does not count: the bond or bridge has the address.
    """
    if not (interface.up and interface.running):
        return False
    if interface.loopback or interface.master or interface.name.startswith(NEVER):
        return False
    if interface.tunnel:
        return False
    return not interface.bridge or _has_uplink(interface, interfaces)


def _why_no_candidate(interfaces: tuple[Interface, ...], family: Family) -> str:
    """Return why no interface of a node could carry a job, with the addresses that will not do."""
    others = []
    for interface in interfaces:
        if not _leads_to_others(interface, interfaces):
            continue
        if interface.addresses and not interface.seen_in(family).addresses:
            others.append(f"{interface.name} {interface.addresses[0]}")
        elif interface.duplicates:
            others.append(f"{interface.name} {interface.duplicates[0]}, {TAKEN}")
        elif interface.link_local:
            own = plain(interface.link_local)
            others.append(f"{interface.name} {own}, which is link-local: {ONE_CABLE}")
    if not others:
        return NO_INTERFACE
    return f"no interface is up with a global {FAMILY_NAMES[family]} address ({'; '.join(others)})"


def _has_uplink(bridge: Interface, interfaces: tuple[Interface, ...]) -> bool:
    """Return whether a card is a port of a bridge, or of a bond that is its port."""
    inside = {bridge.name}
    for interface in interfaces:
        if interface.master == bridge.name:
            inside.add(interface.name)
    return any(interface.physical and interface.master in inside for interface in interfaces)


@once_per_facts("ssh.peer", *FACTS)
def choose(fleet: Fleet) -> Choice:
    """Return the choice for every node that was reached. Pure.

    It is of the family that NCCL_SOCKET_FAMILY declares; else of IPv4, which NCCL prefers, unless
    IPv6 reaches more nodes.
    """
    declared = _declared_family(fleet)
    if declared is not None:
        return _choose_in(fleet, declared)
    by_ipv4 = _choose_in(fleet, "AF_INET")
    if not by_ipv4.problems or _count_with_ipv6(fleet) <= len(by_ipv4.picks):
        return by_ipv4
    by_ipv6 = _choose_in(fleet, "AF_INET6")
    return by_ipv6 if len(by_ipv6.picks) > len(by_ipv4.picks) else by_ipv4


def _count_with_ipv6(fleet: Fleet) -> int:
    """Return the number of nodes of which IPv6 may have a pick: it takes an address of IPv6."""
    count = 0
    for node in fleet.reached:
        interfaces = fleet.fact(node.name, "net.interfaces")
        if isinstance(interfaces, Absent):
            continue
        if any(map(_may_have_ipv6_pick, interfaces)):
            count += 1
    return count


def _may_have_ipv6_pick(interface: Interface) -> bool:
    """Return whether an interface has an address of IPv6 that leads somewhere.

    A link-local one leads nowhere, but on the loopback of a node that declares it.
    """
    if interface.ipv6:
        return True
    return interface.loopback and interface.link_local is not None


def _declared_family(fleet: Fleet) -> Family | None:
    """Return the family that the inventory declares for the job, None if it declares none."""
    for node in fleet.reached:
        variable = node.env.get(FAMILY_VARIABLE)
        for family in FAMILIES:
            # NCCL ignores what is written otherwise.
            if variable is not None and variable.value == family:
                return family
    return None


def _choose_in(fleet: Fleet, family: Family) -> Choice:
    """Return the choice with addresses of one family."""
    known: dict[str, tuple[Interface, ...]] = {}
    unknown: dict[str, Absent] = {}
    picks: dict[str, Pick] = {}
    problems: dict[str, str] = {}
    usable: dict[str, tuple[Interface, ...]] = {}
    alone = _is_alone(fleet)
    for node in fleet.reached:
        interfaces = fleet.fact(node.name, "net.interfaces")
        if isinstance(interfaces, Absent):
            unknown[node.name] = interfaces
            continue
        seen = tuple([interface.seen_in(family) for interface in interfaces])
        known[node.name] = seen
        declared = _declared_pick(node, seen, family, alone=alone)
        if declared is None:
            usable[node.name] = candidates(seen)
        elif isinstance(declared, Pick):
            picks[node.name] = declared
        else:
            problems[node.name] = declared
    if not usable:
        return Choice(
            picks,
            problems,
            unknown,
            "declared as interfaces.nccl",
            None,
            family,
        )
    derived = _derived_choice(
        usable,
        known,
        _picked_interfaces(picks, known),
        fleet,
        family,
    )
    picks.update(derived.picks)
    problems.update(derived.problems)
    return Choice(
        picks,
        problems,
        unknown,
        derived.why,
        derived.network,
        family,
    )


def _picked_interfaces(
    picks: Mapping[str, Pick], known: Mapping[str, tuple[Interface, ...]]
) -> dict[str, tuple[Interface, ...]]:
    """Return, by node, the interface that was picked there."""
    interfaces = {}
    for node, pick in picks.items():
        interfaces[node] = tuple(each for each in known[node] if each.name == pick.name)
    return interfaces


def _is_alone(fleet: Fleet) -> bool:
    """Return whether there is no other machine, so that loopback leads to every node."""
    nodes = fleet.inventory.nodes
    return len(nodes) == 1 or one_machine(nodes)


# ---------------------------------------------------------------- what the inventory declares


def _declared_pick(
    node: Node, interfaces: tuple[Interface, ...], family: Family, *, alone: bool
) -> Pick | str | None:
    """Return the declared interface, or why it will not do; None if none is declared."""
    variable = node.env.get(VARIABLE)
    # NCCL takes a value of one character for none.
    if variable is not None and len(variable.value) > 1:
        return _pick_by_variable(variable.value, interfaces, family, alone=alone)
    if node.interfaces.nccl is not None:
        return _pick_by_name(node.interfaces.nccl, interfaces, family, alone=alone)
    return None


def _pick_by_name(
    wanted: str, interfaces: tuple[Interface, ...], family: Family, *, alone: bool
) -> Pick | str:
    """Return the interface of this name, or why it will not do."""
    match = next((each for each in interfaces if each.name == wanted), None)
    if match is None:
        names = _names(candidates(interfaces)) or "none that is up with a global address"
        return f"{wanted} does not exist (there is: {names})"
    if not match.up or not match.running:
        return f"{wanted} is down"
    bound = plain(str(match.bound))
    is_usable_loopback = alone and match.loopback and match.bound
    if not match.addresses and not is_usable_loopback:
        if match.link_local:
            return f"{wanted} has {bound} alone, which is link-local: {ONE_CABLE}"
        return f"{wanted} has no {FAMILY_NAMES[family]} address"
    if match.binds_link_local:
        after = plain(match.addresses[0])
        return f"{wanted} has {bound} before {after}, and NCCL binds the first address"
    return _pick(match, bound, interfaces, "declared as interfaces.nccl")


def _pick_by_variable(
    value: str, interfaces: tuple[Interface, ...], family: Family, *, alone: bool
) -> Pick | str:
    """Return the interface that NCCL binds with this value of its variable.

    Of all that the value admits, NCCL takes the first in the kernel's order, IPv4 before IPv6,
    whatever the order of the list.
    """
    setting = f"{VARIABLE}={value}"
    admitted = []
    for interface in taken_by(value, interfaces):
        if interface.up and interface.running and interface.bound is not None:
            admitted.append(interface)
    if not admitted:
        names = _names(candidates(interfaces)) or "none"
        wanted = f"an {FAMILY_NAMES[family]} address"
        problem = f"{setting} matches no interface that is up with {wanted}"
        return f"{problem} (there is: {names})"
    first = min(admitted, key=lambda interface: (not interface.has_ipv4, interface.index))
    if first.loopback and not alone:
        problem = f"{setting} lets {first.name} in"
        return f"{problem}, which NCCL then takes, and which leads to no other node"
    address = plain(str(first.bound))
    if first.link_local:
        return f"{setting} lets {first.name} in, whose {address} is link-local: {ONE_CABLE}"
    return Pick(
        first.name,
        address,
        first.mtu,
        value,
        f"declared as {VARIABLE}",
    )


def _names(interfaces: Iterable[Interface]) -> str:
    return ", ".join(interface.name for interface in interfaces)


# ---------------------------------------------------------------- lists of names as NCCL reads them


class NameList(Struct, frozen=True):
    """A list of names of interfaces or devices, as NCCL reads it.

    `^` at the start negates the whole list. `=` after it asks for whole names; otherwise an item
    matches every name that begins with it. An item may end in a port, as in mlx5_0:1.
    """

    negated: bool
    exact: bool
    items: tuple[str, ...]

    def takes(self, name: str, port: str = "") -> bool:
        """Return whether NCCL uses this name. Ports count where both sides have one."""
        is_listed = any(self._matches(item, name, port) for item in self.items)
        return is_listed != self.negated

    def _matches(self, item: str, name: str, port: str) -> bool:
        wanted, *rest = item.split(":")
        if not wanted:
            return False
        if self.exact and name != wanted:
            return False
        if not name.startswith(wanted):
            return False
        return not port or rest[:1] in ([], [""], [port])


def name_list(value: str) -> NameList:
    """Return the list that a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA means."""
    negated = value.startswith("^")
    unsigned = value.removeprefix("^")
    exact = unsigned.startswith("=")
    items = unsigned.removeprefix("=").split(",")
    return NameList(negated, exact, tuple(filter(None, items)))


def taken_by(value: str, interfaces: tuple[Interface, ...]) -> tuple[Interface, ...]:
    """Return the interfaces that NCCL takes if its variable has this value."""
    return tuple(interface for interface in interfaces if list_admits(value, interface.name))


def list_admits(value: str, name: str, port: str = "") -> bool:
    """Return whether a list of NCCL's admits an interface, or a port of an RDMA device."""
    return name_list(value).takes(name, port)


def _pick(chosen: Interface, address: str, interfaces: tuple[Interface, ...], why: str) -> Pick:
    """Return the pick with the value by which NCCL takes no other one of `interfaces`.

    NCCL matches names by prefix: `eth1` would take eth10 too, so a leading = asks for the whole
    name. It takes a value of one character for none at all.
    """
    name = chosen.name
    matching = {each.name for each in interfaces if each.name.startswith(name)}
    value = name
    if matching - {name} or len(name) == 1:
        value = f"={name}"
    return Pick(
        name,
        address,
        chosen.mtu,
        value,
        why,
    )


# ---------------------------------------------------------------- derived: one network for all


def _derived_choice(
    usable: Mapping[str, tuple[Interface, ...]],
    known: Mapping[str, tuple[Interface, ...]],
    fixed: Mapping[str, tuple[Interface, ...]],
    fleet: Fleet,
    family: Family,
) -> Choice:
    """Return the choice for nodes that declare nothing.

    `fixed` has the interfaces of the nodes that declare one, which have to be reached as well.
    """
    nodes = [node for node in fleet.reached if node.name in usable]
    if not any(usable.values()) and _takes_loopback(nodes, fleet, family):
        return _loopback_choice(nodes, known)
    problems: dict[str, str] = {}
    login: dict[str, Place | None] = {}
    for node in nodes:
        if usable[node.name]:
            login[node.name] = _login_interface(node, usable[node.name], fleet)
        else:
            interfaces = fleet.fact(node.name, "net.interfaces")
            problems[node.name] = _why_no_candidate(interfaces, family)
    machines = _one_per_machine(
        {
            **fixed,
            **usable,
        },
        usable,
        fleet,
    )
    rails = _rail_networks(known, fleet)
    network, why = _common_network(machines, login, rails, all_known(known, fleet))
    places = login
    if network is not None:
        places = {name: _in_network(usable[name], network) for name in login}
    picks = {}
    for name, place in places.items():
        if place is None:
            problems[name] = _why_none_fits(usable[name], network)
            continue
        interface, address = place
        picks[name] = _pick(interface, address, known[name], why)
    return Choice(picks=picks, problems=problems, why=why, network=network)


def _takes_loopback(nodes: Iterable[Node], fleet: Fleet, family: Family) -> bool:
    """Return whether loopback is the way between ranks where no interface of a family will do.

    An interface of the other family is better, unless IPv4 is declared. NCCL never takes ::1.
    """
    if family == "AF_INET6" or not _is_alone(fleet):
        return False
    if _declared_family(fleet) == "AF_INET":
        return True
    for node in nodes:
        interfaces = fleet.fact(node.name, "net.interfaces")
        if candidates(tuple(interface.seen_in("AF_INET6") for interface in interfaces)):
            return False
    return True


def all_known(known: Collection[str], fleet: Fleet) -> str:
    """Return «all nodes», or what is to be said instead if the interfaces of some are not known."""
    if len(known) == len(fleet.inventory.nodes):
        return "all nodes"
    return "all nodes whose interfaces are known"


def _why_none_fits(interfaces: tuple[Interface, ...], network: str | None) -> str:
    """Return why none of a node's interfaces will do."""
    present = ", ".join(f"{each.name} {each.addresses[0]}" for each in interfaces)
    if network is None:
        return f"no interface in a network that reaches all (there is: {present})"
    for interface in interfaces:
        for address in interface.addresses:
            if network_of(address) == network:
                problem = f"{interface.name} has {plain(address)} in {network}"
                first = plain(str(interface.bound))
                return f"{problem}, but NCCL binds its first address, {first}"
    return f"no interface in {network} (there is: {present})"


def _loopback_choice(nodes: Sequence[Node], known: Mapping[str, tuple[Interface, ...]]) -> Choice:
    """Return the choice of loopback for nodes without any network."""
    subject = "the only node has" if len(nodes) == 1 else "all nodes are this machine, which has"
    why = f"{subject} no IPv4 network; loopback reaches all its ranks"
    picks, problems = {}, {}
    for node in nodes:
        interfaces = known[node.name]
        loopback = next((each for each in interfaces if each.loopback), None)
        if loopback is None:
            problems[node.name] = NO_INTERFACE
        else:
            picks[node.name] = _pick(loopback, "127.0.0.1", interfaces, why)
    return Choice(picks=picks, problems=problems, why=why)


def _one_per_machine(
    interfaces: dict[str, tuple[Interface, ...]],
    usable: Mapping[str, tuple[Interface, ...]],
    fleet: Fleet,
) -> dict[str, tuple[Interface, ...]]:
    """Return the interfaces without the nodes that repeat another node's machine.

    Nodes that are this machine have the same addresses, and count once.
    """
    here = [node.name for node in neighbours(fleet.inventory.nodes)]
    counted = [name for name in here if name in interfaces and usable.get(name)]
    if not counted:
        return interfaces
    remaining = dict(interfaces)
    for name in here:
        if name != counted[0]:
            remaining.pop(name, None)
    return remaining


def _login_interface(node: Node, usable: tuple[Interface, ...], fleet: Fleet) -> Place | None:
    """Return the interface with the address by which the node was reached, and that address."""
    reached_by = (fleet.fact(node.name, "ssh.peer"), node.address)
    for interface in usable:
        for address in interface.addresses:
            if plain(address) in reached_by:
                return interface, plain(address)
    return None


def plain(address: str) -> str:
    """Return «10.0.0.1» for «10.0.0.1/24»."""
    return address.partition("/")[0]


def _rail_networks(known: Mapping[str, tuple[Interface, ...]], fleet: Fleet) -> frozenset[str]:
    """Return the networks of training ports and of bonds of them, where RDMA carries the data."""
    networks: set[str] = set()
    for node in fleet.reached:
        interfaces = known.get(node.name, ())
        names = interfaces_of(fleet, node)
        bonds = {interface.master for interface in interfaces if interface.name in names}
        for interface in interfaces:
            has_address = interface.ipv4 or interface.ipv6
            if has_address and (interface.name in names or interface.name in bonds):
                networks.update(interface.networks)
    return frozenset(networks)


def _common_network(
    usable: Mapping[str, tuple[Interface, ...]],
    login: Mapping[str, Place | None],
    rails: frozenset[str],
    all_nodes: str,
) -> tuple[str | None, str]:
    """Return the network that most nodes share, and why; None if each is in one of its own.

    `all_nodes` says which nodes `usable` has.
    Networks of rails come last, then the fastest first. With RDMA, sockets carry the start of
    communicators and little else: a rail that fails would take that with it, and NCCL left alone
    would bind the front end. Without RDMA sockets carry the data, and speed decides.
    """
    tally = _tally(usable)
    if not tally.members:
        return None, ""
    logins: set[str] = set()
    for place in login.values():
        if place is not None:
            logins.update(place[0].networks)
    best = _best_network(tally, rails, logins)
    members = tally.members[best]
    holders = sum(1 for interfaces in usable.values() if interfaces)
    by_login = "the interface that the login uses is taken on each"
    if holders > 1 and members == 1:
        return None, f"every node is in a network of its own; {by_login}"
    is_minority = holders > 2 and members < 2 * holders / 3
    is_routed = all(login.values()) and len(logins) > 1  # racks that routers join
    if is_minority and is_routed:
        return None, f"the nodes are in several networks; {by_login}"
    reach = all_nodes
    if members != len(usable):
        reach = f"{members} of {len(usable)} nodes"
    why = f"{best} is the network that reaches {reach}"
    if rails and best not in rails:
        why += "; those of the training ports are left to RDMA"
    return best, why


def _best_network(tally: _Tally, rails: Container[str], logins: Container[str]) -> str:
    """Return the network in which NCCL would bind most nodes, and of several the preferred one.

    Where NCCL binds counts more than where a node can be reached: it does not use a second address.
    """
    order = []
    for network, members in tally.members.items():
        bound = tally.bound[network]
        speed = tally.speeds[network]
        is_rail = network in rails
        is_login = network in logins
        order.append((-bound, -members, is_rail, -speed, not is_login, network))
    return min(order)[-1]


class _Tally(Struct, frozen=True):
    """Network → how many nodes NCCL would bind there, how many are in it, its slowest link.

    Speeds are in Mbit/s, as the kernel tells them.
    """

    bound: Mapping[str, int]
    members: Mapping[str, int]
    speeds: Mapping[str, int]


def _tally(usable: Mapping[str, tuple[Interface, ...]]) -> _Tally:
    """Count the nodes in each network.

    Nodes are told apart by their addresses. A network in which all have the same address (of a
    card's own processor, as tmfifo_net0 of a BlueField, or of containers) exists on every node and
    joins none.
    """
    bound: dict[str, set[str]] = {}
    members: dict[str, set[str]] = {}
    speeds: dict[str, int] = {}
    for interfaces in usable.values():
        first_addresses: dict[str, str] = {}
        for network, address, speed in _addresses(interfaces):
            first_addresses.setdefault(network, address)
            speeds[network] = min(speeds.get(network, speed), speed)
        for network, address in first_addresses.items():
            members.setdefault(network, set()).add(address)
            bound.setdefault(network, set())
            if _in_network(interfaces, network) is not None:
                bound[network].add(address)
    return _Tally(_counts(bound), _counts(members), speeds)


def _addresses(interfaces: tuple[Interface, ...]) -> list[tuple[str, str, int]]:
    """Return the network, the address and the speed in Mbit/s of each address of a node."""
    addresses = []
    for interface in interfaces:
        speed = interface.speed or 0
        for address, network in zip(interface.addresses, interface.networks, strict=True):
            addresses.append((network, plain(address), speed))
    return addresses


def _counts(sets: Mapping[str, set[str]]) -> dict[str, int]:
    return {network: len(addresses) for network, addresses in sets.items()}


def common_networks(fleet: Fleet) -> tuple[Mapping[str, str], ...]:
    """Return node → value of NCCL_SOCKET_IFNAME for every network that all machines are in."""
    picks_by_network: dict[str, dict[str, Pick]] = {}
    family = choose(fleet).family
    for node in fleet.reached:
        known = fleet.fact(node.name, "net.interfaces")
        if isinstance(known, Absent):
            continue
        interfaces = tuple(interface.seen_in(family) for interface in known)
        for interface in candidates(interfaces):
            network = _bound_network(interface)
            if network is None:
                continue
            pick = _pick(interface, plain(str(interface.bound)), interfaces, "")
            picks_by_network.setdefault(network, {}).setdefault(node.name, pick)
    local_nodes = neighbours(fleet.reached)
    repeated = max(0, len(local_nodes) - 1)
    nodes = len(fleet.reached)
    networks = []
    for picks in picks_by_network.values():
        addresses = {pick.address for pick in picks.values()}
        if len(picks) == nodes and len(addresses) == nodes - repeated:
            networks.append({name: pick.value for name, pick in picks.items()})
    return tuple(networks)


def _bound_network(interface: Interface) -> str | None:
    bound = interface.bound
    return None if bound is None else network_of(bound)


def _in_network(interfaces: tuple[Interface, ...], network: str) -> Place | None:
    """Return the interface whose first address, which NCCL binds, is in the network."""
    for interface in interfaces:
        if _bound_network(interface) == network:
            return interface, plain(str(interface.bound))
    return None


def has_rdma(fleet: Fleet, node: Node) -> bool:
    """Return whether an RDMA device is declared or present.

    Then a wrong MTU and little locked memory are errors.
    """
    if node.declares_rdma:
        return True
    devices = fleet.fact(node.name, "rdma.devices")
    return not isinstance(devices, Absent) and bool(devices)


def may_have_rdma(fleet: Fleet, node: Node) -> bool:
    """Return whether an RDMA device is declared, present, or not known to be missing."""
    devices = fleet.fact(node.name, "rdma.devices")
    return isinstance(devices, Absent) or has_rdma(fleet, node)
