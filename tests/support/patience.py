"""Waits for what is about to happen, for as long as any machine may take for it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Process = TypeVar("Process", bound="subprocess.Popen[str] | subprocess.Popen[bytes]")

# seconds; what should happen takes a fraction of one, unless other programs want the processors too
LONG = 60.0
PAUSE = 0.01  # seconds between two looks


@contextmanager
def killed_on_failure(process: Process) -> Iterator[Process]:
    """Wait for the process at the end of the block, or kill it if the test failed or timed out."""
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def eventually(truth: Callable[[], object], seconds: float = LONG, pause: float = PAUSE) -> bool:
    """Return whether `truth` comes about within `seconds`, as soon as it does."""
    end = time.monotonic() + seconds
    while not truth():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
