"""Unified diffs of long files that differ little, for thousands of nodes.

difflib hashes every line of both files. Here common lines at both ends are skipped first, and what
stands between two shared lines is one piece.

Host names of ten thousand nodes, in a file on each of them, are a hundred million lines. So what is
the same on all nodes is put together once, and a diff has only the lines near a change. A test
counts the calls.

A file on a node may be anything. difflib compares each line with all that equal it, so a file of
the same line over and over takes it hours. For such files the edits are searched by their number
(Myers, An O(ND) Difference Algorithm, 1986), which is fast where few lines change. Where many do,
the diff only says so.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from difflib import SequenceMatcher

CONTEXT = 2  # lines around a change
MOST_PIECES = 5000  # of one text, and pairs of equal pieces, that are given to difflib
MOST_PAIRS = 200_000
MOST_EDITS = 300  # pieces that are removed or added, in files that difflib would take too long for

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
    heading = f"--- {path}\n+++ {path}\n"
    matcher = _matched(old_side.pieces, new_side.pieces)
    if matcher is None:
        return f"{heading}{_too_much(old_lines, new_lines)}\n"
    groups = matcher.get_grouped_opcodes(CONTEXT)
    hunks = [_hunk(opcodes, old_side, new_side) for opcodes in groups]
    if not hunks:
        return ""
    return heading + "".join(hunks)


def _too_much(old_lines: Sequence[str], new_lines: Sequence[str]) -> str:
    """Return the line that stands for a difference that is too large to be shown."""
    return (
        f"{len(old_lines):,} lines become {len(new_lines):,}: too many of them differ, or are "
        "alike, to show which"
    )


def _matched(old: Sequence[Piece], new: Sequence[Piece]) -> SequenceMatcher[Piece] | None:
    """Return a matcher that knows the opcodes, None where searching them would take too long."""
    if max(len(old), len(new)) <= MOST_PIECES and _count_pairs(old, new) <= MOST_PAIRS:
        return SequenceMatcher(None, old, new, autojunk=False)
    opcodes = shortest_edits(old, new, MOST_EDITS)
    if opcodes is None:
        return None
    matcher: SequenceMatcher[Piece] = SequenceMatcher(None, (), ())
    matcher.opcodes = opcodes  # type: ignore[attr-defined]  # as it keeps them itself
    return matcher


def _count_pairs(old: Iterable[Piece], new: Iterable[Piece]) -> int:
    """Return how many pairs of equal pieces both texts have."""
    counts = Counter(new)
    return sum(counts[piece] for piece in old)


def shortest_edits(old: Sequence[Piece], new: Sequence[Piece], most: int) -> list[Opcode] | None:
    """Return opcodes that remove and add as few pieces as possible; None if these exceed `most`."""
    old_ids, new_ids = _ids(old, new)
    # By diagonal (position in the old text less that in the new one): the furthest position in the
    # old text that so many edits reach. One mapping for each number of edits.
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(most + 1):
        history.append(furthest)
        reached = {}
        for diagonal in range(-edits, edits + 1, 2):
            position = _position(furthest, diagonal)
            if 0 <= position <= len(old) and 0 <= position - diagonal <= len(new):
                position += _equal_from(old_ids, position, new_ids, position - diagonal)
                reached[diagonal] = position
                if position == len(old) and position - diagonal == len(new):
                    return _opcodes(history, len(old), len(new))
        furthest = reached
    return None


def _position(furthest: dict[int, int], diagonal: int) -> int:
    """Return the furthest position in the old text that one more edit reaches on a diagonal."""
    by_addition = furthest.get(diagonal + 1, -1)
    by_removal = furthest.get(diagonal - 1, -2) + 1
    return max(by_addition, by_removal)


def _ids(old: Iterable[Piece], new: Iterable[Piece]) -> tuple[bytes, bytes]:
    """Return both texts as four bytes for each piece, equal for equal pieces."""
    known: dict[Piece, int] = {}
    texts = []
    for pieces in (old, new):
        numbers = array("I", (known.setdefault(piece, len(known)) for piece in pieces))
        texts.append(numbers.tobytes())
    return texts[0], texts[1]


def _equal_from(old_ids: bytes, old_start: int, new_ids: bytes, new_start: int) -> int:
    """Return how many pieces both texts have alike from these positions on.

    Ever longer parts are compared, so that a short run costs little.
    """
    size = array("I").itemsize
    old_at = old_start * size
    new_at = new_start * size
    length = size
    while True:
        old_part = old_ids[old_at : old_at + length]
        new_part = new_ids[new_at : new_at + length]
        if old_part != new_part or len(old_part) < length:
            break
        old_at += length
        new_at += length
        length *= 2
    old_at += _common_prefix(old_part, new_part)
    return old_at // size - old_start


def _opcodes(history: Sequence[dict[int, int]], old_end: int, new_end: int) -> list[Opcode]:
    """Return the opcodes of the edits that led to both ends."""
    opcodes: list[Opcode] = []
    for furthest in reversed(history[1:]):
        diagonal = old_end - new_end
        start = _position(furthest, diagonal)
        if start < old_end:
            opcodes.append(("equal", start, old_end, start - diagonal, new_end))
        is_addition = furthest.get(diagonal + 1, -1) == start
        old_end = start if is_addition else start - 1
        new_end = start - diagonal - 1 if is_addition else start - diagonal
        opcodes.append(("replace", old_end, start, new_end, start - diagonal))
    if old_end:
        opcodes.append(("equal", 0, old_end, 0, new_end))
    opcodes.reverse()
    return list(_joined(opcodes))


def _joined(opcodes: Iterable[Opcode]) -> Iterator[Opcode]:
    """Yield opcodes as difflib has them: edits without anything equal between them are one."""
    for is_edit, group in itertools.groupby(opcodes, lambda opcode: opcode[0] != "equal"):
        rows = list(group)
        _, old_start, _, new_start, _ = rows[0]
        _, _, old_end, _, new_end = rows[-1]
        tag = "equal"
        if is_edit:
            tag = "insert" if old_start == old_end else "replace"
            tag = "delete" if new_start == new_end else tag
        yield tag, old_start, old_end, new_start, new_end


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
