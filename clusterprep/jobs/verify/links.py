"""From the measured pairs to the node or link that is slow, loses packets or does not connect. Pure.

A node is blamed where at least two of its pairs are bad, and at least half; what is left over are links. Half of the
usual speed proves nothing on a busy machine, so bad means a fifth of what most nodes reach.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from clusterprep.jobs.verify.pages import REMEDY_OF_LINKS
from clusterprep.model import Culprit, Finding, PairSpeed, Stage, Verdict, VerifyResult
from clusterprep.model.pair_schedule import coverage
from clusterprep.runtime.lazy_dataclass import dataclass

NAME = "net.tcp_bw"
SHARE = 5  # a direction is bad where it is slower than the usual speed by more than this factor
LONG = 1.0  # seconds to connect from which a SYN was lost
PAIR_LIMIT = 14.0  # seconds for one pair, whose own limits are shorter
RESENT = 2  # segments of a few hundred small messages that were sent once more: between healthy nodes none is
WANTED = "no pair under a fifth of the usual speed, and no lost packets"
UNMEASURED = frozenset(
    {"lost", "garbled", "hung", "unknown_read"}
)  # says something of a node, and nothing of a link


@dataclass(frozen=True)
class Way:
    """One measured pair: seconds to connect and of round trips, bytes per second to the listener and back.

    `near` are two nodes that are one machine: there is no link between them, and how fast it copies memory says no
    more than how busy it is.
    """

    dialer: str
    listener: str
    word: str  # ok, or why it was not measured
    why: str = ""
    connect: float = 0.0
    rtt: float = 0.0
    worst: float = 0.0
    out: float = 0.0
    back: float = 0.0
    resent: int = 0  # segments of the small messages, by either side
    pings: int = 0
    near: bool = False


@dataclass(frozen=True)
class MeasuredLinks:
    """The links stage: nodes, the pairs measured, how long it took, and bytes per second of the slowest interface."""

    nodes: tuple[str, ...]
    ways: tuple[Way, ...]
    seconds: float
    rated: float = math.inf


@dataclass(frozen=True)
class Fault:
    """A bad direction from `source` to `target`; both directions of a pair that is bad as a whole."""

    source: str
    target: str
    what: str  # blocked, lossy, slow
    words: str


@dataclass(frozen=True)
class Guilt:
    """One node, or the two ends of a link, with what is bad about them."""

    nodes: tuple[str, ...]
    faults: tuple[Fault, ...]
    tried: int  # partners with which a node was measured


def judge(links: MeasuredLinks) -> tuple[Guilt, ...]:
    """Who is at fault; every bad direction is somebody's."""
    partners: dict[str, set[str]] = {name: set() for name in links.nodes}
    for way in links.ways:
        if way.word not in UNMEASURED:
            partners[way.dialer].add(way.listener)
            partners[way.listener].add(way.dialer)
    left = list(_faults(links.ways, usual_speed(links.ways, links.rated)))
    found = []
    for what in ("blocked", "lossy", "slow"):
        while (node := _worst([f for f in left if f.what == what], partners)) is not None:
            mine = tuple(fault for fault in left if node in (fault.source, fault.target))
            found.append(Guilt((node,), mine, len(partners[node])))
            left = [fault for fault in left if fault not in mine]
    pairs: dict[frozenset[str], list[Fault]] = {}
    for fault in left:
        pairs.setdefault(frozenset((fault.source, fault.target)), []).append(fault)
    found += [Guilt(_in_order(links, ends), tuple(faults), 1) for ends, faults in pairs.items()]
    return tuple(found)


def bad_pairs(ways: Sequence[Way], usual: float) -> tuple[tuple[str, str], ...]:
    """The pairs that look bad beside a usual speed, as (dialer, listener)."""
    ends = {frozenset((fault.source, fault.target)) for fault in _faults(ways, usual)}
    return tuple((w.dialer, w.listener) for w in ways if frozenset((w.dialer, w.listener)) in ends)


def usual_speed(ways: Sequence[Way], rated: float = math.inf) -> float:
    """The speed that most nodes reach with somebody; one bad node of four spoils half of all pairs, but not this.

    No link needs to be faster than the interfaces are `rated`: what virtual ones do beyond that is a matter of luck.
    """
    best = best_speeds(ways)
    return min(rated, statistics.median_low(best.values())) if best else 0.0


def best_speeds(ways: Sequence[Way]) -> dict[str, float]:
    """Per node the best speed that it reached with anybody: one bad node does not spoil that of the others."""
    best: dict[str, float] = {}
    for way in ways:
        for name in (way.dialer, way.listener) if way.word == "ok" and not way.near else ():
            best[name] = max(best.get(name, 0.0), way.out, way.back)
    return best


