"""Write what a command of `exec` printed: each output once, below the nodes that it came from."""

from __future__ import annotations

from collections.abc import Sequence

from clusterprep.model import CommandResult
from clusterprep.model.units import pluralize
from clusterprep.reports.page import Part, ReportPage

LONGEST = 4096  # characters of a line
_WHY = {
    "timed_out": "still running when the time was up",
    "hung": "lost: the connection ended before the command did",
    "killed": "ended by a signal",
}


def write_commands(page: ReportPage, results: Sequence[CommandResult] | None) -> None:
    """Write the results of `exec`, the most frequent one first."""
    for result in results or ():
        _write_head(page, result)
        _write_lines(page, result.stdout, "")
        _write_lines(page, result.stderr, "dim")
        if result.left_out:
            page.row("", (f"… {result.left_out:,} more bytes were not kept", "dim"), indent=0)


def _write_head(page: ReportPage, result: CommandResult) -> None:
    count = f"  {pluralize(len(result.nodes), 'node')}"
    page.blank()
    page.row("", (page.nodes(result.nodes), "bold cyan"), count, _ending(result), indent=0)


def _ending(result: CommandResult) -> Part:
    if result.exit_code == 0:
        return ""
    if result.exit_code is not None:
        return (f"  exit code {result.exit_code}", "bold red")
    return (f"  {_WHY.get(result.reason or '', 'not known how it ended')}", "bold yellow")


def _write_lines(page: ReportPage, text: str, style: str) -> None:
    """Write lines as they are, so that they can be pasted; a blank end is left out."""
    for line in text.rstrip().splitlines():
        shown = line.expandtabs()
        if len(shown) > LONGEST:
            shown = f"{shown[:LONGEST]}… ({len(shown):,} characters)"
        page.row("", (shown, style), indent=0, keep=True)
