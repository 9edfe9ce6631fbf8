"""The one line that moves while a stage runs, apart from the rest because rich is loaded for it alone."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clusterprep.reports.plain import elapsed, field, folded
from clusterprep.reports.progress import GONE, Clock, Lines, in_encoding_of

BAR = 20  # columns
FEW = 32  # nodes; as long as more are waited for, their number says enough, and to fold names takes time
NODES = 40  # characters of the nodes waited for, so that it stays one line


class _Console(Console):
    """rich ends the process, and points stdout at nothing, when its reader leaves; a run must go on."""

    def on_broken_pipe(self) -> None:
        """Say nothing more."""
        self.quiet = True


class LiveLine(Lines):
    """The lines of the plain variant, and below them one that moves: stage, bar, seconds, who is waited for."""

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
        with suppress(*GONE):
            live.start()
            self._live = live

    def _stage_ended(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            with suppress(*GONE):
                live.stop()

    def _say(self, line: str) -> None:
        if self._live is None:
            super()._say(line)
            return
        with suppress(*GONE):
            self._console.print(
                in_encoding_of(self._stream, line), soft_wrap=True, markup=False, highlight=False
            )

    def _drawn(self) -> RenderableType:
        # Drawn from rich's own thread; a lock here could wait for a step that waits for rich.
        done = len(self._outcomes)
        pending = self._pending() if self._total - done <= FEW else ()
        waiting = f"waiting for {folded(pending, NODES)}" if pending else ""
        parts = (f"{done}/{self._total}", self._troubles(), elapsed(self._seconds()), waiting)
        told = in_encoding_of(self._stream, "  ".join(part for part in parts if part))
        bar = ProgressBar(total=max(self._total, 1), completed=done, width=BAR)
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(field(self._name, 20)), bar, Text(told, no_wrap=True, overflow="ellipsis")
        )
        return line
