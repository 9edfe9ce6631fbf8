"""How the time of a parser grows with its input, over inputs of every kind that is easy to send."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Callable, Iterator

from clusterprep.model import Json

SMALL = 1024  # characters
TIMES = 16
CHARACTERS = 4  # for one item of a list or an object: no reader brings more than some thousand
# A parser that is linear takes sixteen times as long for sixteen times as much. One that compares
# everything with everything takes 256 times as long.
MOST = 24.0
# Seconds for the longer input, below which nothing is measured: by the square, this is one second
# for an answer of 256 KiB, which is the longest.
LEAST = 0.004
ROUNDS = 5
AGAIN = 2

FILLINGS = (
    *"a1 []({\"'\\/=:;,.-#&|*$\t\n\x1b\0",
    *("a.", "1.", "1,", "a ", "1 ", " a", "a=", "a:", "a/", "a\n", "1\n", "[]", "a,b ", "k: v\n"),
    *('"a" ', "[a]\n", "a=1\n", "- ", "- a\n", "a: 1\n", "{{", "{% ", "e+", "::", "\\\\", "$("),
)
# Places of a text where an input may be long: the first of them is filled.
PLACES = (r"\d+", r"[A-Za-z]+", r"[ \t]+", r"[.:/=-]", r"\n")


def texts(original: str) -> Iterator[tuple[str, Callable[[int], str]]]:
    """Yield ways to make a text of any length from an original, each with its name."""
    for filling in FILLINGS:
        yield f"all {filling!r}", lambda size, f=filling: f * (size // len(f))
        yield (
            f"original and {filling!r}",
            lambda size, f=filling: original + f * (size // len(f)),
        )
        yield f"{filling!r} and original", lambda size, f=filling: f * (size // len(f)) + original
    for place in PLACES:
        match = re.search(place, original)
        if match is None:
            continue
        before = original[: match.start()]
        after = original[match.end() :]
        unit = match[0]
        yield (
            f"much of {unit!r}",
            lambda size, b=before, u=unit, a=after: b + u * (size // len(u)) + a,
        )
        yield (
            f"much of {unit!r}, cut off",
            lambda size, b=before, u=unit: b + u * (size // len(u)),
        )
    if original:
        repeated = original + "\n"
        yield "repeated", lambda size: (repeated * (size // len(repeated) + 1))[:size]


def spoilt(value: Json, most: int = 3) -> Iterator[tuple[str, Callable[[int], Json]]]:
    """Yield ways to make an answer of any length from a real one, each with its name.

    One text, list or object of it grows at a time. Of rows that are alike the first `most` are
    tried.
    """
    if isinstance(value, str):
        yield from texts(value)
    elif isinstance(value, list):
        if value:
            yield "items", lambda size: value * (size // CHARACTERS // len(value) + 1)
        for index, item in enumerate(value[:most]):
            for name, make in spoilt(item, most):
                yield (
                    f"[{index}] {name}",
                    lambda size, i=index, m=make: [*value[:i], m(size), *value[i + 1 :]],
                )
    elif isinstance(value, dict):
        for key in list(value)[:1]:
            yield (
                "keys",
                lambda size, k=key: {
                    **value,
                    **{f"{k}{n}": value[k] for n in range(size // CHARACTERS)},
                },
            )
        keys = list(value)
        chosen = keys if len(keys) <= 12 else keys[:most]
        for key in chosen:
            for name, make in spoilt(value[key], most):
                yield f"{key!r:.30} {name}", lambda size, k=key, m=make: {**value, k: m(size)}


def grown(
    parse: Callable[[Json], object], make: Callable[[int], Json], small_size: int = SMALL
) -> float | None:
    """Return how much longer sixteen times as much takes, None if both take next to nothing.

    The median of five, if the first look is above MOST. On a busy machine a short parse may be
    measured as too short: a median that is only a little above MOST is taken again, twice.
    """
    small = make(small_size)
    large = make(small_size * TIMES)
    took = _seconds(parse, large)
    if took < LEAST:
        return None
    ratio = took / _seconds(parse, small)
    if ratio <= MOST or took > 1.0:  # a second for 16 KiB needs no second look
        return ratio
    medians = []
    for _ in range(1 + AGAIN):
        ratios = [_seconds(parse, large) / _seconds(parse, small) for _ in range(ROUNDS)]
        medians.append(statistics.median(ratios))
        if not MOST < medians[-1] < 2 * MOST:
            break
    return min(medians)


def _seconds(parse: Callable[[Json], object], value: Json) -> float:
    """Return the CPU seconds of one parse. What cannot be parsed takes time all the same."""
    began = time.thread_time()
    with contextlib.suppress(Exception):  # any refusal is an answer
        parse(value)
    return max(1e-6, time.thread_time() - began)
