"""The nodes of the HTML report: node sets by number, and the grid of nodes and areas.

Nodes are numbers (`0-96,98`), and the filter looks names up in one list: ten thousand nodes in a
hundred sets would be megabytes of names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterprep.model import Finding, Report
from clusterprep.model.units import pluralize
from clusterprep.reports.blocks import GRAVITY
from clusterprep.reports.plain import NODES, fold_nodes, safe_text

# Nodes up to which each has a row of its own in the grid; of more, nodes that are alike share one.
APART = 256
IN_ORDER = 40  # rows that stay in the order of the inventory; more begin with the worst
_NOTE = 80  # characters of the reason why a node was not reached

# What a cell of the grid shows, by its level; lower levels are worse. GRAVITY has the first four.
LABELS = ("FAIL", "WARN", "UNKN", "unkn", "acc.", "ok", "–", "")
# CSS classes by level: fail, warn, unknown error, unknown warning, accepted, pass, skip, none.
KINDS = "fwuqapsn"
ACCEPTED, PASS, SKIP, NONE = 4, 5, 6, 7


class Roster:
    """Numbers every node that the report names: those of the run first, in inventory order.

    The page refers to nodes by number, so that sets of ten thousand nodes stay short.
    """

    def __init__(self, report: Report) -> None:
        numbers: dict[str, int] = {}
        for node in report.nodes or ():
            numbers.setdefault(node.node, len(numbers))
        for rows in (report.findings, report.env, report.changes):
            for row in rows or ():
                # Nearly always all are known, which is found out in C.
                if not numbers.keys() >= set(row.nodes):
                    for name in row.nodes:
                        numbers.setdefault(name, len(numbers))
        self.names = tuple(numbers)
        self.numbers: Mapping[str, int] = numbers

    def label(self, nodes: tuple[str, ...]) -> str:
        """Return a folded node set; `all but n[3,7]` for most nodes of a large fleet."""
        total = len(self.names)
        if total <= APART or 2 * len(nodes) <= total:
            return label(nodes)
        excluded = set(nodes)
        remaining = tuple(name for name in self.names if name not in excluded)
        if not remaining:
            return "all"
        return f"all but {label(remaining)}"

    def ranges(self, nodes: Iterable[str]) -> str:
        """Return the nodes' numbers as `0-12,15`, by which the page's filter finds them."""
        numbers = set()
        for name in nodes:
            number = self.numbers.get(name)
            if number is not None:
                numbers.add(number)
        return _ranges(sorted(numbers))


def _ranges(numbers: Iterable[int]) -> str:
    """Return sorted numbers as `0-12,15`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = []
    for first, last in runs:
        if first == last:
            parts.append(str(first))
        else:
            parts.append(f"{first}-{last}")
    return ",".join(parts)


@functools.lru_cache(maxsize=4096)
def label(nodes: tuple[str, ...], limit: int = NODES) -> str:
    """Return a folded node set. Cached, because a report has the same sets many times."""
    return fold_nodes(nodes, limit)


class Cell(Struct, frozen=True):
    """The state of a node in an area: its label, its CSS class, and the check that says so."""

    word: str
    kind: str
    check: str = ""


class Row(Struct, frozen=True):
    """One node, or several that are alike in all areas."""

    name: str
    ranges: str
    size: int
    note: str  # why it was not reached
    kind: str  # of the worst cell
    cells: tuple[Cell, ...]


class Grid(Struct, frozen=True):
    areas: tuple[str, ...]
    rows: tuple[Row, ...]
    folded: bool

    @property
    def caption(self) -> str:
        """Say what a row is."""
        if self.folded:
            return "nodes that are alike share a row"
        return "a row for each node"


class _States(Struct, frozen=True):
    """The worst level of every node in each area, and for trouble the check that says so."""

    levels: dict[str, bytearray]  # area -> a level per node, by the node's number
    checks: dict[tuple[str, int], str]  # area and node's number -> check


def grid_of(report: Report, roster: Roster) -> Grid | None:
    """Return the grid of all nodes, or None if no check has run on any node."""
    findings = [finding for finding in report.findings or () if finding.nodes]
    if not findings or not report.nodes:
        return None
    states = _states(findings, roster)
    notes = {}
    for node in report.nodes:
        if not node.reached:
            notes[node.node] = safe_text(node.reason or "not reached", _NOTE)
    is_folded = len(roster.names) > APART
    if is_folded:
        groups = _alike(roster, states, notes)
    else:
        groups = [[number] for number in roster.numbers.values()]
    rows = []
    for members in groups:
        row = _row(members, roster, notes, states)
        rows.append(row)
    if len(rows) > IN_ORDER:
        # Rows that are equally bad keep the order of their first nodes.
        rows.sort(key=lambda row: KINDS.index(row.kind))
    areas = tuple(states.levels)
    return Grid(areas, tuple(rows), is_folded)


def _alike(roster: Roster, states: _States, notes: Mapping[str, str]) -> list[list[int]]:
    """Return the numbers of the nodes in groups that have the same levels and the same note."""
    groups: dict[tuple[bytes, str], list[int]] = {}
    columns = tuple(states.levels.values())
    for number, name in enumerate(roster.names):
        levels = bytes(column[number] for column in columns)
        note = notes.get(name, "")
        group = groups.setdefault((levels, note), [])
        group.append(number)
    return list(groups.values())


def level_of(finding: Finding) -> int:
    """Return the level of a finding, which is its place in KINDS."""
    if finding.fixed or finding.verdict == "pass":
        return PASS
    if finding.silenced is not None:
        return ACCEPTED
    return GRAVITY.get((finding.verdict, finding.severity), SKIP)


def _states(findings: Iterable[Finding], roster: Roster) -> _States:
    """Return the worst level of every node in each area, and the check that has it."""
    states = _States({}, {})
    nothing = bytes([NONE]) * len(roster.names)
    # Most findings are passes of nearly all nodes: their names are joined first, in C.
    names_by_level: dict[tuple[str, int], set[str]] = {}
    for finding in findings:
        area = finding.check.split(".")[0]
        level = level_of(finding)
        column = states.levels.setdefault(area, bytearray(nothing))
        if level >= ACCEPTED:
            names_by_level.setdefault((area, level), set()).update(finding.nodes)
            continue
        for name in finding.nodes:
            number = roster.numbers[name]
            if level < column[number]:
                column[number] = level
                states.checks[area, number] = finding.check
    for (area, level), names in names_by_level.items():
        column = states.levels[area]
        for name in names:
            number = roster.numbers[name]
            column[number] = min(level, column[number])
    return states


def _row(members: Sequence[int], roster: Roster, notes: Mapping[str, str], states: _States) -> Row:
    first = members[0]
    cells = []
    worst = NONE
    for area, column in states.levels.items():
        level = column[first]
        worst = min(worst, level)
        check = states.checks.get((area, first), "")
        cell = Cell(LABELS[level], KINDS[level], check)
        cells.append(cell)
    names = tuple(roster.names[number] for number in members)
    return Row(
        name=roster.label(names),
        ranges=_ranges(members),
        size=len(members),
        note=notes.get(names[0], ""),
        kind=KINDS[worst],
        cells=tuple(cells),
    )


def many(number: int) -> str:
    """Return `12 nodes`, or "" for one node."""
    if number <= 1:
        return ""
    return pluralize(number, "node")
