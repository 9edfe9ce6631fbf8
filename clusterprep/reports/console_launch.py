"""What became of a launch, for people: how the ranks ended, whose end was the first, and what its log says."""

from __future__ import annotations

from clusterprep.model import LaunchedRank, LaunchResult
from clusterprep.reports.console_results import write_culprit
from clusterprep.reports.page import ReportPage
from clusterprep.reports.plain import counted, distinct, field, folded, folded_ranks

INDENT = 2
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
    """The ranks by how they ended, the culprits with their last lines, and the causes that the log shows."""
    if launch is None:
        return
    page.blank()
    size = (
        f"{counted(launch.world_size, 'rank')}, {launch.nproc_per_node} per node, {launch.mode}, "
    )
    verdict = (field(launch.verdict).upper(), _STYLES.get(launch.verdict, "bold yellow"))
    page.row(
        ("Launch  ", "bold"), verdict, f"  {size}{field(launch.rendezvous)}", indent=len("Launch  ")
    )
    if launch.message:
        page.under(field(launch.message), indent=INDENT)
    for folder in distinct(launch.folders.values()):
        nodes = folded(node for node, mine in launch.folders.items() if mine == folder)
        page.row("  folder", f"{field(folder)} on {nodes}", indent=INDENT + 8)
    if page.verbose or launch.verdict != "pass":
        for how in distinct(map(_how, launch.ranks)):
            same = [row for row in launch.ranks if _how(row) == how]
            page.row(
                "  ranks",
                f"{folded_ranks(r.rank for r in same)} on {folded(r.node for r in same)}: {how}",
            )
    if launch.logs:
        page.row("  logs", field(launch.logs), indent=INDENT + 8, keep=True)
    for culprit in launch.culprits:
        write_culprit(page, culprit)
    _write_causes(page, launch)


def _how(row: LaunchedRank) -> str:
    if row.ended == "failed":
        return f"ended with exit code {row.code}"
    if row.ended == "killed":
        return f"killed by {row.signal}"
    return _ENDED[row.ended]


def _write_causes(page: ReportPage, launch: LaunchResult) -> None:
    """Most likely first, as `diagnose` has them."""
    for cause in launch.causes if page.verbose else launch.causes[:CAUSES]:
        page.blank()
        who = f"  {field(str(cause['culprit']))}" if cause.get("culprit") else ""
        page.row(("LOG SAYS", "bold yellow"), (field(str(cause["cause"])), "bold"), who, indent=9)
        page.under(field(str(cause["message"])))
        if cause.get("remedy"):
            page.row(("    fix:", "dim"), (field(str(cause["remedy"])), "cyan"), keep=True)
