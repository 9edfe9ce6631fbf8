"""Render the report for a terminal: errors and what to paste first, then the rest in short.

Colours and widths are rich's, words are ours. Golden files hold them (tests/reports/golden).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterprep.model import Json, NodeSnapshot, Report
from clusterprep.model.units import pluralize
from clusterprep.remedies import shell_line
from clusterprep.reports.advice import Advice, advice
from clusterprep.reports.blocks import number_reached, summarize, troubles, unreported_nodes
from clusterprep.reports.console_bisect import write_bisect
from clusterprep.reports.console_commands import write_commands
from clusterprep.reports.console_findings import write_findings
from clusterprep.reports.console_fixes import write_fixes
from clusterprep.reports.console_gpus import write_gpus, write_ranks
from clusterprep.reports.console_history import write_comparison, write_runs, write_since
from clusterprep.reports.console_launch import write_launch
from clusterprep.reports.console_lists import write_lists
from clusterprep.reports.console_results import (
    write_batches,
    write_changes,
    write_env,
    write_env_paths,
    write_verify,
)
from clusterprep.reports.nagios import describe_report
from clusterprep.reports.page import GUTTER, QUIET, Part, ReportPage
from clusterprep.reports.plain import (
    distinct,
    fold_nodes,
    format_elapsed,
    nonblank_lines,
    safe_text,
    to_ascii,
)

_STYLES = {"pass": "bold green", "fail": "bold red", "error": "bold red"}
_ERROR_LABELS = {"refused": "REFUSED", "interrupted": "STOPPED"}
_NOTICES = 8  # shown without -v
_NAME = 64  # characters of a cluster's or a run's name
_DETAILS = 3  # different details of nodes that were not reached
# Every wrong line of an inventory is worth showing, but a generated one may have thousands.
_ERROR_LINES = 40


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """Return the whole report as text for a terminal of `width` columns; if QUIET as one line."""
    if verbose == QUIET:
        line = f"{report.verdict.upper()} {describe_report(report)}\n"
        return to_ascii(line) if ascii_only else line
    page = ReportPage(color=color, verbose=verbose, width=width, ascii_only=ascii_only)
    _write_header(page, report)
    _write_error(page, report)
    _write_unreached(page, report)
    write_findings(page, report.findings or (), report.since, whole=_is_whole(report))
    if page.verbose or report.verdict == "pass":
        write_gpus(page, report.gpus)
    write_ranks(page, report.ranks)
    if page.verbose or _is_about_env(report):
        write_env(page, report.env)
        write_env_paths(page, report.env_paths)
    write_batches(page, report.batches)
    write_changes(page, report.changes)
    write_fixes(page, report.fixes)
    write_verify(page, report.verify, short=_has_changed_nothing(report))
    write_launch(page, report.launch)
    write_bisect(page, report.bisect)
    write_lists(page, report.lists)
    write_commands(page, report.results)
    write_runs(page, report)
    write_comparison(page, report.comparison)
    _write_verdict(page, report)
    return page.show()


def _write_header(page: ReportPage, report: Report) -> None:
    label = "clusterprep"
    parts: list[Part] = [(safe_text(report.command, _NAME), "bold")]
    if report.cluster:
        cluster = safe_text(report.cluster, _NAME)
        parts += ["  ", (cluster, "bold cyan")]
    if report.nodes is not None:
        reached = number_reached(report)
        total = pluralize(len(report.nodes), "node")
        parts.append(f"  {reached}/{total} reached")
    if report.run:
        run = safe_text(report.run, _NAME)
        parts += ["  ", (f"run {run}", "dim")]
    if not _takes_no_time(report):
        took = format_elapsed(report.seconds)
        parts += ["  ", (took, "dim")]
    page.row((label, "bold"), *parts, indent=len(label) + 1)
    page.blank()
    _write_notices(page, report.notices)


def _write_notices(page: ReportPage, notices: Sequence[str]) -> None:
    shown = page.shown(notices, _NOTICES)
    for notice in shown:
        page.row(("note", "yellow"), safe_text(notice))
    if len(shown) < len(notices):
        more = pluralize(len(notices) - len(shown), "more note")
        page.under((f"… {more} (-v shows them)", "dim"))


def _is_whole(report: Report) -> bool:
    """Return True if warnings are shown whole: they count, or the history has no such runs."""
    return report.strict or not report.run


def _takes_no_time(report: Report) -> bool:
    """Return True for reports about earlier runs, and for what one of them found."""
    return _is_lookup(report) or report.command == "explain"


def _is_lookup(report: Report) -> bool:
    """Return True for reports about earlier runs."""
    return report.runs is not None or report.comparison is not None


def _is_about_env(report: Report) -> bool:
    """Return True if the environment was asked for, or is among what changes."""
    if report.command == "env":
        return True
    rows = report.changes or ()
    return any(row.resource == "env" and row.outcome != "unchanged" for row in rows)


def _has_changed_nothing(report: Report) -> bool:
    """Return True if everything was as wanted already."""
    if report.changes is None:
        return False
    return all(row.outcome == "unchanged" for row in report.changes)


def _write_error(page: ReportPage, report: Report) -> None:
    """Write the first lines of the message, after the place if the message does not name it."""
    if report.error is None:
        return
    message = str(report.error.get("message") or "")
    lines = nonblank_lines(message)
    place, key = _place(report.error)
    if place and place not in message:
        line = f"{place}  {key}"
        lines.insert(0, line.strip())
    first = ""
    if lines:
        first = safe_text(lines[0])
    label = _ERROR_LABELS.get(report.verdict, "ERROR")
    page.blank()
    page.row((label, "bold red"), first)
    for line in lines[1:_ERROR_LINES]:
        page.under(safe_text(line))
    if len(lines) > _ERROR_LINES:
        more = pluralize(len(lines) - _ERROR_LINES, "more line")
        page.under((f"… {more}", "dim"))


def _place(error: Mapping[str, Json]) -> tuple[str, str]:
    """Return `file:line` and the key, each empty if the error does not have it."""
    parts = []
    for name in ("file", "line"):
        value = error.get(name)
        if value is not None:
            parts.append(str(value))
    return ":".join(parts), str(error.get("key") or "")


def _write_unreached(page: ReportPage, report: Report) -> None:
    """Write the nodes that were not reached, by reason."""
    nodes_by_reason: dict[str, list[NodeSnapshot]] = {}
    for node in unreported_nodes(report):
        nodes_by_reason.setdefault(node.reason or "unknown", []).append(node)
    for reason, nodes in nodes_by_reason.items():
        _write_unreached_for(page, reason, nodes)


def _write_unreached_for(page: ReportPage, reason: str, nodes: Sequence[NodeSnapshot]) -> None:
    names = []
    details = []
    remedies = []
    for node in nodes:
        names.append(node.node)
        details.append(node.detail)
        if node.remedy:
            remedies.append(node.remedy)
    label: Part = ("LOST", "bold yellow")
    page.blank()
    page.row(label, (fold_nodes(names), "bold"), f"  not reached: {safe_text(reason)}")
    for detail in distinct(details)[:_DETAILS]:
        page.under(safe_text(detail))
    # One remedy is shown: the others differ only in the node's name.
    for remedy in remedies[:1]:
        page.fix(remedy, remedy.note, "cyan")


def _write_verdict(page: ReportPage, report: Report) -> None:
    """Write the verdict, what to do first, and what is new since an earlier run."""
    page.blank()
    if _is_lookup(report):
        return  # reports about earlier runs have no verdict
    style = _STYLES.get(report.verdict, "bold yellow")
    verdict = safe_text(report.verdict).upper()
    # INTERRUPTED is longer than any label.
    indent = max(GUTTER, len(verdict) + 2)
    page.row((verdict, style), (summarize(report), "bold"), indent=indent)
    for label, hint in _with_more(page, report, advice(report)):
        # Commands stay on one line, to be pasted; sentences may wrap.
        is_command = label != "next"
        page.row((f"{label}:".rjust(8), "dim"), hint, keep=is_command)
    write_since(page, report.since, report.started)


def _with_more(page: ReportPage, report: Report, lines: Advice) -> Advice:
    """Return the advice with how to see whole what has one line each on this page."""
    if page.verbose or _is_whole(report):
        return lines
    short = [block for block in troubles(report.findings or ()) if block.severity == "warning"]
    if not short:
        return lines
    labels = [label for label, _ in lines]
    if "more" not in labels:
        command = shell_line("clusterprep explain --run last {check}", check=short[0].check)
        lines = [*lines, ("more", command)]
    extended = []
    for label, hint in lines:
        note = "   # all of it: -v" if label == "more" else ""
        extended.append((label, hint + note))
    return extended
