"""Judges the paths between nodes: whether full-size packets get through, and how long they take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.dials import Dials, dials_of
from clusterprep.checks.eth import parse_mtu, set_mtu
from clusterprep.checks.pair_causes import Cause, find_causes
from clusterprep.facts.pairs import Dial
from clusterprep.model.units import format_duration, parse_duration
from clusterprep.nccl.interfaces import Pick, choose
from clusterprep.remedies import Remedy, sentence, shell_line

SLOWER = 4.0  # times what is usual: racks apart are twice or three times as far as neighbours
LARGEST = 65535  # bytes of an IPv4 packet
SMALLEST = 1280  # bytes of the smallest packet that is tried
# Bytes of the headers of IP and ICMP, which `ping -s` does not count.
IPV4_HEADERS, IPV6_HEADERS = 28, 48
APART = 0.0005  # seconds more than is usual: below that a busy processor explains it
NOT_DIALLED = "no other node could be dialled"
Sizes = tuple[int | None, int | None, int | None]
"""`packet`, `carried` and `path_mtu` of a dial."""
_SIZES = attrgetter("packet", "carried", "path_mtu")
Trips = Mapping[str, Mapping[str, float]]
"""The shortest round trip in seconds by dialer and listener."""


def path_mtu(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether both directions of every pair carry packets as large as the sender makes."""
    dials = dials_of(context).connected
    picks = choose(context.fleet).picks
    mtus = {name: pick.mtu for name, pick in picks.items()}
    sizes = {name: set(map(_SIZES, own)) for name, own in dials.of_dialer.items()}
    unmeasured = {name for name, own in sizes.items() if not all(packet for packet, _, _ in own)}
    sized: Sequence[Dial] = dials.all
    if unmeasured:  # most fleets are measured everywhere, and have many dials
        sized = [dial for dial in dials.all if dial.packet]
    causes = find_causes(sized, _too_small(sized, sizes, mtus))
    blamed = _blamed_nodes(causes)
    if len(causes) > 1 and all(_is_lost(dial, mtus) for dial in sized):
        yield _nowhere_carried(context, sized, mtus)
    else:
        yield from _packet_failures(causes, mtus, _Interfaces(context, picks))
    for name in sorted(unmeasured - blamed):
        message = "a connection ended before it was known whether a full-size packet gets through"
        yield Outcome("unknown", (name,), message, reason="no full-size packet was measured")
    yield from _carried(context, dials, mtus, blamed | unmeasured)


def _too_small(
    dials: Sequence[Dial], sizes: Mapping[str, Iterable[Sizes]], mtus: Mapping[str, int]
) -> list[Dial]:
    """Return the dials whose path does not carry full-size packets.

    `sizes` has the different sizes of each dialer's dials. Nearly all paths of a fleet have the
    same, so only the dials of nodes with others, or with a smaller MTU, are looked at one by one.
    """
    nodes = {name for name, own in sizes.items() if _may_be_too_small(own, mtus.get(name, 0))}
    largest = max(mtus.values(), default=0)
    nodes.update([name for name, mtu in mtus.items() if mtu < largest])
    small = []
    for dial in dials:
        is_doubtful = dial.dialer in nodes or dial.listener in nodes
        if is_doubtful and _is_too_small(dial, mtus):
            small.append(dial)
    return small


def _carried(
    context: CheckContext, dials: Dials, mtus: Mapping[str, int], others: set[str]
) -> Iterable[Outcome]:
    """Return the outcomes of the nodes that are not among `others`, which are judged already."""
    names = [node.name for node in context.nodes if node.name not in others]
    good = [name for name in names if name in dials.dialers]
    isolated = [name for name in names if name not in dials.dialers]
    if isolated:
        yield _without_peer(context, tuple(isolated))
    if good:
        tried = dials.describe_tried(len(context.inventory.nodes))
        size = min(mtus[name] for name in good if name in mtus)
        message = "full-size packets get through"
        yield Outcome(
            "pass",
            tuple(good),
            message,
            f"{size} bytes; {tried}",
            "the MTU",
        )


