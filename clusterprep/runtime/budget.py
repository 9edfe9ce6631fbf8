"""`--budget`: how long a command may take since its process started, and the share of stages.

Each stage has its share: agents answer when the time for reads is over, nodes are waited for until
a moment later, then agents end, and the report has the rest. Behind all that stands `--timeout`,
which ends the command, as soon as what is known is judged.
"""

from __future__ import annotations

import os
import time

from msgspec import Struct

from clusterprep.errors import InputError

LEAST = 2.0  # seconds; starting and reporting alone take one on a small machine
# The part of the budget that is kept for answers on their way, for ending agents and for the
# report, and its bounds in seconds.
RESERVE_SHARE = 0.25
LEAST_RESERVE = 0.8
MOST_RESERVE = 2.0
ANSWERED_SHARE = 0.6  # of the reserve, left when answers of nodes have to be here
CLOSING_SHARE = 0.45  # of the reserve, left when agents have to be ended


class Budget(Struct, frozen=True):
    """A process that began at `began` and may take `seconds`.

    All moments are those of time.monotonic().
    """

    seconds: float
    began: float

    @property
    def end(self) -> float:
        return self.began + self.seconds

    @property
    def _reserve(self) -> float:
        wanted = RESERVE_SHARE * self.seconds
        return min(max(wanted, LEAST_RESERVE), MOST_RESERVE)

    @property
    def reads(self) -> float:
        """When reads on nodes have to be over."""
        return self.end - self._reserve

    @property
    def answers(self) -> float:
        """When answers of nodes have to be here.

        Nodes send them when the time for reads is over.
        """
        return self.end - ANSWERED_SHARE * self._reserve

    @property
    def closing(self) -> float:
        """When agents have to be ended. The time after that is for the report."""
        return self.end - CLOSING_SHARE * self._reserve

    def left(self, until: float | None = None) -> float:
        """Return the seconds until one of these moments, by default `answers`; 0.0 after it."""
        moment = self.answers if until is None else until
        return max(moment - time.monotonic(), 0.0)


def budget_of(seconds: float | None) -> Budget | None:
    """Return the budget of this process. Raises InputError if no node could be asked within it."""
    if seconds is None:
        return None
    if seconds < LEAST:
        message = f"{seconds:g} s are too few to start and to report in; at least {LEAST:g}"
        raise InputError.of(message, key="--budget")
    # A process that became this command by exec may be much older: half of the budget is always
    # left.
    age = min(_process_age(), seconds / 2)
    return Budget(seconds, time.monotonic() - age)


def _process_age() -> float:
    """Return seconds since the kernel started this process, or 0.0 if they cannot be known.

    Users also wait while Python starts and imports.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):  # another kernel than Linux
        return 0.0
    try:
        with open("/proc/self/stat", "rb") as source:
            after_name = source.read().rpartition(b")")[2]
        started = int(after_name.split()[19])  # proc(5): field 22, in ticks since the boot
    except (OSError, ValueError, IndexError):
        return 0.0
    started_seconds = started / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started_seconds, 0.0)
