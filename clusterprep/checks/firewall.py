"""Packet filters of the nodes: whether connections between the nodes get through.

The first packet of a connection is followed through the chains, as far as rules can be decided
without the kernel.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    passed,
    unknown,
)
from clusterprep.checks.dials import dials_of_fleet
from clusterprep.facts.firewall import Chain, Rule, RuleMatch, Ruleset
from clusterprep.model import Fleet, Node
from clusterprep.model.colocation import one_machine
from clusterprep.model.memoize import once_per_fleet
from clusterprep.nccl.interfaces import Choice, choose
from clusterprep.remedies import Remedy, shell_line

INBOUND = ("ingress", "prerouting", "input")
OUTBOUND = ("output", "postrouting")
# Of the range that NCCL's ports come from: rules for fewer ports are meant for other services.
FEW_PORTS = 0.1
# Beginnings of the names of tables that see one family; those of inet and netdev see both.
IPV4_TABLES = ("ip ", "legacy ip ")
IPV6_TABLES = ("ip6 ", "legacy ip6 ")
IPV4_FIELDS, IPV6_FIELDS = ("saddr", "daddr"), ("saddr6", "daddr6")
IPV4_NAMES, IPV6_NAMES = frozenset({"ipv4", "ip", "2"}), frozenset({"ipv6", "ip6", "10"})
UNDECIDED = "the rules do not tell"  # the reason; connections that were tried do
NO_FILTER = "no packet filter is in use"
WANTED = "TCP between the nodes is accepted"
MAX_JUMPS = 32  # jumps within jumps; the kernel allows 16

Ends = dict[str, str]
"""How a packet may leave a chain (accept, drop or through) → the place where that happens."""

Chains = dict[tuple[str, str], Chain]
"""Chains by table and name."""


class Packet(Struct, frozen=True):
    """The first packet of a TCP connection between this node and any other of the cluster.

    `peers` are the addresses of all nodes as numbers, sorted, with this one among them; `ports` are
    the first and last port that either side may use. `tried`: every connection of the port matrix
    from and to this node came about. With `ipv6` all addresses are of IPv6.
    """

    inbound: bool
    interface: str
    own: int
    peers: tuple[int, ...]
    ports: tuple[int, int]
    tried: bool
    ipv6: bool = False

    def enters(self, chain: Chain) -> bool:
        """Return whether the chain's table is for packets of this family."""
        other = IPV4_TABLES if self.ipv6 else IPV6_TABLES
        return not chain.table.startswith(other)

    def meets(self, match: RuleMatch, drops: bool) -> bool | None:
        """Return whether a condition holds; None if that cannot be decided.

        A named set is listed without its elements, and the rules do not say which packets are
        marked. But where connections have come about, a rule that drops marked packets, or a set of
        blocked addresses (fail2ban, kube-proxy), was not for them.
        """
        if match.field in (IPV4_FIELDS if self.ipv6 else IPV6_FIELDS):
            return False
        if match.field == "mark" or _is_named_set(match):
            if drops and self.tried and not match.negated:
                return False
            return None
        decide = _DECISIONS.get(match.field)
        if decide is None:
            return None
        try:
            holds = decide(self, match)
        except ValueError:  # a name where numbers were expected
            return None
        if holds is None or not match.negated:
            return holds
        return not holds

    def address(self, match: RuleMatch) -> bool | None:
        """Return whether an address matches: this node's own, or that of its peer.

        The peer may be any other node: True if all their addresses match, None if only some do.
        """
        ranges = [_address_range(value) for value in match.values]
        is_peer = match.field.startswith("saddr") == self.inbound
        if not is_peer:
            return any(low <= self.own <= high for low, high in ranges)
        matching = 0
        last = -1
        for low, high in sorted(ranges):
            first = max(low, last + 1)  # no address counts twice
            if first > high:
                continue
            last = high
            matching += bisect_right(self.peers, high) - bisect_left(self.peers, first)
            if first <= self.own <= high:
                matching -= 1
        if matching >= len(self.peers) - 1:
            return True
        return None if matching else False

    def port(self, match: RuleMatch) -> bool | None:
        """Return whether a rule covers the ports that NCCL may use: all, some or few of them."""
        low, high = self.ports
        covered = 0
        for first, last in map(_port_range, match.values):
            common = min(high, last) - max(low, first) + 1
            covered += max(0, common)
        share = covered / (high - low + 1)
        if share >= 1:
            return True
        return False if share < FEW_PORTS else None

    def device(self, match: RuleMatch) -> bool | None:
        """Return whether a rule names the interface; the other interface is not known."""
        if (match.field == "iif") != self.inbound:
            return None
        return any(_same_device(self.interface, value) for value in match.values)

    def flags(self, match: RuleMatch) -> bool | None:
        """Return whether TCP flags match; the first packet has SYN alone."""
        mask, wanted = match.values
        flags = {"syn"}
        if "all" not in mask.split(","):
            flags.intersection_update(mask.split(","))
        return flags == set(wanted.split(",")) - {"0", "none"}

    def family(self, match: RuleMatch) -> bool:
        """Return whether a rule is for the family of this packet."""
        names = IPV6_NAMES if self.ipv6 else IPV4_NAMES
        return not names.isdisjoint(match.values)

    def destination(self, match: RuleMatch) -> bool | None:
        """Return whether the type of the destination matches; known for inbound packets alone."""
        return "local" in match.values if self.inbound else None