def _blamed_nodes(causes: Iterable[Cause]) -> set[str]:
    """Return the nodes that a cause names, and the dialers of its failed dials."""
    nodes: set[str] = set()
    for cause in causes:
        nodes.update(cause.nodes)
        for dial in cause.failed:
            nodes.add(dial.dialer)
    return nodes


def _without_peer(context: CheckContext, names: tuple[str, ...]) -> Outcome:
    """Return the outcome of nodes that reached no other; net.ports says why, if there are any."""
    if len(context.inventory.nodes) < 2:
        return Outcome("skip", names, "there is only one node", reason="not_applicable")
    message = f"{NOT_DIALLED}, so no path was measured"
    return Outcome("unknown", names, message, reason="net.ports")


def _full_size(dial: Dial, mtus: Mapping[str, int]) -> int:
    """Return the bytes that the path should carry: the largest packet that the sender makes.

    The MTU of loopback is more than IPv4 has.
    """
    return min(LARGEST, mtus.get(dial.dialer, 0))


def _ping_size(dial: Dial, mtus: Mapping[str, int]) -> int:
    """Return the number for `ping -s` that makes a full-size packet."""
    headers = IPV6_HEADERS if ":" in dial.address else IPV4_HEADERS
    return _full_size(dial, mtus) - headers


def _exceeds_listener(dial: Dial, mtus: Mapping[str, int]) -> bool:
    """Return whether the listener's interface is too small, and the connection was held to it.

    TCP agrees on that, so that all of it gets through; but nothing as large as the sender makes.
    """
    packet = dial.packet or 0
    fits = mtus.get(dial.listener, 0)
    return 0 < packet <= fits < _full_size(dial, mtus)


def _may_be_too_small(sizes: Iterable[Sizes], wanted: int) -> bool:
    """Return whether a dial of a node whose MTU is `wanted` may be too small, by their sizes."""
    return any(
        carried != packet or wanted > (path_mtu or LARGEST) for packet, carried, path_mtu in sizes
    )


def _is_too_small(dial: Dial, mtus: Mapping[str, int]) -> bool:
    """Return whether the path of a dial does not carry full-size packets.

    A smaller packet that was carried whole is no fault: a router on the path clamps the segments,
    and TCP agrees.
    """
    if dial.carried != dial.packet:
        return True
    known_path_mtu = dial.path_mtu or 0
    if 0 < known_path_mtu < _full_size(dial, mtus):
        return True
    return _exceeds_listener(dial, mtus)


def _is_lost(dial: Dial, mtus: Mapping[str, int]) -> bool:
    """Return whether packets as large as the sender makes them are lost on the way."""
    return _is_too_small(dial, mtus) and not _is_clamped(dial, mtus)


def _nowhere_carried(
    context: CheckContext, dials: Sequence[Dial], mtus: Mapping[str, int]
) -> Outcome:
    """Return the failure of a network that carries full-size packets between no two nodes.

    No node differs from the others then, so the fault is not at one of them.
    """
    names = {dial.dialer for dial in dials} | {dial.listener for dial in dials}
    nodes = tuple(node.name for node in context.nodes if node.name in names)
    first = dials[0]
    largest = max(map(_largest_carried, dials))
    if largest:
        message = "full-size packets get through between no two nodes, small ones do"
    else:
        message = f"packets of {SMALLEST} bytes and more get through between no two nodes"
    cure = shell_line(
        "ping -M do -s {size} {address}"
        "   # from {dialer}; then the MTU of the switches, or a smaller one here",
        size=_ping_size(first, mtus),
        address=first.address,
        dialer=first.dialer,
    )
    return Outcome(
        "fail",
        nodes,
        message,
        _size_seen(largest),
        f"{_full_size(first, mtus)} bytes",
        cure,
    )


