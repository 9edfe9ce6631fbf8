"""Heat maps of the HTML report: how fast each node reaches each other node.

A map of many nodes has a row and a column for several nodes, because a browser cannot draw millions
of cells.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from clusterprep.facts.pairs import Dial
from clusterprep.model import Report
from clusterprep.reports.html_nodes import Roster
from clusterprep.reports.plain import clean, format_seconds, safe_text

SIDE = 40  # rows and columns; of more nodes several share one
WORST = 12  # pairs that are listed below the map
NUMBERS = 12  # rows up to which there is room for figures in the cells
NAME = 32  # characters of a row's name
BLOCKED = 4  # the level of a pair that does not connect
# The level of a block of nodes rises at each of these shares of bad pairs.
SHARES = (0.0, 0.02, 0.1, 0.5)

# In pixels.
ROOMY_CELL = (46, 24)  # width and height of a cell with a figure
SMALL_CELL = (16, 16)
CHARACTER = 7  # width of a character of a row's name
MARGIN = 10  # beside the names

Pair = tuple[str, str]  # from, to
_Counts = Counter[tuple[int, int]]  # column and row -> number
Worst = tuple[tuple[str, str, str], ...]  # from, to, figure


class Spot(Struct, frozen=True):
    """One cell: its column and row, its level (0 as usual to 4 blocked) and its texts."""

    x: int
    y: int
    level: int
    text: str
    title: str


class Heatmap(Struct, frozen=True):
    title: str
    caption: str
    legend: tuple[str, ...]  # by level
    names: tuple[str, ...]  # of the rows, which are those of the columns too
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


class _Measure(Struct, frozen=True):
    """A figure of pairs, and how it is written and compared."""

    title: str
    caption: str
    unit: Callable[[float], str]  # the figure with its unit
    bare: Callable[[float], str]  # the figure for a cell
    worse: Callable[[float, float], float]  # how many times worse a figure is than the usual one
    limit: Callable[[float, float], float]  # the figure that is so many times worse than the usual
    than: str  # "over" or "under" such a figure
    steps: tuple[float, float, float]  # from how many times worse a level begins


class _Figures(Struct, frozen=True):
    """Figures of the pairs that have one, and for all others why they do not connect."""

    good: Mapping[Pair, float]
    bad: Mapping[Pair, str]


class _Map(Struct, frozen=True):
    """All that is known of the pairs of a measure."""

    measure: _Measure
    figures: _Figures
    usual: float
    # How many times worse than usual; infinite without a connection. Only of `nodes`.
    worse: Mapping[Pair, float]
    nodes: tuple[str, ...]  # with figures, in the order of the roster

    def figure(self, pair: Pair) -> str:
        """Return the figure with its unit, or why there is none."""
        if pair in self.figures.bad:
            reason = self.figures.bad[pair].replace("_", " ")
            return safe_text(reason, 40)
        return self.measure.unit(self.figures.good[pair])

    def level(self, pair: Pair) -> int:
        """Return 0 for a pair that is as usual to 4 for one that does not connect."""
        if pair in self.figures.bad:
            return BLOCKED
        return _steps_passed(self.measure.steps, self.worse[pair])

    def limit(self, step: float) -> str:
        """Return the figure, with its unit, that is `step` times worse than usual."""
        return self.measure.unit(self.measure.limit(self.usual, step))


_SPEED = _Measure(
    title="Bandwidth between nodes",
    caption="GB/s by TCP from the node on the left to the node on top, while no other node sends",
    unit=lambda value: f"{value:.3g} GB/s",
    bare=lambda value: f"{value:.3g}",
    worse=lambda value, usual: usual / value if value else math.inf,
    limit=lambda usual, step: usual / step,
    than="under",
    steps=(1.25, 2.0, 5.0),
)
_ROUND_TRIP = _Measure(
    title="Round trip between nodes",
    caption="milliseconds of one TCP round trip, dialled by the node on the left",
    unit=format_seconds,
    bare=lambda value: f"{value * 1e3:.2g}",
    worse=lambda value, usual: value / usual if usual else 1.0,
    limit=lambda usual, step: usual * step,
    than="over",
    steps=(2.0, 5.0, 20.0),
)


def heats(report: Report, roster: Roster) -> tuple[Heatmap, ...]:
    """Return the maps that the report has figures for."""
    maps = []
    for measure, figures in ((_SPEED, _speeds(report)), (_ROUND_TRIP, _round_trips(report))):
        pairs = _map(measure, figures, roster)
        if pairs is None:
            continue
        if len(pairs.nodes) <= SIDE:
            maps.append(_map_of_nodes(pairs))
        else:
            maps.append(_map_of_blocks(pairs))
    return tuple(maps)


def _speeds(report: Report) -> _Figures:
    """Return both directions of each pair that the trial measured or could not measure."""
    good: dict[Pair, float] = {}
    bad: dict[Pair, str] = {}
    if report.verify is None:
        return _Figures(good, bad)
    for pair in report.verify.pairs:
        a, b = pair.nodes
        if pair.word == "ok":
            good[a, b] = pair.there_gbs or 0.0
            good[b, a] = pair.back_gbs or 0.0
        else:
            bad[a, b] = pair.word
            bad[b, a] = pair.word
    return _Figures(good, bad)


def _round_trips(report: Report) -> _Figures:
    """Return what each node measured when it dialled others."""
    good: dict[Pair, float] = {}
    bad: dict[Pair, str] = {}
    for node in report.nodes or ():
        dials = node.facts.get("net.dials")
        # Anything else says that the fact is absent.
        if not isinstance(dials, (tuple, list)):
            continue
        for value in dials:
            dial = value if isinstance(value, Dial) else _parse_dial(value)
            pair = (dial.dialer, dial.listener)
            if dial.word != "ok":
                bad[pair] = dial.word
            elif dial.rtt is not None:
                good[pair] = max(good.get(pair, 0.0), dial.rtt)
    return _Figures(good, bad)


def _parse_dial(value: Any) -> Dial:
    """Return a dial of a stored report, where facts are JSON. Unreadable values become "None"."""
    row: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        row = value
    rtt = row.get("rtt")
    if not isinstance(rtt, (int, float)):
        rtt = None
    dialer = str(row.get("dialer"))
    listener = str(row.get("listener"))
    word = str(row.get("word"))
    return Dial(
        dialer=dialer,
        listener=listener,
        address="",
        port=0,
        word=word,
        rtt=rtt,
    )


def _map(measure: _Measure, figures: _Figures, roster: Roster) -> _Map | None:
    """Return what is known of the pairs; None if there are no figures or fewer than two nodes."""
    measured = set(chain.from_iterable(chain(figures.good, figures.bad)))
    nodes = tuple(name for name in roster.names if name in measured)
    if len(nodes) < 2 or not figures.good:
        return None
    usual = statistics.median(figures.good.values())
    worse = {}
    for pair, value in figures.good.items():
        worse[pair] = measure.worse(value, usual)
    worse |= dict.fromkeys(figures.bad, math.inf)
    if len(nodes) < len(measured):
        named = frozenset(nodes)
        worse = {pair: value for pair, value in worse.items() if named.issuperset(pair)}
    return _Map(
        measure=measure,
        figures=figures,
        usual=usual,
        worse=worse,
        nodes=nodes,
    )


def _worst(pairs: _Map) -> Worst:
    """Return the pairs that are listed, the worst first."""
    first_step = pairs.measure.steps[0]
    slow = [pair for pair, worse in pairs.worse.items() if worse > first_step]
    rows = []
    for pair in heapq.nlargest(WORST, slow, key=pairs.worse.__getitem__):
        figure = pairs.figure(pair)
        rows.append((*pair, figure))
    return tuple(rows)


def _map_of_nodes(pairs: _Map) -> Heatmap:
    """Return a map with a row and a column for each node."""
    place = {name: number for number, name in enumerate(pairs.nodes)}
    spots = []
    for pair in pairs.worse:
        source, target = pair
        level = pairs.level(pair)
        figure = pairs.figure(pair)
        title = f"{source} → {target}: {figure}"
        spot = Spot(
            x=place[target],
            y=place[source],
            level=level,
            text=_cell_text(pairs, pair),
            title=title,
        )
        spots.append(spot)
    spots.sort(key=lambda spot: (spot.y, spot.x))
    measure = pairs.measure
    usual = measure.unit(pairs.usual)
    legend = [f"as usual ({usual})"]
    for step in measure.steps:
        limit = pairs.limit(step)
        legend.append(f"{measure.than} {limit}")
    legend.append("× no connection")
    names = [_short(name) for name in pairs.nodes]
    return _heatmap(
        pairs,
        measure.caption,
        legend,
        names,
        spots,
    )


def _cell_text(pairs: _Map, pair: Pair) -> str:
    if pair in pairs.figures.bad:
        return "×"
    if len(pairs.nodes) > NUMBERS:
        return ""
    return pairs.measure.bare(pairs.figures.good[pair])


def _map_of_blocks(pairs: _Map) -> Heatmap:
    """Return a map with several nodes in a row. A cell's level is its share of bad pairs."""
    size = math.ceil(len(pairs.nodes) / SIDE)
    names = _block_names(pairs.nodes, size)
    step = pairs.measure.steps[1]
    total, broken = _count_by_block(pairs, size, step)
    spots = []
    for (x, y), number in sorted(total.items()):
        bad = broken[x, y]
        level = _steps_passed(SHARES, bad / number)
        title = f"{names[y]} → {names[x]}: {bad:,} of {number:,} pairs are bad"
        spots.append(
            Spot(
                x=x,
                y=y,
                level=level,
                text="",
                title=title,
            )
        )
    bad_pair = f"a pair is bad beyond {pairs.limit(step)} or without connection"
    caption = f"{pairs.measure.caption}; each field is a block of nodes, and {bad_pair}"
    legend = ["no pair is bad", "a few"]
    for share in SHARES[1:]:
        text = f"more than {share:.0%}"
        legend.append(text)
    return _heatmap(
        pairs,
        caption,
        legend,
        names,
        spots,
    )