def _is_named_set(match: RuleMatch) -> bool:
    """Return whether a condition compares an address with a set that the rules only name."""
    if match.field not in (*IPV4_FIELDS, *IPV6_FIELDS) or not match.values:
        return False
    return match.values[0].startswith("@")


def _address_range(value: str) -> tuple[int, int]:
    """Return the first and the last address of «10.0.0.0/8» or «10.0.0.1-10.0.0.9» as numbers."""
    first, dash, last = value.partition("-")
    if dash:
        return int(ip_address(first)), int(ip_address(last))
    network = ip_network(value, strict=False)
    return int(network.network_address), int(network.broadcast_address)


def _port_range(value: str) -> tuple[int, int]:
    """Return the first and the last port of «22» or «1024-65535»."""
    first, _, last = value.partition("-")
    return int(first), int(last or first)


def _same_device(name: str, pattern: str) -> bool:
    """Return whether a rule's name of an interface, which may end in «*» or «+», means this one."""
    if pattern.endswith(("*", "+")):
        return name.startswith(pattern[:-1])
    return name == pattern


_DECISIONS: dict[str, Callable[[Packet, RuleMatch], bool | None]] = {
    "saddr": Packet.address,
    "daddr": Packet.address,
    "saddr6": Packet.address,
    "daddr6": Packet.address,
    "sport": Packet.port,
    "dport": Packet.port,
    "iif": Packet.device,
    "oif": Packet.device,
    "flags": Packet.flags,
    "dsttype": Packet.destination,
    "proto": lambda packet, match: not {"tcp", "6", "all"}.isdisjoint(match.values),
    "family": Packet.family,
    "state": lambda packet, match: "new" in match.values,
    "status": lambda packet, match: False,  # nothing is translated between nodes
    "pkttype": lambda packet, match: not {"host", "unicast"}.isdisjoint(match.values),
}


# ---------------------------------------------------------------- one packet through the chains


def ends_of(packet: Packet, chain: Chain, chains: Chains, depth: int = 0) -> Ends:
    """Return all ways in which the packet may leave a chain, with the first place of each."""
    ends: Ends = {}
    for number, rule in _joined_rules(chain.rules):
        is_met = _meets_all(packet, rule)
        if is_met is False:
            continue
        place = f"{chain.table} {chain.name}, rule {number}"
        outcome = _outcome(
            packet,
            rule,
            place,
            chain,
            chains,
            depth,
        )
        goes_on = "next" in outcome
        outcome.pop("next", None)
        ends = {
            **outcome,
            **ends,
        }
        if is_met and not goes_on:
            return ends
    return {
        "through": "",
        **ends,
    }


def _joined_rules(rules: Iterable[Rule]) -> Iterator[tuple[int, Rule]]:
    """Yield the rules with their numbers, those that differ in one address only as one.

    Such rules stand one below the other where a tool has no sets, as with ufw: together they may
    be met by all other nodes, each of them only by some.
    """
    first = 0
    joined: Rule | None = None
    for number, rule in enumerate(rules, 1):
        both = None if joined is None else _joined(joined, rule)
        if both is not None:
            joined = both
            continue
        if joined is not None:
            yield first, joined
        first, joined = number, rule
    if joined is not None:
        yield first, joined


def _joined(rule: Rule, following: Rule) -> Rule | None:
    """Return one rule for two that decide the same and differ in one address, None for others."""
    if rule.verdict not in ("accept", "drop") or rule.verdict != following.verdict:
        return None
    if len(rule.matches) != len(following.matches):
        return None
    pairs = enumerate(zip(rule.matches, following.matches, strict=True))
    different = [index for index, (one, other) in pairs if one != other]
    if len(different) != 1:
        return None
    index = different[0]
    match, addition = rule.matches[index], following.matches[index]
    if match.field not in (*IPV4_FIELDS, *IPV6_FIELDS) or match.field != addition.field:
        return None
    if match.negated or addition.negated or _is_named_set(match) or _is_named_set(addition):
        return None
    matches = list(rule.matches)
    matches[index] = RuleMatch(match.field, match.values + addition.values)
    return Rule(tuple(matches), rule.verdict)


