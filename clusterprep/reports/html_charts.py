"""The numbers of the HTML report's SVG charts: bandwidth against size, and when ranks arrived."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.model import CollectiveResult, RankRow, Stage
from clusterprep.model.units import format_size, pluralize
from clusterprep.reports.plain import collective_name, fold_ranks, format_seconds

# In pixels.
WIDTH, HEIGHT = 720, 260  # of the bandwidth chart
LEFT, RIGHT, TOP, BOTTOM = 64, 128, 12, 34  # its margins
APART = 13  # between the names of two curves
LANE = 20  # height of a lane
LABEL = 150  # width of the nodes' names
LANES_RIGHT = WIDTH - 12  # where the lanes end
_TIME_AXIS = 34  # height of the axis below the lanes

CURVES = 8  # of different collectives
LANES = 24  # nodes with a lane of their own; of more nodes, those whose ranks are missing
FASTEST = 0.001  # seconds at which the axis of arrivals begins

Series = Mapping[int, float]  # bytes -> bus bandwidth in GB/s


class Tick(Struct, frozen=True):
    at: float
    text: str


class Point(Struct, frozen=True):
    x: float
    y: float
    text: str


class Curve(Struct, frozen=True):
    """One collective: its line, its points, and where its name is written."""

    name: str
    number: int
    path: str
    points: tuple[Point, ...]
    label_y: float


class Bandwidth(Struct, frozen=True):
    """The bandwidth chart. `across` are the ticks of the x axis, `up` those of the y axis.

    `least` is where the bandwidth lies that the largest all-reduce has to reach, if it is known.
    """

    curves: tuple[Curve, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    least: Tick | None
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


class _Scale:
    """Maps a value from one range to another, linearly."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low = low
        self._high = high
        self._span = (high - low) or 1.0
        self._start = start
        self._length = end - start

    def integers(self) -> range:
        """Return the integers in the range that values come from."""
        first = math.ceil(self._low)
        last = math.floor(self._high)
        return range(first, last + 1)

    def __call__(self, value: float) -> float:
        share = (value - self._low) / self._span
        return round(self._start + share * self._length, 1)


def bandwidth(rows: Iterable[CollectiveResult], least_gbs: float | None = None) -> Bandwidth | None:
    """Return the chart of bus bandwidth in GB/s against bytes, with logarithmic axes.

    `least_gbs` is what the largest all-reduce has to reach. None if there are fewer than two sizes,
    which make no line.
    """
    series = _series(rows)
    sizes: set[int] = set()
    rates: set[float] = set()
    for rate_by_size in series.values():
        sizes.update(rate_by_size)
        rates.update(rate_by_size.values())
    if len(sizes) < 2:
        return None
    if least_gbs is not None and least_gbs > 0:
        rates.add(least_gbs)
    x = _size_axis(sizes)
    y = _rate_axis(rates)
    curves = []
    longest_first = sorted(series, key=lambda name: -len(series[name]))
    for number, name in enumerate(longest_first[:CURVES]):
        curve = _curve(
            name,
            number,
            series[name],
            x,
            y,
        )
        curves.append(curve)
    return Bandwidth(_spread(curves), _size_ticks(x), _rate_ticks(y), _least_tick(least_gbs, y))


def _least_tick(least_gbs: float | None, y: _Scale) -> Tick | None:
    if least_gbs is None or least_gbs <= 0:
        return None
    return Tick(y(math.log10(least_gbs)), f"wanted at the largest size: {least_gbs:.3g}")


def _series(rows: Iterable[CollectiveResult]) -> dict[str, dict[int, float]]:
    """Return the rates that can be drawn, by collective and size."""
    series: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.bytes <= 0 or row.busbw_gbs <= 0 or not math.isfinite(row.busbw_gbs):
            continue
        name = collective_name(row.op, row.dtype)
        rate_by_size = series.setdefault(name, {})
        rate_by_size[row.bytes] = row.busbw_gbs
    return series


