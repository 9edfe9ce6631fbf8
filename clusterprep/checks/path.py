"""The way between two nodes: does a full-size packet get through, and how long does one take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.net import Blame, blame, dialled
from clusterprep.facts.pairs import Dial
from clusterprep.model.pair_schedule import coverage
from clusterprep.model.units import format_duration, parse_duration
from clusterprep.nccl.interfaces import choose

SLOWER = 4.0  # times what is usual: racks apart are twice or three times as far as neighbours
LARGEST = 65535  # bytes of an IPv4 packet
Pair = tuple[str, str]  # of two nodes, in the order of their names
APART = 0.0005  # seconds more than is usual: below that a busy processor explains it


def path_mtu(context: CheckContext) -> Iterable[Outcome]:
    """Both ways of every pair carry a packet as large as the sender's interface makes them."""
    dials = [dial for dial in dialled(context) if dial.word == "ok"]
    mtus = {name: pick.mtu for name, pick in choose(context.fleet).picks.items()}
    unmeasured = {dial.dialer for dial in dials if not dial.packet}
    sized = [dial for dial in dials if dial.packet] if unmeasured else dials
    small = blame(sized, lambda dial: _too_small(dial, mtus))
    yield from _stuck(small, mtus)
    named = {node for guilt in small for node in guilt.nodes} | {
        d.dialer for g in small for d in g.failed
    }
    for name in sorted(unmeasured - named):
        yield Outcome(
            "unknown", (name,), "the kernel does not say what it sent", reason="missing_tool"
        )
    measured = {dial.dialer for dial in dials} - unmeasured
    nodes = [node.name for node in context.nodes if node.name not in named | unmeasured]
    alone = tuple(name for name in nodes if name not in measured)
    if alone:
        yield _nobody(context, alone)
    good = tuple(name for name in nodes if name in measured)
    if good:
        size = min(mtus[name] for name in good if name in mtus)
        pairs = coverage(len({(d.dialer, d.listener) for d in dials}), len(context.inventory.nodes))
        yield Outcome(
            "pass", good, "full-size packets get through", f"{size} bytes; {pairs} tried", "the MTU"
        )


def _nobody(context: CheckContext, names: tuple[str, ...]) -> Outcome:
    """For nodes that reached nobody: nothing to reach, or net.ports has said why."""
    if len(context.inventory.nodes) < 2:
        return Outcome("skip", names, "there is only one node", reason="not_applicable")
    return Outcome(
        "unknown",
        names,
        "no other node could be dialled, so no path was measured",
        reason="net.ports",
    )


def _wanted(dial: Dial, mtus: Mapping[str, int]) -> int:
    """Bytes that the path should carry: what the sender makes. The MTU of loopback is more than IPv4 has."""
    return min(LARGEST, mtus.get(dial.dialer, 0))


def _does_not_fit(dial: Dial, mtus: Mapping[str, int]) -> bool:
    """Whether the listener's interface is too small, and the connection was held to what it takes.

    TCP agrees on that, so that all of it gets through; but nothing as large as the sender makes.
    """
    fits = mtus.get(dial.listener, 0)
    return 0 < (dial.packet or 0) <= fits < _wanted(dial, mtus)


def _too_small(dial: Dial, mtus: Mapping[str, int]) -> bool:
    # A smaller packet that was carried whole is no fault: a router on the way clamps the segments, and TCP agrees.
    wanted, fits, packet = mtus.get(dial.dialer, 0), mtus.get(dial.listener, 0), dial.packet or 0
    if dial.carried == packet and wanted <= fits and (dial.path_mtu or LARGEST) >= wanted:
        return False  # what nearly all of them say, at once
    small = 0 < (dial.path_mtu or 0) < _wanted(dial, mtus)
    return dial.carried != dial.packet or small or _does_not_fit(dial, mtus)


def _stuck(guilty: Iterable[Blame], mtus: Mapping[str, int]) -> Iterable[Outcome]:
    done: set[tuple[str, ...]] = set()
    for guilt in guilty:
        if guilt.nodes in done:  # blamed as listener already, and as dialer now
            continue
        done.add(guilt.nodes)
        first = guilt.failed[0]
        largest = max(_largest(dial) for dial in guilt.failed)
        seen = f"{largest} bytes" if largest else "less than 1280 bytes"
        way = f"{first.dialer} → {first.listener}"
        whose = way if guilt.role == "pair" else f"{guilt.nodes[0]} and the others"
        if guilt.role == "pair":
            seen = f"{seen} on {way}"
        message = f"full-size packets do not get through between {whose}, small ones do"
        cure = (
            f"ping -M do -s {_wanted(first, mtus) - 28} {first.address}   # from {first.dialer}; then the MTU of the "
            "switch ports between them"
        )
        if all(_does_not_fit(dial, mtus) and dial.carried == dial.packet for dial in guilt.failed):
            seen = f"{max(mtus[dial.listener] for dial in guilt.failed)} bytes"
            message = f"packets as large as the sender makes them do not fit the other end, between {whose}; TCP adapts"
            cure = f"ip link set dev INTERFACE mtu SIZE   # the same on {first.dialer} and {first.listener}"
        yield Outcome("fail", guilt.nodes, message, seen, f"{_wanted(first, mtus)} bytes", cure)


