"""Compared with its peers: how far a node or link stands out among others of its kind, by medians alone. Pure.

Mean and standard deviation would be moved by the very outlier that is looked for; the median and the median distance
from it stay where they are until half of the values are bad.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

LEAST = 4  # values; of three, one that differs makes the median distance say nothing
TO_SIGMA = (
    1.4826  # the median distance of a normal distribution times this is its standard deviation
)
FLOOR = 0.02  # of the median: equal values have no distance at all, and then a thousandth would be an outlier
FAR = 4.0  # robust standard deviations


def spread(values: Sequence[float]) -> float:
    """A standard deviation that outliers do not move."""
    middle = statistics.median(values)
    return TO_SIGMA * statistics.median(abs(value - middle) for value in values)


def scores(values: Mapping[str, float]) -> dict[str, float]:
    """Robust z-score of each value; of fewer than LEAST values nothing can be said, and the answer is empty."""
    if len(values) < LEAST:
        return {}
    middle = statistics.median(values.values())
    scale = max(spread(list(values.values())), FLOOR * abs(middle))
    return {name: (value - middle) / scale if scale else 0.0 for name, value in values.items()}


def slower(values: Mapping[str, float], share: float) -> tuple[str, ...]:
    """Who stands out to the slow side and has less than `share` of the median: far off, and by enough to matter."""
    middle = statistics.median(values.values()) if values else 0.0
    return tuple(
        name for name, z in scores(values).items() if z < -FAR and values[name] < share * middle
    )


def usual(values: Sequence[float], slow: float, noise: float) -> float:
    """What healthy values reach where some stand at `slow` times that, both with a relative standard deviation.

    The likeliest level of such a mixture: a median would do only while few values are slow. Slow values with no healthy
    ones beside them look like healthy values, and no arithmetic tells the two apart.
    """
    sample = sorted(values)[:: max(1, len(values) // 200)]
    starts = [
        level
        for value in sample[:: max(1, len(sample) // 12)]
        for level in (value, value / slow)
        if level > 0
    ]
    if not starts:
        return 0.0
    return max(
        (_settled(sample, start, slow, noise) for start in starts), key=lambda found: found[1]
    )[0]


_HEALTHY = 0.65  # prior share


def _settled(
    sample: Sequence[float], level: float, slow: float, noise: float
) -> tuple[float, float]:
    """The level after two steps of expectation and maximisation, and the log-likelihood before the last of them."""
    likelihood = 0.0
    for _ in range(2):
        weights = total = likelihood = 0.0
        for value in sample:
            a = _HEALTHY * _bell((value / level - 1.0) / noise)
            b = (1.0 - _HEALTHY) * _bell((value / level - slow) / noise)
            both = a + b + 1e-9  # what fits neither, such as a value near zero, decides nothing
            weights += (a + b * slow * slow) / both
            total += (a * value + b * slow * value) / both
            likelihood += math.log(both / level)
        level = total / weights if weights else level
    return level, likelihood


def _bell(z: float) -> float:
    return math.exp(-z * z / 2.0)