def _size_axis(sizes: Iterable[int]) -> _Scale:
    """Return the x axis, from the smallest to the largest size, for logarithms to base 2."""
    powers = [math.log2(size) for size in sizes]
    return _Scale(
        low=min(powers),
        high=max(powers),
        start=LEFT,
        end=WIDTH - RIGHT,
    )


def _rate_axis(rates: Iterable[float]) -> _Scale:
    """Return the y axis, from one power of ten to another, for logarithms to base 10."""
    powers = [math.log10(rate) for rate in rates]
    low = math.floor(min(powers))
    # A logarithm that is a little too small must not cut the curve.
    high = math.ceil(max(powers) + 1e-9)
    high = max(high, low + 1)
    return _Scale(
        low=low,
        high=high,
        start=HEIGHT - BOTTOM,
        end=TOP,
    )


def _size_ticks(x: _Scale) -> tuple[Tick, ...]:
    """Return ticks at powers of two, as many as there is room for."""
    powers = x.integers()
    step = _step(len(powers))
    ticks = []
    for power in powers:
        if power % step != 0:
            continue
        tick = Tick(x(power), format_size(2**power))
        ticks.append(tick)
    return tuple(ticks)


def _rate_ticks(y: _Scale) -> tuple[Tick, ...]:
    """Return ticks at powers of ten."""
    ticks = []
    for power in y.integers():
        tick = Tick(y(power), f"{10.0**power:g}")
        ticks.append(tick)
    return tuple(ticks)


def _curve(name: str, number: int, series: Series, x: _Scale, y: _Scale) -> Curve:
    points = []
    places = []
    for size, rate in sorted(series.items()):
        at_x = x(math.log2(size))
        at_y = y(math.log10(rate))
        text = f"{name} {format_size(size)}: {rate:.3g} GB/s"
        points.append(Point(at_x, at_y, text))
        places.append(f"{at_x:.1f} {at_y:.1f}")
    path = ""
    if len(points) > 1:
        path = "M" + "L".join(places)
    # The name stands beside the last point.
    label_y = points[-1].y + 4
    return Curve(
        name=name,
        number=number,
        path=path,
        points=tuple(points),
        label_y=label_y,
    )