def to_dial(links: MeasuredLinks) -> tuple[tuple[str, str], ...]:
    """What is dialled where a pair is blocked: it again, both ends by all their partners, the way that it was not yet.

    Every pair was dialled by one end. A node that lets no new connection in shows where the others dial it.
    """
    unclear = [way for way in links.ways if blocked(way)]
    listeners, dialers = {way.listener for way in unclear}, {way.dialer for way in unclear}
    turned = ((way.listener, way.dialer) for way in links.ways if way.word not in UNMEASURED)
    more = [
        pair for pair in turned if pair[1] in listeners | dialers or pair[0] in listeners | dialers
    ]
    return tuple(dict.fromkeys((*((way.dialer, way.listener) for way in unclear), *more)))


def dialled(links: MeasuredLinks, again: Sequence[Way], seconds: float) -> MeasuredLinks:
    """With pairs that do connect as they are now, and with those that turned out to be blocked the other way.

    `seconds` is what all looks took together.
    """
    found = {(way.dialer, way.listener): way for way in again if way.word not in UNMEASURED}
    ways = [
        found.pop((way.dialer, way.listener), way) if blocked(way) else way for way in links.ways
    ]
    known = {(way.dialer, way.listener) for way in ways}
    more = [way for pair, way in found.items() if blocked(way) and pair not in known]
    return replace(links, ways=(*ways, *more), seconds=seconds)


def blocked(way: Way) -> bool:
    return way.word != "ok" and way.word not in UNMEASURED


def seen_again(links: MeasuredLinks, again: Sequence[Way], seconds: float) -> MeasuredLinks:
    """Return the links with a further look at some pairs: it tells a fault from a busy moment.

    The further look counts, but for speeds: of each direction the best one that was seen does. Whatever else
    runs on a machine makes a link slower for a moment and never faster. `seconds` is what all looks took together.
    """
    second = {(way.dialer, way.listener): way for way in again if way.word not in UNMEASURED}
    ways = tuple(
        _with_best_speeds(second.get((way.dialer, way.listener)), way) for way in links.ways
    )
    return replace(links, ways=ways, seconds=seconds)


def _with_best_speeds(later: Way | None, earlier: Way) -> Way:
    if later is None:
        return earlier
    if later.word != "ok":
        return later
    return replace(later, out=max(later.out, earlier.out), back=max(later.back, earlier.back))


def _faults(ways: Sequence[Way], usual: float) -> Iterable[Fault]:
    for way in ways:
        if way.word in UNMEASURED:
            continue
        bad = _whole(way)
        if bad:
            yield Fault(way.dialer, way.listener, *bad)
            yield Fault(way.listener, way.dialer, *bad)
            continue
        for source, target, rate in (
            (way.dialer, way.listener, way.out),
            (way.listener, way.dialer, way.back),
        ):
            if rate * SHARE < usual and not way.near:
                words = f"{source} to {target}: {_speed(rate)}, usual {_speed(usual)}"
                yield Fault(source, target, "slow", words)


def _whole(way: Way) -> tuple[str, str] | None:
    """What is bad about both directions of a pair, for from outside they cannot be told apart."""
    pair = f"{way.dialer} and {way.listener}"
    if way.word != "ok":
        return "blocked", f"{pair}: {way.word.replace('_', ' ')}, {way.why}"
    if way.near:
        return None
    if way.connect >= LONG:
        return "lossy", f"{pair}: {way.connect:.1f} s to connect"
    if way.resent >= RESENT:
        words = f"{way.resent} segments of {way.pings} small messages were sent again, one took {way.worst * 1000:.0f} ms"
        return "lossy", f"{pair}: {words}"
    return None


def _worst(faults: Sequence[Fault], partners: Mapping[str, set[str]]) -> str | None:
    bad: Counter[str] = Counter()
    for pair in {frozenset((fault.source, fault.target)) for fault in faults}:
        bad.update(pair)
    guilty = [
        (count, name)
        for name, count in bad.items()
        if count >= 2 and 2 * count >= len(partners[name])
    ]
    return max(guilty)[1] if guilty else None


def _in_order(links: MeasuredLinks, ends: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ends, key=links.nodes.index))


def _speed(rate: float) -> str:
    return f"{rate * 8 / 1e9:.2g} Gbit/s" if rate >= 1.25e8 else f"{rate * 8 / 1e6:.3g} Mbit/s"


# ---------------------------------------------------------------- for the report


def culprits(links: MeasuredLinks) -> tuple[Culprit, ...]:
    return tuple(_culprit(guilt) for guilt in judge(links))


