"""A clock that stands still while this process does, so that nobody is called silent for the time that we slept.

A process is stopped, its machine is suspended or moved, or so many others want the processor that it gets none for
seconds. What the nodes said meanwhile lies in the kernel, and limits that ran on would be over before it is read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

TICK = 0.25  # seconds between two looks at the real clock
LONGEST = 1.0  # seconds that count at most from one look to the next; a busy processor delays a look by less


class Awake:
    """Seconds like those of time.monotonic(), without the time in which nobody called `tick`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        now = clock()
        self._mark = (
            now,
            now,
        )  # what has counted until the last look, and when that was; one value, so no lock

    def tick(self) -> None:
        """Look at the real clock; for one thread alone."""
        now = self._clock()
        self._mark = (self._counted(now), now)

    def now(self) -> float:
        return self._counted(self._clock())

    def _counted(self, now: float) -> float:
        counted, looked = self._mark
        return counted + min(now - looked, LONGEST)


class _Watched:
    """The clock of this process, with a thread that ticks from the first question on."""

    def __init__(self) -> None:
        self._clock: Awake | None = None
        self._process: int | None = None  # a copy that fork made has no threads
        self._starting = threading.Lock()

    def now(self) -> float:
        clock = self._clock
        return (
            clock.now()
            if clock is not None and self._process == os.getpid()
            else self._watched().now()
        )

    def _watched(self) -> Awake:
        with self._starting:
            clock = self._clock = self._clock or Awake()
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=_tick, args=(clock,), daemon=True, name="awake").start()
            return clock


def _tick(clock: Awake) -> None:
    while True:
        time.sleep(TICK)
        clock.tick()


_PROCESS = _Watched()


def running_seconds() -> float:
    """Seconds like those of time.monotonic(), for limits and silences: what this process slept through is left out."""
    return _PROCESS.now()
