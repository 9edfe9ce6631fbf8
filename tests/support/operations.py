"""Count what a call executes: a number that does not depend on the load of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def operations(work: Callable[[], object]) -> int:
    """Return how many lines of Python `work` executes in this thread, each turn of a loop counted.

    What a line calls in C counts nothing more. What is imported or computed once is done beforehand
    by the caller.
    """
    count = 0

    def each_line() -> None:
        nonlocal count
        count += 1

    _traced(work, each_line)
    return count


def interrupt(work: Callable[[], object], line: int) -> None:
    """Raise KeyboardInterrupt in the middle of `work`, before the line with that number is run."""
    left = line

    def each_line() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    _traced(work, each_line)


def _traced(work: Callable[[], object], each_line: Callable[[], None]) -> None:
    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            each_line()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
