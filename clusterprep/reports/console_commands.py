"""Write what a command of `exec` printed: each output once, below the nodes that it came from."""

from __future__ import annotations

from collections.abc import Sequence

from clusterprep.model import CommandResult
from clusterprep.model.units import pluralize
from clusterprep.reports.blocks import describe_ending
from clusterprep.reports.page import Part, ReportPage

LONGEST = 4096  # characters of a line


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
    text = describe_ending(result)
    if not text:
        return ""
    return (f"  {text}", "bold yellow" if result.exit_code is None else "bold red")


def _write_lines(page: ReportPage, text: str, style: str) -> None:
    """Write lines as they are, so that they can be pasted; a blank end is left out."""
    for line in text.rstrip().splitlines():
        shown = line.expandtabs()
        if len(shown) > LONGEST:
            shown = f"{shown[:LONGEST]}… ({len(shown):,} characters)"
        page.row("", (shown, style), indent=0, keep=True)
