"""Ctrl-C, SIGTERM, SIGHUP and --timeout as exceptions in the main thread, as soon as it is safe.

with Deadline(90.0) as deadline:
    prepare()
    with deadline.shield():
        commit()

Shields are short: a commit, a finalization, a roll back. Before the commit nothing was written, and
after it the old bytes are put back on all nodes, so an interruption is safe anywhere else.
"""

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
    """Raises Interrupted for signals and OutOfTime for the limit. A second signal ends at once.

    `option` is the option that set the limit, for the message: «--timeout of 90 s».
    """

    def __init__(self, seconds: float | None = None, option: str = "") -> None:
        self._seconds = seconds
        self._option = option or f"--timeout of {seconds or 0:g} s"
        self._shielded = False
        self._pending: ClusterprepError | None = None
        self._signals = 0  # how many have come

    def __enter__(self) -> Deadline:
        self._handlers_before = {}  # by signal
        for signum in signals_to_handle():
            self._handlers_before[signum] = signal.signal(signum, self._signal)
        if self._seconds is not None:
            self._handlers_before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._alarm)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._handlers_before.items():
            signal.signal(signum, handler)

    @classmethod
    def of(cls, seconds: float | None, budget: Budget | None) -> Deadline:
        """Return the deadline of --timeout, or of --budget if that ends earlier."""
        if budget is None:
            return cls(seconds)
        # Not 0, with which setitimer(2) would never raise the alarm.
        remaining = max(budget.end - time.monotonic(), 0.001)
        if seconds is not None and seconds < remaining:
            return cls(seconds)
        return cls(remaining, f"--budget of {budget.seconds:g} s")

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold back an interruption until the block ends or calls `check`."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        self.check()

    def check(self) -> None:
        """Raise the interruption that was held back, if there is one."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            raise pending

    def _signal(self, signum: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(Interrupted.code)
        self._stop(Interrupted(f"interrupted by {signal.Signals(signum).name}"))

    def _alarm(self, signum: int, frame: FrameType | None) -> None:
        self._stop(OutOfTime(f"{self._option} reached"))

    def _stop(self, error: ClusterprepError) -> None:
        self._pending = error
        if not self._shielded:
            self.check()
