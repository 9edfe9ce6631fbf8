"""Counts what a call executes, so that work is held to a number that no other load on the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def operations(work: Callable[[], object]) -> int:
    """Return how many lines of Python `work` executes in this thread, each turn of a loop on one line for itself.

    What a line calls in C counts nothing more. What is imported or computed once is done beforehand by the caller.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
