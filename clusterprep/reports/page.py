"""The console report's paper: a column of words on the left, wrapped text beside it, and nothing unsafe on either."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.text import Text

from clusterprep.reports.plain import ascii_of, clean

Part = str | tuple[str, str]  # text, or text and its style

GUTTER = 9  # columns: the longest word there is SILENCED
NARROWEST, WIDEST = 40, 110  # below, wrapping eats the words; above, eyes lose the line


class ReportPage:
    """Lines to be, from parts that are cleaned here, so that no caller can forget it."""

    def __init__(self, *, color: bool, verbose: int, width: int, ascii_only: bool) -> None:
        self.verbose = verbose
        self.width = max(NARROWEST, min(width, WIDEST))
        self._ascii_only = ascii_only
        self._lines: list[Text] = []
        # Neither the environment nor the process's own terminal has a say: the caller knows what the text is for.
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
        """Styled text that holds no markup: rich never parses what hosts have said."""
        text = Text()
        for part in parts:
            words, style = part if isinstance(part, tuple) else (part, "")
            text.append(self._safe(words), style=style or None)
        return text

    def row(self, label: Part, *parts: Part, indent: int = GUTTER, keep: bool = False) -> None:
        """A word on the left, text beside it, wrapped there; `keep` leaves it on one line, for pasting."""
        head = self.text(label)
        head.pad_right(max(0, indent - head.cell_len))
        body = self.text(*parts)
        for number, line in enumerate([body] if keep else self._wrapped(body, indent)):
            first = head if number == 0 else Text(" " * indent)
            self._lines.append(Text.assemble(first, line))

    def under(self, *parts: Part, indent: int = GUTTER) -> None:
        """More text below the row before."""
        self.row("", *parts, indent=indent)

    def blank(self) -> None:
        """An empty line; never two, and none at the top."""
        if self._lines and self._lines[-1].plain:
            self._lines.append(Text())

    def rule(self) -> None:
        """A line across the page."""
        self._lines.append(
            self.text(("-" * self.width if self._ascii_only else "─" * self.width, "dim"))
        )

    def show(self) -> str:
        """Everything written so far."""
        with self._console.capture() as captured:
            for line in self._lines:
                line.rstrip()
                self._console.print(
                    line, soft_wrap=True, markup=False, highlight=False, emoji=False
                )
        return captured.get()

    def _safe(self, words: str) -> str:
        words = clean(words)
        return ascii_of(words) if self._ascii_only else words

    def _wrapped(self, body: Text, indent: int) -> list[Text]:
        lines = body.wrap(self._console, max(self.width - indent, NARROWEST // 2), overflow="fold")
        return list(lines) or [Text()]
