"""The charts of the HTML report as numbers of an SVG: bandwidth against size, and who arrived when. No style here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.model import CollectiveResult, RankRow, Stage
from clusterprep.model.units import format_size
from clusterprep.reports.plain import counted, duration, folded_ranks
from clusterprep.runtime.lazy_dataclass import dataclass

WIDTH, HEIGHT = 720, 260  # of the bandwidth chart
LEFT, RIGHT, TOP, BOTTOM = 64, 128, 12, 34
APART = 13  # between the names of two lines
LINES = 8  # of different collectives
LANES = 24  # nodes with a lane of their own; of more, those whose ranks are missing
LANE = 20  # height
LABEL = 150  # width of the nodes' names
FASTEST = 0.001  # seconds at which the axis of arrivals begins


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Curve:
    """One collective: its line, its points, and where its name stands."""

    name: str
    number: int
    path: str
    points: tuple[Point, ...]
    label_y: float


@dataclass(frozen=True)
class Bandwidth:
    curves: tuple[Curve, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def bandwidth(rows: Iterable[CollectiveResult]) -> Bandwidth | None:
    """Bus bandwidth in GB/s against bytes, both by powers; None where there is nothing to draw a line through."""
    by_name: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.bytes > 0 and row.busbw_gbs > 0 and math.isfinite(row.busbw_gbs):
            by_name.setdefault(
                f"{row.op} {'' if row.dtype == 'float32' else row.dtype}".strip(), {}
            )[row.bytes] = row.busbw_gbs
    points = [point for series in by_name.values() for point in series.items()]
    if len({size for size, _ in points}) < 2:
        return None
    low, high = min(size for size, _ in points), max(size for size, _ in points)
    least = math.floor(math.log10(min(rate for _, rate in points)))
    most = math.ceil(math.log10(max(rate for _, rate in points)) + 1e-9)
    most = max(most, least + 1)
    x = _scale(math.log2(low), math.log2(high), LEFT, WIDTH - RIGHT)
    y = _scale(least, most, HEIGHT - BOTTOM, TOP)
    longest = sorted(by_name.items(), key=lambda item: -len(item[1]))[:LINES]
    curves = [_curve(name, number, series, x, y) for number, (name, series) in enumerate(longest)]
    sizes = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    across = tuple(
        Tick(x(power), format_size(2**power)) for power in sizes if power % _step(len(sizes)) == 0
    )
    up = tuple(Tick(y(power), f"{10.0**power:g}") for power in range(least, most + 1))
    return Bandwidth(_spread(curves), across, up)


def _curve(name: str, number: int, series: Mapping[int, float], x: _Scale, y: _Scale) -> Curve:
    points = tuple(
        Point(
            x(math.log2(size)), y(math.log10(rate)), f"{name} {format_size(size)}: {rate:.3g} GB/s"
        )
        for size, rate in sorted(series.items())
    )
    path = "M" + "L".join(f"{point.x:.1f} {point.y:.1f}" for point in points)
    return Curve(name, number, path if len(points) > 1 else "", points, points[-1].y + 4)


def _spread(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """Names at the ends of lines, moved apart where they would cover each other."""
    placed: list[Curve] = []
    floor = -math.inf
    for curve in sorted(curves, key=lambda one: one.label_y):
        at = max(curve.label_y, floor + APART)
        placed.append(Curve(curve.name, curve.number, curve.path, curve.points, at))
        floor = at
    return tuple(sorted(placed, key=lambda one: one.number))


def _step(powers: int) -> int:
    """Every how many powers of two a size is written."""
    return 1 if powers <= 8 else 2 if powers <= 14 else 4 if powers <= 24 else 10


class _Scale:
    """From one range to another."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._span = low, (high - low) or 1.0
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        return round(self._start + (value - self._low) / self._span * self._length, 1)


def _scale(low: float, high: float, start: float, end: float) -> _Scale:
    return _Scale(low, high, start, end)


# ---------------------------------------------------------------- arrivals


@dataclass(frozen=True)
class ChartLane:
    """A node, or all that are not shown: when its ranks arrived, and which never did."""

    name: str
    y: int
    marks: tuple[Point, ...]
    span: (
        tuple[float, float] | None
    )  # from the first to the last arrival, where a lane is of many nodes
    missing: str


@dataclass(frozen=True)
class Arrivals:
    """Of one stage that did not end: time goes to the right, by powers of ten."""

    stage: str
    lanes: tuple[ChartLane, ...]
    ticks: tuple[Tick, ...]
    seconds: str
    height: int
    left: int = LABEL
    right: int = WIDTH - 12
    width: int = WIDTH


def arrivals(stages: Iterable[Stage], ranks: Sequence[RankRow]) -> tuple[Arrivals, ...]:
    """A timeline for each stage in which ranks waited for others that did not come."""
    return tuple(
        _arrivals(stage, ranks) for stage in stages if stage.verdict == "fail" and stage.after
    )


def _arrivals(stage: Stage, ranks: Sequence[RankRow]) -> Arrivals:
    end = max(stage.seconds, *stage.after, FASTEST * 10)
    x = _scale(math.log10(FASTEST), math.log10(end), LABEL, WIDTH - 12)
    came = dict(zip(stage.arrived, stage.after, strict=False))
    missing = set(stage.missing)
    homes: dict[str, list[int]] = {}
    for row in ranks:
        homes.setdefault(row.node, []).append(row.rank)
    shown = (
        homes
        if len(homes) <= LANES
        else {node: own for node, own in homes.items() if missing.intersection(own)}
    )
    shown = dict(list(shown.items())[:LANES])
    lanes = [
        _lane(node, own, came, missing, x, place) for place, (node, own) in enumerate(shown.items())
    ]
    if rest := {node: own for node, own in homes.items() if node not in shown}:
        lanes.append(_others(rest, came, missing, x, len(lanes)))
    powers = range(round(math.log10(FASTEST)), math.floor(math.log10(end)) + 1)
    ticks = tuple(Tick(x(power), duration(10.0**power)) for power in powers)
    return Arrivals(
        stage.name, tuple(lanes), ticks, duration(stage.seconds), LANE * len(lanes) + 34
    )


def _lane(
    node: str,
    own: Sequence[int],
    came: Mapping[int, float],
    missing: set[int],
    x: _Scale,
    place: int,
) -> ChartLane:
    y = _middle(place)
    marks = tuple(
        Point(_at(came[rank], x), y, f"rank {rank}: after {duration(came[rank])}")
        for rank in own
        if rank in came
    )
    late = [rank for rank in own if rank in missing]
    return ChartLane(node, y, marks, None, f"rank {folded_ranks(late)} missing" if late else "")


def _others(
    homes: Mapping[str, Sequence[int]],
    came: Mapping[int, float],
    missing: set[int],
    x: _Scale,
    at: int,
) -> ChartLane:
    """Many nodes in one lane."""
    ranks = [rank for own in homes.values() for rank in own]
    times = [came[rank] for rank in ranks if rank in came]
    late = sum(rank in missing for rank in ranks)
    span = (_at(min(times), x), _at(max(times), x)) if times else None
    words = f"{counted(late, 'rank')} missing" if late else ""
    return ChartLane(f"{counted(len(homes), 'other node')}", _middle(at), (), span, words)


def _middle(place: int) -> int:
    """Of a lane, with room for a word above the first."""
    return LANE * place + LANE // 2 + 4


def _at(seconds: float, x: _Scale) -> float:
    return x(math.log10(max(seconds, FASTEST)))
