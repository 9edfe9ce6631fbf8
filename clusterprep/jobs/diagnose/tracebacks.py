"""Finds the lines that belong to Python's tracebacks, also where ranks write at the same time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from clusterprep.jobs.diagnose.forms import LONGEST, TABLE, TRACEBACK

Row = tuple[int, int, bytes]  # position among the lines of a file, line number, text

_MOST_LINES = 60  # of one traceback that are kept: the last ones, where it was raised
_FIRST = 32  # tracebacks of a file that are kept, besides so many of the last ones
_LAST = 8
_SHORT = 6  # lines of a traceback that are kept once the budget of all files is used up
# A traceback has no end if so many lines follow that are not part of it: of the same rank, of all.
_MOST_OTHERS = 200
_MOST_BETWEEN = 100_000
_MOST_FOLLOWED = 300_000  # lines of a file that are looked at one by one

# What tells the rank or process that wrote a line, at its start or anywhere in it.
_WRITER = re.compile(
    rb"^\s*(?:\[\d+,\d+\]|\[?[a-z]*\d+\]?(?=:)|[\w.-]+:\d+:\d+ \[\d+\]|\(?[\w ]*pid=\d+)"
    rb"|\brank[ :=]{0,2}\d+",
    re.IGNORECASE,
)
_WRITER_WITHIN = 200  # bytes of a line


def writer_of(line: bytes) -> bytes:
    """Return what tells the rank or process that wrote a line, empty if nothing does."""
    match = _WRITER.search(line, 0, _WRITER_WITHIN)
    return match[0].strip() if match else b""


class _Traceback(Struct, eq=False):
    """A traceback. `prefix` is the form of what stands before each of its lines."""

    prefix: bytes
    last_seen: int  # position of its last line so far
    others: int = 0  # lines of the same writer since then
    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))


class Tracebacks:
    """Follows the tracebacks of one file."""

    def __init__(self) -> None:
        self._open: dict[bytes, _Traceback] = {}  # by writer
        self._first: list[_Traceback] = []
        self._last: deque[_Traceback] = deque(maxlen=_LAST)
        self._followed = 0

    def follow(
        self, lines: Sequence[bytes], numbers: Sequence[int], start: int, heads: Sequence[int]
    ) -> None:
        """Look at the next lines; `heads` are the indexes of those that begin a traceback.

        Lines are looked at one by one only while a traceback is open.
        """
        index = 0
        for head in [*heads, len(lines)]:
            while index < head and self._open and self._followed < _MOST_FOLLOWED:
                self._look(lines[index], (start + index, numbers[index]))
                index += 1
            if head < len(lines):
                self._begin(lines[head], start + head)
            index = head + 1

    def rows(self, most: int) -> list[Row]:
        """Return the lines of the tracebacks that are kept, `most` of them in full."""
        rows: list[Row] = []
        for traceback in (*self._first, *self._last):
            own = list(traceback.rows)
            rows += own if len(rows) + len(own) <= most else own[-_SHORT:]
        return rows

    def _begin(self, line: bytes, position: int) -> None:
        head = line[:LONGEST].translate(TABLE)
        traceback = _Traceback(head[: head.find(TRACEBACK)], position)
        self._open[writer_of(line)] = traceback
        if len(self._first) < _FIRST:
            self._first.append(traceback)
        else:
            self._last.append(traceback)

    def _look(self, line: bytes, place: tuple[int, int]) -> None:
        """Add a line to the traceback of its writer, if it is part of one."""
        self._followed += 1
        position, number = place
        writer = writer_of(line)
        traceback = self._open.get(writer)
        if traceback is None:
            self._give_up(position)
            return
        length = len(traceback.prefix)
        if line[:length].translate(TABLE) != traceback.prefix:
            traceback.others += 1
            if traceback.others > _MOST_OTHERS:
                del self._open[writer]
            return
        traceback.others = 0
        traceback.last_seen = position
        rest = line[length:LONGEST]
        if not rest.strip():
            return
        traceback.rows.append((position, number, line[:LONGEST]))
        if not rest[:1].isspace():
            del self._open[writer]  # the exception itself

    def _give_up(self, position: int) -> None:
        """Close tracebacks of which nothing came for long."""
        if self._followed % _MOST_OTHERS:
            return
        late = [
            writer
            for writer, traceback in self._open.items()
            if position - traceback.last_seen > _MOST_BETWEEN
        ]
        for writer in late:
            del self._open[writer]
