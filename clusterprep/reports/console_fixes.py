"""Write to the console what became of the failures that `fix` looked at."""

from __future__ import annotations

from collections.abc import Sequence

from clusterprep.model import FixRow
from clusterprep.reports.fixes import count_fixes, sorted_fixes
from clusterprep.reports.page import Part, ReportPage
from clusterprep.reports.plain import fold_nodes, safe_text

INDENT = 10
ROWS = 40  # shown without -v
_STYLES = {"cured": "green", "not cured": "bold red"}


def write_fixes(page: ReportPage, fixes: Sequence[FixRow] | None) -> None:
    """Write a line for each failure: what became of it, the check and its nodes, and why."""
    if fixes is None:
        return
    page.blank()
    page.row(("Fixes", "bold"), count_fixes(fixes), indent=INDENT)
    column = INDENT + 12
    rows = sorted_fixes(fixes)
    shown = page.shown(rows, ROWS)
    for row in shown:
        label: Part = (" " * INDENT + row.outcome, _STYLES.get(row.outcome, ""))
        nodes: Part = (fold_nodes(row.nodes), "cyan")
        check: Part = (safe_text(row.check), "bold")
        page.row(label, check, "  ", nodes, indent=column)
        if row.reason:
            page.under(safe_text(row.reason), indent=column)
    if len(shown) < len(rows):
        page.under((f"… {len(rows) - len(shown)} more (-v shows all)", "dim"), indent=INDENT + 2)
