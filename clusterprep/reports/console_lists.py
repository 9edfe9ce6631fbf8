"""Write to the console which nodes a job may use, and where their lists are."""

from __future__ import annotations

from clusterprep.model import NodeLists
from clusterprep.model.units import pluralize
from clusterprep.reports.page import ReportPage
from clusterprep.reports.plain import safe_text

INDENT = 10


def write_lists(page: ReportPage, lists: NodeLists | None) -> None:
    """Write how many nodes pass, which do not, the nodes that --pick chose, and the folder."""
    if lists is None:
        return
    page.blank()
    passing = pluralize(len(lists.passing), "node")
    verb = "passes" if len(lists.passing) == 1 else "pass"
    parts = [f"{passing} {verb}"]
    if lists.failing:
        parts.append(f"failing {page.nodes(lists.failing)}")
    if lists.unknown:
        parts.append(f"not known {page.nodes(lists.unknown)}")
    page.row(("Nodes", "bold"), "; ".join(parts), indent=INDENT)
    if lists.picked:
        # On one line and whole, because it is pasted.
        page.row("  picked", page.nodes(lists.picked), indent=INDENT, keep=True)
        page.under("findings of other nodes do not count", indent=INDENT)
    elif lists.picked is not None:
        why = "" if lists.wanted is None else f": {lists.wanted} wanted, {passing} {verb}"
        page.row("  picked", ("none", "bold red"), why, indent=INDENT)
    if lists.folder:
        page.row("  lists", safe_text(lists.folder), indent=INDENT, keep=True)
