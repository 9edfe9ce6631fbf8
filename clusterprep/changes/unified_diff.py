"""Unified diffs of long files that differ little, for thousands of nodes.

difflib hashes every line of both files. Here common lines at both ends are skipped first, and what
stands between two shared lines is one piece.

Host names of ten thousand nodes, in a file on each of them, are a hundred million lines. So what is
the same on all nodes is put together once, and a diff has only the lines near a change. A test
counts the calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from difflib import SequenceMatcher

CONTEXT = 2  # lines around a change

# str.splitlines would also end a line, and with it a variable's name, at a form feed.
_LINE = re.compile(r"[^\n]*\n|[^\n]+")

Piece = tuple[str, ...]  # one line that both sides have, or several that only one side has
Opcode = tuple[str, int, int, int, int]  # of SequenceMatcher: tag, and ranges of both sides


def unified_diff(path: str, before: bytes, after: bytes) -> str:
    """Return what difflib.unified_diff says of two texts, each line with its end.

    Empty if both are the same.
    """
    skipped, old, new = _middle(before, after)
    old_lines = _lines(old)
    new_lines = _lines(new)
    old_side = _Side(_pieces(old_lines, frozenset(new_lines)), skipped)
    new_side = _Side(_pieces(new_lines, frozenset(old_lines)), skipped)
    matcher = SequenceMatcher(None, old_side.pieces, new_side.pieces, autojunk=False)
    groups = matcher.get_grouped_opcodes(CONTEXT)
    hunks = [_hunk(opcodes, old_side, new_side) for opcodes in groups]
    if not hunks:
        return ""
    return f"--- {path}\n+++ {path}\n" + "".join(hunks)


class _Side:
    """The pieces of one text, and the line of the file at which each one starts, from 0."""

    def __init__(self, pieces: list[Piece], skipped: int) -> None:
        self.pieces = pieces
        lengths = (len(piece) for piece in pieces)
        self.starts = list(itertools.accumulate(lengths, initial=skipped))

    def line_range(self, first: int, last: int) -> str:
        """Return the lines of the pieces from `first` up to `last`, as a hunk has them."""
        start = self.starts[first]
        stop = self.starts[last]
        return _range(start, stop)


def _hunk(opcodes: list[Opcode], old: _Side, new: _Side) -> str:
    """Return one hunk: its ranges of lines and its marked lines."""
    _, old_first, _, new_first, _ = opcodes[0]
    _, _, old_last, _, new_last = opcodes[-1]
    old_range = old.line_range(old_first, old_last)
    new_range = new.line_range(new_first, new_last)
    text = [f"@@ -{old_range} +{new_range} @@\n"]
    for tag, old_start, old_stop, new_start, new_stop in opcodes:
        old_pieces = old.pieces[old_start:old_stop]
        if tag == "equal":
            text.append(_marked(" ", old_pieces))
            continue
        text.append(_marked("-", old_pieces))
        text.append(_marked("+", new.pieces[new_start:new_stop]))
    return "".join(text)


def _middle(one: bytes, other: bytes) -> tuple[int, bytes, bytes]:
    """Return both texts without the lines that they begin and end with alike, except the context.

    The first value is how many lines were skipped at the beginning.
    """
    front = _context_start(one, _common_prefix(one, other))
    skipped = one.count(b"\n", 0, front)
    one = one[front:]
    other = other[front:]
    end = _common_end(one, other)
    return skipped, one[: len(one) - end], other[: len(other) - end]


def _common_end(one: bytes, other: bytes) -> int:
    """Return how many bytes both texts end with alike, whole lines and without the context."""
    # From behind a line begins after a newline, so the common part ends at its last newline.
    reversed_one = one[::-1]
    reversed_other = other[::-1]
    end = _common_prefix(reversed_one, reversed_other)
    for _ in range(CONTEXT + 1):
        end = reversed_one.rfind(b"\n", 0, max(end, 0))
    return max(end, 0)


def _context_start(text: bytes, position: int) -> int:
    """Return where the line begins that is CONTEXT lines before the one at this position."""
    for _ in range(CONTEXT + 1):
        position = text.rfind(b"\n", 0, max(position, 0))
    return position + 1


def _common_prefix(one: bytes, other: bytes) -> int:
    """Return how many bytes two texts begin with alike, by bisection: slices compare fast."""
    low = 0
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _lines(content: bytes) -> list[str]:
    text = content.decode("utf-8", "backslashreplace")
    return _LINE.findall(text)


def _pieces(lines: Iterable[str], others: AbstractSet[str]) -> list[Piece]:
    """Return each line that the other side has, too, and as one piece the lines in between.

    Nothing in such a piece can match, so it need not be compared line by line.
    """
    pieces: list[Piece] = []
    for is_shared, group in itertools.groupby(lines, others.__contains__):
        if is_shared:
            pieces.extend((line,) for line in group)
        else:
            pieces.append(tuple(group))
    return pieces


def _marked(mark: str, pieces: Iterable[Piece]) -> str:
    """Return the lines of pieces with a mark before each, and a newline at the end."""
    lines = [mark + line for line in itertools.chain.from_iterable(pieces)]
    text = "".join(lines)
    if text and not text.endswith("\n"):
        return text + "\n"
    return text


def _range(start: int, stop: int) -> str:
    """Return a range of lines as POSIX has it.

    One line is its number alone, and an empty range counts from the line before.
    """
    length = stop - start
    if length == 1:
        return str(start + 1)
    if length == 0:
        return f"{start},0"
    return f"{start + 1},{length}"