def _culprit(guilt: Guilt) -> Culprit:
    evidence = tuple(dict.fromkeys(fault.words for fault in guilt.faults))[:8]
    if len(guilt.nodes) == 1:
        return Culprit("node", guilt.nodes, 0.9, _cause(guilt), evidence)
    directions = {(fault.source, fault.target) for fault in guilt.faults}
    source, target = next(iter(directions)) if len(directions) == 1 else (None, None)
    return Culprit("link", guilt.nodes, 0.85, _cause(guilt), evidence, None, source, target)


def _cause(guilt: Guilt) -> str:
    what = {fault.what for fault in guilt.faults}
    words = {"blocked": "does not carry connections", "lossy": "loses packets", "slow": "is slow"}
    said = " and ".join(words[kind] for kind in words if kind in what)
    if len(guilt.nodes) == 2:
        return f"the link between {' and '.join(guilt.nodes)} {said}"
    name = guilt.nodes[0]
    outward = any(fault.source == name for fault in guilt.faults)
    inward = any(fault.target == name for fault in guilt.faults)
    side = "" if outward and inward else ", from it" if outward else ", towards it"
    partners = {fault.source for fault in guilt.faults} | {fault.target for fault in guilt.faults}
    return f"the network of {name} {said}{side}, with {len(partners) - 1} of {guilt.tried} others"


def with_links(result: VerifyResult, links: MeasuredLinks) -> VerifyResult:
    """A result with its links stage, and each culprit once.

    Links to a node that fell silent during the trial say nothing new, and a link that the trial named is one that was
    measured now: where that shows a whole node to be bad, it is the node.
    """
    measured = culprits(links)
    whole = {name for culprit in measured if culprit.kind == "node" for name in culprit.nodes}
    before = [
        one for one in result.culprits if one.kind != "link" or not whole.intersection(one.nodes)
    ]
    known = {name for culprit in before if culprit.kind == "node" for name in culprit.nodes}
    found = [culprit for culprit in measured if not known.intersection(culprit.nodes)]
    same = {one.nodes: one for one in found if one.kind == "link"}
    again = [one for one in before if one.kind == "link" and one.nodes in same]
    both = {
        one.nodes: replace(one, evidence=(*one.evidence, *same[one.nodes].evidence))
        for one in again
    }
    return replace(
        result,
        verdict="fail" if found else result.verdict,
        stages=(*result.stages, _stage(links)),
        culprits=(
            *(both.get(one.nodes, one) if one in again else one for one in before),
            *(one for one in found if one.nodes not in both),
        ),
        pairs=tuple(map(_pair, links.ways)),
    )


def _pair(way: Way) -> PairSpeed:
    ends = (way.dialer, way.listener)
    if way.word != "ok":
        return PairSpeed(ends, way.word)
    return PairSpeed(
        ends, way.word, round(way.out / 1e9, 6), round(way.back / 1e9, 6), way.rtt, way.resent
    )


def _stage(links: MeasuredLinks) -> Stage:
    """The row of the report; it passes where nobody is to blame and every planned pair was measured."""
    whole = bool(links.ways) and all(way.word not in UNMEASURED for way in links.ways)
    verdict: Verdict = "fail" if judge(links) else "pass" if whole else "unknown"
    return Stage("links", round(links.seconds, 6), verdict, limit=PAIR_LIMIT)


def findings(links: MeasuredLinks) -> Iterable[Finding]:
    """net.tcp_bw: one failure per culprit, unknown for nodes of which nothing is known, passed by all others."""
    found = judge(links)
    for guilt in found:
        seen = "; ".join(dict.fromkeys(fault.words for fault in guilt.faults[:4]))
        yield Finding(
            NAME, "fail", "error", guilt.nodes, _cause(guilt), seen, WANTED, REMEDY_OF_LINKS
        )
    blamed = {name for guilt in found for name in guilt.nodes}
    measured = {
        name
        for way in links.ways
        if way.word not in UNMEASURED
        for name in (way.dialer, way.listener)
    }
    measured -= {way.dialer for way in links.ways if way.word in UNMEASURED}
    if silent := tuple(name for name in links.nodes if name not in measured | blamed):
        message = "how fast its links are was not measured"
        yield Finding(NAME, "unknown", "error", silent, message, "", WANTED, reason="not measured")
    if good := tuple(name for name in links.nodes if name in measured - blamed):
        pairs = sum(way.word == "ok" for way in links.ways)
        rates = [rate for way in links.ways if way.word == "ok" for rate in (way.out, way.back)]
        speed = f"{_speed(min(rates))} to {_speed(max(rates))}" if rates else ""
        message = f"{coverage(2 * pairs, len(links.nodes))} measured: {speed}"
        yield Finding(NAME, "pass", "error", good, message, "", WANTED)
