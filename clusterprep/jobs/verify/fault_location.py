"""What slow pairs mean: a node, one of its network cards, a switch, or the pair itself. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from clusterprep.jobs.verify.probes import (
    SURE,
    Probe,
    ProbeEvidence,
    Steps,
    calibrate,
    partners,
    positions,
    run_probes,
    without,
)

Piece = tuple[str, ...]  # nodes that are fast among each other
Verdicts = Mapping[Probe, bool | None]  # True: slow, False: normal, None: undecided


class LocatedFault(Struct, frozen=True):
    """A culprit: a node, one of its rails, directions of a pair, or the boundary of some nodes."""

    kind: Literal["node", "rail", "pair", "boundary"]
    nodes: tuple[str, ...]
    rail: int | None = None
    ways: tuple[tuple[str, str], ...] = ()


def locate_faults(
    nodes: Sequence[str],
    confirmed: frozenset[str],
    pairs: dict[Probe, bool | None],
    evidence: ProbeEvidence,
) -> Steps[tuple[LocatedFault, ...]]:
    """Find what makes the pairs slow that are slow. Yields the probes that it needs run for that.

    `confirmed` are nodes that are known to be slow, `pairs` the pairs that were measured.
    """
    doubtful = _often_slow(nodes, confirmed, pairs)
    among = _pairs_among(doubtful, pairs)
    inside = yield from run_probes(evidence, among, -SURE, SURE)
    pairs = {
        **pairs,
        **inside,
    }
    pieces = _pieces(doubtful, inside)
    guilty = _guilty_pieces(nodes, pieces, confirmed, pairs)
    blames: list[LocatedFault] = []
    single: list[str] = []
    piece_numbers: dict[str, int] = {}
    for number, piece in enumerate(guilty, 1):
        piece_numbers.update(dict.fromkeys(piece, number))
        if len(piece) == 1:
            single.extend(piece)
        else:
            blames.append(LocatedFault("boundary", piece))
    blames += yield from _nodes_or_rails(single, nodes, piece_numbers, evidence)
    unexplained: list[Probe] = []
    for probe, is_slow in pairs.items():
        if not is_slow:
            continue
        first, second = map(piece_numbers.get, probe.nodes)
        if first == second:  # within one piece, or between two good nodes
            unexplained.append(probe)
    good = without(nodes, piece_numbers)
    blames += yield from _slow_ways(unexplained, good, evidence)
    return tuple(blames)


def _pairs_among(doubtful: Sequence[str], pairs: Iterable[Probe]) -> list[Probe]:
    """Return all pairs of doubtful nodes; a pair that was measured keeps its direction."""
    measured: dict[frozenset[str], Probe] = {}
    for probe in pairs:
        measured[frozenset(probe.nodes)] = probe
    among: list[Probe] = []
    for ends in itertools.combinations(doubtful, 2):
        known = measured.get(frozenset(ends))
        among.append(known or Probe("pair", ends))
    return among


def _often_slow(nodes: Sequence[str], confirmed: frozenset[str], pairs: Verdicts) -> list[str]:
    """Return nodes that are slow with a quarter of their partners and with at least two."""
    tried: Counter[str] = Counter()
    slow: Counter[str] = Counter()
    for probe, is_slow in pairs.items():
        if is_slow is None:
            continue
        tried.update(probe.nodes)
        if is_slow:
            slow.update(probe.nodes)
    doubtful: list[str] = []
    for node in nodes:
        count = slow[node]
        is_often_slow = count > 1 and 4 * count >= tried[node]
        if node in confirmed or is_often_slow:
            doubtful.append(node)
    return doubtful


def _guilty_pieces(
    nodes: Sequence[str], pieces: Sequence[Piece], confirmed: frozenset[str], pairs: Verdicts
) -> list[Piece]:
    """Return the pieces that are slow with most other nodes.

    If every node is in a piece, the largest piece stands for the healthy nodes.
    """
    suspected = list(pieces)
    if sum(map(len, pieces)) == len(nodes):
        suspected.remove(max(pieces, key=len))
    tried, slow = _count_outside(suspected, pairs)
    guilty: list[Piece] = []
    for piece in suspected:
        is_confirmed = not confirmed.isdisjoint(piece)
        if is_confirmed or 2 * slow[piece] > tried[piece]:
            guilty.append(piece)
    return guilty


def _count_outside(
    pieces: Sequence[Piece], pairs: Verdicts
) -> tuple[Counter[Piece], Counter[Piece]]:
    """Count the decided pairs, and the slow ones, of each piece with nodes in no other piece."""
    home: dict[str, Piece] = {}
    for piece in pieces:
        home.update(dict.fromkeys(piece, piece))
    tried: Counter[Piece] = Counter()
    slow: Counter[Piece] = Counter()
    for probe, is_slow in pairs.items():
        touched = [home[node] for node in probe.nodes if node in home]
        if len(touched) != 1 or is_slow is None:
            continue
        tried.update(touched)
        if is_slow:
            slow.update(touched)
    return tried, slow


def _pieces(bad: Sequence[str], verdicts: Verdicts) -> list[Piece]:
    """Join bad nodes by their fast pairs: nodes below one bad switch, or single bad nodes."""
    head = {node: node for node in bad}

    def top(node: str) -> str:
        while head[node] != node:
            node = head[node]
        return node

    for probe, is_slow in verdicts.items():
        if is_slow is False:
            first, second = map(top, probe.nodes)
            head[first] = second
    parts: dict[str, list[str]] = {}
    for node in bad:
        parts.setdefault(top(node), []).append(node)
    return list(map(tuple, parts.values()))


def _nodes_or_rails(
    bad: Sequence[str],
    nodes: Sequence[str],
    piece_numbers: Mapping[str, int],
    evidence: ProbeEvidence,
) -> Steps[list[LocatedFault]]:
    """Run each bad node with a partner on one rail at a time: some rails are slow, or the node is.

    A bad node may be below a bad switch, which cannot be seen from outside. So if a switch is bad,
    the node is tried with a partner on either side of it.
    """
    rails = range(evidence.settings.rails)
    others = without(nodes, bad)
    if not bad or len(others) < 2 or not rails:
        return [LocatedFault("node", (node,)) for node in bad]
    healthy = without(others, piece_numbers)
    yield from calibrate("rail", healthy, evidence)
    place = positions(nodes)
    slow_rails: dict[str, list[int]] = {}
    for side in _sides(others, piece_numbers):
        # A node that is slow on some rails only with one partner needs no other.
        remaining: list[str] = []
        for node in bad:
            slow = slow_rails.get(node, rails)
            if len(slow) == len(rails):
                remaining.append(node)
        pairs = partners(remaining, side, place, far=False)
        slow_rails.update((yield from _slow_rails(dict(pairs), rails, evidence)))
    blames: list[LocatedFault] = []
    for node in bad:
        blames += _rails_of(node, slow_rails[node], len(rails))
    return blames


def _sides(others: Iterable[str], piece_numbers: Mapping[str, int]) -> list[list[str]]:
    """Return the healthy nodes, then the nodes of each piece."""
    sides: dict[int, list[str]] = {}
    for node in others:
        number = piece_numbers.get(node, 0)
        sides.setdefault(number, []).append(node)
    return [sides[number] for number in sorted(sides)]


def _slow_rails(
    pairs: Mapping[str, tuple[str, str]], rails: Sequence[int], evidence: ProbeEvidence
) -> Steps[dict[str, list[int]]]:
    """Measure the pair of each node on one rail at a time. Returns the rails that are slow."""
    probes: list[Probe] = []
    for pair in pairs.values():
        probes += [Probe("rail", pair, rail) for rail in rails]
    is_slow = yield from run_probes(evidence, probes, -SURE, SURE)
    slow: dict[str, list[int]] = {node: [] for node in pairs}
    for probe in probes:
        node, _ = probe.nodes
        if is_slow[probe] and probe.rail is not None:
            slow[node].append(probe.rail)
    return slow


def _rails_of(node: str, slow: Sequence[int], rails: int) -> list[LocatedFault]:
    """Blame some rails as network cards; if all rails or none are slow alone, blame the node."""
    if 0 < len(slow) < rails:
        return [LocatedFault("rail", (node,), rail) for rail in slow]
    return [LocatedFault("node", (node,))]


def _slow_ways(
    pairs: Sequence[Probe], good: Sequence[str], evidence: ProbeEvidence
) -> Steps[list[LocatedFault]]:
    """Measure each slow pair in both directions.

    If neither direction is slow by itself, the pair is measured anew and has to be slow once more.
    """
    if not pairs:
        return []
    ways: list[Probe] = []
    for pair in pairs:
        ways += _both_ways(pair)
    yield from calibrate("way", good, evidence)
    is_slow = yield from run_probes(evidence, ways, -SURE, SURE)
    slow_ways: dict[Probe, list[Probe]] = {}
    doubted: list[Probe] = []
    for pair in pairs:
        slow_ways[pair] = [way for way in _both_ways(pair) if is_slow[way]]
        if not slow_ways[pair]:
            doubted.append(pair)
    evidence.doubt(doubted)
    is_slow_again = yield from run_probes(evidence, doubted, -SURE, SURE)
    blames: list[LocatedFault] = []
    for pair, slow in slow_ways.items():
        if not slow and is_slow_again[pair]:
            slow = _both_ways(pair)  # noqa: PLW2901
        if slow:
            ways_of_pair = tuple(map(_ends, slow))
            blames.append(LocatedFault("pair", pair.nodes, ways=ways_of_pair))
    return blames


def _both_ways(pair: Probe) -> list[Probe]:
    first, second = pair.nodes
    return [Probe("way", (first, second)), Probe("way", (second, first))]


def _ends(probe: Probe) -> tuple[str, str]:
    first, second = probe.nodes
    return first, second
