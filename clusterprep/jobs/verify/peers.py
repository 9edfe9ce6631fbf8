"""How far a node or link stands out among its peers, by medians alone. Pure.

Mean and standard deviation would be moved by the very outlier that is looked for; the median and
the median distance from it stay where they are until half of the values are bad.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

LEAST = 4  # values; of three, one that differs makes the median distance say nothing
TO_SIGMA = 1.4826  # from the median distance of a normal distribution to its standard deviation
# Of the median: equal values have no distance at all, and then a thousandth would be an outlier.
FLOOR = 0.02
FAR = 4.0  # robust standard deviations
MOST_VALUES = 200  # that are looked at, evenly spread, to find the usual level
MOST_STARTS = 12  # values from which the search for the usual level starts
HEALTHY = 0.65  # prior share of healthy values


def spread(values: Sequence[float]) -> float:
    """Return a standard deviation that outliers do not move."""
    middle = statistics.median(values)
    distance = statistics.median(abs(value - middle) for value in values)
    return TO_SIGMA * distance


def scores(values: Mapping[str, float]) -> dict[str, float]:
    """Return the robust z-score of each value; empty for fewer than LEAST values."""
    if len(values) < LEAST:
        return {}
    middle = statistics.median(values.values())
    floor = FLOOR * abs(middle)
    scale = max(spread(list(values.values())), floor)
    if not scale:
        return dict.fromkeys(values, 0.0)
    return {name: (value - middle) / scale for name, value in values.items()}


def slower(values: Mapping[str, float], share: float) -> tuple[str, ...]:
    """Return the names that stand out to the slow side and have less than `share` of the median.

    So they are far off, and by enough to matter.
    """
    if not values:
        return ()
    limit = share * statistics.median(values.values())
    names: list[str] = []
    for name, score in scores(values).items():
        is_far = score < -FAR
        if is_far and values[name] < limit:
            names.append(name)
    return tuple(names)


def usual_level(values: Sequence[float], slow: float, noise: float) -> float:
    """Return what healthy values reach if others reach `slow` times that.

    Both have the relative standard deviation `noise`. It is the likeliest level of such a mixture:
    a median would do only while few values are slow. Slow values without healthy ones look like
    healthy values, and no arithmetic tells the two apart.
    """
    best_level = 0.0
    best_likelihood = -math.inf
    sample = sorted(values)[:: max(1, len(values) // MOST_VALUES)]
    for start in _starts(sample, slow):
        level, likelihood = _settled_level(sample, start, slow, noise)
        if likelihood > best_likelihood:
            best_level = level
            best_likelihood = likelihood
    return best_level


def _starts(sample: Sequence[float], slow: float) -> list[float]:
    """Return levels to start from: each value may be a healthy or a slow one."""
    step = max(1, len(sample) // MOST_STARTS)
    starts: list[float] = []
    for value in sample[::step]:
        if value > 0:
            starts.append(value)
            starts.append(value / slow)
    return starts


def _settled_level(
    sample: Sequence[float], level: float, slow: float, noise: float
) -> tuple[float, float]:
    """Return (level, log-likelihood) after two steps of expectation and maximisation.

    The likelihood is that of the level before the last step.
    """
    likelihood = 0.0
    for _ in range(2):
        weights = total = likelihood = 0.0
        for value in sample:
            relative = value / level
            healthy_part = HEALTHY * _bell((relative - 1.0) / noise)
            slow_part = (1.0 - HEALTHY) * _bell((relative - slow) / noise)
            # What fits neither, such as a value near zero, decides nothing.
            both = healthy_part + slow_part + 1e-9
            weights += (healthy_part + slow_part * slow * slow) / both
            total += (healthy_part * value + slow_part * slow * value) / both
            likelihood += math.log(both / level)
        if weights:
            level = total / weights
    return level, likelihood


def _bell(z: float) -> float:
    return math.exp(-z * z / 2.0)
