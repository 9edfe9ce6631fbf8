"""The fleet as a grid by groups: a square for each node; those that are not well stand out.

`layout(report, roster)` places the squares, `shapes(grid)` draws them as elements of SVG. The same
elements stand in the HTML page and in the picture of `--format svg`; each of them brings the style.

Squares of healthy nodes are dashes of one line for each row, so that ten thousand nodes are a small
picture: its size grows with the nodes that are not well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
NAME = 24  # characters of the name of a group or a check
NODE = 64  # characters of a node's name
TITLED = 400  # squares that say which node they are and why; the others only have their colour
CHECKS = 4  # that the title of a square names
OTHERS = "other nodes"
MARKED_SIDE = 8  # the smallest square with room for the mark of an error
UNKNOWN = KINDS.index("u")
WELL = "well"  # CSS class of healthy nodes
# By CSS class, in the order of the legend.
MEANINGS = {
    "f": "error",
    "w": "warning",
    "u": "unknown, would be an error",
    "q": "unknown, would be a warning",
    WELL: "well",
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


class _OddNodes(Struct, frozen=True):
    """The nodes that are not well: how bad each is, and the checks that say so."""

    levels: dict[str, int]
    checks: dict[str, list[str]]

    def title(self, name: str) -> str:
        """Return what the square of a node says."""
        checks = list(dict.fromkeys(self.checks.get(name, ())))
        shown = ", ".join(safe_text(check, NAME) for check in checks[:CHECKS])
        more = len(checks) - CHECKS
        if more > 0:
            shown += f" and {more} more"
        if not shown:
            shown = "not reached"
        word = LABELS[self.levels[name]]
        return f"{safe_text(name, NODE)}: {word} {shown}"


class _Frame(Struct, frozen=True):
    """Where the squares of a group are."""

    x: int
    y: int
    side: int
    columns: int

    def place(self, index: int) -> tuple[int, int]:
        """Return x and y of a square by its number in the group."""
        row, column = divmod(index, self.columns)
        return self.x + self.side * column, self.y + self.side * row


def layout(report: Report, roster: Roster) -> FleetGrid | None:
    """Return the squares of all nodes in their places, or None if the report has no nodes."""
    if not report.nodes:
        return None
    odd = _odd_nodes(report)
    groups = _groups(report)
    side = _side(len(roster.names))
    blocks = []
    x = 0
    y = 0
    bottom = 0
    for label, names in groups:
        columns = _columns(len(names), side, alone=len(groups) == 1)
        well = sum(1 for name in names if name not in odd.levels)
        note = f"{well:,}/{len(names):,} well"
        label_width = (len(label) + len(note) + 2) * CHARACTER
        width = max(columns * side, label_width)
        if x > 0 and x + width > WIDTH:
            x = 0
            y = bottom + GAP
        frame = _Frame(x, y + LABEL_HEIGHT, side, columns)
        rows = _rows(frame, len(names))
        block = GroupBlock(
            label,
            note,
            x,
            y,
            rows,
            _squares(frame, names, odd),
        )
        blocks.append(block)
        bottom = max(bottom, frame.y + side * len(rows))
        x += SLOT * math.ceil((width + GAP) / SLOT)
    return FleetGrid(tuple(blocks), side, bottom)


def _side(nodes: int) -> int:
    """Return the side of a square, with its gap, in a fleet of so many nodes."""
    for most, side in SIDES:
        if nodes <= most:
            return side
    return SMALLEST_SIDE


def _columns(size: int, side: int, *, alone: bool) -> int:
    """Return how many squares a row of a group has: a block is three times as wide as high."""
    most = WIDTH // side
    if alone:
        return most
    wanted = max(8, math.ceil(math.sqrt(3 * size)))
    return min(most, size, wanted)


def _odd_nodes(report: Report) -> _OddNodes:
    """Return the nodes that were not reached, or that a finding is about that counts."""
    levels: dict[str, int] = {}
    checks: dict[str, list[str]] = {}
    for node in report.nodes or ():
        if not node.reached:
            levels[node.node] = UNKNOWN
    for finding in report.findings or ():
        level = level_of(finding)
        if level >= ACCEPTED:
            continue
        for name in finding.nodes:
            worst = levels.get(name, PASS)
            if level < worst:
                levels[name] = level
                checks[name] = [finding.check]
            elif level == worst:
                checks.setdefault(name, []).append(finding.check)
    return _OddNodes(levels, checks)


def _groups(report: Report) -> list[tuple[str, list[str]]]:
    """Return the blocks, each with its label and its nodes, in the order of the nodes."""
    group_of = _smallest_groups(report)
    members: dict[str, list[str]] = {}
    others = []
    for node in report.nodes or ():
        group = group_of.get(node.node)
        has_block = group in members or len(members) < GROUPS
        if group is None or not has_block:
            others.append(node.node)
        else:
            members.setdefault(group, []).append(node.node)
    if not members:
        return [("nodes", others)]
    blocks = [(safe_text(group, NAME), names) for group, names in members.items()]
    if others:
        blocks.append((OTHERS, others))
    return blocks


def _smallest_groups(report: Report) -> dict[str, str]:
    """Return the group of each node; of several the smallest, and of these the first."""
    group_of: dict[str, str] = {}
    by_size = sorted(report.groups or (), key=lambda group: len(group.nodes))
    for group in by_size:
        for name in group.nodes:
            group_of.setdefault(name, group.name)
    return group_of


def _rows(frame: _Frame, size: int) -> tuple[Dashes, ...]:
    """Return a line of dashes for each row of a group of so many nodes."""
    rows = []
    for first in range(0, size, frame.columns):
        x, y = frame.place(first)
        number = min(frame.columns, size - first)
        rows.append(Dashes(x, y, number * frame.side))
    return tuple(rows)


def _squares(frame: _Frame, names: Sequence[str], odd: _OddNodes) -> tuple[Square, ...]:
    """Return the squares of those nodes of a group that are not well."""
    squares = []
    for index, name in enumerate(names):
        if name not in odd.levels:
            continue
        x, y = frame.place(index)
        kind = KINDS[odd.levels[name]]
        checks = odd.checks.get(name)
        check = checks[0] if checks else ""
        square = Square(
            x,
            y,
            kind,
            odd.title(name),
            check,
        )
        squares.append(square)
    return tuple(squares)


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
    inset = 1 if kind in ("u", "q") else 0
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
        if kind != WELL and kind not in seen:
            continue
        yield _shape(kind, (x, y, 10))
        yield f'<text class="dim" x="{x + 16}" y="{y + 9}">{meaning}</text>'
        x += 40 + round(len(meaning) * CHARACTER)
