"""From measured pairs to the node or link that is slow, loses packets or does not connect. Pure.

A node is blamed if at least two of its pairs are bad, and at least half; the other bad pairs are
links. Half of the usual speed proves nothing on a busy machine, so bad means a fifth of what most
nodes reach.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.verify.pages import REMEDY_OF_LINKS
from clusterprep.model import Culprit, Finding, PairSpeed, Stage, Verdict, VerifyResult
from clusterprep.model.pair_schedule import coverage

NAME = "net.tcp_bw"
SHARE = 5  # a direction is bad if it is slower than the usual speed by more than this factor
LONG = 1.0  # seconds to connect from which a SYN was lost
PAIR_LIMIT = 14.0  # seconds for one pair, whose own limits are shorter
RESENT = 2  # segments of a few hundred small messages that were sent again: healthy nodes have none
QUOTED = 8  # bad directions in the evidence of one culprit
SHOWN = 4  # bad directions in one finding
WANTED = "no pair under a fifth of the usual speed, and no lost packets"
# Outcomes that say something of a node, and nothing of a link.
UNMEASURED = frozenset({"lost", "garbled", "hung", "unknown_read"})

Pair = tuple[str, str]  # dialer, listener


class MeasuredPair(Struct, frozen=True):
    """One measured pair of nodes.

    Has seconds to connect and of round trips, and bytes per second to the listener and back. Two
    nodes on the `same_machine` have no link between them, and how fast they copy memory says no
    more than how busy the machine is.
    """

    dialer: str
    listener: str
    outcome: str  # ok, or why it was not measured
    why: str = ""
    connect: float = 0.0
    rtt: float = 0.0
    worst: float = 0.0
    out: float = 0.0
    back: float = 0.0
    resent: int = 0  # segments of the small messages, by either side
    pings: int = 0
    same_machine: bool = False

    @property
    def pair(self) -> Pair:
        return (self.dialer, self.listener)


class MeasuredLinks(Struct, frozen=True):
    """The links stage: nodes, measured pairs, its seconds, and bytes/s of the slowest interface."""

    nodes: tuple[str, ...]
    pairs: tuple[MeasuredPair, ...]
    seconds: float
    rated: float = math.inf


class BadDirection(Struct, frozen=True):
    """A bad direction from `source` to `target`; a pair that is bad as a whole has two of them."""

    source: str
    target: str
    what: str  # blocked, lossy, slow
    description: str

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.source, self.target))


class BlamedNodes(Struct, frozen=True):
    """One node, or the two ends of a link, with what is bad about them."""

    nodes: tuple[str, ...]
    faults: tuple[BadDirection, ...]
    tried: int  # partners with which a node was measured


def judge_links(links: MeasuredLinks) -> tuple[BlamedNodes, ...]:
    """Return the nodes and links at fault; every bad direction belongs to one of them."""
    partners = _partners(links)
    usual = usual_speed(links.pairs, links.rated)
    remaining = list(_bad_directions(links.pairs, usual))
    blamed: list[BlamedNodes] = []
    for what in ("blocked", "lossy", "slow"):
        node = _worst_node(what, remaining, partners)
        while node is not None:
            at_node, remaining = _split_at(node, remaining)
            tried = len(partners[node])
            blamed.append(BlamedNodes((node,), tuple(at_node), tried))
            node = _worst_node(what, remaining, partners)
    faults_by_link: dict[frozenset[str], list[BadDirection]] = {}
    for fault in remaining:
        faults_by_link.setdefault(fault.ends, []).append(fault)
    for ends, faults in faults_by_link.items():
        nodes = tuple(sorted(ends, key=links.nodes.index))
        blamed.append(BlamedNodes(nodes, tuple(faults), 1))
    return tuple(blamed)


def _partners(links: MeasuredLinks) -> dict[str, set[str]]:
    """Return the nodes with which each node was measured."""
    partners: dict[str, set[str]] = {name: set() for name in links.nodes}
    for measured in links.pairs:
        if measured.outcome in UNMEASURED:
            continue
        partners[measured.dialer].add(measured.listener)
        partners[measured.listener].add(measured.dialer)
    return partners


def _split_at(
    node: str, faults: Iterable[BadDirection]
) -> tuple[list[BadDirection], list[BadDirection]]:
    """Return the bad directions at a node, and the others."""
    at_node: list[BadDirection] = []
    others: list[BadDirection] = []
    for fault in faults:
        if node in fault.ends:
            at_node.append(fault)
        else:
            others.append(fault)
    return at_node, others


def bad_pairs(pairs: Sequence[MeasuredPair], usual: float) -> tuple[Pair, ...]:
    """Return the pairs that look bad beside a usual speed, as (dialer, listener)."""
    ends = {fault.ends for fault in _bad_directions(pairs, usual)}
    bad: list[Pair] = []
    for measured in pairs:
        pair = measured.pair
        if frozenset(pair) in ends:
            bad.append(pair)
    return tuple(bad)


def usual_speed(pairs: Sequence[MeasuredPair], rated: float = math.inf) -> float:
    """Return the speed that most nodes reach with some other node.

    One bad node of four spoils half of all pairs, but not this. No link needs to be faster than the
    interfaces are `rated`: what virtual ones reach beyond that varies by chance.
    """
    best = best_speeds(pairs)
    if not best:
        return 0.0
    return min(rated, statistics.median_low(best.values()))


def best_speeds(pairs: Iterable[MeasuredPair]) -> dict[str, float]:
    """Return the best speed that each node reached.

    One bad node does not spoil that of the others.
    """
    best: dict[str, float] = {}
    for measured in pairs:
        if measured.outcome != "ok" or measured.same_machine:
            continue
        for name in measured.pair:
            before = best.get(name, 0.0)
            best[name] = max(before, measured.out, measured.back)
    return best


def pairs_to_dial(links: MeasuredLinks) -> tuple[Pair, ...]:
    """Return what is dialled if pairs are blocked.

    They are dialled again, and both their ends by all their partners, in the direction that was not
    tried: every pair was dialled by one end, and a node that lets no new connection in shows if the
    others dial it.
    """
    pairs: dict[Pair, None] = {}  # in order, each once
    unclear: set[str] = set()
    for measured in links.pairs:
        if is_blocked(measured):
            pairs[measured.pair] = None
            unclear.update(measured.pair)
    for measured in links.pairs:
        if measured.outcome not in UNMEASURED and not unclear.isdisjoint(measured.pair):
            pairs[measured.listener, measured.dialer] = None
    return tuple(pairs)


def with_dialled_pairs(
    links: MeasuredLinks, again: Sequence[MeasuredPair], seconds: float
) -> MeasuredLinks:
    """Return the links with pairs that were dialled again.

    Pairs that do connect now are replaced; pairs that turned out to be blocked in the other
    direction are added. `seconds` is what all looks took together.
    """
    dialled = _measured_by_pair(again)
    pairs: list[MeasuredPair] = []
    for measured in links.pairs:
        later = dialled.get(measured.pair)
        if later is not None and is_blocked(measured):
            pairs.append(later)
        else:
            pairs.append(measured)
    known = {measured.pair for measured in pairs}
    for pair, measured in dialled.items():
        if pair not in known and is_blocked(measured):
            pairs.append(measured)
    return replace(links, pairs=tuple(pairs), seconds=seconds)


def is_blocked(measured: MeasuredPair) -> bool:
    if measured.outcome == "ok":
        return False
    return measured.outcome not in UNMEASURED


def with_further_look(
    links: MeasuredLinks, again: Sequence[MeasuredPair], seconds: float
) -> MeasuredLinks:
    """Return the links with a further look at some pairs: it tells a fault from a busy moment.

    The further look counts, except for speeds: of each direction the best one that was seen does.
    Other programs on a machine make a link slower for a moment and never faster. `seconds` is what
    all looks took together.
    """
    further = _measured_by_pair(again)
    pairs: list[MeasuredPair] = []
    for earlier in links.pairs:
        later = further.get(earlier.pair, earlier)
        if later.outcome == "ok":
            out = max(later.out, earlier.out)
            back = max(later.back, earlier.back)
            later = replace(later, out=out, back=back)
        pairs.append(later)
    return replace(links, pairs=tuple(pairs), seconds=seconds)


def with_earlier_speeds(
    links: MeasuredLinks, before: MeasuredLinks, known: Container[Pair]
) -> MeasuredLinks:
    """Return the links, in which the `known` pairs have the best speeds of both measurements."""
    earlier_by_pair = _measured_by_pair(before.pairs)
    pairs: list[MeasuredPair] = []
    for measured in links.pairs:
        earlier = earlier_by_pair.get(measured.pair)
        if earlier is not None and measured.pair in known and measured.outcome == "ok":
            out = max(measured.out, earlier.out)
            back = max(measured.back, earlier.back)
            measured = replace(measured, out=out, back=back)  # noqa: PLW2901
        pairs.append(measured)
    return replace(links, pairs=tuple(pairs))


def peer_speeds(rated: float, *measurements: Iterable[MeasuredPair]) -> dict[str, float]:
    """Return the best speed that each node reached in any of these measurements.

    No link needs to be faster than the interfaces are `rated`.
    """
    speeds: dict[str, float] = {}
    for pairs in measurements:
        for name, speed in best_speeds(pairs).items():
            before = speeds.get(name, 0.0)
            speeds[name] = min(rated, max(before, speed))
    return speeds


def _measured_by_pair(pairs: Iterable[MeasuredPair]) -> dict[Pair, MeasuredPair]:
    by_pair: dict[Pair, MeasuredPair] = {}
    for measured in pairs:
        if measured.outcome in UNMEASURED:
            continue
        by_pair[measured.pair] = measured
    return by_pair


def _bad_directions(pairs: Iterable[MeasuredPair], usual: float) -> Iterable[BadDirection]:
    for measured in pairs:
        if measured.outcome in UNMEASURED:
            continue
        dialer, listener = measured.pair
        fault = _fault_of_whole_pair(measured)
        if fault is not None:
            what, sentence = fault
            yield BadDirection(dialer, listener, what, sentence)
            yield BadDirection(listener, dialer, what, sentence)
        elif not measured.same_machine:
            yield from _slow_direction(dialer, listener, measured.out, usual)
            yield from _slow_direction(listener, dialer, measured.back, usual)


def _slow_direction(source: str, target: str, rate: float, usual: float) -> Iterable[BadDirection]:
    if rate * SHARE >= usual:
        return
    speeds = f"{_speed(rate)}, usual {_speed(usual)}"
    yield BadDirection(source, target, "slow", f"{source} to {target}: {speeds}")


def _fault_of_whole_pair(measured: MeasuredPair) -> tuple[str, str] | None:
    """Return what is bad about a pair if its directions cannot be told apart from outside."""
    pair = f"{measured.dialer} and {measured.listener}"
    if measured.outcome != "ok":
        outcome = measured.outcome.replace("_", " ")
        return "blocked", f"{pair}: {outcome}, {measured.why}"
    if measured.same_machine:
        return None
    if measured.connect >= LONG:
        return "lossy", f"{pair}: {measured.connect:.1f} s to connect"
    if measured.resent >= RESENT:
        resent = f"{measured.resent} segments of {measured.pings} small messages were sent again"
        worst = measured.worst * 1000
        return "lossy", f"{pair}: {resent}, one took {worst:.0f} ms"
    return None


def _worst_node(
    what: str, faults: Iterable[BadDirection], partners: Mapping[str, set[str]]
) -> str | None:
    """Return the node with the most bad pairs, if they are two at least and half of its pairs."""
    pairs = {fault.ends for fault in faults if fault.what == what}
    bad: Counter[str] = Counter()
    for ends in pairs:
        bad.update(ends)
    guilty: list[tuple[int, str]] = []
    for name, count in bad.items():
        is_half = 2 * count >= len(partners[name])
        if count >= 2 and is_half:
            guilty.append((count, name))
    if not guilty:
        return None
    _, worst = max(guilty)
    return worst


def _speed(rate: float) -> str:
    bits = rate * 8
    if bits >= 1e9:
        return f"{bits / 1e9:.2g} Gbit/s"
    return f"{bits / 1e6:.3g} Mbit/s"


# ---------------------------------------------------------------- for the report


def culprits(links: MeasuredLinks) -> tuple[Culprit, ...]:
    """Return the nodes and links at fault for the report."""
    return tuple(map(_culprit, judge_links(links)))


def _culprit(blamed: BlamedNodes) -> Culprit:
    cause = _cause(blamed)
    sentences: dict[str, None] = {}  # in order, each once
    directions: set[Pair] = set()
    for fault in blamed.faults:
        sentences[fault.description] = None
        directions.add((fault.source, fault.target))
    evidence = tuple(sentences)[:QUOTED]
    nodes = blamed.nodes
    if len(nodes) == 1:
        return Culprit(
            kind="node",
            nodes=nodes,
            confidence=0.9,
            cause=cause,
            evidence=evidence,
        )
    source = target = None
    if len(directions) == 1:
        ((source, target),) = directions
    return Culprit(
        kind="link",
        nodes=nodes,
        confidence=0.85,
        cause=cause,
        evidence=evidence,
        source=source,
        target=target,
    )


def _cause(blamed: BlamedNodes) -> str:
    what = _what_words(blamed.faults)
    if len(blamed.nodes) == 2:
        return f"the link between {' and '.join(blamed.nodes)} {what}"
    (name,) = blamed.nodes
    sources = {fault.source for fault in blamed.faults}
    targets = {fault.target for fault in blamed.faults}
    side = ""
    if name not in targets:
        side = " in what it sends"
    elif name not in sources:
        side = " in what it receives"
    partners = len(sources | targets) - 1
    return f"the network of {name} {what}{side}, with {partners} of {blamed.tried} others"


def _what_words(faults: Iterable[BadDirection]) -> str:
    kinds = {fault.what for fault in faults}
    predicates: list[str] = []
    if "blocked" in kinds:
        predicates.append("does not carry connections")
    if "lossy" in kinds:
        predicates.append("loses packets")
    if "slow" in kinds:
        predicates.append("is slow")
    return " and ".join(predicates)


def with_links(result: VerifyResult, links: MeasuredLinks) -> VerifyResult:
    """Return a result with its links stage, and each culprit once.

    Links to a node that fell silent during the trial say nothing new. A link that the trial named
    was measured now: if the measurement shows a whole node to be bad, the node is the culprit.
    """
    measured = culprits(links)
    bad_nodes = _nodes_of(measured)
    before: list[Culprit] = []
    for culprit in result.culprits:
        if culprit.kind == "link" and not bad_nodes.isdisjoint(culprit.nodes):
            continue
        before.append(culprit)
    known = _nodes_of(before)
    found = [culprit for culprit in measured if known.isdisjoint(culprit.nodes)]
    verdict: Verdict = "fail" if found else result.verdict
    stages = (*result.stages, _stage(links))
    merged = _merged(before, found)
    speeds = tuple(map(_pair_speed, links.pairs))
    return replace(
        result,
        verdict=verdict,
        stages=stages,
        culprits=merged,
        pairs=speeds,
    )


def _nodes_of(accused: Iterable[Culprit]) -> set[str]:
    """Return the nodes that are culprits themselves, not as an end of a link."""
    names: set[str] = set()
    for culprit in accused:
        if culprit.kind == "node":
            names.update(culprit.nodes)
    return names


def _merged(before: Sequence[Culprit], found: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """Return all culprits; a link that is in both has the evidence of both."""
    further = {culprit.nodes: culprit for culprit in found}
    merged: list[Culprit] = []
    for culprit in before:
        same = further.get(culprit.nodes)
        if same is not None and same.kind == culprit.kind == "link":
            del further[culprit.nodes]
            evidence = (*culprit.evidence, *same.evidence)
            culprit = replace(culprit, evidence=evidence)  # noqa: PLW2901
        merged.append(culprit)
    return (*merged, *further.values())


def _pair_speed(measured: MeasuredPair) -> PairSpeed:
    if measured.outcome != "ok":
        return PairSpeed(measured.pair, measured.outcome)
    out = round(measured.out / 1e9, 6)
    back = round(measured.back / 1e9, 6)
    return PairSpeed(
        measured.pair,
        "ok",
        out,
        back,
        measured.rtt,
        measured.resent,
    )


def _stage(links: MeasuredLinks) -> Stage:
    """Return the row of the report; it passes if all pairs were measured and none is bad."""
    verdict: Verdict = "unknown"
    if judge_links(links):
        verdict = "fail"
    elif links.pairs and all(pair.outcome not in UNMEASURED for pair in links.pairs):
        verdict = "pass"
    seconds = round(links.seconds, 6)
    return Stage("links", seconds, verdict, limit=PAIR_LIMIT)


def findings(links: MeasuredLinks) -> Iterable[Finding]:
    """Yield net.tcp_bw: a failure per culprit, unknown for unmeasured nodes, else a pass."""
    blamed: set[str] = set()
    for fault in judge_links(links):
        nodes = fault.nodes
        blamed.update(nodes)
        sentences = dict.fromkeys(bad.description for bad in fault.faults[:SHOWN])
        seen = "; ".join(sentences)
        message = _cause(fault)
        yield Finding(
            check=NAME,
            verdict="fail",
            severity="error",
            nodes=nodes,
            message=message,
            seen=seen,
            wanted=WANTED,
            remedy=REMEDY_OF_LINKS,
        )
    measured = _measured_nodes(links)
    good: list[str] = []
    unmeasured: list[str] = []
    for name in links.nodes:
        if name in blamed:
            continue
        if name in measured:
            good.append(name)
        else:
            unmeasured.append(name)
    if unmeasured:
        nodes = tuple(unmeasured)
        message = "how fast its links are was not measured"
        reason = "not measured"
        yield Finding(
            check=NAME,
            verdict="unknown",
            severity="error",
            nodes=nodes,
            message=message,
            wanted=WANTED,
            reason=reason,
        )
    if good:
        message = _passed_message(links)
        yield Finding(
            check=NAME,
            verdict="pass",
            severity="error",
            nodes=tuple(good),
            message=message,
            wanted=WANTED,
        )


def _measured_nodes(links: MeasuredLinks) -> set[str]:
    measured: set[str] = set()
    failed_to_measure: set[str] = set()
    for pair in links.pairs:
        if pair.outcome in UNMEASURED:
            failed_to_measure.add(pair.dialer)
        else:
            measured.update(pair.pair)
    return measured - failed_to_measure


def _passed_message(links: MeasuredLinks) -> str:
    rates: list[float] = []
    for measured in links.pairs:
        if measured.outcome == "ok":
            rates += (measured.out, measured.back)
    speeds = ""
    if rates:
        speeds = f"{_speed(min(rates))} to {_speed(max(rates))}"
    directions = coverage(len(rates), len(links.nodes))
    return f"{directions} measured: {speeds}"
