"""The cards below the NCCL interface: their speed, how steady they are, and how a bond joins them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median

from clusterprep.checks import Check, CheckContext, Outcome, Proof, uniform_by_kind
from clusterprep.facts.bonding import Bond
from clusterprep.facts.network import Interface
from clusterprep.model import Node
from clusterprep.nccl.interfaces import choose

# A link that comes up at boot, a driver that is loaded again or an MTU that is set leave 2 to 10 changes on healthy
# nodes, and the total grows with the uptime. So a number is looked at only beside the other nodes'.
FEW_CHANGES, TIMES_USUAL, ENOUGH_NODES = 10, 4, 3

SPREADING = (
    "layer3+4",
    "encap3+4",
)  # transmit hashes that tell apart connections between two hosts
HASHING = ("802.3ad", "balance-xor")  # modes of a bond that use one
POLICIES = ("layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4", "vlan+srcmac")
NO_PARTNER = "00:00:00:00:00:00"

_SPEED = re.compile(r"(\d{1,7})\s*(?:([MG])(?:b(?:it)?(?:/s|ps)?)?)?", re.ASCII | re.IGNORECASE)


def below(interfaces: Iterable[Interface], name: str) -> tuple[Interface, ...]:
    """An interface with all that it stands on: members of a bond, ports of a bridge, the parent of a VLAN."""
    by_name = {i.name: i for i in interfaces}
    found, waiting = [], [name]
    while waiting:
        one = by_name.pop(waiting.pop(), None)
        if one is None:
            continue
        found.append(one)
        waiting += [other.name for other in by_name.values() if other.master == one.name]
        waiting += [one.name.rpartition(".")[0]] if not one.physical else []
    return tuple(found)


def speed(context: CheckContext) -> Iterable[Outcome]:
    """Half duplex and a link that comes and goes by themselves; the speed as required, else equal on all nodes."""
    picks = choose(context.fleet).picks
    values: dict[str, str] = {}
    changes: dict[str, int] = {}
    undeclared = set()
    for node in context.nodes:
        if node.name not in picks:
            yield _no_choice(node)
            continue
        name = picks[node.name].name
        cards = [
            i
            for i in below(context.value(node, "net.interfaces"), name)
            if i.physical and i.running
        ]
        known = [card.speed for card in cards if card.speed is not None]
        if not known or len(known) < len(cards):
            message = (
                f"{name} stands on no card that says its speed"
                if not known
                else "a card does not say its speed"
            )
            yield Outcome("skip", (node.name,), message, reason="not_applicable")
            continue
        yield from _half_duplex(node, cards)
        changes[node.name] = max((card.carrier_changes or 0 for card in cards), default=0)
        values[node.name] = _words(known)
        wanted = context.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
        else:
            yield _as_required(node, known, wanted)
    yield from _unsteady(changes)
    if undeclared:
        yield from uniform_by_kind(
            context, values, "the speed of the NCCL interface", about=undeclared
        )


def _no_choice(node: Node) -> Outcome:
    message = "no interface is chosen, so there is no link to judge"
    return Outcome("unknown", (node.name,), message, reason="eth.iface_choice")


def _half_duplex(node: Node, cards: Iterable[Interface]) -> Iterable[Outcome]:
    for card in cards:
        if card.duplex == "half":
            message = f"{card.name} runs at half duplex: one side does not negotiate"
            cure = f"ethtool -s {card.name} autoneg on   # and on the switch port"
            yield Outcome("fail", (node.name,), message, "half duplex", "full duplex", cure)


def _words(speeds: list[int]) -> str:
    """«2 x 25 Gbit/s»."""
    counted = sorted(Counter(speeds).items(), reverse=True)
    return " + ".join(
        f"{f'{count} x ' if count > 1 else ''}{_gigabits(one)}" for one, count in counted
    )


def _gigabits(megabits: int) -> str:
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"


def _as_required(node: Node, speeds: list[int], wanted: str) -> Outcome:
    """Of each card, or of all together as a bond shows it; more than required is enough."""
    least = parse_speed(wanted)
    good = min(speeds) >= least or sum(speeds) >= least
    message = f"the speed of the NCCL interface is {'as required' if good else 'less than the inventory requires'}"
    return Outcome(
        "pass" if good else "fail", (node.name,), message, _words(speeds), _gigabits(least)
    )


def parse_speed(text: str) -> int:
    """Mbit/s of «25000» or «25G»."""
    match = _SPEED.fullmatch(text.strip())
    number = int(match[1]) * (1000 if (match[2] or "").upper() == "G" else 1) if match else 0
    if number <= 0:
        raise ValueError(f"expected a speed such as 25G, or in Mbit/s such as 25000; seen '{text}'")
    return number


def _unsteady(changes: Mapping[str, int]) -> Iterable[Outcome]:
    if len(changes) < ENOUGH_NODES:
        return
    usual = median(changes.values())
    for name, number in changes.items():
        if number > FEW_CHANGES and number > TIMES_USUAL * usual:
            message = "the link came and went far more often than on the other nodes"
            cure = "dmesg -T | grep -i -e 'link is' -e 'link up' -e 'link down'   # then the cable, its optics, the port"
            yield Outcome(
                "fail", (name,), message, f"{number} carrier changes", f"about {usual:g}", cure
            )


def bond(context: CheckContext) -> Iterable[Outcome]:
    """Every bond below the NCCL interface."""
    picks = choose(context.fleet).picks
    for node in context.nodes:
        if node.name not in picks:
            yield _no_choice(node)
            continue
        bonds: dict[str, Bond] = context.value(node, "net.bonds")
        interfaces: tuple[Interface, ...] = context.value(node, "net.interfaces")
        used = [i.name for i in below(interfaces, picks[node.name].name) if i.name in bonds]
        if not used:
            yield Outcome(
                "skip", (node.name,), "the NCCL interface is no bond", reason="not_applicable"
            )
        for name in used:
            left_out = _left_out(bonds[name], interfaces)
            if left_out:
                message = f"the bonding driver's report leaves out {', '.join(left_out)}, which is in {name}"
                yield Outcome("unknown", (node.name,), message, reason="garbled")
            else:
                yield from _judged(node, bonds[name], context.wanted(node))


def _left_out(one: Bond, interfaces: Iterable[Interface]) -> list[str]:
    """Members of a bond that is up, by the interfaces' own word, of which the report says nothing: it was cut."""
    told = {member.name for member in one.members}
    return [
        i.name
        for i in interfaces
        if one.mii == "up" and i.master == one.name and i.name not in told
    ]


