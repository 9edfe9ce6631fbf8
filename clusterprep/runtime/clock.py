"""A clock that stands still while this process does, so that no node is called silent for that.

A process may be stopped, its machine suspended or moved, or the processors so busy that it does not
run for seconds. What the nodes said meanwhile is in the kernel's buffers; limits that ran on would
be over before it is read.

A thread looks at the real clock four times a second, and of the time between two looks one second
counts at most. Times of events, durations of commands, `--timeout` and `--budget` use the real
clock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

TICK = 0.25  # seconds between two looks at the real clock
# Seconds that count at most between two looks. A busy processor delays a look by less than that.
LONGEST = 1.0


class RunningClock:
    """Seconds like those of `clock`, without the time in which `tick` was not called."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        now = clock()
        # The seconds counted until the last look, and when that was. One tuple needs no lock.
        self._mark = (now, now)

    def tick(self) -> None:
        """Look at the real clock. Only one thread may call this."""
        now = self._clock()
        self._mark = (self._counted(now), now)

    def now(self) -> float:
        """Return the seconds that count. Any thread may call this."""
        return self._counted(self._clock())

    def _counted(self, now: float) -> float:
        counted, last_look = self._mark
        return counted + min(now - last_look, LONGEST)


class _ProcessClock:
    """The clock of this process. A thread begins to tick with the first call of `now`."""

    def __init__(self) -> None:
        self._clock: RunningClock | None = None
        # The process that the thread is in. A process made by fork has no threads.
        self._process: int | None = None
        self._starting = threading.Lock()

    def now(self) -> float:
        clock = self._clock
        if clock is None or self._process != os.getpid():
            clock = self._start_ticking()
        return clock.now()

    def _start_ticking(self) -> RunningClock:
        """Start the thread of this process, unless another caller has. Returns the clock."""
        with self._starting:
            clock = self._clock or RunningClock()
            self._clock = clock
            if self._process != os.getpid():
                self._process = os.getpid()
                thread = threading.Thread(target=_tick, args=(clock,), daemon=True, name="clock")
                thread.start()
            return clock


def _tick(clock: RunningClock) -> None:
    while True:
        time.sleep(TICK)
        clock.tick()


_PROCESS = _ProcessClock()


def running_seconds() -> float:
    """Return seconds like time.monotonic(), without those in which this process did not run.

    Limits and silences are measured with it.
    """
    return _PROCESS.now()
