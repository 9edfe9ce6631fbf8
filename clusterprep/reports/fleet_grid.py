"""The fleet as a grid by groups: a square for each node; those that are not well stand out.

`layout(report, roster)` places the squares, `shapes(grid)` draws them as elements of SVG. The same
elements stand in the HTML page and in the picture of `--format svg`; each of them brings the style.

Squares of healthy nodes are dashes of one line for each row, so that ten thousand nodes are a small
picture: its size grows with the nodes that are not well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from msgspec import Struct

from clusterprep.model import Report
from clusterprep.reports.html_nodes import ACCEPTED, KINDS, LABELS, PASS, Roster, level_of
from clusterprep.reports.plain import safe_text

# In pixels.
WIDTH = 720
LABEL_HEIGHT = 18
GAP = 16  # between groups
SLOT = 60  # the widths of blocks are multiples of it, so that blocks stand below each other
CHARACTER = 7.3  # width of a character of a label
LINE = 20  # height of the legend
# The side of a square with its gap, by the number of nodes of the fleet.
SIDES = ((256, 18), (1024, 12), (4096, 8))
SMALLEST_SIDE = 5

GROUPS = 64  # with a block of their own; the nodes of others share the last block
NAME = 24  # characters of a group's name
TITLED = 400  # squares that say which node they are and why; the others only have their colour
CHECKS = 4  # that the title of a square names
OTHERS = "other nodes"
MARKED_SIDE = 8  # the smallest square with room for the mark of an error
UNKNOWN = KINDS.index("u")
MEANINGS = {
    "f": "error",
    "w": "warning",
    "u": "unknown, would be an error",
    "q": "unknown, would be a warning",
}


class Square(Struct, frozen=True):
    """A node that is not well."""

    x: int
    y: int
    kind: str  # one of KINDS
    title: str
    check: str  # the first that says so, empty if none does


class Dashes(Struct, frozen=True):
    """Squares of healthy nodes: a line through the middle of a row, from x on."""

    x: int
    y: int
    length: int


class GroupBlock(Struct, frozen=True):
    label: str
    note: str  # how many of its nodes are well
    x: int
    y: int  # of the label's line
    rows: tuple[Dashes, ...]
    squares: tuple[Square, ...]


class FleetGrid(Struct, frozen=True):
    blocks: tuple[GroupBlock, ...]
    side: int
    height: int

    @property
    def total_height(self) -> int:
        """Return the height with the legend."""
        return self.height + 2 * LINE

    @property
    def square(self) -> int:
        """Return the side of a square without its gap."""
        return self.side - (2 if self.side >= MARKED_SIDE else 1)


class _State(Struct, frozen=True):
    """How bad a node is, and the checks that say so."""

    level: int
    checks: tuple[str, ...]


_WELL = _State(PASS, ())


def layout(report: Report, roster: Roster) -> FleetGrid | None:
    """Return the squares of all nodes in their places, or None if the report has no nodes."""
    if not report.nodes:
        return None
    states = _states(report)
    side = SMALLEST_SIDE
    for most, wide in reversed(SIDES):
        if len(roster.names) <= most:
            side = wide
    blocks = []
    x = 0
    y = 0
    below = 0  # where the next row of blocks begins
    groups = _groups(report)
    for label, names in groups:
        odd = sum(1 for name in names if name in states)
        note = f"{len(names) - odd:,}/{len(names):,} well"
        columns = _columns(len(names), side, alone=len(groups) == 1)
        needed = max(columns * side, (len(label) + len(note) + 2) * CHARACTER)
        width = SLOT * math.ceil((needed + GAP) / SLOT) - GAP
        if x > 0 and x + needed > WIDTH:
            x = 0
            y = below + GAP
        blocks.append(_block(label, note, names, states, (x, y, side, columns)))
        below = max(below, y + LABEL_HEIGHT + side * math.ceil(len(names) / columns))
        x += width + GAP
    return FleetGrid(tuple(blocks), side, below)


def _states(report: Report) -> dict[str, _State]:
    """Return the nodes that are not well, each with its worst level."""
    states: dict[str, _State] = {}
    for node in report.nodes or ():
        if not node.reached:
            states[node.node] = _State(UNKNOWN, ())
    for finding in report.findings or ():
        level = level_of(finding)
        if level >= ACCEPTED:
            continue
        for name in finding.nodes:
            state = states.get(name, _WELL)
            if level < state.level or not state.checks:
                level_now = min(level, state.level)
                states[name] = _State(level_now, (finding.check,))
            elif level == state.level and finding.check not in state.checks:
                states[name] = _State(level, (*state.checks, finding.check))
    return states


def _groups(report: Report) -> list[tuple[str, list[str]]]:
    """Return the blocks: a label and its nodes, in the order of the inventory.

    A node that is in several groups is in the block of the smallest of them.
    """
    smallest: dict[str, tuple[int, str]] = {}
    for group in report.groups or ():
        for name in group.nodes:
            entry = (len(group.nodes), group.name)
            if name not in smallest or entry[0] < smallest[name][0]:
                smallest[name] = entry
    members: dict[str, list[str]] = {}
    others = []
    for node in report.nodes or ():
        _, group_name = smallest.get(node.node, (0, ""))
        if group_name and (group_name in members or len(members) < GROUPS):
            members.setdefault(group_name, []).append(node.node)
        else:
            others.append(node.node)
    groups = [(safe_text(name, NAME), names) for name, names in members.items()]
    if others:
        groups.append((OTHERS if groups else "nodes", others))
    return groups


def _columns(size: int, side: int, *, alone: bool) -> int:
    """Return how many squares a row of a group has: a block is three times as wide as high."""
    most = WIDTH // side
    if alone:
        return most
    return min(most, size, max(8, math.ceil(math.sqrt(3 * size))))


def _block(
    label: str,
    note: str,
    names: Sequence[str],
    states: Mapping[str, _State],
    place: tuple[int, int, int, int],
) -> GroupBlock:
    """Return a group's block; `place` is its x, its y, the side of a square and the columns."""
    x, y, side, columns = place
    top = y + LABEL_HEIGHT
    rows = []
    squares = []
    for first in range(0, len(names), columns):
        length = min(columns, len(names) - first) * side
        rows.append(Dashes(x, top + side * (first // columns), length))
    for place_in_group, name in enumerate(names):
        state = states.get(name)
        if state is None:
            continue
        square = Square(
            x + side * (place_in_group % columns),
            top + side * (place_in_group // columns),
            KINDS[state.level],
            _title(name, state),
            state.checks[0] if state.checks else "",
        )
        squares.append(square)
    return GroupBlock(label, note, x, y, tuple(rows), tuple(squares))


def _title(name: str, state: _State) -> str:
    shown = ", ".join(safe_text(check, NAME) for check in state.checks[:CHECKS])
    more = len(state.checks) - CHECKS
    if more > 0:
        shown += f" and {more} more"
    return f"{safe_text(name, 64)}: {LABELS[state.level]} {shown or 'not reached'}"


# ---------------------------------------------------------------- drawing


def shapes(grid: FleetGrid, *, linked: bool = False) -> Iterator[str]:
    """Yield the elements of the grid. `linked`: squares lead to `#check-NAME` of the page."""
    titled = 0
    for block in grid.blocks:
        yield from _label(block)
        yield from _healthy(block, grid)
        plain: dict[str, list[str]] = {}
        for square in block.squares:
            if titled < TITLED:
                titled += 1
                yield _square(square, grid, linked=linked)
            else:
                side = grid.square
                path = f"M{square.x} {square.y}h{side}v{side}h-{side}z"
                plain.setdefault(square.kind, []).append(path)
        for kind, paths in plain.items():
            yield f'<path class="{kind} tiny" d="{"".join(paths)}"/>'


def _label(block: GroupBlock) -> Iterator[str]:
    y = block.y + LABEL_HEIGHT - 6
    yield f'<text x="{block.x}" y="{y}">{escape(block.label)}</text>'
    x = block.x + (len(block.label) + 1) * CHARACTER
    yield f'<text class="dim" x="{x:g}" y="{y}">{escape(block.note)}</text>'


def _healthy(block: GroupBlock, grid: FleetGrid) -> Iterator[str]:
    side = grid.square
    for row in block.rows:
        middle = f"{row.y + side / 2:g}"
        yield (
            f'<line class="well" x1="{row.x}" x2="{row.x + row.length}" y1="{middle}" y2="{middle}"'
            f' stroke-width="{side}" stroke-dasharray="{side} {grid.side - side}"/>'
        )


def _square(square: Square, grid: FleetGrid, *, linked: bool) -> str:
    """Return a square with its title. An error has a mark, for those who do not see the colour."""
    side = grid.square
    title = f"<title>{escape(square.title)}</title>"
    drawn = _shape(square.kind, (square.x, square.y, side), title)
    if linked and square.check:
        return f'<a href="#check-{escape(square.check)}">{drawn}</a>'
    return drawn


def _shape(kind: str, place: tuple[int, int, int], title: str = "") -> str:
    """Return a square of a kind at x and y, with a side. What is unknown is hollow."""
    x, y, side = place
    if side < MARKED_SIDE - 2:
        box = f'width="{side}" height="{side}"'
        return f'<rect class="{kind} tiny" x="{x}" y="{y}" {box}>{title}</rect>'
    inset = 1 if kind in "uq" else 0
    size = side - 2 * inset
    drawn = (
        f'<rect class="{kind}" x="{x + inset}" y="{y + inset}" width="{size}" height="{size}">'
        f"{title}</rect>"
    )
    if kind == "f":
        arm = side - 2 * (side // 4)
        start = f"M{x + side // 4} {y + side // 4}"
        drawn += f'<path class="mark" d="{start}l{arm} {arm}m-{arm} 0l{arm} -{arm}"/>'
    return drawn


def legend(grid: FleetGrid) -> Iterator[str]:
    """Yield a square and its meaning for each kind that the grid has, below the grid."""
    seen = {square.kind for block in grid.blocks for square in block.squares}
    y = grid.height + LINE // 2
    x = 0
    for kind, meaning in MEANINGS.items():
        if kind in seen:
            yield _shape(kind, (x, y, 10))
            yield f'<text class="dim" x="{x + 16}" y="{y + 9}">{meaning}</text>'
            x += 40 + round(len(meaning) * CHARACTER)
    yield f'<rect class="well" x="{x}" y="{y}" width="10" height="10"/>'
    yield f'<text class="dim" x="{x + 16}" y="{y + 9}">well</text>'
