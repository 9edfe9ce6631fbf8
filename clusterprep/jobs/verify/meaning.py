"""What measured pairs mean: a node, one of its network cards, a switch, or the pair itself. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from clusterprep.jobs.verify.probes import (
    SURE,
    Probe,
    ProbeEvidence,
    Steps,
    calibrated,
    decided,
    partners,
)
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Blame:
    """A culprit: a node, one of its rails, the directions of a pair that are bad, or the boundary around some nodes."""

    kind: Literal["node", "rail", "pair", "boundary"]
    nodes: tuple[str, ...]
    rail: int | None = None
    ways: tuple[tuple[str, str], ...] = ()


def explained(
    nodes: Sequence[str],
    confirmed: frozenset[str],
    pairs: dict[Probe, bool | None],
    evidence: ProbeEvidence,
) -> Steps[tuple[Blame, ...]]:
    doubtful = _often_slow(nodes, confirmed, pairs)
    measured = {frozenset(probe.nodes): probe for probe in pairs}
    among = [Probe("pair", (a, b)) for at, a in enumerate(doubtful) for b in doubtful[at + 1 :]]
    among = [measured.get(frozenset(probe.nodes), probe) for probe in among]
    inside = yield from decided(evidence, among, -SURE, SURE)
    pairs = {**pairs, **inside}
    pieces = _pieces(doubtful, [probe.nodes for probe, slow in inside.items() if slow is False])
    pieces = _guilty(nodes, pieces, confirmed, pairs)
    guilty = {node for piece in pieces for node in piece}
    good = [node for node in nodes if node not in guilty]
    found = [Blame("boundary", piece) for piece in pieces if len(piece) > 1]
    parts = {node: number for number, piece in enumerate(pieces, 1) for node in piece}
    found += yield from _rails(
        [piece[0] for piece in pieces if len(piece) == 1], nodes, parts, evidence
    )
    left = [
        p for p, slow in pairs.items() if slow and parts.get(p.nodes[0]) == parts.get(p.nodes[1])
    ]
    found += yield from _ways(left, good, evidence)
    return tuple(found)


def _often_slow(
    nodes: Sequence[str], confirmed: frozenset[str], pairs: Mapping[Probe, bool | None]
) -> list[str]:
    """Nodes that are slow with a quarter of their partners, and two of them at least: worth a closer look."""
    tried: Counter[str] = Counter()
    slow: Counter[str] = Counter()
    for probe, verdict in pairs.items():
        if verdict is not None:
            tried.update(probe.nodes)
        if verdict:
            slow.update(probe.nodes)
    return [
        node
        for node in nodes
        if node in confirmed or (slow[node] > 1 and 4 * slow[node] >= tried[node])
    ]


def _guilty(
    nodes: Sequence[str],
    pieces: Sequence[tuple[str, ...]],
    confirmed: frozenset[str],
    pairs: Mapping[Probe, bool | None],
) -> list[tuple[str, ...]]:
    """The pieces that are slow with most of the rest, which is the largest piece where nobody else is left."""
    home = {node: piece for piece in pieces for node in piece}
    if len(home) == len(nodes):
        largest = max(pieces, key=len)
        home = {node: piece for node, piece in home.items() if piece is not largest}
    tried: Counter[tuple[str, ...]] = Counter()
    slow: Counter[tuple[str, ...]] = Counter()
    for probe, verdict in pairs.items():
        inside = [home[node] for node in probe.nodes if node in home]
        if len(inside) == 1 and verdict is not None:
            tried.update(inside)
            slow.update(inside if verdict else ())
    found = dict.fromkeys(home.values())
    return [
        piece
        for piece in found
        if not confirmed.isdisjoint(piece) or 2 * slow[piece] > tried[piece]
    ]


def _pieces(bad: Sequence[str], fast: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The bad nodes in parts that are joined by fast pairs: nodes below one bad switch, or single bad nodes."""
    head = {node: node for node in bad}

    def top(node: str) -> str:
        while head[node] != node:
            node = head[node]
        return node

    for a, b in fast:
        head[top(a)] = top(b)
    parts: dict[str, list[str]] = {}
    for node in bad:
        parts.setdefault(top(node), []).append(node)
    return [tuple(part) for part in parts.values()]


def _rails(
    bad: Sequence[str], nodes: Sequence[str], parts: Mapping[str, int], evidence: ProbeEvidence
) -> Steps[list[Blame]]:
    """Each bad node with a partner on one rail at a time: some rails are slow, or the node is.

    Below which switch a bad node is cannot be seen, so where one is bad it is tried with a partner on either side.
    """
    rails = range(evidence.settings.rails)
    others = [node for node in nodes if node not in bad]
    if not bad or len(others) < 2 or not rails:
        return [Blame("node", (node,)) for node in bad]
    yield from calibrated("rail", [node for node in others if not parts.get(node)], evidence)
    place = {node: at for at, node in enumerate(nodes)}
    slow: dict[str, list[int]] = {node: list(rails) for node in bad}
    for part in sorted({parts.get(node, 0) for node in others}):
        left = [node for node in bad if len(slow[node]) == len(rails)]
        side = [node for node in others if parts.get(node, 0) == part]
        mine = {
            n: [Probe("rail", pair, r) for r in rails]
            for n, pair in partners(left, side, place, far=False)
        }
        found = yield from decided(
            evidence, [p for probes in mine.values() for p in probes], -SURE, SURE
        )
        for node, probes in mine.items():
            slow[node] = [probe.rail for probe in probes if found[probe] and probe.rail is not None]
    return [blame for node in bad for blame in _parts_of(node, slow[node], len(rails))]


def _parts_of(node: str, slow: Sequence[int], rails: int) -> list[Blame]:
    """Some rails are bad network cards; all of them, or none by itself, are the node."""
    return (
        [Blame("rail", (node,), rail) for rail in slow]
        if 0 < len(slow) < rails
        else [Blame("node", (node,))]
    )


def _ways(
    pairs: Sequence[Probe], good: Sequence[str], evidence: ProbeEvidence
) -> Steps[list[Blame]]:
    """Each slow pair in both directions. Where neither is slow by itself, the pair has to be so once more."""
    if not pairs:
        return []
    pair_by_nodes = {probe.nodes: probe for probe in pairs}
    mine = {
        probe.nodes: [Probe("way", probe.nodes), Probe("way", probe.nodes[::-1])] for probe in pairs
    }
    yield from calibrated("way", good, evidence)
    found = yield from decided(evidence, [p for both in mine.values() for p in both], -SURE, SURE)
    ways = {
        nodes: tuple((p.nodes[0], p.nodes[1]) for p in both if found[p])
        for nodes, both in mine.items()
    }
    doubted = [pair_by_nodes[nodes] for nodes, slow in ways.items() if not slow]
    evidence.doubt(doubted)
    again = yield from decided(evidence, doubted, -SURE, SURE)
    return [
        Blame("pair", nodes, ways=slow or (nodes[:2], nodes[1::-1]))  # type: ignore[arg-type]
        for nodes, slow in ways.items()
        if slow or again[pair_by_nodes[nodes]]
    ]