def _outcome(
    packet: Packet, rule: Rule, place: str, chain: Chain, chains: Chains, depth: int
) -> Ends:
    """Return what a rule that applies may do; «next» goes on with the next rule."""
    undecided = {
        "accept": place,
        "drop": place,
        "next": place,
    }
    if rule.verdict in ("accept", "drop"):
        return {rule.verdict: place}
    if rule.verdict == "return":
        return {"through": place}
    if rule.verdict == "unsure":
        return undecided
    if rule.verdict not in ("jump", "goto"):
        return {"next": place}
    target = chains.get((chain.table, str(rule.target)))
    if target is None or depth > MAX_JUMPS:
        return undecided
    ends = {}
    for end, where in ends_of(packet, target, chains, depth + 1).items():
        if end == "through" and rule.verdict == "jump":
            ends["next"] = where
        else:
            ends[end] = where
    return ends


def _meets_all(packet: Packet, rule: Rule) -> bool | None:
    """Return whether all conditions of a rule hold; None if that cannot be decided."""
    drops = rule.verdict == "drop"
    answers = [packet.meets(match, drops) for match in rule.matches]
    if False in answers:
        return False
    return None if None in answers else True


def base_ends(packet: Packet, chain: Chain, chains: Chains) -> Ends:
    """Return `ends_of` a chain with a hook, whose policy decides what the rules did not."""
    ends = ends_of(packet, chain, chains)
    if "through" in ends:
        del ends["through"]
        ends.setdefault(chain.policy, f"{chain.table} {chain.name}, policy {chain.policy}")
    return ends


# ---------------------------------------------------------------- the check


def firewall(context: CheckContext) -> Iterable[Outcome]:
    """Judge both directions of every node, against all others."""
    nodes = context.inventory.nodes
    if len(nodes) < 2 or one_machine(nodes):
        yield Outcome("skip", context.names, "there is no other machine", reason="not_applicable")
        return
    choice = choose(context.fleet)
    came_about = _came_about(context.fleet)
    by_address = _filtering_by_address(context)
    numbers: dict[str, int] = {}
    if by_address:
        numbers = {name: int(ip_address(pick.address)) for name, pick in choice.picks.items()}
    peers = tuple(sorted(numbers.values()))

    def apart(node: Node) -> Hashable:
        """Return what is looked at of a node besides its rules."""
        pick = choice.picks.get(node.name)
        if pick is None:
            return None
        own = numbers[node.name] if node.name in by_address else None
        return pick.name, pick.is_ipv6, node.name in came_about, own

    for nodes in context.alike_by(apart, "net.filter", "net.port_range"):
        outcome = _judge_node(context, nodes[0], choice, numbers, peers)
        yield from about_all(nodes, [outcome])


def _filtering_by_address(context: CheckContext) -> set[str]:
    """Return the nodes whose rules name an address."""
    names: set[str] = set()
    for nodes in context.alike("net.filter"):
        rules: Ruleset = context.value(nodes[0], "net.filter")
        if _name_addresses(rules):
            names.update(names_of(nodes))
    return names


def _name_addresses(rules: Ruleset) -> bool:
    for chain in rules:
        for rule in chain.rules:
            if any(match.field in (*IPV4_FIELDS, *IPV6_FIELDS) for match in rule.matches):
                return True
    return False


def _judge_node(
    context: CheckContext,
    node: Node,
    choice: Choice,
    numbers: Mapping[str, int],
    peers: tuple[int, ...],
) -> Outcome:
    """Return the outcome for a node.

    `numbers` are the addresses of all nodes by name, and `peers` as in Packet; both are empty if
    no rules name an address.
    """
    if node.name not in choice.picks:
        message = "no interface is chosen, so there is no traffic to judge"
        return unknown(node, message, "eth.iface_choice")
    if len(choice.picks) < 2:
        message = "no other node was reached, so there is no traffic to judge"
        return unknown(node, message, "fewer than two nodes were reached")
    rules: Ruleset = context.value(node, "net.filter")
    pick = choice.picks[node.name]
    ports = context.value(node, "net.port_range")
    tried = node.name in _came_about(context.fleet)
    inbound = Packet(
        inbound=True,
        interface=pick.name,
        own=numbers.get(node.name, 0),
        peers=peers,
        ports=ports,
        tried=tried,
        ipv6=pick.is_ipv6,
    )
    outbound = replace(inbound, inbound=False)
    doubts: dict[str, None] = {}  # an ordered set
    for chain, ends in _ends_of_bases(rules, inbound, outbound):
        if "drop" not in ends:
            continue
        if len(ends) > 1:
            doubts[ends["drop"]] = None
            continue
        direction = "from" if chain.hook in INBOUND else "to"
        message = (
            f"the packet filter drops connections {direction} the other nodes over {pick.name}"
        )
        command = command_to_accept(rules, chain, pick.name, choice.network)
        return failed(
            node,
            message,
            ends["drop"],
            WANTED,
            command,
        )
    if doubts:
        message = "some rules could not be judged; net.ports measures whether connections pass"
        return unknown(
            node,
            message,
            UNDECIDED,
            "; ".join(doubts),
            WANTED,
        )
    message = NO_FILTER
    if any(_is_base(chain) and inbound.enters(chain) for chain in rules):
        message = "the packet filters let the nodes' connections through"
    return passed(node, message, "", WANTED)