def _size_seen(largest: int) -> str:
    return f"{largest} bytes" if largest else f"less than {SMALLEST} bytes"


class _Interfaces:
    """The interfaces of NCCL, with the MTU that each should have, as eth.mtu judges it."""

    def __init__(self, context: CheckContext, picks: Mapping[str, Pick]) -> None:
        self._picks = picks
        self._declared: dict[str, int] = {}
        for node in context.inventory.nodes:
            if "eth.mtu" in node.require:
                self._declared[node.name] = parse_mtu(node.require["eth.mtu"])
        self._usual: int | None = None
        for mtu, count in Counter(pick.mtu for pick in picks.values()).items():
            if 2 * count > len(picks):
                self._usual = mtu

    def wanted(self, node: str) -> int | None:
        """Return the MTU that is declared for a node, else that of most nodes, if it is known."""
        return self._declared.get(node, self._usual)

    def is_odd(self, node: str) -> bool:
        """Return whether a node has another MTU than it should."""
        return self.wanted(node) not in (None, self._picks[node].mtu)

    def cure(self, node: str) -> Remedy:
        """Return the line that gives a node the MTU that it should have."""
        return set_mtu(self._picks[node].name, str(self.wanted(node)))

    def one_size(self, nodes: Sequence[str]) -> Remedy:
        """Return what to do where it is not known which MTU is right."""
        sizes = [self._picks[node].mtu for node in nodes]
        names = ", ".join(f"{self._picks[node].name} of {node}" for node in nodes)
        return sentence(
            "give {names} one MTU: {largest} if all switches between them carry it, else "
            "{smallest}",
            names=names,
            largest=max(sizes),
            smallest=min(sizes),
        )


def _packet_failures(
    causes: Iterable[Cause], mtus: Mapping[str, int], interfaces: _Interfaces
) -> Iterable[Outcome]:
    judged: set[tuple[str, ...]] = set()
    for cause in causes:
        # A node blamed as a listener may be blamed as a dialer too.
        if cause.nodes not in judged:
            judged.add(cause.nodes)
            if all(_is_clamped(dial, mtus) for dial in cause.failed):
                yield _unequal_ends(cause, mtus, interfaces)
            else:
                yield _packet_failure(cause, mtus)


def _unequal_ends(cause: Cause, mtus: Mapping[str, int], interfaces: _Interfaces) -> Outcome:
    """Return the failure of ends with different MTUs. It wants what eth.mtu wants."""
    first = cause.failed[0]
    odd = [name for name in cause.nodes if interfaces.is_odd(name)]
    between = f"{cause.nodes[0]} and the others"
    if cause.role == "pair":
        between = f"{first.dialer} → {first.listener}"
    problem = "full-size packets are too large for the other end"
    message = f"{problem}, between {between}; TCP adapts"
    if odd:
        seen = f"{mtus[odd[0]]} bytes"
        wanted = f"{interfaces.wanted(odd[0])} bytes"
        cure = interfaces.cure(odd[0])
    else:
        seen = f"{mtus[first.dialer]} bytes on {first.dialer}, {mtus[first.listener]} on "
        seen += first.listener
        wanted = "the same on both"
        cure = interfaces.one_size((first.dialer, first.listener))
    return Outcome(
        "fail",
        cause.nodes,
        message,
        seen,
        wanted,
        cure,
    )