def _judged(node: Node, one: Bond, wanted: str | None) -> Iterable[Outcome]:
    seen = f"{one.name}: {one.mode}, {', '.join(f'{m.name} {m.mii}' for m in one.members) or 'no members'}"
    troubles = [*_members(one), *_aggregation(one), *_hash(one, wanted)]
    for message, should, cure in troubles:
        yield Outcome(
            "fail",
            (node.name,),
            message,
            f"{seen}, {one.policy}" if one.policy else seen,
            should,
            cure,
        )
    if not troubles:
        yield Outcome(
            "pass",
            (node.name,),
            "all members of the bond are up and share the load as they should",
            seen,
        )


Trouble = tuple[str, str, str]  # what is wrong, what is wanted, the remedy


def _members(one: Bond) -> Iterable[Trouble]:
    down = [member.name for member in one.members if member.mii != "up"]
    if down:
        word = "is" if len(down) == 1 else "are"
        cure = f"ethtool {down[0]}; ip link set dev {down[0]} up   # cable, optics, switch port"
        yield f"{', '.join(down)} of {one.name} {word} not up", "all members up", cure
    if not one.members:
        yield (
            f"{one.name} has no members",
            "members that are up",
            f"cat /proc/net/bonding/{one.name}",
        )


def _aggregation(one: Bond) -> Iterable[Trouble]:
    if one.mode != "802.3ad":
        return
    groups = {member.aggregator for member in one.members if member.mii == "up"}
    cure = f"cat /proc/net/bonding/{one.name}   # as root; then LACP on the switch ports of these members"
    if len(groups) > 1:
        yield (
            f"the members of {one.name} are in several aggregators: only one carries traffic",
            "one aggregator",
            cure,
        )
    elif one.partner == NO_PARTNER:
        yield f"no switch answers LACP on {one.name}", "a partner's MAC address", cure


def _hash(one: Bond, wanted: str | None) -> Iterable[Trouble]:
    """With less than ports in the hash all connections between two hosts take one member."""
    if one.mode not in HASHING or one.policy is None:
        return
    allowed = (wanted,) if wanted is not None else SPREADING
    if one.policy not in allowed:
        should = wanted or SPREADING[0]
        cure = f"ip link set dev {one.name} type bond xmit_hash_policy {should}   # and in the network configuration"
        message = (
            f"{one.name} spreads by {one.policy}: connections of a pair of nodes share one member"
        )
        yield message if wanted is None else f"{one.name} spreads by {one.policy}", should, cure


def parse_policy(text: str) -> str:
    """The transmit hash that `require: eth.bond` asks for."""
    if text not in POLICIES:
        raise ValueError(f"expected a transmit hash policy ({', '.join(POLICIES)}); seen '{text}'")
    return text


SPEED = Check(
    "eth.speed",
    facts=("net.interfaces",),
    judge=speed,
    severity="warning",
    title="The speed of the NCCL interface",
    why="One card that came up at a tenth of its speed, at half duplex or with a loose cable slows every step of the "
    "whole job that goes over sockets, and the loading of data.",
    how="/sys/class/net/*/speed, duplex and carrier_changes of the cards below the chosen interface: at least what "
    "`require: {eth.speed: 25G}` says (of each card, or of all together), else equal on nodes of a kind. Changes of "
    "the carrier are counted since boot, so they are judged beside the other nodes': over 10, and over four times "
    "the median.",
    remedy="ethtool NAME; ethtool -m NAME   # then the cable and the switch port",
    wants=parse_speed,
    proof=Proof(
        "net.interfaces",
        lambda found: tuple(replace(i, speed=i.speed // 10) if i.speed else i for i in found),
    ),
)
BOND = Check(
    "eth.bond",
    facts=("net.interfaces", "net.bonds"),
    judge=bond,
    severity="warning",
    title="The bond of the NCCL interface",
    why="A bond hides a dead cable: everything works, at half the bandwidth. With a hash over MAC addresses all "
    "connections of two nodes take the same member.",
    how="/proc/net/bonding: MII status of all members; with 802.3ad one aggregator and a partner (which only root is "
    "told); with 802.3ad and balance-xor a transmit hash over ports, layer3+4, or as `require: eth.bond` says.",
    remedy="cat /proc/net/bonding/NAME; ip link set dev NAME type bond xmit_hash_policy layer3+4",
    wants=parse_policy,
    proof=Proof(
        "net.bonds",
        lambda bonds: {
            name: replace(one, members=(replace(one.members[0], mii="down"), *one.members[1:]))
            for name, one in bonds.items()
        },
    ),
)
