"""`--budget`: how long a command may take from the start of its process, and how that time is shared out."""

from __future__ import annotations

import os
import time

from clusterprep.errors import InputError
from clusterprep.runtime.lazy_dataclass import dataclass

LEAST = 2.0  # seconds; starting and reporting alone take one on a small machine
SHARE, NEEDED, ENOUGH = (
    0.25,
    0.8,
    2.0,
)  # of the budget for ending and reporting, and seconds of it at least and at most


@dataclass(frozen=True)
class Budget:
    """`began` is when the process started, by time.monotonic(); `seconds` is what it may take."""

    seconds: float
    began: float

    @property
    def end(self) -> float:
        return self.began + self.seconds

    @property
    def _rest(self) -> float:
        return min(max(SHARE * self.seconds, NEEDED), ENOUGH)

    @property
    def reads(self) -> float:
        """Until then reads on nodes may answer."""
        return self.end - self._rest

    @property
    def answers(self) -> float:
        """Until then nodes are waited for, which give their answers when the time for reads is over."""
        return self.end - 0.6 * self._rest

    @property
    def closing(self) -> float:
        """Until then agents are waited for to end; what is left is for the report."""
        return self.end - 0.45 * self._rest

    def left(self, until: float | None = None) -> float:
        """Seconds until a moment of the above; by default until nodes are no longer waited for."""
        return max((self.answers if until is None else until) - time.monotonic(), 0.0)


def budget_of(seconds: float | None) -> Budget | None:
    """The budget of this process. InputError for one that is over before anything can be asked."""
    if seconds is None:
        return None
    if seconds < LEAST:
        raise InputError.of(
            f"{seconds:g} s are too few to start and to report in; at least {LEAST:g}",
            key="--budget",
        )
    # What became ours by exec may be older than this command is: half of the budget is always there.
    return Budget(seconds, time.monotonic() - min(_age(), seconds / 2))


def _age() -> float:
    """Seconds since the kernel started this process: starting Python and importing is part of what users wait for."""
    try:
        with open("/proc/self/stat", "rb") as source:
            started = int(source.read().rpartition(b")")[2].split()[19])  # proc(5): field 22
        return max(
            time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"), 0.0
        )
    except (OSError, ValueError, IndexError):
        return 0.0
