"""The moving line of a running stage on a terminal. Apart from progress, as only it loads rich."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clusterprep.reports.plain import clean, fold_nodes, format_elapsed, safe_text
from clusterprep.reports.progress import READER_GONE, Clock, Lines, encodable

BAR = 20  # columns
# Pending nodes up to which they are named: folding more takes time, and their number says enough.
FEW = 32
NODES = 40  # characters of the pending nodes, so that all fits one line


class _Console(Console):
    """A console that survives the end of its reader; rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True


class LiveLine(Lines):
    """Prints the lines of `Lines`, and below them a moving one with a bar and pending nodes."""

    def __init__(self, stream: TextIO, clock: Clock = monotonic, *, color: bool = True) -> None:
        super().__init__(stream, clock)
        self._console = _Console(
            file=stream, force_terminal=True, no_color=not color, markup=False, highlight=False
        )
        self._live: Live | None = None

    def _stage_began(self) -> None:
        # stdout belongs to the report: rich must not put itself in front of it.
        live = Live(
            console=self._console,
            get_renderable=self._drawn,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with suppress(*READER_GONE):
            live.start()
            self._live = live

    def _stage_ended(self) -> None:
        live = self._live
        self._live = None
        if live is not None:
            with suppress(*READER_GONE):
                live.stop()

    def _say(self, line: str) -> None:
        if self._live is None:
            super()._say(line)
            return
        text = encodable(self._stream, clean(line))
        with suppress(*READER_GONE):
            self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _drawn(self) -> RenderableType:
        """Return the line as it is now.

        Called from rich's own thread. A lock here could wait for a step that waits for rich.
        """
        done = len(self._outcomes)
        text = encodable(self._stream, self._status(done))
        bar = ProgressBar(total=max(self._total, 1), completed=done, width=BAR)
        name = Text(safe_text(self._name, 20))
        status = Text(text, no_wrap=True, overflow="ellipsis")
        line = Table.grid(padding=(0, 1))
        line.add_row(name, bar, status)
        return line

    def _status(self, done: int) -> str:
        """Return `3/8  1 timed_out  2.0 s  waiting for n[4-7]`."""
        parts = [f"{done}/{self._total}"]
        troubles = self._troubles()
        if troubles:
            parts.append(troubles)
        parts.append(format_elapsed(self._seconds()))
        if self._total - done <= FEW:
            pending = self._pending()
            if pending:
                parts.append(f"waiting for {fold_nodes(pending, NODES)}")
        return "  ".join(parts)
