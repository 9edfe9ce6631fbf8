"""Unified diffs of long files that differ little, thousands of them: difflib takes up every line, this does not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from difflib import SequenceMatcher

CONTEXT = 2  # lines around a change

_LINE = re.compile(
    r"[^\n]*\n|[^\n]+"
)  # str.splitlines would end a line, and its name, at a form feed


def unified_diff(path: str, before: bytes, after: bytes) -> str:
    """What difflib.unified_diff says of two texts, every line with its end. Empty where they are the same."""
    skipped, one, other = _middle(before, after)
    ones, others = _lines(one), _lines(other)
    sides = _pieces(ones, frozenset(others)), _pieces(others, frozenset(ones))
    starts = [list(itertools.accumulate(map(len, side), initial=skipped)) for side in sides]
    text = []
    for group in SequenceMatcher(None, *sides, autojunk=False).get_grouped_opcodes(CONTEXT):
        (_, first, _, start, _), (_, _, last, _, stop) = group[0], group[-1]
        ranges = (
            _range(starts[0][first], starts[0][last]),
            _range(starts[1][start], starts[1][stop]),
        )
        text.append(f"@@ -{ranges[0]} +{ranges[1]} @@\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                text.append(_marked(" ", sides[0][i1:i2]))
            else:
                text += [_marked("-", sides[0][i1:i2]), _marked("+", sides[1][j1:j2])]
    return "".join([f"--- {path}\n+++ {path}\n", *text]) if text else ""


def _middle(one: bytes, other: bytes) -> tuple[int, bytes, bytes]:
    """Both without the lines that they begin and end with alike, but for the context; and how many stood in front."""
    front = _back(one, _alike(one, other))
    one, other, skipped = one[front:], other[front:], one.count(b"\n", 0, front)
    # From behind a line begins after a newline, so what is alike counts up to the last of these.
    turned = one[::-1], other[::-1]
    end = turned[0].rfind(b"\n", 0, _alike(*turned))
    for _ in range(CONTEXT):
        end = turned[0].rfind(b"\n", 0, max(end, 0))
    return skipped, one[: len(one) - max(end, 0)], other[: len(other) - max(end, 0)]


def _back(text: bytes, at: int) -> int:
    """Where the line begins that stands so many lines of context before this place."""
    for _ in range(CONTEXT + 1):
        at = text.rfind(b"\n", 0, max(at, 0))
    return at + 1


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _lines(content: bytes) -> list[str]:
    return _LINE.findall(content.decode("utf-8", "backslashreplace"))


def _pieces(lines: Iterable[str], others: AbstractSet[str]) -> list[tuple[str, ...]]:
    """Each line that the other side has, too, and as one piece what stands between them: nothing in there matches."""
    found: list[tuple[str, ...]] = []
    for shared, group in itertools.groupby(lines, others.__contains__):
        run = tuple(group)
        found += zip(run, strict=True) if shared else [run]
    return found


def _marked(mark: str, pieces: Iterable[tuple[str, ...]]) -> str:
    text = "".join(map(mark.__add__, itertools.chain.from_iterable(pieces)))
    return text if text[-1:] in ("", "\n") else text + "\n"


def _range(start: int, stop: int) -> str:
    """As POSIX has it: one line is its number, none are counted from the line before."""
    length = stop - start
    return str(start + 1) if length == 1 else f"{start if length == 0 else start + 1},{length}"