def _spread(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """Move the names at the ends of curves apart where they would cover each other."""
    placed: list[Curve] = []
    lowest = -math.inf
    for curve in sorted(curves, key=lambda curve: curve.label_y):
        lowest = max(curve.label_y, lowest + APART)
        moved = replace(curve, label_y=lowest)
        placed.append(moved)
    placed.sort(key=lambda curve: curve.number)
    return tuple(placed)


def _step(powers: int) -> int:
    """Return every how many powers of two there is room for a size."""
    for most, step in ((8, 1), (14, 2), (24, 4)):
        if powers <= most:
            return step
    return 10


# ---------------------------------------------------------------- arrivals


class ChartLane(Struct, frozen=True):
    """A node, or all nodes that are not shown: when its ranks arrived, and which never did.

    `span` goes from the first to the last arrival in a lane of many nodes, which has no marks.
    """

    name: str
    y: int
    marks: tuple[Point, ...]
    span: tuple[float, float] | None
    missing: str


class Arrivals(Struct, frozen=True):
    """The chart of one stage that did not end: time goes to the right, by powers of ten."""

    stage: str
    lanes: tuple[ChartLane, ...]
    ticks: tuple[Tick, ...]
    seconds: str
    height: int
    left: int = LABEL
    right: int = LANES_RIGHT
    width: int = WIDTH


class _Timeline:
    """When the ranks of a stage arrived, on a logarithmic axis from FASTEST to the stage's end."""

    def __init__(self, stage: Stage) -> None:
        end = max(stage.seconds, *stage.after, FASTEST * 10)
        first = math.log10(FASTEST)
        last = math.log10(end)
        self.arrived = dict(zip(stage.arrived, stage.after, strict=False))
        self.missing = frozenset(stage.missing)
        self._scale = _Scale(
            low=first,
            high=last,
            start=LABEL,
            end=LANES_RIGHT,
        )

    def x(self, seconds: float) -> float:
        """Return the x of a time."""
        return self._scale(math.log10(max(seconds, FASTEST)))

    def ticks(self) -> tuple[Tick, ...]:
        """Return a tick for each power of ten."""
        ticks = []
        for power in self._scale.integers():
            text = format_seconds(10.0**power)
            ticks.append(Tick(self._scale(power), text))
        return tuple(ticks)


def arrivals(stages: Iterable[Stage], ranks: Sequence[RankRow]) -> tuple[Arrivals, ...]:
    """Return a chart for each stage in which ranks waited for others that did not come."""
    charts = []
    for stage in stages:
        if stage.verdict == "fail" and stage.after:
            chart = _arrivals(stage, ranks)
            charts.append(chart)
    return tuple(charts)


def _arrivals(stage: Stage, ranks: Iterable[RankRow]) -> Arrivals:
    timeline = _Timeline(stage)
    ranks_by_node: dict[str, list[int]] = {}
    for row in ranks:
        ranks_by_node.setdefault(row.node, []).append(row.rank)
    shown = _shown_nodes(ranks_by_node, timeline)
    lanes: list[ChartLane] = []
    for node in shown:
        lane = _lane(node, ranks_by_node.pop(node), timeline, _middle(len(lanes)))
        lanes.append(lane)
    # What remains are the nodes without a lane of their own.
    if ranks_by_node:
        lanes.append(_shared_lane(ranks_by_node, timeline, _middle(len(lanes))))
    took = format_seconds(stage.seconds)
    height = LANE * len(lanes) + _TIME_AXIS
    return Arrivals(
        stage=stage.name,
        lanes=tuple(lanes),
        ticks=timeline.ticks(),
        seconds=took,
        height=height,
    )


def _shown_nodes(ranks_by_node: Mapping[str, Sequence[int]], timeline: _Timeline) -> list[str]:
    """Return the nodes with a lane of their own: all, or of many those whose ranks are missing."""
    if len(ranks_by_node) <= LANES:
        return list(ranks_by_node)
    nodes = []
    for node, ranks in ranks_by_node.items():
        if timeline.missing.intersection(ranks):
            nodes.append(node)
    return nodes[:LANES]


def _lane(node: str, ranks: Sequence[int], timeline: _Timeline, y: int) -> ChartLane:
    marks = []
    for rank in ranks:
        if rank in timeline.arrived:
            seconds = timeline.arrived[rank]
            text = f"rank {rank}: after {format_seconds(seconds)}"
            marks.append(Point(timeline.x(seconds), y, text))
    missing = timeline.missing.intersection(ranks)
    late = ""
    if missing:
        late = f"rank {fold_ranks(missing)} missing"
    return ChartLane(
        name=node,
        y=y,
        marks=tuple(marks),
        span=None,
        missing=late,
    )


def _shared_lane(
    ranks_by_node: Mapping[str, Sequence[int]], timeline: _Timeline, y: int
) -> ChartLane:
    """Return one lane for many nodes."""
    times = []
    missing = 0
    for ranks in ranks_by_node.values():
        for rank in ranks:
            if rank in timeline.arrived:
                times.append(timeline.arrived[rank])
            if rank in timeline.missing:
                missing += 1
    name = pluralize(len(ranks_by_node), "other node")
    span = None
    if times:
        first = timeline.x(min(times))
        last = timeline.x(max(times))
        span = (first, last)
    late = ""
    if missing:
        late = f"{pluralize(missing, 'rank')} missing"
    return ChartLane(
        name=name,
        y=y,
        marks=(),
        span=span,
        missing=late,
    )


def _middle(lane: int) -> int:
    """Return the y of a lane's middle, with room for a text above the first lane."""
    return LANE * lane + LANE // 2 + 4
