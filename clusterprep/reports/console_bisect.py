"""Write the result of a bisect to the console: culprits with the runs that show them, and runs."""

from __future__ import annotations

from clusterprep.model import BisectResult, BisectRun
from clusterprep.model.units import pluralize
from clusterprep.reports.console_results import INDENT, write_culprit
from clusterprep.reports.page import ReportPage
from clusterprep.reports.plain import fold_nodes, safe_text

_STYLES = {"pass": "bold green", "fail": "bold red"}
_RUN_STYLES = {"failed": "red", "hung": "red", "slow": "yellow", "passed": "green"}


def write_bisect(page: ReportPage, bisect: BisectResult | None) -> None:
    """Write how many runs were made, the culprits, and the runs."""
    if bisect is None:
        return
    label = "Bisect  "
    verdict = safe_text(bisect.verdict).upper()
    style = _STYLES.get(bisect.verdict, "bold yellow")
    runs = f"  {pluralize(len(bisect.runs), 'run')} of at most {bisect.most_runs}"
    page.blank()
    page.row((label, "bold"), (verdict, style), runs, indent=len(label))
    if bisect.message:
        page.under(safe_text(bisect.message), indent=INDENT)
    command = safe_text(" ".join(bisect.command))
    page.row("  command", f" {command}", indent=INDENT + 8)
    if bisect.logs:
        page.row("  logs   ", f" {safe_text(bisect.logs)}", indent=INDENT + 8, keep=True)
    for culprit in bisect.culprits:
        write_culprit(page, culprit)
    if bisect.runs and (page.verbose or bisect.verdict != "pass"):
        page.blank()
        for run in bisect.runs:
            _write_run(page, run)


def _write_run(page: ReportPage, run: BisectRun) -> None:
    style = _RUN_STYLES.get(run.ended, "bold yellow")
    word = safe_text(run.ended)
    nodes = fold_nodes(run.nodes)
    page.row(
        f"  run {run.number:<3}",
        (f"{word:7}", style),
        f"{run.seconds:8.1f} s  {nodes}",
        indent=INDENT + 8,
    )
    if page.verbose and run.cause:
        page.under((safe_text(run.cause), "dim"), indent=INDENT + 8)