def _block_names(nodes: Sequence[str], size: int) -> list[str]:
    """Return `n1–n7` for each block of `size` nodes."""
    names = []
    for first in range(0, len(nodes), size):
        block = nodes[first : first + size]
        name = _short(f"{block[0]}–{block[-1]}")
        names.append(name)
    return names


def _count_by_block(pairs: _Map, size: int, step: float) -> tuple[_Counts, _Counts]:
    """Return the number of all pairs and of bad pairs by column and row of their blocks.

    A pair is bad if it is more than `step` times worse than usual.
    """
    place = {}
    for number, name in enumerate(pairs.nodes):
        place[name] = number // size
    total: _Counts = Counter()
    broken: _Counts = Counter()
    for (source, target), worse in pairs.worse.items():
        cell = (place[target], place[source])
        total[cell] += 1
        if worse > step:
            broken[cell] += 1
    return total, broken


def _heatmap(
    pairs: _Map,
    caption: str,
    legend: Iterable[str],
    names: list[str],
    spots: Iterable[Spot],
) -> Heatmap:
    longest = max(map(len, names))
    margin = MARGIN + CHARACTER * longest
    width, height = SMALL_CELL
    if len(names) <= NUMBERS:
        width, height = ROOMY_CELL
    return Heatmap(
        title=pairs.measure.title,
        caption=caption,
        legend=tuple(legend),
        names=tuple(names),
        spots=tuple(spots),
        worst=_worst(pairs),
        cell=width,
        tall=height,
        left=margin,
        top=margin,
    )


def _steps_passed(steps: Iterable[float], value: float) -> int:
    """Return how many of the steps the value is above."""
    return sum(value > step for step in steps)


def _short(name: str) -> str:
    cleaned = clean(name)
    if len(cleaned) <= NAME:
        return cleaned
    return f"{cleaned[: NAME - 1]}…"
