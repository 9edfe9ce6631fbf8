"""The cards below the NCCL interface: speed, carrier changes, and the bond that joins them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import median

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
    skipped,
    uniform_by_kind,
    unknown,
)
from clusterprep.facts.bonding import Bond, Member
from clusterprep.facts.network import Interface
from clusterprep.model import Node
from clusterprep.model.fact_columns import Part
from clusterprep.nccl.interfaces import INTERFACES, Choice, choose
from clusterprep.remedies import Remedy, shell_line

# A link that comes up at boot, a driver that is loaded again or an MTU that is set leave 2 to 10
# changes on healthy nodes, and the total grows with the uptime. So a number is judged only beside
# those of other nodes.
FEW_CHANGES = 10
TIMES_USUAL = 4
ENOUGH_NODES = 3

# Transmit hashes that tell apart connections between two hosts.
SPREADING = ("layer3+4", "encap3+4")
HASHING = ("802.3ad", "balance-xor")  # modes of a bond that use a transmit hash
POLICIES = ("layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4", "vlan+srcmac")
NOT_TOLD = ""  # the mode of a team: the kernel does not show how it shares
NO_PARTNER = "00:00:00:00:00:00"

_SPEED = re.compile(r"(\d{1,7})\s*(?:([MG])(?:b(?:it)?(?:/s|ps)?)?)?", re.ASCII | re.IGNORECASE)


def below(interfaces: Iterable[Interface], name: str) -> tuple[Interface, ...]:
    """Return an interface and all below it.

    Below are the members of a bond, the ports of a bridge and the parent of a VLAN.
    """
    remaining = {interface.name: interface for interface in interfaces}
    stack: list[Interface] = []
    waiting = [name]
    while waiting:
        interface = remaining.pop(waiting.pop(), None)
        if interface is None:
            continue
        stack.append(interface)
        waiting += [i.name for i in remaining.values() if i.master == interface.name]
        if not interface.physical:
            parent, _, _ = interface.name.rpartition(".")
            waiting.append(parent)
    return tuple(stack)


# ---------------------------------------------------------------- speed


def speed(context: CheckContext) -> Iterable[Outcome]:
    """Judge half duplex, links that come and go, and the speed: as required, else equal."""
    choice = choose(context.fleet)
    links: dict[str, _Link] = {}
    undeclared: set[str] = set()
    for nodes in context.alike_by(choice.name_on, INTERFACES):
        link = _link_of(context, nodes[0], choice)
        if isinstance(link, Outcome):
            yield from about_all(nodes, [link])
            continue
        links.update(dict.fromkeys(names_of(nodes), link))
        if context.wanted(nodes[0]) is None:
            undeclared.update(names_of(nodes))
        yield from about_all(nodes, _judge_link(context, nodes[0], link))
    in_order = {name: links[name] for name in context.names if name in links}
    yield from _unsteady({name: link.changes for name, link in in_order.items()})
    if undeclared:
        what = "the speed of the NCCL interface"
        texts = {name: link.text for name, link in in_order.items()}
        for outcome in uniform_by_kind(context, texts, what, about=undeclared):
            remedy = outcome.remedy
            if outcome.verdict == "fail":
                remedy = _look_at(links[outcome.nodes[0]].cards[0].name)
            yield replace(outcome, remedy=remedy)


class _Link(Struct, frozen=True):
    """The cards in use below the NCCL interface, all of which say their speed.

    `speeds` are in Mbit/s, `text` says them in words, `changes` is the most of their carriers.
    """

    cards: tuple[Interface, ...]
    speeds: tuple[int, ...]
    text: str
    changes: int


def _link_of(context: CheckContext, node: Node, choice: Choice) -> _Link | Outcome:
    """Return the link of the NCCL interface, or the outcome that says why it cannot be judged."""
    interface = choice.name_on(node)
    if interface is None:
        return _no_choice(node)
    cards = _cards(context.value(node, "net.interfaces"), interface)
    speeds = tuple([card.speed for card in cards if card.speed is not None])
    if not speeds:
        return skipped(node, f"{interface} stands on no card that says its speed")
    if len(speeds) < len(cards):
        return skipped(node, "a card does not say its speed")
    changes = max(card.carrier_changes or 0 for card in cards)
    return _Link(tuple(cards), speeds, _format_speeds(speeds), changes)


def _judge_link(context: CheckContext, node: Node, link: _Link) -> Iterable[Outcome]:
    """Yield what is said of a node without a look at others: half duplex, the required speed."""
    yield from _half_duplex(node, link.cards)
    wanted = context.wanted(node)
    if wanted is not None:
        outcome = _judge_required(node, link.speeds, wanted)
        yield replace(outcome, remedy=_look_at(link.cards[0].name))


def _look_at(card: str) -> Remedy:
    return shell_line(
        "ethtool {card}; ethtool -m {card}   # then the cable and the switch port", card=card
    )


def _cards(interfaces: Iterable[Interface], name: str) -> list[Interface]:
    """Return the cards in use below an interface."""
    return [card for card in below(interfaces, name) if card.physical and card.running]


def _no_choice(node: Node) -> Outcome:
    message = "no interface is chosen, so there is no link to judge"
    return unknown(node, message, "eth.iface_choice")


def _half_duplex(node: Node, cards: Iterable[Interface]) -> Iterable[Outcome]:
    """Yield a failure for each card at half duplex."""
    for card in cards:
        if card.duplex == "half":
            message = f"{card.name} runs at half duplex: one side does not negotiate"
            remedy = shell_line(
                "ethtool -s {name} autoneg on   # and on the switch port", name=card.name
            )
            yield failed(
                node,
                message,
                "half duplex",
                "full duplex",
                remedy,
            )


def _format_speeds(speeds: Iterable[int]) -> str:
    """Return speeds as «2 x 25 Gbit/s», the highest first."""
    parts = []
    for speed, count in sorted(Counter(speeds).items(), reverse=True):
        times = f"{count} x " if count > 1 else ""
        parts.append(f"{times}{_gigabits(speed)}")
    return " + ".join(parts)


def _gigabits(megabits: int) -> str:
    if megabits < 1000:
        return f"{megabits} Mbit/s"
    return f"{megabits / 1000:g} Gbit/s"


def _judge_required(node: Node, speeds: Sequence[int], wanted: str) -> Outcome:
    """Judge each card, or all together as a bond shows them; more than required is enough."""
    least = parse_speed(wanted)
    seen = _format_speeds(speeds)
    required = _gigabits(least)
    if min(speeds) >= least or sum(speeds) >= least:
        return passed(node, "the speed of the NCCL interface is as required", seen, required)
    message = "the speed of the NCCL interface is less than the inventory requires"
    return failed(node, message, seen, required)


def parse_speed(text: str) -> int:
    """Parse «25000» or «25G». Returns Mbit/s; raises ValueError for anything else."""
    match = _SPEED.fullmatch(text.strip())
    number = 0
    if match is not None:
        number = int(match[1])
        if (match[2] or "").upper() == "G":
            number *= 1000
    if number <= 0:
        raise ValueError(f"expected a speed such as 25G, or in Mbit/s such as 25000; seen '{text}'")
    return number


def _unsteady(changes: Mapping[str, int]) -> Iterable[Outcome]:
    """Yield failures of nodes with many more carrier changes than the others."""
    if len(changes) < ENOUGH_NODES:
        return
    usual = median(changes.values())
    wanted = f"about {usual:g}"
    for name, number in changes.items():
        if number > FEW_CHANGES and number > TIMES_USUAL * usual:
            message = "the link came and went far more often than on the other nodes"
            seen = f"{number} carrier changes"
            remedy = shell_line(
                "dmesg -T | grep -i -e 'link is' -e 'link up' -e 'link down'"
                "   # then the cable, its optics, the port"
            )
            yield Outcome(
                "fail",
                (name,),
                message,
                seen,
                wanted,
                remedy,
            )


# ---------------------------------------------------------------- bonds


def bonds(context: CheckContext) -> Iterable[Outcome]:
    """Judge every bond and team below the NCCL interface, and the members of the others in use."""
    choice = choose(context.fleet)
    for nodes in context.alike_by(choice.name_on, INTERFACES, _BONDS):
        outcomes = _bonds_of(context, nodes[0], choice.name_on(nodes[0]))
        yield from about_all(nodes, outcomes)


def _by_name(bonds_by_name: Mapping[str, Bond]) -> Hashable:
    return tuple(bonds_by_name.items())


_BONDS = Part("net.bonds", _by_name)


def _bonds_of(context: CheckContext, node: Node, interface: str | None) -> Iterable[Outcome]:
    """Yield what is said of the bonds and teams of a node; `interface` is the chosen one."""
    if interface is None:
        yield _no_choice(node)
        return
    bonds_by_name: dict[str, Bond] = context.value(node, "net.bonds")
    interfaces: tuple[Interface, ...] = context.value(node, "net.interfaces")
    bundles = {**_teams(interfaces, bonds_by_name), **bonds_by_name}
    stack = below(interfaces, interface)
    names = [each.name for each in stack if each.name in bundles]
    for name in names:
        bundle = bundles[name]
        missing = _missing_members(bundle, interfaces)
        if missing:
            members = ", ".join(missing)
            message = f"the bonding driver's report leaves out {members}, which is in {name}"
            yield unknown(node, message, "garbled")
        else:
            yield from _judge_bond(node, bundle, context.wanted(node))
    others = [
        bundles[other.name]
        for other in interfaces
        if other.name in bundles and other.name not in names and other.addresses
    ]
    failures = list(_judge_others(node, others))
    yield from failures
    if not names and not failures:
        yield skipped(node, "the NCCL interface is no bond")


def _teams(interfaces: Iterable[Interface], bonds_by_name: Mapping[str, Bond]) -> dict[str, Bond]:
    """Return what else than bonds joins interfaces, as a team does.

    The kernel's team driver reports nothing below /proc; its ports name it in
    /sys/class/net/*/master. Ports of a VRF do so too, but have addresses of their own, and those of
    Open vSwitch name one that is not up.
    """
    teams = {}
    for interface in interfaces:
        if interface.physical or interface.bridge or interface.name in bonds_by_name:
            continue
        ports = [i for i in interfaces if i.master == interface.name]
        joins = interface.up and not any(port.ipv4 or port.ipv6 for port in ports)
        if ports and joins:
            members = tuple(Member(port.name, "up" if port.running else "down") for port in ports)
            teams[interface.name] = Bond(interface.name, NOT_TOLD, "up", members)
    return teams


def _judge_others(node: Node, bundles: Iterable[Bond]) -> Iterable[Outcome]:
    """Yield a failure for each bond or team beside the NCCL interface that lacks a member.

    How it spreads traffic is left to the site.
    """
    for bundle in bundles:
        for message, should, remedy in _member_troubles(bundle):
            seen = f"{_describe(bundle)}; not the NCCL interface"
            yield failed(
                node,
                message,
                seen,
                should,
                remedy,
            )


def _describe(bond: Bond) -> str:
    members = ", ".join(f"{member.name} {member.mii}" for member in bond.members)
    parts = [bond.mode, members or "no members"] if bond.mode else [members]
    return f"{bond.name}: {', '.join(parts)}"


def _missing_members(bond: Bond, interfaces: Iterable[Interface]) -> list[str]:
    """Return members that interfaces name and the report of a bond that is up does not.

    The report was cut then.
    """
    if bond.mii != "up":
        return []
    reported = {member.name for member in bond.members}
    return [i.name for i in interfaces if i.master == bond.name and i.name not in reported]


def _judge_bond(node: Node, bond: Bond, wanted: str | None) -> Iterable[Outcome]:
    """Yield a failure for each trouble of a bond, or a pass."""
    seen = _describe(bond)
    troubles = [*_member_troubles(bond), *_lacp_troubles(bond), *_hash_troubles(bond, wanted)]
    if not troubles and bond.mode == NOT_TOLD:
        # It may be a bond of which the driver's report is missing.
        yield skipped(node, f"all members of {bond.name} are up; how they share is not told", seen)
    elif not troubles:
        message = "all members of the bond are up and share the load as they should"
        yield passed(node, message, seen)
    if bond.policy:
        seen += f", {bond.policy}"
    for message, should, remedy in troubles:
        yield failed(
            node,
            message,
            seen,
            should,
            remedy,
        )


Trouble = tuple[str, str, Remedy]
"""What is wrong, what is wanted, the remedy."""


def _member_troubles(bond: Bond) -> Iterable[Trouble]:
    """Yield what is wrong if a bond has no members, or members that are down."""
    if not bond.members:
        remedy = shell_line("cat /proc/net/bonding/{name}", name=bond.name)
        yield f"{bond.name} has no members", "members that are up", remedy
    down = [member.name for member in bond.members if member.mii != "up"]
    if down:
        names = ", ".join(down)
        verb = "is" if len(down) == 1 else "are"
        first = down[0]
        remedy = shell_line(
            "ethtool {first}; ip link set dev {first} up   # cable, optics, switch port",
            first=first,
        )
        yield f"{names} of {bond.name} {verb} not up", "all members up", remedy


def _lacp_troubles(bond: Bond) -> Iterable[Trouble]:
    """Yield what is wrong if the members of an LACP bond do not carry traffic together."""
    if bond.mode != "802.3ad":
        return
    remedy = shell_line(
        "cat /proc/net/bonding/{name}   # as root; then LACP on the switch ports of these members",
        name=bond.name,
    )
    aggregators = {member.aggregator for member in bond.members if member.mii == "up"}
    if len(aggregators) > 1:
        message = f"the members of {bond.name} are in several aggregators: only one carries traffic"
        yield message, "one aggregator", remedy
    elif bond.partner == NO_PARTNER:
        yield f"no switch answers LACP on {bond.name}", "a partner's MAC address", remedy


def _hash_troubles(bond: Bond, wanted: str | None) -> Iterable[Trouble]:
    """Yield what is wrong if the transmit hash is not the wanted one, or leaves out the ports.

    Without ports in the hash, all connections between two hosts take one member.
    """
    if bond.mode not in HASHING or bond.policy is None:
        return
    message = f"{bond.name} spreads by {bond.policy}"
    if wanted is None:
        if bond.policy in SPREADING:
            return
        wanted = SPREADING[0]
        message += ": connections of a pair of nodes share one member"
    elif bond.policy == wanted:
        return
    remedy = shell_line(
        "ip link set dev {bond} type bond xmit_hash_policy {policy}"
        "   # and in the network configuration",
        bond=bond.name,
        policy=wanted,
    )
    yield message, wanted, remedy


def parse_policy(text: str) -> str:
    """Return the transmit hash that `require: eth.bond` asks for."""
    if text not in POLICIES:
        policies = ", ".join(POLICIES)
        raise ValueError(f"expected a transmit hash policy ({policies}); seen '{text}'")
    return text


def _with_low_speed(interfaces: Iterable[Interface]) -> tuple[Interface, ...]:
    """Return interfaces at a tenth of their speed, for the proof."""
    changed = []
    for interface in interfaces:
        if interface.speed:
            speed = interface.speed // 10
            changed.append(replace(interface, speed=speed))
        else:
            changed.append(interface)
    return tuple(changed)


def _with_member_down(bonds: Mapping[str, Bond]) -> dict[str, Bond]:
    """Return bonds whose first member is down, for the proof."""
    changed = {}
    for name, bond in bonds.items():
        first, *others = bond.members
        down = replace(first, mii="down")
        changed[name] = replace(bond, members=(down, *others))
    return changed


SPEED = Check(
    "eth.speed",
    facts=("net.interfaces",),
    judge=speed,
    severity="warning",
    follows=("eth.iface_choice",),
    title="The speed of the NCCL interface",
    why="One card that came up at a tenth of its speed, at half duplex or with a loose cable "
    "slows every step of the whole job that goes over sockets, and the loading of data.",
    how="/sys/class/net/*/speed, duplex and carrier_changes of the cards below the chosen "
    "interface: at least what `require: {eth.speed: 25G}` says (of each card, or of all "
    "together), else equal on nodes of a kind. Changes of the carrier are counted since boot, so "
    "they are judged beside the other nodes': over 10, and over four times the median.",
    remedy=shell_line("ethtool NAME; ethtool -m NAME   # then the cable and the switch port"),
    wants=parse_speed,
    proof=Proof(
        "net.interfaces",
        _with_low_speed,
    ),
)
BOND = Check(
    "eth.bond",
    facts=("net.interfaces", "net.bonds"),
    judge=bonds,
    severity="warning",
    follows=("eth.iface_choice",),
    title="The bond or team of the NCCL interface",
    why="A bond hides a dead cable: everything works, at half the bandwidth. With a hash over MAC "
    "addresses all connections of two nodes take the same member.",
    how="/proc/net/bonding: MII status of all members; with 802.3ad one aggregator and a partner "
    "(which only root is told); with 802.3ad and balance-xor a transmit hash over ports, "
    "layer3+4, or as `require: eth.bond` says. Of a team: the carrier of the cards that name it in "
    "/sys/class/net. Of other bonds and teams that have an address: that all members are up.",
    remedy=shell_line(
        "cat /proc/net/bonding/NAME; ip link set dev NAME type bond xmit_hash_policy layer3+4"
    ),
    wants=parse_policy,
    proof=Proof("net.bonds", _with_member_down),
)