def _packet_failure(cause: Cause, mtus: Mapping[str, int]) -> Outcome:
    """Return the failure of a cause whose packets are lost on the way."""
    first = cause.failed[0]
    wanted_size = _full_size(first, mtus)
    wanted = f"{wanted_size} bytes"
    arrow = f"{first.dialer} → {first.listener}"
    is_pair = cause.role == "pair"
    between = arrow if is_pair else f"{cause.nodes[0]} and the others"
    largest = max(_largest_carried(dial) for dial in cause.failed)
    seen = _size_seen(largest)
    if is_pair:
        seen = f"{seen} on {arrow}"
    if largest:
        message = f"full-size packets do not get through between {between}, small ones do"
    else:
        message = f"packets of {SMALLEST} bytes and more do not get through between {between}"
    cure = shell_line(
        "ping -M do -s {size} {address}"
        "   # from {dialer}; then the MTU of the switch ports between them",
        size=_ping_size(first, mtus),
        address=first.address,
        dialer=first.dialer,
    )
    return Outcome(
        "fail",
        cause.nodes,
        message,
        seen,
        wanted,
        cure,
    )


def _is_clamped(dial: Dial, mtus: Mapping[str, int]) -> bool:
    """Return whether all packets got through because TCP keeps to the listener's smaller MTU."""
    return dial.carried == dial.packet and _exceeds_listener(dial, mtus)


def _largest_carried(dial: Dial) -> int:
    carried = dial.carried or 0
    if not dial.path_mtu:
        return carried
    return min(carried, dial.path_mtu)


