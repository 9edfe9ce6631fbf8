"""Earlier runs for people: what turned since the last one, the list of them, and what differs between two."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from clusterprep.model import Json, Report
from clusterprep.model.history import (
    Comparison,
    EnvChange,
    FactChange,
    RecordedRun,
    Since,
    SpeedChange,
    Turn,
)
from clusterprep.model.units import format_size
from clusterprep.reports.page import Part, ReportPage
from clusterprep.reports.plain import counted, elapsed, field, folded

TURNS = 5  # checks that are fixed, by name
ROWS = 20  # changed facts shown without -v
VALUE = 60  # characters of one value of a fact
_STYLES = {"pass": "green", "fail": "bold red", "error": "bold red"}
_TROUBLE = (("errors", "error"), ("warnings", "warning"))
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def write_since(page: ReportPage, since: Since | None, started: str) -> None:
    """One line: with which run this one is compared, how much is new, what is fixed; what is new is marked above."""
    if since is None:
        return
    fixed = [f"{field(turn.check)} {folded(turn.nodes)}" for turn in since.fixed]
    shown = fixed if page.verbose else fixed[:TURNS]
    more = [f"… {len(fixed) - len(shown)} more (-v)"] if len(shown) < len(fixed) else []
    names = f": {', '.join([*shown, *more])}" if fixed else ""
    new: Part = (f"{len(since.new)} new", "bold red" if since.new else "dim")
    gone: Part = (f"{len(since.fixed)} fixed{names}", "green" if fixed else "dim")
    head = f"run {field(since.run, 64)}, {_age(since.started, started)} before: "
    page.row(("SINCE", "dim"), (head, "dim"), new, ", ", gone)
    page.blank()


def write_runs(page: ReportPage, report: Report) -> None:
    """A line for each run, newest first; with -v the inventory, the version and the size."""
    if report.runs is None:
        return
    if not report.runs:
        page.row(
            "",
            "no run is recorded yet; every check, plan, apply, verify, rollback and launch will be",
        )
    rows = [_cells(run, report.started) for run in report.runs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for run, cells in zip(report.runs, rows, strict=True):
        text = "  ".join(
            cell.rjust(width) if n in (1, 4) else cell.ljust(width)
            for n, (cell, width) in _with(cells, widths)
        )
        verdict: Part = (field(run.verdict, 20).upper(), _STYLES.get(run.verdict, "bold yellow"))
        page.row(
            (f"{text}  ", ""),
            verdict,
            f"  {_trouble(run)}{elapsed(run.seconds)}",
            indent=len(text) + 2,
        )
        if page.verbose:
            by = f"clusterprep {field(run.tool, 40)}, {format_size(run.size >> 10 << 10)}"
            page.under((f"{field(run.inventory) or 'no inventory'}, {by}", "dim"), indent=4)


def _with(cells: Sequence[str], widths: Sequence[int]) -> Iterable[tuple[int, tuple[str, int]]]:
    return enumerate(zip(cells, widths, strict=True))


def _cells(run: RecordedRun, now: str) -> tuple[str, ...]:
    age = _age(run.started, now)
    return (
        field(run.run, 64),
        age,
        field(run.command, 12),
        field(run.cluster, 24),
        f"{run.reached}/{run.nodes}",
    )


def _trouble(run: RecordedRun) -> str:
    said = [counted(number, noun) for key, noun in _TROUBLE if (number := getattr(run, key))]
    said += [f"{run.unknown} unknown"] if run.unknown else []
    return f"{', '.join(said)}  " if said else ""


def _age(then: str, now: str) -> str:
    """«2 h»: how long before `now`, in the largest unit that fits."""
    try:
        seconds = datetime.fromisoformat(now.replace("Z", "+00:00")) - datetime.fromisoformat(
            then.replace("Z", "+00:00")
        )
    except ValueError:
        return "?"
    whole = max(int(seconds.total_seconds()), 0)
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), _UNITS[-1])
    return f"{whole // size} {unit}"


# ---------------------------------------------------------------- two runs


def write_comparison(page: ReportPage, comparison: Comparison | None) -> None:
    """New failures first, then what is fixed, nodes, facts, environment and bandwidth."""
    if comparison is None:
        return
    for label, run in (("before", comparison.before), ("after", comparison.after)):
        verdict: Part = (field(run.verdict, 20).upper(), _STYLES.get(run.verdict, "bold yellow"))
        place = f"{field(run.command, 12)}  {field(run.cluster, 24)}  {run.reached}/{counted(run.nodes, 'node')}  "
        page.row(
            (label, "dim"), f"{field(run.run, 64)}  {place}", verdict, f"  {_trouble(run)}".rstrip()
        )
    page.blank()
    _write_turns(page, comparison)
    _write_nodes(page, comparison)
    _write_facts(page, comparison.facts)
    _write_env(page, comparison.env)
    _write_speeds(page, comparison.speeds)


def _write_turns(page: ReportPage, comparison: Comparison) -> None:
    for turn in comparison.new:
        page.row(
            ("NEW", "bold red"), (f"{turn.verdict}, {turn.severity}  ", "red"), *_turn(page, turn)
        )
    for turn in comparison.fixed:
        page.row(("FIXED", "green"), *_turn(page, turn))
    if not comparison.new and not comparison.fixed:
        page.under("no check answers otherwise on a node that both runs reached")
    page.blank()


def _turn(page: ReportPage, turn: Turn) -> list[Part]:
    nodes = folded(turn.nodes, None) if page.verbose else folded(turn.nodes)
    return [(field(turn.check), "bold"), "  ", (nodes, "cyan")]


def _write_nodes(page: ReportPage, comparison: Comparison) -> None:
    for word, nodes in (("only after", comparison.came), ("only before", comparison.went)):
        if nodes:
            page.row(("NODES", "bold"), f"{word}: ", (folded(nodes), "cyan"))
    page.blank()


def _write_facts(page: ReportPage, changes: Sequence[FactChange]) -> None:
    page.row(
        ("Facts  ", "bold"), f"{len(changes)} changed" if changes else "none changed", indent=7
    )
    shown = changes if page.verbose else changes[:ROWS]
    for change in shown:
        name = field(f"{change.fact} {change.key}".strip(), 80)
        where: Part = (folded(change.nodes), "cyan")
        page.row(
            f"  {name}  ", where, f"  {_value(change.before)} → {_value(change.after)}", indent=4
        )
    if len(shown) < len(changes):
        page.under((f"… {len(changes) - len(shown)} more (-v shows all)", "dim"), indent=4)
    page.blank()


def _value(value: Json) -> str:
    """A value as one word or as JSON; what a run did not know says why."""
    if isinstance(value, dict) and set(value) == {"absent"}:
        return f"not known ({field(str(value['absent']), 40)})"
    return field(value if isinstance(value, str) and value else json.dumps(value), VALUE)


def _write_env(page: ReportPage, changes: Sequence[EnvChange]) -> None:
    for place, change in enumerate(changes):
        if place == 0:
            page.row(("Environment  ", "bold"), f"{len(changes)} changed", indent=13)
        values = [
            ("not set" if value is None else field(value, VALUE))
            for value in (change.before, change.after)
        ]
        page.row(
            f"  {field(change.name, 64)}  ",
            (folded(change.nodes), "cyan"),
            f"  {' → '.join(values)}",
            indent=4,
        )
    page.blank()


def _write_speeds(page: ReportPage, speeds: Sequence[SpeedChange]) -> None:
    for place, row in enumerate(speeds):
        if place == 0:
            page.row(("Bandwidth  ", "bold"), "busbw in GB/s", indent=11)
        op = row.op if row.dtype == "float32" else f"{row.op} {row.dtype}"
        share = f"  ({(row.after / row.before - 1):+.0%})" if row.before else ""
        page.row(
            f"  {field(op, 40)}  ",
            f"{format_size(row.bytes)}  {row.before:.3g} → {row.after:.3g}{share}",
            indent=4,
        )
