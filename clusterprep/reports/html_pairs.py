"""Measured pairs of nodes as a heat map: how fast each reaches each other one; large fleets in blocks of nodes."""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from clusterprep.facts.pairs import Dial
from clusterprep.model import Report
from clusterprep.reports.html_nodes import Roster
from clusterprep.reports.plain import clean, duration, field
from clusterprep.runtime.lazy_dataclass import dataclass

SIDE = 40  # rows and columns; of more nodes several share one
WORST = 12  # pairs that are listed below
NUMBERS = 12  # rows up to which there is room for figures
NAME = 32  # characters of a row's name
SHARES = (0.0, 0.02, 0.1, 0.5)  # of the pairs of a block that are bad
BAD = 4  # the level of a pair that does not connect

Pair = tuple[str, str]
Worst = tuple[tuple[str, str, str], ...]  # from, to, figure


@dataclass(frozen=True)
class Spot:
    """One cell: its place, its level (0 as usual to 4 blocked) and what it says."""

    x: int
    y: int
    level: int
    text: str
    title: str


@dataclass(frozen=True)
class Heatmap:
    title: str
    said: str
    legend: tuple[str, ...]  # of levels
    names: tuple[str, ...]
    spots: tuple[Spot, ...]
    worst: Worst
    cell: int
    tall: int
    left: int
    top: int

    @property
    def width(self) -> int:
        return self.left + self.cell * len(self.names) + 2

    @property
    def height(self) -> int:
        return self.top + self.tall * len(self.names) + 2


@dataclass(frozen=True)
class _Found:
    """What is known of all pairs: figures, why some have none, and how many times worse than usual each is."""

    good: Mapping[Pair, float]
    bad: Mapping[Pair, str]
    worse: Mapping[Pair, float]
    usual: float


@dataclass(frozen=True)
class _Measure:
    """A figure of pairs: how it is written, and how much worse than usual one is (1 is as usual)."""

    title: str
    unit: Callable[[float], str]
    bare: Callable[[float], str]
    worse: Callable[[float, float], float]
    steps: tuple[float, float, float]  # from how many times worse a level begins
    words: str


_SPEED = _Measure(
    "Bandwidth between nodes",
    lambda value: f"{value:.3g} GB/s",
    lambda value: f"{value:.3g}",
    lambda value, usual: usual / value if value else math.inf,
    (1.25, 2.0, 5.0),
    "GB/s by TCP from the node on the left to the node on top, while nobody else sends",
)
_TRIP = _Measure(
    "Round trip between nodes",
    duration,
    lambda value: f"{value * 1e3:.2g}",
    lambda value, usual: value / usual if usual else 1.0,
    (2.0, 5.0, 20.0),
    "milliseconds of one TCP round trip, dialled by the node on the left",
)


def heats(report: Report, roster: Roster) -> tuple[Heatmap, ...]:
    """The maps that the report has figures for."""
    found = [_heat(_SPEED, *_speeds(report), roster), _heat(_TRIP, *_trips(report), roster)]
    return tuple(heat for heat in found if heat is not None)


def _speeds(report: Report) -> tuple[dict[Pair, float], dict[Pair, str]]:
    """Both directions of each pair that the links stage measured, and those that it could not."""
    good: dict[Pair, float] = {}
    bad: dict[Pair, str] = {}
    for pair in report.verify.pairs if report.verify else ():
        a, b = pair.nodes
        if pair.word != "ok":
            bad[a, b] = bad[b, a] = pair.word
        else:
            good |= {(a, b): pair.there_gbs or 0.0, (b, a): pair.back_gbs or 0.0}
    return good, bad


def _trips(report: Report) -> tuple[dict[Pair, float], dict[Pair, str]]:
    """What each node found when it dialled others."""
    good: dict[Pair, float] = {}
    bad: dict[Pair, str] = {}
    for node in report.nodes or ():
        dials = node.facts.get("net.dials")
        for dial in dials if isinstance(dials, (tuple, list)) else ():
            row = dial if isinstance(dial, Dial) else _dial(dial)
            if row.word != "ok":
                bad[row.dialer, row.listener] = row.word
            elif row.rtt is not None:
                pair = (row.dialer, row.listener)
                good[pair] = max(good.get(pair, 0.0), row.rtt)
    return good, bad


def _dial(kept: Any) -> Dial:
    """Of a fact as a report kept it: what cannot be read was not measured."""
    row = kept if isinstance(kept, Mapping) else {}
    rtt = row.get("rtt")
    told = rtt if isinstance(rtt, (int, float)) else None
    return Dial(str(row.get("dialer")), str(row.get("listener")), "", 0, str(row.get("word")), told)