def _is_base(chain: Chain) -> bool:
    """Return whether packets between nodes enter a chain from the kernel, to be filtered."""
    return chain.hook in (*INBOUND, *OUTBOUND) and chain.kind != "nat"


def _ends_of_bases(
    rules: Ruleset, inbound: Packet, outbound: Packet
) -> Iterable[tuple[Chain, Ends]]:
    """Yield the chains that a packet enters, with the ways in which it may leave them."""
    chains = {(chain.table, chain.name): chain for chain in rules}
    for hooks, packet in ((INBOUND, inbound), (OUTBOUND, outbound)):
        for chain in rules:
            if chain.hook not in hooks or not _is_base(chain) or not packet.enters(chain):
                continue
            if chain.device in (None, packet.interface):
                yield chain, base_ends(packet, chain, chains)


@once_per_fleet
def _came_about(fleet: Fleet) -> frozenset[str]:
    """Return the nodes of which every connection of the port matrix came about.

    A node counts only if the matrix has connections from it and to it.
    """
    dials = dials_of_fleet(fleet)
    failed_names: set[str] = set()
    for dial in dials.failed:
        failed_names.update((dial.dialer, dial.listener))
    return dials.dialers & dials.listeners - failed_names


def command_to_accept(rules: Ruleset, chain: Chain, interface: str, network: str | None) -> Remedy:
    """Return a command of the tool that manages these rules."""
    source = network or "NETWORK"
    if any(other.name.startswith("ufw-") for other in rules):
        return shell_line(
            "ufw allow in on {interface} from {source}", interface=interface, source=source
        )
    if chain.table.endswith(" firewalld"):
        return shell_line(
            "firewall-cmd --permanent --zone=trusted --add-source={source} "
            "&& firewall-cmd --reload",
            source=source,
        )
    is_inbound = chain.hook in INBOUND
    is_ipv6 = ":" in source or chain.table.startswith(IPV6_TABLES)
    if chain.name.isupper():
        tool = "ip6tables" if is_ipv6 else "iptables"
        # A second rule of the same kind is harmless, and -C avoids it.
        if is_inbound:
            return shell_line(
                "{tool} -C {chain} -s {source} -j ACCEPT 2> /dev/null "
                "|| {tool} -I {chain} -s {source} -j ACCEPT   # and where these rules are kept",
                tool=tool,
                chain=chain.name,
                source=source,
            )
        return shell_line(
            "{tool} -C {chain} -d {source} -j ACCEPT 2> /dev/null "
            "|| {tool} -I {chain} -d {source} -j ACCEPT   # and where these rules are kept",
            tool=tool,
            chain=chain.name,
            source=source,
        )
    return shell_line(
        "nft insert rule {table} {chain} {protocol} {field} {source} accept"
        "   # and in /etc/nftables.conf",
        protocol="ip6" if is_ipv6 else "ip",
        table=chain.table.split(),
        chain=chain.name,
        field="saddr" if is_inbound else "daddr",
        source=source,
    )


def parse_open(text: str) -> str:
    """Return `open` of `require: {net.firewall: open}`, the only value that is allowed."""
    if text != "open":
        raise ValueError(f"expected open; seen '{text}'")
    return text


FIREWALL = Check(
    "net.firewall",
    facts=("net.interfaces", "net.port_range", "net.filter"),
    uses=("net.dials",),
    judge=firewall,
    severity="warning",
    follows=("eth.iface_choice",),
    title="Packet filters between the nodes",
    why="NCCL's connections use ports of the ephemeral range. A filter that opens SSH and the "
    "rendezvous port only lets a job start and then hang in its first collective.",
    how="nft and iptables, listed as root and only where the kernel has them loaded: the first "
    "packet of a TCP connection from and to the other nodes, over the chosen interface, to a port "
    "of the ephemeral range, is followed through the chains. What cannot be decided is unknown; "
    "so is a drop of marked packets or of a named set, unless every connection of the port matrix "
    "from and to the node came about. Filters outside of the node are not seen. `require: "
    "{net.firewall: open}` makes it an error.",
    remedy=shell_line(
        "nft list ruleset   # accept TCP from the cluster's network, with the tool that keeps "
        "the rules"
    ),
    wants=parse_open,
    proof=Proof("net.filter", lambda _: (Chain("inet filter", "input", (), "input", "drop"),)),
)
