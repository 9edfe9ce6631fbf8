"""The page of the console report: labels in a column on the left, wrapped text beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from clusterprep.remedies import LONGEST_LINE
from clusterprep.reports.plain import clean, fold_nodes, safe_text, to_ascii

Part = str | tuple[str, str]  # text, or text and its style
Row = TypeVar("Row")

GUTTER = 9  # columns: the longest label is SILENCED
QUIET = -1  # verbosity of a report in one line
# In columns. A narrower page has no room for words; long lines of a wider one are hard to follow.
NARROWEST, WIDEST = 40, 110


class ReportPage:
    """Collects lines. Every part is cleaned here, so that no caller can forget it."""

    def __init__(self, *, color: bool, verbose: int, width: int, ascii_only: bool) -> None:
        self.verbose = verbose
        self.width = max(NARROWEST, min(width, WIDEST))
        self._whole_width = max(NARROWEST, width)  # for lines that are cut and not wrapped
        self._ascii_only = ascii_only
        self._lines: list[Text] = []
        # The caller knows what the text is for. The environment and the process's own terminal
        # do not, so rich may not look at them.
        self._console = Console(
            file=StringIO(),
            width=self.width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            legacy_windows=False,
            _environ={},
        )

    def text(self, *parts: Part) -> Text:
        """Return styled text without markup: rich never parses what nodes have said."""
        text = Text()
        for part in parts:
            if isinstance(part, tuple):
                content, style = part
                text.append(self._safe(content), style=style or None)
            else:
                text.append(self._safe(part))
        return text

    def row(self, label: Part, *parts: Part, indent: int = GUTTER, keep: bool = False) -> None:
        """Add a label and the text beside it, which is wrapped there.

        `keep` leaves the text on one line, so that it can be pasted.
        """
        head = self.text(label)
        head.pad_right(max(0, indent - head.cell_len))
        body = self.text(*parts)
        lines = [body]
        if not keep:
            lines = self._wrapped(body, indent)
        for line in lines:
            self._lines.append(Text.assemble(head, line))
            # Only the first line has the label.
            head = Text(" " * indent)

    def line(self, label: Part, *parts: Part) -> None:
        """Add a label and the text beside it on one line, which is cut if it is too long.

        It may be as long as the terminal is wide: one line is easy to follow.
        """
        line = self.text(label)
        line.pad_right(max(0, GUTTER - line.cell_len))
        line.append_text(self.text(*parts))
        mark = self._safe("…")
        if line.cell_len > self._whole_width:
            line.truncate(self._whole_width - len(mark))
            line.append(mark)
        self._lines.append(line)

    def under(self, *parts: Part, indent: int = GUTTER) -> None:
        """Add more text below the previous row."""
        self.row("", *parts, indent=indent)

    def fix(self, remedy: str, note: str, style: str) -> None:
        """Add a remedy, whole and on one line, so that it can be pasted, and its note below it."""
        self.row(("    fix:", "dim"), (safe_text(remedy, LONGEST_LINE), style), keep=True)
        if note:
            self.under((safe_text(note), "dim"))

    def blank(self) -> None:
        """Add an empty line; never two in a row, and none at the top."""
        if self._lines and self._lines[-1].plain:
            self._lines.append(Text())

    def show(self) -> str:
        """Return the whole page."""
        with self._console.capture() as captured:
            for line in self._lines:
                line.rstrip()
                self._console.print(
                    line, soft_wrap=True, markup=False, highlight=False, emoji=False
                )
        return captured.get()

    def shown(self, rows: Sequence[Row], limit: int) -> Sequence[Row]:
        """Return the rows to show: with -v all of them, otherwise the first `limit`."""
        if self.verbose:
            return rows
        return rows[:limit]

    def fitting(self, rows: Sequence[Row], lines: int) -> Sequence[Row]:
        """Return the rows to show on `lines` lines, of which the last says how many are left out.

        With -v all rows are shown.
        """
        if self.verbose or len(rows) <= lines:
            return rows
        return rows[: lines - 1]

    def nodes(self, names: Iterable[str]) -> str:
        """Return a folded node set: with -v all of it, otherwise cut where it is long."""
        if self.verbose:
            return fold_nodes(names, None)
        return fold_nodes(names)

    def _safe(self, text: str) -> str:
        cleaned = clean(text)
        if self._ascii_only:
            return to_ascii(cleaned)
        return cleaned

    def _wrapped(self, body: Text, indent: int) -> list[Text]:
        width = max(self.width - indent, NARROWEST // 2)
        lines = body.wrap(self._console, width, overflow="fold")
        return list(lines) or [Text()]
