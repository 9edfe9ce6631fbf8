"""Write the result of a launch to the console: ends of ranks, culprits, causes in the log."""

from __future__ import annotations

from collections.abc import Mapping

from clusterprep.model import Json, LaunchedRank, LaunchResult
from clusterprep.model.units import pluralize
from clusterprep.reports.console_results import INDENT, describe_ranks, write_culprit
from clusterprep.reports.page import Part, ReportPage
from clusterprep.reports.plain import fold_nodes, safe_text

CAUSES = 3  # shown without -v
_STYLES = {"pass": "bold green", "fail": "bold red"}
_ENDED = {
    "finished": "ended with exit code 0",
    "with-others": "ended with the others",
    "lost": "lost with their node",
    "hanging": "still running when the time was up",
    "not-started": "not started",
}


def write_launch(page: ReportPage, launch: LaunchResult | None) -> None:
    """Write the ranks by how they ended, the culprits with their last lines, the log's causes."""
    if launch is None:
        return
    _write_head(page, launch)
    _write_folders(page, launch)
    if page.verbose or launch.verdict != "pass":
        _write_ranks(page, launch)
    if launch.logs:
        page.row("  logs", safe_text(launch.logs), indent=INDENT + 8, keep=True)
    for culprit in launch.culprits:
        write_culprit(page, culprit)
    for cause in page.shown(launch.causes, CAUSES):
        _write_cause(page, cause)


def _write_head(page: ReportPage, launch: LaunchResult) -> None:
    label = "Launch  "
    verdict = safe_text(launch.verdict).upper()
    style = _STYLES.get(launch.verdict, "bold yellow")
    ranks = pluralize(launch.world_size, "rank")
    rendezvous = safe_text(launch.rendezvous)
    text = f"  {ranks}, {launch.nproc_per_node} per node, {launch.mode}, {rendezvous}"
    page.blank()
    page.row((label, "bold"), (verdict, style), text, indent=len(label))
    if launch.message:
        page.under(safe_text(launch.message), indent=INDENT)


def _write_folders(page: ReportPage, launch: LaunchResult) -> None:
    nodes_by_folder: dict[str, list[str]] = {}
    for node, folder in launch.folders.items():
        if folder:
            nodes_by_folder.setdefault(folder, []).append(node)
    for folder, nodes in nodes_by_folder.items():
        path = safe_text(folder)
        page.row("  folder", f"{path} on {fold_nodes(nodes)}", indent=INDENT + 8)


def _write_ranks(page: ReportPage, launch: LaunchResult) -> None:
    """Write a line for all ranks that ended alike."""
    rows_by_end: dict[str, list[LaunchedRank]] = {}
    for row in launch.ranks:
        rows_by_end.setdefault(_describe_end(row), []).append(row)
    for end, rows in rows_by_end.items():
        page.row("  ranks", f"{describe_ranks(rows)}: {end}")


def _describe_end(row: LaunchedRank) -> str:
    if row.ended == "failed":
        return f"ended with exit code {row.code}"
    if row.ended == "killed":
        return f"killed by {row.signal}"
    return _ENDED[row.ended]


def _write_cause(page: ReportPage, cause: Mapping[str, Json]) -> None:
    name: Part = (safe_text(str(cause["cause"])), "bold")
    culprit = ""
    if cause.get("culprit"):
        culprit = f"  {safe_text(str(cause['culprit']))}"
    page.blank()
    page.row(("LOG SAYS", "bold yellow"), name, culprit, indent=9)
    page.under(safe_text(str(cause["message"])))
    if cause.get("remedy"):
        page.fix(str(cause["remedy"]), str(cause.get("note", "")), "cyan")