def _heat(
    measure: _Measure, good: Mapping[Pair, float], bad: Mapping[Pair, str], roster: Roster
) -> Heatmap | None:
    there = {name for pairs in (good, bad) for pair in pairs for name in pair}
    nodes = [name for name in roster.names if name in there]
    if len(nodes) < 2 or not good:
        return None
    usual = statistics.median(good.values())
    worse = {pair: measure.worse(value, usual) for pair, value in good.items()}
    found = _Found(good, bad, worse | dict.fromkeys(bad, math.inf), usual)
    known = set(nodes)
    slow = (
        pair
        for pair, much in found.worse.items()
        if much > measure.steps[0] and known.issuperset(pair)
    )
    listed = heapq.nlargest(WORST, slow, key=found.worse.__getitem__)
    worst = tuple((*pair, _figure(measure, found, pair)) for pair in listed)
    if len(nodes) <= SIDE:
        return _each(measure, found, nodes, worst)
    return _blocks(measure, found, nodes, worst)


def _each(measure: _Measure, found: _Found, nodes: list[str], worst: Worst) -> Heatmap:
    """A row and a column for each node."""
    place = {name: number for number, name in enumerate(nodes)}
    roomy = len(nodes) <= NUMBERS
    spots = []
    for pair in sorted(found.worse, key=lambda pair: (place[pair[0]], place[pair[1]])):
        short = "×" if pair in found.bad else measure.bare(found.good[pair]) if roomy else ""
        title = f"{pair[0]} → {pair[1]}: {_figure(measure, found, pair)}"
        spots.append(
            Spot(place[pair[1]], place[pair[0]], _level(measure, found, pair), short, title)
        )
    than = "under" if measure is _SPEED else "over"
    limits = [
        found.usual / step if measure is _SPEED else found.usual * step for step in measure.steps
    ]
    legend = (
        f"as usual ({measure.unit(found.usual)})",
        *(f"{than} {measure.unit(limit)}" for limit in limits),
    )
    names = tuple(_short(name) for name in nodes)
    return Heatmap(
        measure.title,
        measure.words,
        (*legend, "× no connection"),
        names,
        tuple(spots),
        worst,
        *_sizes(names),
    )


def _blocks(measure: _Measure, found: _Found, nodes: list[str], worst: Worst) -> Heatmap:
    """Several nodes in a row: what counts is the share of their pairs that are bad."""
    size = -(-len(nodes) // SIDE)
    place = {name: number // size for number, name in enumerate(nodes)}
    every: Counter[tuple[int, int]] = Counter()
    broken: Counter[tuple[int, int]] = Counter()
    for pair in found.worse:
        spot = (place.get(pair[1], -1), place.get(pair[0], -1))
        every[spot] += 1
        if pair in found.bad or found.worse[pair] > measure.steps[1]:
            broken[spot] += 1
    names = tuple(
        _short(f"{nodes[at]}–{nodes[min(at + size, len(nodes)) - 1]}")
        for at in range(0, len(nodes), size)
    )
    spots = []
    for (x, y), number in sorted(every.items()):
        if min(x, y) >= 0:
            few = broken[x, y]
            level = sum(few / number > share for share in SHARES)
            spots.append(
                Spot(
                    x, y, level, "", f"{names[y]} → {names[x]}: {few:,} of {number:,} pairs are bad"
                )
            )
    limit = measure.unit(
        found.usual / measure.steps[1] if measure is _SPEED else found.usual * measure.steps[1]
    )
    said = f"{measure.words}; each field is a block of nodes, and a pair is bad beyond {limit} or without connection"
    legend = ("no pair is bad", *(f"more than {share:.0%}" for share in SHARES[1:]))
    legend = (legend[0], "a few", *legend[1:])
    return Heatmap(measure.title, said, legend, names, tuple(spots), worst, *_sizes(names))


def _figure(measure: _Measure, found: _Found, pair: Pair) -> str:
    return (
        field(found.bad[pair].replace("_", " "), 40)
        if pair in found.bad
        else measure.unit(found.good[pair])
    )


def _level(measure: _Measure, found: _Found, pair: Pair) -> int:
    return BAD if pair in found.bad else sum(found.worse[pair] > step for step in measure.steps)


def _short(name: str) -> str:
    name = clean(name)
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def _sizes(names: tuple[str, ...]) -> tuple[int, int, int, int]:
    """Width and height of a field, and the room for the names on both sides."""
    margin = 10 + 7 * max(map(len, names))
    return (46, 24, margin, margin) if len(names) <= NUMBERS else (16, 16, margin, margin)
