"""What became slower while rounds were repeated, and since when. Pure.

Each series has one value per round, and a higher one is worse: the seconds that a link takes for a
byte, or a rank between two collectives. What slows all series alike is the machine or the hour, so
a round is first divided by what its better series became. A series is slow in a round if it is
worse than at its own beginning by DOUBLE, and by more than the noise of all series explains. One
slow round proves nothing, and the more rounds there are the longer is a row of slow ones that comes
by chance: see `lasts`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from msgspec import Struct

FIRST = 3  # rounds that say what is normal; the trial before them has judged them by itself
LASTING = 3  # slow rounds in a row, at least
FEWEST = FIRST + LASTING  # rounds in all, with fewer nothing can be known
DOUBLE = 2.0
Z = 4.0  # standard deviations of the noise
TO_SIGMA = 1.4826  # from the median distance of a normal distribution to its standard deviation
COMPARABLE = 4  # series; with fewer it is not known what all of them share

Key = TypeVar("Key", bound=Hashable)


def lasts(first: int, last: int, seconds: Sequence[float]) -> bool:
    """Return whether these slow rounds are no chance, of rounds that took so many seconds.

    They are LASTING and as many as the square root of all rounds, or two and a quarter of the time:
    what is slow makes its rounds long and therefore few. On hosts whose two processors had ten
    times their work links were slow for four rounds of 45 by chance.
    """
    count = last - first + 1
    is_long = 4 * sum(seconds[first : last + 1]) >= sum(seconds)
    return count >= max(LASTING, math.isqrt(len(seconds))) or (count >= 2 and is_long)


class Slowdown(Struct, frozen=True):
    """A series that became worse, in numbers of rounds from 0: the first slow one, the last one.

    `before` and `after` are medians of the values as they were measured.
    """

    first: int
    last: int
    before: float
    after: float


def slowdowns(
    series: Mapping[Key, Sequence[float]], seconds: Sequence[float]
) -> dict[Key, Slowdown]:
    """Return the series that became slower and stayed so for some rounds.

    All series have a value for each round, which took so many `seconds`. With fewer than FEWEST
    rounds none is returned.
    """
    growth = {key: _growth(values) for key, values in series.items() if len(values) >= FEWEST}
    if len(growth) >= COMPARABLE:
        growth = _without_common(growth)
    limit = max(DOUBLE, _noise_limit(growth))
    found: dict[Key, Slowdown] = {}
    for key, factors in growth.items():
        spell = _longest_spell([factor > limit for factor in factors], seconds)
        if spell is not None:
            first, last = spell
            values = series[key]
            found[key] = Slowdown(
                first,
                last,
                before=median(values[:FIRST]),
                after=median(values[first : last + 1]),
            )
    return found


def _growth(values: Sequence[float]) -> list[float]:
    """Return the values as multiples of what they were in the first rounds."""
    usual = max(median(values[:FIRST]), 1e-12)
    return [max(value / usual, 1e-6) for value in values]


def _without_common(growth: Mapping[Key, list[float]]) -> dict[Key, list[float]]:
    """Return the growth of each series beside that of the better quarter, round by round.

    A quarter, and not half: one node that is slow has half of the links of four nodes.
    """
    shared = [sorted(factors)[len(factors) // 4] for factors in zip(*growth.values(), strict=True)]
    beside: dict[Key, list[float]] = {}
    for key, factors in growth.items():
        beside[key] = [factor / common for factor, common in zip(factors, shared, strict=True)]
    return beside


def _noise_limit(growth: Mapping[Key, list[float]]) -> float:
    """Return the growth that noise alone does not reach.

    It is estimated from the changes from round to round of all series at once: what becomes slow
    and stays so is one change among many.
    """
    changes: list[float] = []
    for factors in growth.values():
        for before, after in itertools.pairwise(factors):
            changes.append(abs(math.log(after / before)))
    if not changes:
        return DOUBLE
    # A change has the noise of two rounds.
    sigma = TO_SIGMA * median(changes) / math.sqrt(2)
    return math.exp(Z * sigma)


def _longest_spell(slow: Sequence[bool], seconds: Sequence[float]) -> tuple[int, int] | None:
    """Return the first and the last round of the longest run of slow ones, if it is long enough."""
    slow = _without_gaps(slow)
    best: tuple[int, int] | None = None
    first = None
    for number, is_slow in enumerate((*slow, False)):
        if is_slow:
            first = number if first is None else first
            continue
        if first is not None:
            is_longer = best is None or number - first > best[1] - best[0] + 1
            if is_longer and lasts(first, number - 1, seconds):
                best = (first, number - 1)
        first = None
    return best


def _without_gaps(slow: Sequence[bool]) -> list[bool]:
    """Return the rounds with a single quick one between two slow ones as slow: it was luck."""
    filled = list(slow)
    for number in range(1, len(slow) - 1):
        if slow[number - 1] and slow[number + 1]:
            filled[number] = True
    return filled
