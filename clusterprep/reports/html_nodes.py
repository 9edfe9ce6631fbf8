"""The nodes of the HTML report: by number, so that sets of ten thousand stay short, and as a grid with the areas."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.model import Finding, Report
from clusterprep.reports.blocks import RANK
from clusterprep.reports.plain import NODES, counted, field, folded
from clusterprep.runtime.lazy_dataclass import dataclass

APART = 256  # nodes up to which each has a row of its own in the grid; above, those that are alike share one
IN_ORDER = 40  # rows that stay in the order of the inventory; more begin with the worst
WORDS = ("FAIL", "WARN", "UNKN", "unkn", "acc.", "ok", "–", "")
KINDS = "fwuqapsn"  # classes of the page: fail, warn, unknown error, unknown warning, accepted, pass, skip, none
ACCEPTED, PASS, SKIP, NONE = 4, 5, 6, 7


class Roster:
    """Every node that the report names, by its number: those of the run first, in inventory order."""

    def __init__(self, report: Report) -> None:
        names = [node.node for node in report.nodes or ()]
        for rows in (report.findings, report.env, report.changes):
            names += [name for row in rows or () for name in row.nodes]
        self.names = tuple(dict.fromkeys(names))
        self.numbers: Mapping[str, int] = {name: number for number, name in enumerate(self.names)}

    def label(self, nodes: tuple[str, ...]) -> str:
        """A folded set; most of a large fleet is all but the few that are missing, and sooner read that way."""
        if len(self.names) <= APART or 2 * len(nodes) <= len(self.names):
            return label(nodes)
        given = frozenset(nodes)
        rest = tuple(name for name in self.names if name not in given)
        return f"all but {label(rest)}" if rest else "all"

    def ranges(self, nodes: Iterable[str]) -> str:
        """`0-12,15`: what the page's filter looks nodes up by."""
        return _ranges(sorted({self.numbers[name] for name in nodes if name in self.numbers}))


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[str] = []
    start = before = None
    for number in (*numbers, None):
        if before is not None and number == before + 1:
            before = number
            continue
        if start is not None:
            parts.append(str(start) if start == before else f"{start}-{before}")
        start = before = number
    return ",".join(parts)


@functools.lru_cache(maxsize=4096)
def label(nodes: tuple[str, ...], limit: int = NODES) -> str:
    """A folded set of nodes; the same sets come again and again."""
    return folded(nodes, limit)


@dataclass(frozen=True)
class Cell:
    """What is known of a node in an area: a word, its class, and the check that says so."""

    word: str
    kind: str
    check: str = ""


@dataclass(frozen=True)
class Row:
    """One node, or several that are alike in all areas."""

    name: str
    ranges: str
    size: int
    note: str  # why it was not reached
    kind: str  # of the worst cell
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    areas: tuple[str, ...]
    rows: tuple[Row, ...]
    folded: bool

    @property
    def said(self) -> str:
        """What a row is."""
        return "nodes that are alike share a row" if self.folded else "a row for each node"


def grid_of(report: Report, roster: Roster) -> Grid | None:
    """The grid of all nodes; None where no check has run on any."""
    findings = [one for one in report.findings or () if one.nodes]
    if not findings or not report.nodes:
        return None
    states, checks = _states(findings, roster)
    notes = {
        node.node: "" if node.reached else field(node.reason or "not reached", 80)
        for node in report.nodes
    }
    columns = tuple(states.values())
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, name in enumerate(roster.names):
        levels = tuple(column[number] for column in columns)
        apart = number if len(roster.names) <= APART else None
        alike.setdefault((levels, notes.get(name, ""), apart), []).append(number)
    rows = [(members, _row(members, roster, notes, states, checks)) for members in alike.values()]
    if len(rows) > IN_ORDER:
        rows.sort(key=lambda row: (KINDS.index(row[1].kind), row[0][0]))
    return Grid(tuple(states), tuple(row for _, row in rows), len(roster.names) > APART)


def level_of(one: Finding) -> int:
    """The place of a finding in KINDS."""
    if one.fixed or one.verdict == "pass":
        return PASS
    if one.silenced is not None:
        return ACCEPTED
    return RANK.get((one.verdict, one.severity), SKIP)


def _states(
    findings: Iterable[Finding], roster: Roster
) -> tuple[dict[str, bytearray], dict[tuple[str, int], str]]:
    """By area the worst level of every node, and by area and node the check that says so where it is trouble."""
    states: dict[str, bytearray] = {}
    checks: dict[tuple[str, int], str] = {}
    for one in findings:
        area, level = one.check.split(".")[0], level_of(one)
        column = states.setdefault(area, bytearray([NONE]) * len(roster.names))
        for name in one.nodes:
            number = roster.numbers[name]
            if level < column[number]:
                column[number] = level
                if level < ACCEPTED:
                    checks[area, number] = one.check
    return states, checks


def _row(
    members: Sequence[int],
    roster: Roster,
    notes: Mapping[str, str],
    states: Mapping[str, bytearray],
    checks: Mapping[tuple[str, int], str],
) -> Row:
    first = members[0]
    cells = tuple(
        Cell(WORDS[column[first]], KINDS[column[first]], checks.get((area, first), ""))
        for area, column in states.items()
    )
    worst = min((column[first] for column in states.values()), default=NONE)
    names = tuple(roster.names[number] for number in members)
    return Row(
        roster.label(names),
        _ranges(members),
        len(members),
        notes.get(names[0], ""),
        KINDS[worst],
        cells,
    )


def many(number: int) -> str:
    """`12 nodes`, empty for one."""
    return counted(number, "node") if number > 1 else ""