def latency(context: CheckContext) -> Iterable[Outcome]:
    """Judge nodes and pairs whose round trips are far longer than is usual in this cluster."""
    dials = dials_of(context).connected
    trips = _shortest_round_trips(dials)
    in_order = _of_pairs(trips)
    names = context.names
    if len(in_order) < 3:
        yield _too_few_pairs(context, names)
        return
    # The lower quartile, not the median: of four nodes one that is slow has half of the pairs.
    usual = in_order[len(in_order) // 4]
    limit = _limit(context, usual)
    wanted = f"≤ {format_duration(limit)}"
    blamed: set[str] = set()
    causes: tuple[Cause, ...] = ()
    if in_order[-1] > limit:
        timed = [dial for dial in dials.all if dial.rtt]
        causes = find_causes(timed, [dial for dial in timed if _round_trip(trips, dial) > limit])
    for cause in causes:
        blamed.update(cause.nodes)
    yield from _latency_failures(causes, trips, wanted)
    measured = {name for name, own in trips.items() if own}.union(*trips.values())
    good = []
    missing = []
    for name in names:
        if name in blamed:
            continue
        if name in measured:
            good.append(name)
        else:
            missing.append(name)
    if good:
        seen = f"lower quartile {format_duration(usual)}"
        yield Outcome(
            "pass",
            tuple(good),
            "round trips are alike",
            seen,
            wanted,
        )
    if missing:
        yield Outcome("unknown", tuple(missing), NOT_DIALLED, reason="net.ports")


def _shortest_round_trips(dials: Dials) -> Trips:
    """Return the shortest round trip from each dialer to each listener that it measured."""
    trips: dict[str, dict[str, float]] = {}
    for name, own in dials.of_dialer.items():
        shortest = trips[name] = {}
        for dial in own:
            listener, round_trip = dial.listener, dial.rtt
            if round_trip and round_trip < shortest.get(listener, math.inf):
                shortest[listener] = round_trip
    return trips


def _of_pairs(trips: Trips) -> list[float]:
    """Return the round trip of each pair in seconds, the shorter of its directions, in order.

    Of a large fleet few pairs are measured in both, and all of them are too many for a dictionary.
    """
    round_trips = []
    for dialer, own in trips.items():
        for listener, round_trip in own.items():
            if dialer not in trips.get(listener, ()):
                round_trips.append(round_trip)
            elif dialer < listener:
                round_trips.append(min(round_trip, trips[listener][dialer]))
    return sorted(round_trips)


def _too_few_pairs(context: CheckContext, names: tuple[str, ...]) -> Outcome:
    message = "too few pairs to compare"
    if len(context.inventory.nodes) < 3:
        return Outcome("skip", names, message, reason="not_applicable")
    return Outcome("unknown", names, message, reason="fewer than three pairs were measured")


def _limit(context: CheckContext, usual: float) -> float:
    """Return the longest good round trip in seconds: the least that is declared, else derived."""
    declared = []
    for node in context.nodes:
        wanted = context.wanted(node)
        if wanted is not None:
            declared.append(parse_duration(wanted))
    if declared:
        return min(declared)
    return max(SLOWER * usual, usual + APART)


def _round_trip(trips: Trips, dial: Dial) -> float:
    """Return the shorter of both directions between the ends of a dial, in seconds."""
    there = trips[dial.dialer][dial.listener]
    return min(there, trips.get(dial.listener, {}).get(dial.dialer, there))


def _latency_failures(causes: Iterable[Cause], trips: Trips, wanted: str) -> Iterable[Outcome]:
    """Yield one failure for each set of nodes."""
    judged: set[frozenset[str]] = set()
    for cause in causes:
        # A node may be blamed as listener and as dialer, and a pair in both directions.
        key = frozenset(cause.nodes)
        if key in judged:
            continue
        judged.add(key)
        first = cause.failed[0]
        ends = f"{cause.nodes[0]} and the others"
        if cause.role == "pair":
            ends = " and ".join(cause.nodes)
        message = f"round trips between {ends} are slow"
        least = min(_round_trip(trips, dial) for dial in cause.failed)
        seen = format_duration(least)
        cure = shell_line(
            "mtr -rwz {address}   # from {dialer}: where is the time lost?",
            address=first.address,
            dialer=first.dialer,
        )
        yield Outcome(
            "fail",
            cause.nodes,
            message,
            seen,
            wanted,
            cure,
        )


def _with_slow_node(dials: Iterable[Dial], slow: str) -> tuple[Dial, ...]:
    """Return the dials with 20 ms more to and from one node; for the proof."""
    changed = []
    for dial in dials:
        if slow in (dial.dialer, dial.listener):
            round_trip = (dial.rtt or 0.0) + 0.02
            changed.append(replace(dial, rtt=round_trip))
        else:
            changed.append(dial)
    return tuple(changed)


PATH_MTU = Check(
    "eth.path_mtu",
    facts=("net.dials", "net.interfaces"),
    judge=path_mtu,
    severity="error",
    follows=("eth.iface_choice", "eth.mtu"),
    title="Full-size packets get through between all nodes",
    why="A switch port with a smaller MTU than the interfaces drops only big packets: names "
    "resolve, SSH works, the rendezvous succeeds, and the first large message hangs.",
    how="Over each connection of the port matrix one packet as large as the interface allows is "
    "sent, with don't-fragment set, and its acknowledgement awaited; each direction of a pair is "
    "its own connection. Where it does not come, three more and smaller ones find the largest that "
    "does. An interface with a smaller MTU than its peers fails too: TCP adapts to it, and "
    "nothing else does.",
    remedy=sentence(
        "set the MTU of the switch ports on the way to that of the interfaces, or make the "
        "interfaces' equal"
    ),
    proof=Proof(
        "net.dials",
        lambda dials: tuple(replace(dial, carried=1500, path_mtu=9000) for dial in dials),
    ),
)
LATENCY = Check(
    "net.latency",
    facts=("net.dials",),
    judge=latency,
    severity="warning",
    follows=("eth.iface_choice", "net.ports"),
    title="Round trips between the nodes",
    why="One node that answers four times later than the others is behind a wrong route, a "
    "firewall in software or a processor that does nothing but interrupts; every small collective "
    "waits for it.",
    how="The shortest round trip that the kernels saw on the connections of the port matrix, both "
    "directions of a pair together, against the lower quartile of all pairs: more than four times "
    "as long and half a millisecond more. `require: {net.latency: 1ms}` sets the limit.",
    remedy=shell_line("mtr -rwz ADDRESS   # where is the time lost?"),
    wants=parse_duration,
    proof=Proof("net.dials", _with_slow_node, between=True),
)
