"""Render the report as a picture: the fleet as a grid by group, and below it what is wrong where.

It is one file that loads nothing, follows the reader's light or dark setting, and has no script.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from clusterprep.model import Report
from clusterprep.reports.blocks import LABELS, Block, number_reached, summarize, troubles
from clusterprep.reports.fleet_grid import WIDTH, layout, legend, shapes
from clusterprep.reports.html_nodes import Roster, label
from clusterprep.reports.plain import clean

# In pixels.
MARGIN = 20
HEAD = 62  # the verdict and the run
LINE = 20
LISTED = 12  # troubles that are listed; more are counted
CHECK = 28  # characters of a trouble's check
NODES = 44  # characters of its nodes, besides their number
HEADLINE = 72  # characters of the first line, which has larger letters
TEXT = 100  # characters of a line

_LIGHT = {
    "paper": "#fff",
    "ink": "#1b1f24",
    "dim": "#5d6772",
    "well": "#dfeae2",
    "f": "#b3201a",
    "w": "#c98a1b",
    "words_of_w": "#855300",
    "u": "#5a3ea8",
}
_DARK = {
    "paper": "#14171b",
    "ink": "#dfe3e8",
    "dim": "#98a2ad",
    "well": "#22352a",
    "f": "#ff8f85",
    "w": "#ecb755",
    "words_of_w": "#ecb755",
    "u": "#b9a5f5",
}
_STYLE = (
    "text{{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{ink}}}"
    "text.head{{font-size:16px;font-weight:600}}text.dim{{fill:{dim}}}.paper{{fill:{paper}}}"
    "line.well{{stroke:{well}}}rect.well{{fill:{well}}}"
    ".mark{{fill:none;stroke:{paper};stroke-width:2}}.f{{fill:{f}}}.w{{fill:{w}}}"
    ".u,.q{{fill:{paper};stroke:{u};stroke-width:2}}.q{{stroke-dasharray:2 2}}"
    ".u.tiny,.q.tiny{{fill:{u};stroke:none}}"
    "text.f{{fill:{f}}}text.w{{fill:{words_of_w}}}text.u,text.q{{fill:{u};stroke:none}}"
)
_KINDS = {
    ("fail", "error"): "f",
    ("fail", "warning"): "w",
    ("unknown", "error"): "u",
    ("unknown", "warning"): "q",
}


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """Return the whole picture."""
    roster = Roster(report)
    grid = layout(report, roster)
    listed = list(_listed(report))
    grid_height = grid.total_height if grid is not None else 0
    height = HEAD + grid_height + LINE * len(listed) + 2 * MARGIN
    width = WIDTH + 2 * MARGIN
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} {width} {height}"',
        f' width="{width}" height="{height}" role="img">',
        f"<title>{_text(_headline(report))}</title>",
        f"<style>{_style()}</style>",
        f'<rect class="paper" x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%"/>',
        f'<text class="head" y="14">{_text(_headline(report), HEADLINE)}</text>',
        f'<text class="dim" y="36">{_text(_about(report))}</text>',
    ]
    if grid is not None:
        rows.append(f'<g transform="translate(0 {HEAD})">')
        rows.extend(shapes(grid))
        rows.extend(legend(grid))
        rows.append("</g>")
    top = HEAD + grid_height + LINE // 2
    for number, line in enumerate(listed):
        rows.append(f'<g transform="translate(0 {top + number * LINE})">{line}</g>')
    rows.append("</svg>")
    return "\n".join(rows) + "\n"


def _text(text: str, limit: int = TEXT) -> str:
    """Return a text for an element, cut at `limit` characters."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return escape(clean(text))


def _style() -> str:
    dark = _STYLE.format(**_DARK)
    return f"{_STYLE.format(**_LIGHT)}@media(prefers-color-scheme:dark){{{dark}}}"


def _headline(report: Report) -> str:
    """Return the verdict with its counts, or the error that ended the command."""
    if report.error is not None:
        message = str(report.error.get("message") or "").split("\n")[0]
        return f"{report.verdict.upper()}: {message}"
    return f"{report.verdict.upper()}: {summarize(report)}"


def _about(report: Report) -> str:
    parts = [f"clusterprep {report.command}", report.cluster]
    if report.nodes:
        parts.append(f"{number_reached(report):,}/{len(report.nodes):,} nodes reached")
    minute = report.started[:16].replace("T", " ")
    parts += [report.run, f"{minute} UTC"]
    return " · ".join(part for part in parts if part)


def _listed(report: Report) -> Iterator[str]:
    """Yield a line for each trouble: its word, its check and its nodes."""
    blocks = troubles(report.findings or ())
    for block in blocks[:LISTED]:
        yield _trouble(block)
    if len(blocks) > LISTED:
        yield f'<text class="dim" y="12">… {len(blocks) - LISTED} more</text>'


def _trouble(block: Block) -> str:
    grade = (block.verdict, block.severity)
    nodes = label(tuple(block.nodes), NODES)
    return (
        f'<text class="{_KINDS[grade]}" y="12">{LABELS[grade]}</text>'
        f'<text x="80" y="12">{_text(block.check, CHECK)}</text>'
        f'<text class="dim" x="300" y="12">{_text(nodes, NODES + 16)}</text>'
    )
