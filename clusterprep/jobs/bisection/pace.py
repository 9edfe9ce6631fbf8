"""Decide which runs are slow and when a run hangs, from the times of runs that ended well. Pure.

slow_above([5.1, 5.0, 9.3, 5.2])  →  6.1: of four groups of nodes the third is slow
"""

from __future__ import annotations

from collections.abc import Sequence

# A slow run takes SHARE longer than usual, FLOOR seconds at least, and DEVIATIONS times the usual
# deviation. To start processes on nodes takes tenths of a second more or less.
SHARE = 0.2
FLOOR = 1.0
DEVIATIONS = 6.0
NORMAL = 1.4826  # standard deviations of a normal distribution in its median absolute deviation
# A run hangs if it takes so many times longer than the longest that ended well. To import torch
# from a cold file server may take a minute, whatever the command does.
LIMIT_FACTOR = 4.0
LIMIT_MARGIN = 60.0  # seconds
FIRST_LIMIT = 600.0  # seconds, as long as no run has ended well


def lower_median(values: Sequence[float]) -> float:
    """Return the median, of an even number the lower one of the two in the middle.

    Faults make runs slower and none faster. So of two values the faster one is usual.
    """
    return sorted(values)[(len(values) - 1) // 2]


def slow_above(times: Sequence[float]) -> float:
    """Return above which time a run is slow, where most of these runs were not."""
    usual = lower_median(times)
    deviation = NORMAL * lower_median([abs(time - usual) for time in times])
    return usual + max(SHARE * usual, DEVIATIONS * deviation, FLOOR)


def most_are_slow(times: Sequence[float]) -> bool:
    """Return whether the fastest run shows that the usual one is slow."""
    return lower_median(times) > slow_above([min(times)])


def hang_limit(good: Sequence[float], given: float | None) -> float:
    """Return after how many seconds a run hangs.

    `good` are the seconds of the runs that ended well, `given` is what the user said, which counts.
    """
    if given is not None:
        return given
    if not good:
        return FIRST_LIMIT
    return LIMIT_FACTOR * max(good) + LIMIT_MARGIN
