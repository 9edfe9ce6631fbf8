"""Packet filters of the nodes: whether connections between them get through, as far as rules can be read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.facts.firewall import Chain, Rule, RuleMatch, Ruleset
from clusterprep.model import Absent, Fleet, Node
from clusterprep.model.colocation import one_machine
from clusterprep.model.memoize import once_per_fleet
from clusterprep.nccl.interfaces import Choice, choose
from clusterprep.runtime.lazy_dataclass import dataclass

INBOUND, OUTBOUND = ("ingress", "prerouting", "input"), ("output", "postrouting")
FEW_PORTS = 0.1  # of the range that NCCL's ports come from: rules for fewer of them are meant for other services
DEEP = 32  # jumps within jumps; the kernel allows 16

Ends = dict[str, str]  # accept, drop or through → where that happens


@dataclass(frozen=True)
class Packet:
    """The first packet of a TCP connection between this node and any other of the cluster.

    `peers` are the addresses of all nodes as numbers, this one among them, sorted; `ports` the first and last that
    either side may use. `tried`: every connection of the port matrix from and to this node came about.
    """

    inbound: bool
    interface: str
    own: int
    peers: tuple[int, ...]
    ports: tuple[int, int]
    tried: bool

    def meets(self, match: RuleMatch, drops: bool) -> bool | None:
        """Whether a condition holds; None where that cannot be said.

        A named set is not listed with its elements, and nobody tells who marks. But where connections have come
        about, a rule that drops what is marked, or a set of strangers (fail2ban, kube-proxy), was not for them.
        """
        special = match.field == "mark" or (
            match.field in ("saddr", "daddr") and match.values[:1] and _named(match)
        )
        if special:
            return False if drops and not match.negated and self.tried else None
        try:
            answer = _ANSWERS[match.field](self, match) if match.field in _ANSWERS else None
        except ValueError:  # a name where numbers were expected
            return None
        return (not answer) if match.negated and answer is not None else answer

    def address(self, match: RuleMatch) -> bool | None:
        far = (match.field == "saddr") == self.inbound
        ranges = [_addresses(value) for value in match.values]
        if not far:
            return any(low <= self.own <= high for low, high in ranges)
        count = sum(
            bisect_right(self.peers, high)
            - bisect_left(self.peers, low)
            - (low <= self.own <= high)
            for low, high in ranges
        )
        return True if count >= len(self.peers) - 1 else None if count else False

    def port(self, match: RuleMatch) -> bool | None:
        low, high = self.ports
        covered = sum(
            max(0, min(high, b) - max(low, a) + 1) for a, b in map(_port_range, match.values)
        )
        share = covered / (high - low + 1)
        return True if share >= 1 else False if share < FEW_PORTS else None

    def device(self, match: RuleMatch) -> bool | None:
        if (match.field == "iif") != self.inbound:
            return None
        return any(_same_device(self.interface, value) for value in match.values)

    def flags(self, match: RuleMatch) -> bool | None:
        mask, wanted = (set(value.split(",")) for value in match.values)
        return (({"syn"} & mask) if "all" not in mask else {"syn"}) == wanted - {"0", "none"}

    def destination(self, match: RuleMatch) -> bool | None:
        return "local" in match.values if self.inbound else None


def _named(match: RuleMatch) -> bool:
    return match.values[0].startswith("@")


def _addresses(value: str) -> tuple[int, int]:
    first, dash, last = value.partition("-")
    if dash:
        return int(IPv4Address(first)), int(IPv4Address(last))
    network = IPv4Network(value, strict=False)
    return int(network.network_address), int(network.broadcast_address)


def _port_range(value: str) -> tuple[int, int]:
    first, _, last = value.partition("-")
    return int(first), int(last or first)


def _same_device(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith(("*", "+")) else name == pattern


_ANSWERS: dict[str, Callable[[Packet, RuleMatch], bool | None]] = {
    "saddr": Packet.address,
    "daddr": Packet.address,
    "sport": Packet.port,
    "dport": Packet.port,
    "iif": Packet.device,
    "oif": Packet.device,
    "flags": Packet.flags,
    "dsttype": Packet.destination,
    "proto": lambda packet, match: not {"tcp", "6", "all"}.isdisjoint(match.values),
    "family": lambda packet, match: not {"ipv4", "ip", "2"}.isdisjoint(match.values),
    "state": lambda packet, match: "new" in match.values,
    "status": lambda packet, match: False,  # nothing is translated between nodes
    "pkttype": lambda packet, match: not {"host", "unicast"}.isdisjoint(match.values),
}


# ---------------------------------------------------------------- one packet through the chains


def ends_of(
    packet: Packet, chain: Chain, chains: dict[tuple[str, str], Chain], deep: int = 0
) -> Ends:
    """All ways in which the packet may leave a chain, with the place of each."""
    ends: Ends = {}
    for number, rule in enumerate(chain.rules, 1):
        met = _all(packet, rule)
        if met is False:
            continue
        outcome = _outcome(packet, rule, chain, chains, number, deep)
        leaves = {end: place for end, place in outcome.items() if end != "next"}
        ends = {**leaves, **ends}
        if met and "next" not in outcome:
            return ends
    return {"through": "", **ends}


def _outcome(
    packet: Packet,
    rule: Rule,
    chain: Chain,
    chains: dict[tuple[str, str], Chain],
    number: int,
    deep: int,
) -> Ends:
    """What one rule that applies does; «next» goes on with the next rule."""
    place = f"{chain.table} {chain.name}, rule {number}"
    if rule.verdict in ("accept", "drop"):
        return {rule.verdict: place}
    if rule.verdict == "return":
        return {"through": place}
    if rule.verdict in ("jump", "goto"):
        target = chains.get((chain.table, str(rule.target)))
        if target is None or deep > DEEP:
            return {"accept": place, "drop": place, "next": place}
        inside = ends_of(packet, target, chains, deep + 1)
        back = "next" if rule.verdict == "jump" else "through"
        return {back if end == "through" else end: where for end, where in inside.items()}
    return (
        {"accept": place, "drop": place, "next": place}
        if rule.verdict == "unsure"
        else {"next": place}
    )


def _all(packet: Packet, rule: Rule) -> bool | None:
    answers = [packet.meets(match, rule.verdict == "drop") for match in rule.matches]
    return False if False in answers else None if None in answers else True


def base_ends(packet: Packet, chain: Chain, chains: dict[tuple[str, str], Chain]) -> Ends:
    """As ends_of, for a chain with a hook, whose policy decides what no rule did."""
    ends = ends_of(packet, chain, chains)
    if "through" in ends:
        del ends["through"]
        ends.setdefault(chain.policy, f"{chain.table} {chain.name}, policy {chain.policy}")
    return ends


# ---------------------------------------------------------------- the check


def firewall(context: CheckContext) -> Iterable[Outcome]:
    """Both directions of every node, against all others."""
    choice = choose(context.fleet)
    if len(context.inventory.nodes) < 2 or one_machine(context.inventory.nodes):
        names = tuple(node.name for node in context.nodes)
        yield Outcome("skip", names, "there is no other machine", reason="not_applicable")
        return
    addresses = {name: int(IPv4Address(pick.address)) for name, pick in choice.picks.items()}
    peers = tuple(sorted(addresses.values()))
    for node in context.nodes:
        if node.name in addresses and len(peers) < 2:
            message = "no other node was reached, so there is no traffic to judge"
            yield Outcome(
                "unknown", (node.name,), message, reason="fewer than two nodes were reached"
            )
            continue
        if node.name not in addresses:
            message = "no interface is chosen, so there is no traffic to judge"
            yield Outcome("unknown", (node.name,), message, reason="eth.iface_choice")
            continue
        yield _judged(context, node, choice, addresses[node.name], peers)


def _judged(
    context: CheckContext, node: Node, choice: Choice, own: int, peers: tuple[int, ...]
) -> Outcome:
    rules: Ruleset = context.value(node, "net.filter")
    name, ports = choice.picks[node.name].name, context.value(node, "net.port_range")
    tried = node.name in _came_about(context.fleet)
    chains = {(chain.table, chain.name): chain for chain in rules}
    wanted = "TCP between the nodes is accepted"
    doubts: list[str] = []
    for hooks, inbound in ((INBOUND, True), (OUTBOUND, False)):
        packet = Packet(inbound, name, own, peers, ports, tried)
        for chain in (
            c for c in rules if c.hook in hooks and c.kind != "nat" and c.device in (None, name)
        ):
            ends = base_ends(packet, chain, chains)
            if set(ends) == {"drop"}:
                way = (
                    f"from the other nodes over {name}"
                    if inbound
                    else f"to the other nodes over {name}"
                )
                message = f"the packet filter drops connections {way}"
                cure = remedy(rules, chain, name, choice.network)
                return Outcome("fail", (node.name,), message, ends["drop"], wanted, cure)
            if "drop" in ends:
                doubts.append(ends["drop"])
    if doubts:
        message = (
            "rules that cannot be decided from here may drop connections: net.ports measures it"
        )
        seen = "; ".join(dict.fromkeys(doubts))
        return Outcome(
            "unknown", (node.name,), message, seen, wanted, reason="the rules do not tell"
        )
    bases = sorted(
        {
            f"{c.table} {c.name}"
            for c in rules
            if c.hook in (*INBOUND, *OUTBOUND) and c.kind != "nat"
        }
    )
    message = (
        "the packet filters let the nodes' connections through"
        if bases
        else "no packet filter is in use"
    )
    return Outcome("pass", (node.name,), message, "", wanted)


@once_per_fleet
def _came_about(fleet: Fleet) -> frozenset[str]:
    """The nodes from which and to which the port matrix has connections, of which every one came about."""
    outgoing, incoming, failed = set[str](), set[str](), set[str]()
    for node in fleet.reached:
        mine = fleet.fact(node.name, "net.dials")
        for dial in () if isinstance(mine, Absent) else mine:
            outgoing.add(dial.dialer)
            incoming.add(dial.listener)
            if dial.word != "ok":
                failed.update((dial.dialer, dial.listener))
    return frozenset(outgoing & incoming - failed)


def remedy(rules: Ruleset, chain: Chain, interface: str, network: str | None) -> str:
    """A command of the tool that keeps these rules."""
    source = network or "NETWORK"
    if any(other.name.startswith("ufw-") for other in rules):
        return f"ufw allow in on {interface} from {source}"
    if chain.table.endswith(" firewalld"):
        return f"firewall-cmd --permanent --zone=trusted --add-source={source} && firewall-cmd --reload"
    side = "s" if chain.hook in INBOUND else "d"
    if chain.name.isupper():
        return f"iptables -I {chain.name} -{side} {source} -j ACCEPT   # and where these rules are kept"
    way = "saddr" if side == "s" else "daddr"
    return f"nft insert rule {chain.table} {chain.name} ip {way} {source} accept   # and in /etc/nftables.conf"


def parse_open(text: str) -> str:
    """`require: {net.firewall: open}`, the only thing to ask for."""
    if text != "open":
        raise ValueError(f"expected open; seen '{text}'")
    return text


FIREWALL = Check(
    "net.firewall",
    facts=("net.interfaces", "net.port_range", "net.filter"),
    uses=("net.dials",),
    judge=firewall,
    severity="warning",
    title="Packet filters between the nodes",
    why="NCCL's connections use ports of the ephemeral range. A filter that opens SSH and the rendezvous port only "
    "lets a job start and then hang in its first collective.",
    how="nft and iptables, listed as root and only where the kernel has them loaded: the first packet of a TCP "
    "connection from and to the other nodes, over the chosen interface, to a port of the ephemeral range, is followed "
    "through the chains. What cannot be decided is unknown; so is a drop of marked packets or of a named set, unless "
    "every connection of the port matrix from and to the node came about. Filters outside of the node are not seen. "
    "`require: {net.firewall: open}` makes it an error.",
    remedy="nft list ruleset   # accept TCP from the cluster's network, with the tool that keeps the rules",
    wants=parse_open,
    proof=Proof("net.filter", lambda _: (Chain("inet filter", "input", (), "input", "drop"),)),
)
