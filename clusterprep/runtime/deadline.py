"""Ctrl-C, SIGTERM, SIGHUP and --timeout as one thing: an exception in the main thread, at once or when it is safe."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from clusterprep.errors import ClusterprepError, Interrupted, OutOfTime
from clusterprep.runtime.budget import Budget
from clusterprep.runtime.signals import signals_to_handle


class Deadline:
    """Turns signals and the time limit into exceptions; a second signal leaves at once.

    `said` is the option that set the limit, and how: «--timeout of 90 s».
    """

    def __init__(self, seconds: float | None = None, said: str = "") -> None:
        self._seconds = seconds
        self._said = said or f"--timeout of {seconds or 0:g} s"
        self._shielded = False
        self._pending: ClusterprepError | None = None
        self._signals = 0

    def __enter__(self) -> Deadline:
        self._before = {
            signum: signal.signal(signum, self._signal) for signum in signals_to_handle()
        }
        if self._seconds is not None:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._alarm)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @classmethod
    def of(cls, seconds: float | None, budget: Budget | None) -> Deadline:
        """That of --timeout, or of a budget where that ends earlier."""
        left = None if budget is None else max(budget.end - time.monotonic(), 0.001)
        if budget is None or left is None or (seconds is not None and seconds < left):
            return cls(seconds)
        return cls(left, f"--budget of {budget.seconds:g} s")

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold an interruption back until the block ends or asks with `check`."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        self.check()

    def check(self) -> None:
        """Raise an interruption that was held back."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            raise pending

    def _signal(self, signum: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(Interrupted.code)
        self._stop(Interrupted(f"interrupted by {signal.Signals(signum).name}"))

    def _alarm(self, signum: int, frame: FrameType | None) -> None:
        self._stop(OutOfTime(f"{self._said} reached"))

    def _stop(self, error: ClusterprepError) -> None:
        self._pending = error
        if not self._shielded:
            self.check()
