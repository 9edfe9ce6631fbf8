"""Sizes and durations as people write them, and back again as reports show them."""

from __future__ import annotations

import itertools
import math
import re

UNLIMITED = (
    math.inf
)  # what `unlimited` parses to: greater than every size, so that comparisons just work

SIZE_EXPECTED = "a size such as 8GiB, 64M or 4096, or unlimited"
DURATION_EXPECTED = "a duration such as 50ms, 30s, 2m or 1h"

_SIZE = re.compile(r"([0-9]{1,18})\s*(?:([KMGT])(?:i?B)?)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(ms|s|m|h)")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_STEPS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def parse_size(text: str | int) -> int | float:
    """Bytes as an int, or UNLIMITED; suffixes are binary. ValueError says what is expected."""
    written = str(text).strip()
    if written.lower() == "unlimited":
        return UNLIMITED
    match = _SIZE.fullmatch(written)
    if match is None:
        raise ValueError(f"expected {SIZE_EXPECTED}; seen '{text}'")
    power = _POWERS[(match[2] or "").upper()]
    return int(match[1]) << 10 * power


def parse_duration(text: str) -> float:
    """Seconds. The unit is required: a bare number could be either milliseconds or seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected {DURATION_EXPECTED}; seen '{text}'")
    return float(match[1]) * _SECONDS[match[2]]


def format_size(size: float) -> str:
    """'8 GiB', '1.5 MiB', '512 B' or 'unlimited'."""
    if size == UNLIMITED:
        return "unlimited"
    power = 0
    while abs(size) >= 1024 and power < len(_POWERS) - 1:
        size, power = size / 1024, power + 1
    unit = "B" if power == 0 else f"{'KMGT'[power - 1]}iB"
    return f"{_short(size)} {unit}"


def format_duration(seconds: float, signed: bool = False) -> str:
    """'5.001 s', '0.4 ms', '12 µs', '2 h 5 min'; `signed` puts a plus before what is not negative."""
    if not math.isfinite(seconds):
        return "unlimited" if seconds > 0 else "not known"
    sign = "-" if seconds < 0 else "+" if signed else ""
    return sign + _magnitude(abs(seconds))


def _magnitude(seconds: float) -> str:
    if seconds >= 120:
        return _clock(round(seconds))
    if seconds >= 0.9999995:
        return f"{_short(seconds)} s"
    if seconds >= 0.0001:
        return f"{_short(seconds * 1e3)} ms"
    return f"{_short(seconds * 1e6)} µs" if seconds else "0 s"


def _clock(seconds: int) -> str:
    """The two largest units; the second is left out where it is zero."""
    for (large, name), (small, small_name) in itertools.pairwise(_STEPS):
        if seconds >= large:
            rest = seconds % large // small
            return f"{seconds // large} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{seconds} s"


def _short(value: float) -> str:
    """At most three decimals, without trailing zeros."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return text or "0"
