"""Waits for what is about to happen, for as long as any machine may take for it."""

from __future__ import annotations

import time
from collections.abc import Callable

LONG = 60.0  # seconds; what should happen takes a fraction of one, unless other programs want the processors too
PAUSE = 0.01  # seconds between two looks


def eventually(truth: Callable[[], object], seconds: float = LONG, pause: float = PAUSE) -> bool:
    """Return whether `truth` comes about within `seconds`, as soon as it does."""
    end = time.monotonic() + seconds
    while not truth():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
