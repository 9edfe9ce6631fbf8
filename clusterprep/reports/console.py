"""The report for people: what is wrong and what to paste comes first, what is well takes one paragraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterprep.model import Json, NodeSnapshot, Report
from clusterprep.reports.advice import advice
from clusterprep.reports.blocks import counts
from clusterprep.reports.console_findings import write_findings
from clusterprep.reports.console_history import write_comparison, write_runs, write_since
from clusterprep.reports.console_launch import write_launch
from clusterprep.reports.console_results import (
    write_changes,
    write_env,
    write_env_paths,
    write_verify,
)
from clusterprep.reports.page import Part, ReportPage
from clusterprep.reports.plain import counted, distinct, elapsed, field, folded

_STYLES = {"pass": "bold green", "fail": "bold red", "error": "bold red"}
_ENDED = {"refused": "REFUSED", "interrupted": "STOPPED"}
_NOTICES = 8  # shown without -v
_NAME = 64  # characters of a cluster's or a run's name
_ERROR_LINES = (
    40  # every wrong line of an inventory is worth showing; a generated one may have thousands
)


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """The whole report as text for a terminal of `width` columns."""
    page = ReportPage(color=color, verbose=verbose, width=width, ascii_only=ascii_only)
    _write_header(page, report)
    _write_error(page, report)
    _write_unreached(page, report)
    write_findings(page, report.findings or (), report.since)
    write_env(page, report.env)
    write_env_paths(page, report.env_paths)
    write_changes(page, report.changes)
    write_verify(page, report.verify)
    write_launch(page, report.launch)
    write_runs(page, report)
    write_comparison(page, report.comparison)
    _write_verdict(page, report)
    return page.show()


def _write_header(page: ReportPage, report: Report) -> None:
    parts: list[Part] = [(field(report.command, _NAME), "bold")]
    if report.cluster:
        parts.append((field(report.cluster, _NAME), "bold cyan"))
    if report.nodes is not None:
        parts.append(
            f"{sum(node.reached for node in report.nodes)}/{counted(len(report.nodes), 'node')} reached"
        )
    if report.run:
        parts.append((f"run {field(report.run, _NAME)}", "dim"))
    if (
        report.runs is None and report.comparison is None
    ):  # what is looked up takes no time worth a word
        parts.append((elapsed(report.seconds), "dim"))
    page.row(("clusterprep", "bold"), *_spaced(parts), indent=len("clusterprep "))
    page.rule()
    shown = report.notices if page.verbose else report.notices[:_NOTICES]
    for notice in shown:
        page.row(("note", "yellow"), field(notice))
    if len(shown) < len(report.notices):
        page.under(
            (f"… {counted(len(report.notices) - len(shown), 'more note')} (-v shows them)", "dim")
        )


def _write_error(page: ReportPage, report: Report) -> None:
    """Every line of the message; the place first, where the message does not already say it."""
    if report.error is None:
        return
    message = str(report.error.get("message") or "")
    lines = [line for line in message.split("\n") if line.strip()]
    spot, key = _place(report.error)
    if spot and spot not in message:
        lines.insert(0, f"{spot}  {key}".strip())
    page.blank()
    page.row(
        (_ENDED.get(report.verdict, "ERROR"), "bold red"), *(field(line) for line in lines[:1])
    )
    for line in lines[1:_ERROR_LINES]:
        page.under(field(line))
    if len(lines) > _ERROR_LINES:
        page.under((f"… {counted(len(lines) - _ERROR_LINES, 'more line')}", "dim"))


def _place(error: Mapping[str, Json]) -> tuple[str, str]:
    spot = ":".join(str(error[key]) for key in ("file", "line") if error.get(key) is not None)
    return spot, str(error.get("key") or "")


def _write_unreached(page: ReportPage, report: Report) -> None:
    """Nodes that no finding speaks of; ssh.reach does it wherever checks have run."""
    spoken = {
        node
        for finding in report.findings or ()
        if finding.check == "ssh.reach"
        for node in finding.nodes
    }
    lost = [node for node in report.nodes or () if not node.reached and node.node not in spoken]
    for reason in distinct(node.reason or "unknown" for node in lost):
        same = [node for node in lost if (node.reason or "unknown") == reason]
        page.blank()
        page.row(
            ("LOST", "bold yellow"),
            (folded(node.node for node in same), "bold"),
            f"  not reached: {field(reason)}",
        )
        _write_lost(page, same)


def _write_lost(page: ReportPage, nodes: Sequence[NodeSnapshot]) -> None:
    for detail in distinct(node.detail for node in nodes)[:3]:
        page.under(field(detail))
    for remedy in distinct(node.remedy for node in nodes)[:1]:
        page.row(("    fix:", "dim"), (field(remedy), "cyan"), keep=True)


def _write_verdict(page: ReportPage, report: Report) -> None:
    page.blank()
    write_since(page, report.since, report.started)
    if report.runs is not None or report.comparison is not None:
        return  # what was looked up is no verdict
    page.rule()
    style = _STYLES.get(report.verdict, "bold yellow")
    page.row((field(report.verdict).upper(), style), (counts(report), "bold"))
    for label, hint in advice(report):
        # Commands stay on one line, to be pasted; sentences may wrap.
        page.row((f"{label}:".rjust(8), "dim"), hint, keep=label != "next")


def _spaced(parts: Sequence[Part]) -> list[Part]:
    return [one for part in parts for one in (part, "  ")]
