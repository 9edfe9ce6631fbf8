"""Choose how the progress of a command is shown on a stream."""

from __future__ import annotations

import os
from typing import TextIO

from clusterprep.reports.progress import Lines, Progress


def make_progress(stream: TextIO | None, *, quiet: bool = False, color: bool = True) -> Progress:
    """Return the progress that suits the stream.

    A moving line on a terminal, plain lines elsewhere, nothing without a stream.
    """
    if quiet or stream is None:
        return Progress()
    if stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
        from clusterprep.reports.live import LiveLine

        return LiveLine(stream, color=color)
    return Lines(stream)
