"""Sizes and durations: read as people write them, and written for reports.

parse_size("8GiB") == 8 << 30        format_size(8 << 30) == "8 GiB"
parse_duration("50ms") == 0.05       format_duration(0.05) == "50 ms"
"""

from __future__ import annotations

import itertools
import math
import re

# What `unlimited` parses to: greater than every size, so that comparisons work.
UNLIMITED = math.inf

SIZE_EXPECTED = "a size such as 8GiB, 64M or 4096, or unlimited"
DURATION_EXPECTED = "a duration such as 50ms, 30s, 2m or 1h"

_SIZE = re.compile(r"([0-9]{1,18})\s*(?:([KMGT])(?:i?B)?)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ms|s|m|h)")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_STEPS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def parse_size(text: str | int) -> int | float:
    """Return bytes as an int, or UNLIMITED. Suffixes are binary: K is 1024.

    Raises ValueError that says what is expected.
    """
    written = str(text).strip()
    if written.lower() == "unlimited":
        return UNLIMITED
    match = _SIZE.fullmatch(written)
    if match is None:
        raise ValueError(f"expected {SIZE_EXPECTED}; seen '{text}'")
    suffix = (match[2] or "").upper()
    return int(match[1]) << 10 * _POWERS[suffix]


def parse_duration(text: str) -> float:
    """Return seconds. Raises ValueError that says what is expected.

    The unit is required, because a bare number could mean milliseconds or seconds.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected {DURATION_EXPECTED}; seen '{text}'")
    return float(match[1]) * _SECONDS[match[2]]


def format_size(size: float) -> str:
    """Return bytes as '8 GiB', '1.5 MiB', '512 B' or 'unlimited'."""
    if size == UNLIMITED:
        return "unlimited"
    power = 0
    while abs(size) >= 1024 and power < len(_UNITS) - 1:
        size /= 1024
        power += 1
    return f"{_short(size)} {_UNITS[power]}"


def format_duration(seconds: float, signed: bool = False) -> str:
    """Return seconds as '5.001 s', '0.4 ms', '12 µs' or '2 h 5 min'.

    `signed` puts a plus before what is not negative.
    """
    if not math.isfinite(seconds):
        return "unlimited" if seconds > 0 else "not known"
    magnitude = _magnitude(abs(seconds))
    if seconds < 0:
        return f"-{magnitude}"
    return f"+{magnitude}" if signed else magnitude


def _magnitude(seconds: float) -> str:
    """Return a duration that is not negative, in the unit that suits it."""
    if seconds >= 120:
        return _two_units(round(seconds))
    # Three decimals are shown, and 0.9999995 s is the first that they round to 1 s.
    if seconds >= 0.9999995:
        return f"{_short(seconds)} s"
    if seconds >= 0.0001:
        return f"{_short(seconds * 1e3)} ms"
    if seconds > 0:
        return f"{_short(seconds * 1e6)} µs"
    return "0 s"


def _two_units(seconds: int) -> str:
    """Return the two largest units, without the second one if it is zero: '2 h 5 min'."""
    for (large, large_name), (small, small_name) in itertools.pairwise(_STEPS):
        if seconds < large:
            continue
        rest = seconds % large // small
        text = f"{seconds // large} {large_name}"
        return f"{text} {rest} {small_name}" if rest else text
    return f"{seconds} s"


def _short(value: float) -> str:
    """Return a number with at most three decimals, without trailing zeros."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return text or "0"


def pluralize(number: int, noun: str) -> str:
    """Return the number and the noun: `1 error`, `2 errors`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"
