"""Write earlier runs to the console: a list, what changed since one, a comparison of two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from clusterprep.model import Json, Report
from clusterprep.model.history import (
    Comparison,
    EnvChange,
    FactChange,
    PartMove,
    PartPlace,
    RecordedRun,
    Since,
    SpeedChange,
    Turn,
)
from clusterprep.model.units import format_size, pluralize
from clusterprep.reports.page import Part, ReportPage
from clusterprep.reports.plain import collective_name, fold_nodes, format_elapsed, safe_text

TURNS = 3  # checks that are new or fixed, by name
ROWS = 20  # changed facts shown without -v
VALUE = 60  # characters of one value of a fact
_TURN_NODES = 40  # characters of the nodes of one of them
_RUN = 64  # characters of a run's name
_STYLES = {"pass": "green", "fail": "bold red", "error": "bold red"}
_RIGHT_ALIGNED = (1, 4)  # columns of the list of runs: the age, and the numbers of nodes
_PARTS = {"gpu": "GPU", "rdma": "RDMA card", "disk": "disk"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def write_since(page: ReportPage, since: Since | None, started: str) -> None:
    """Write one line: the run that this one is compared with, what is new, and what is fixed.

    The findings that are new have their mark above.
    """
    if since is None:
        return
    changes: list[Part] = []
    if since.new:
        changes.append((f"{len(since.new)} new: {_turn_names(page, since.new)}", "bold red"))
    if since.fixed:
        separator = "; " if since.new else ""
        fixed = f"{separator}{len(since.fixed)} fixed: {_turn_names(page, since.fixed)}"
        changes.append((fixed, "green"))
    if not changes:
        changes.append(("nothing new, nothing fixed", "dim"))
    name = safe_text(since.run, _RUN)
    age = _age(since.started, started)
    page.row(("  since:", "dim"), (f"run {name}, {age} before: ", "dim"), *changes)


def _turn_names(page: ReportPage, turns: Sequence[Turn]) -> str:
    """Return `time.offset n1, …`: the checks of these turns with their nodes."""
    shown = page.shown(turns, TURNS)
    names = []
    for turn in shown:
        check = safe_text(turn.check)
        names.append(f"{check} {fold_nodes(turn.nodes, _TURN_NODES)}")
    remaining = len(turns) - len(shown)
    if remaining:
        names.append(f"{remaining} more (-v)")
    return ", ".join(names)


def write_runs(page: ReportPage, report: Report) -> None:
    """Write a line for each run, newest first; with -v its inventory, version and size."""
    if report.runs is None:
        return
    if not report.runs and not report.notices:
        commands = "check, plan, apply, verify, rollback, launch and bisect"
        page.row("", f"no run is recorded yet; every {commands} will be")
    rows = [_cells(run, report.started) for run in report.runs]
    texts = _aligned(rows)
    for run, text in zip(report.runs, texts, strict=True):
        verdict = _verdict(run)
        took = format_elapsed(run.seconds)
        page.row(f"{text}  ", verdict, f"  {_trouble(run)}{took}", indent=len(text) + 2)
        if page.verbose:
            _write_run_details(page, run)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines whose columns are as wide as their longest cell."""
    columns = zip(*rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in rows:
        padded = []
        for number, cell in enumerate(row):
            if number in _RIGHT_ALIGNED:
                padded.append(cell.rjust(widths[number]))
            else:
                padded.append(cell.ljust(widths[number]))
        lines.append("  ".join(padded))
    return lines


def _cells(run: RecordedRun, now: str) -> tuple[str, ...]:
    name = safe_text(run.run, _RUN)
    age = _age(run.started, now)
    command = safe_text(run.command, 12)
    cluster = safe_text(run.cluster, 24)
    return (name, age, command, cluster, f"{run.reached}/{run.nodes}")


def _write_run_details(page: ReportPage, run: RecordedRun) -> None:
    inventory = safe_text(run.inventory) or "no inventory"
    # In whole KiB: the bytes of a file in the history say nothing.
    size = format_size(run.size // 1024 * 1024)
    text = f"{inventory}, clusterprep {safe_text(run.tool, 40)}, {size}"
    page.under((text, "dim"), indent=4)


def _verdict(run: RecordedRun) -> Part:
    style = _STYLES.get(run.verdict, "bold yellow")
    return (safe_text(run.verdict, 20).upper(), style)


def _trouble(run: RecordedRun) -> str:
    """Return `1 error, 2 unknown  `, or "" for a run without trouble."""
    parts = []
    if run.errors:
        parts.append(pluralize(run.errors, "error"))
    if run.warnings:
        parts.append(pluralize(run.warnings, "warning"))
    if run.unknown:
        parts.append(f"{run.unknown} unknown")
    if not parts:
        return ""
    return f"{', '.join(parts)}  "


def _age(then: str, now: str) -> str:
    """Return `2 h`: how long before `now`, in the largest unit that fits."""
    try:
        elapsed = _parse_time(now) - _parse_time(then)
    except ValueError:
        return "?"
    seconds = max(int(elapsed.total_seconds()), 0)
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return "0 s"


def _parse_time(text: str) -> datetime:
    """Parse RFC 3339. datetime reads a Z from Python 3.11 on."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


# ---------------------------------------------------------------- two runs


def write_comparison(page: ReportPage, comparison: Comparison | None) -> None:
    """Write new failures, then what is fixed, nodes, parts, facts, environment and bandwidth."""
    if comparison is None:
        return
    _write_run(page, "before", comparison.before)
    _write_run(page, "after", comparison.after)
    page.blank()
    _write_turns(page, comparison)
    _write_nodes(page, "only after", comparison.came)
    _write_nodes(page, "only before", comparison.went)
    page.blank()
    _write_parts(page, comparison.parts)
    _write_facts(page, comparison.facts)
    _write_env(page, comparison.env)
    _write_speeds(page, comparison.speeds)


def _write_run(page: ReportPage, label: str, run: RecordedRun) -> None:
    name = safe_text(run.run, _RUN)
    command = safe_text(run.command, 12)
    cluster = safe_text(run.cluster, 24)
    total = pluralize(run.nodes, "node")
    text = f"{name}  {command}  {cluster}  {run.reached}/{total}  "
    verdict = _verdict(run)
    trouble = f"  {_trouble(run)}"
    page.row((label, "dim"), text, verdict, trouble.rstrip())


def _write_turns(page: ReportPage, comparison: Comparison) -> None:
    for turn in comparison.new:
        verdict: Part = (f"{turn.verdict}, {turn.severity}  ", "red")
        page.row(("NEW", "bold red"), verdict, *_turn(page, turn))
    for turn in comparison.fixed:
        page.row(("FIXED", "green"), *_turn(page, turn))
    if not comparison.new and not comparison.fixed:
        page.under("no check answers otherwise on a node that both runs reached")
    page.blank()


def _turn(page: ReportPage, turn: Turn) -> list[Part]:
    check: Part = (safe_text(turn.check), "bold")
    nodes: Part = (page.nodes(turn.nodes), "cyan")
    return [check, "  ", nodes]


def _write_nodes(page: ReportPage, title: str, nodes: Sequence[str]) -> None:
    if nodes:
        page.row(("NODES", "bold"), f"{title}: ", (fold_nodes(nodes), "cyan"))


def _write_parts(page: ReportPage, moves: Sequence[PartMove]) -> None:
    """Write where each part was and is, or that it is new or gone."""
    if not moves:
        return
    page.row(("Parts  ", "bold"), f"{len(moves)} moved, new or gone", indent=7)
    shown = page.shown(moves, ROWS)
    for move in shown:
        kind = _PARTS.get(move.kind, move.kind)
        page.row(f"  {kind} {safe_text(move.part, 80)}  ", *_way(move), indent=4)
    remaining = len(moves) - len(shown)
    if remaining:
        page.under((f"… {remaining} more (-v shows all)", "dim"), indent=4)
    page.blank()


def _way(move: PartMove) -> list[Part]:
    """Return «moved from n2 0000:1b:00.0 to n5 0000:1b:00.0», «new in …» or «gone from …»."""
    if move.before is None:
        return ["new in ", _place(move.after)]
    if move.after is None:
        return ["gone from ", _place(move.before)]
    return ["moved from ", _place(move.before), " to ", _place(move.after)]


def _place(place: PartPlace | None) -> Part:
    text = f"{place.node} {place.slot}" if place is not None else ""
    return (safe_text(text.strip(), 120), "cyan")


def _write_facts(page: ReportPage, changes: Sequence[FactChange]) -> None:
    title = "none changed"
    if changes:
        title = f"{len(changes)} changed"
    page.row(("Facts  ", "bold"), title, indent=7)
    shown = page.shown(changes, ROWS)
    for change in shown:
        fact = f"{change.fact} {change.key}".strip()
        name = safe_text(fact, 80)
        nodes: Part = (fold_nodes(change.nodes), "cyan")
        before = _value(change.before)
        after = _value(change.after)
        page.row(f"  {name}  ", nodes, f"  {before} → {after}", indent=4)
    remaining = len(changes) - len(shown)
    if remaining:
        page.under((f"… {remaining} more (-v shows all)", "dim"), indent=4)
    page.blank()


def _value(value: Json) -> str:
    """Return a text as it is, any other value as JSON; a value that is absent says why."""
    if isinstance(value, dict) and set(value) == {"absent"}:
        reason = safe_text(str(value["absent"]), 40)
        return f"not known ({reason})"
    if isinstance(value, str) and value:
        return safe_text(value, VALUE)
    return safe_text(json.dumps(value), VALUE)


def _write_env(page: ReportPage, changes: Sequence[EnvChange]) -> None:
    if changes:
        page.row(("Environment  ", "bold"), f"{len(changes)} changed", indent=13)
    for change in changes:
        name = safe_text(change.name, 64)
        nodes: Part = (fold_nodes(change.nodes), "cyan")
        before = _env_value(change.before)
        after = _env_value(change.after)
        page.row(f"  {name}  ", nodes, f"  {before} → {after}", indent=4)
    page.blank()


def _env_value(value: str | None) -> str:
    if value is None:
        return "not set"
    return safe_text(value, VALUE)


def _write_speeds(page: ReportPage, speeds: Sequence[SpeedChange]) -> None:
    if speeds:
        page.row(("Bandwidth  ", "bold"), "busbw in GB/s", indent=11)
    for row in speeds:
        name = collective_name(row.op, row.dtype)
        label = f"  {safe_text(name, 40)}  "
        text = f"{format_size(row.bytes)}  {row.before:.3g} → {row.after:.3g}"
        if row.before:
            change = row.after / row.before - 1
            text += f"  ({change:+.0%})"
        page.row(label, text, indent=4)