def _largest(dial: Dial) -> int:
    return min(size for size in (dial.carried or 0, dial.path_mtu or 1 << 30) if size is not None)


def latency(context: CheckContext) -> Iterable[Outcome]:
    """A node or pair far slower than what is usual in this cluster."""
    pairs: dict[Pair, float] = {}
    dials = [dial for dial in dialled(context) if dial.word == "ok" and dial.rtt]
    for dial in dials:
        pair, rtt = _pair(dial), dial.rtt or 0.0
        if rtt <= pairs.get(pair, rtt):
            pairs[pair] = rtt
    names = tuple(node.name for node in context.nodes)
    if len(pairs) < 3:
        reason = (
            "not_applicable"
            if len(context.inventory.nodes) < 3
            else "fewer than three pairs were measured"
        )
        verdict = "skip" if reason == "not_applicable" else "unknown"
        yield Outcome(
            "skip" if verdict == "skip" else "unknown",
            names,
            "too few pairs to compare",
            reason=reason,
        )
        return
    # The lower quartile: of four nodes one that is slow has half of the pairs.
    usual = sorted(pairs.values())[len(pairs) // 4]
    limit = _limit(context, usual)
    late = {pair for pair, rtt in pairs.items() if rtt > limit}
    slow = blame(dials if late else (), lambda dial: _pair(dial) in late)
    yield from _slow(slow, pairs, limit)
    named = {node for guilt in slow for node in guilt.nodes}
    measured = {dial.dialer for dial in dials} | {dial.listener for dial in dials}
    good = tuple(name for name in names if name in measured - named)
    if good:
        seen = f"lower quartile {format_duration(usual)}"
        yield Outcome("pass", good, "round trips are alike", seen, f"≤ {format_duration(limit)}")
    if missing := tuple(name for name in names if name not in measured | named):
        yield Outcome("unknown", missing, "no other node could be dialled", reason="net.ports")


def _limit(context: CheckContext, usual: float) -> float:
    declared = [
        parse_duration(text) for node in context.nodes if (text := context.wanted(node)) is not None
    ]
    return min(declared) if declared else max(SLOWER * usual, usual + APART)


def _pair(dial: Dial) -> Pair:
    """The same for both directions."""
    return (
        (dial.dialer, dial.listener)
        if dial.dialer < dial.listener
        else (dial.listener, dial.dialer)
    )


def _slow(guilty: Iterable[Blame], pairs: Mapping[Pair, float], limit: float) -> Iterable[Outcome]:
    done: set[frozenset[str]] = set()
    for guilt in guilty:
        key = frozenset(guilt.nodes)
        if key in done:  # as listener and as dialer, or a pair in both directions
            continue
        done.add(key)
        worst = min(pairs[_pair(dial)] for dial in guilt.failed)
        between = (
            " and ".join(guilt.nodes)
            if guilt.role == "pair"
            else f"{guilt.nodes[0]} and the others"
        )
        cure = f"mtr -rwz {guilt.failed[0].address}   # from {guilt.failed[0].dialer}: where is the time lost?"
        seen = format_duration(worst)
        yield Outcome(
            "fail",
            guilt.nodes,
            f"round trips between {between} are slow",
            seen,
            f"≤ {format_duration(limit)}",
            cure,
        )


def _slowed(dials: Iterable[Dial], slow: str) -> tuple[Dial, ...]:
    """Twenty milliseconds more to and from one node."""
    return tuple(
        replace(dial, rtt=(dial.rtt or 0.0) + 0.02)
        if slow in (dial.dialer, dial.listener)
        else dial
        for dial in dials
    )


PATH_MTU = Check(
    "eth.path_mtu",
    facts=("net.dials", "net.interfaces"),
    judge=path_mtu,
    severity="error",
    title="Full-size packets get through between all nodes",
    why="A switch port with a smaller MTU than the interfaces drops only big packets: names resolve, SSH works, the "
    "rendezvous succeeds, and the first large message hangs.",
    how="Over each connection of the port matrix one packet as large as the interface allows is sent, with "
    "don't-fragment set, and its acknowledgement awaited; each direction of a pair is its own connection. Where it "
    "does not come, smaller ones find the largest that does. An interface with a smaller MTU than its peers fails "
    "too: TCP adapts to it, and nothing else does.",
    remedy="set the MTU of the switch ports on the way to that of the interfaces, or make the interfaces' equal",
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
    title="Round trips between the nodes",
    why="One node that answers four times later than the others is behind a wrong route, a firewall in software or a "
    "processor that does nothing but interrupts; every small collective waits for it.",
    how="The shortest round trip that the kernels saw on the connections of the port matrix, both directions of a pair "
    "together, against the lower quartile of all pairs: more than four times as long and half a millisecond more. "
    "`require: {net.latency: 1ms}` sets the limit.",
    remedy="mtr -rwz ADDRESS   # where is the time lost?",
    wants=parse_duration,
    proof=Proof("net.dials", _slowed, between=True),
)
