"""Decides which lines of a file are kept, so that none that matters is displaced by others.

Each needle has a budget of its own in each file, and so have lines that only look like errors. The
end of a file and tracebacks are kept whatever they say.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from clusterprep.jobs.diagnose.forms import (
    EXACT,
    LONGEST,
    MOST_WANTED,
    RAISED,
    TRACEBACK,
    VAGUE,
    Kind,
    Sieve,
)
from clusterprep.jobs.diagnose.tracebacks import Row, Tracebacks, writer_of

# Lines of a kind that bring no new rank, in a row, before the rest of them is only counted.
_MOST_IDLE = 50_000
_MOST_COMPARED = 50_000  # kinds of a file that are compared with plain signs beyond the budget
_MOST_REFUSED = 100_000  # kinds of a file that are remembered as beyond the budget
_MOST_TOLD = 3  # kinds of lines that a notice names
_SHOWN = 60  # bytes of a form in a notice


class Budget(Struct, frozen=True):
    """How much of logs is kept. The figures are for all files where they do not say otherwise."""

    alike: int = 8_192  # lines of one kind: twice those of a job of 4,096 ranks
    vague: int = 256  # the same where lines only look like errors
    informing: int = 60_000  # lines of NCCL_DEBUG=INFO, after which each kind has `few` of them
    few: int = 64
    of_writer: int = 2  # lines of one kind beyond that, of each rank of each file
    writers: int = 16_384  # ranks of files that have such lines
    kinds: int = 1_000  # kinds of lines for each needle, the first ones of each file
    last: int = 64  # further kinds for each needle: the last ones of each file, a line of each
    tail: int = 200  # lines at the end of each file
    tails: int = 20_000  # lines at the ends of all files
    least_tail: int = 10  # lines at the end of each file, however many files there are
    frames: int = 40_000  # lines of tracebacks that are kept in full
    exact: int = EXACT  # see `forms`
    forms: int = MOST_WANTED

    def tail_of(self, files: int) -> int:
        """Return how many lines at the end of each of so many files are kept."""
        return max(self.least_tail, min(self.tail, self.tails // max(files, 1)))


class Keeper:
    """Keeps lines of one file. `is_plain` tells whether a line says its cause by itself."""

    def __init__(
        self,
        name: str,
        sieve: Sieve,
        budget: Budget,
        is_plain: Callable[[bytes], bool],
        tail: int,
    ) -> None:
        self.left_out = 0  # lines like those kept
        self.frames = 0  # lines of tracebacks that are kept
        self._name = name
        self._sieve = sieve
        self._budget = budget
        self._is_plain = is_plain
        self._rows: dict[int, Row] = {}
        self._tail: deque[Row] = deque(maxlen=tail)
        self._tracebacks = Tracebacks()
        self._admitted: set[Kind] = set()
        self._refused: set[Kind] = set()  # kinds beyond the budget
        self._compared = 0
        self._kinds_of_needle: Counter[bytes] = Counter()
        self._last: dict[bytes, dict[Kind, Row]] = {}  # by needle, the latest kind last
        self._displaced: Counter[bytes] = Counter()  # lines that `_last` lost, by needle
        self._full: dict[bytes, Kind] = {}  # by form, kinds of which the rest is only counted
        self._cut: dict[Kind, None] = {}  # kinds of which lines of further ranks were not kept
        self._position = 0

    def sift(self, forms: Sequence[bytes], lines: Sequence[bytes], numbers: Sequence[int]) -> None:
        """Keep what matters of the next lines of the file; `forms` are those of the lines."""
        wanted = self._sieve.wanted
        start = self._position
        # One comprehension: this runs for every line of the log.
        hits = [index for index, form in enumerate(forms) if form in wanted] if wanted else []
        heads: list[int] = []
        full = self._full
        for index in hits:
            form = forms[index]
            if full and form in full:
                self.left_out += 1
                continue
            kind = wanted[form]
            row = (start + index, numbers[index], lines[index][:LONGEST])
            self._take(kind, form, row)
            if TRACEBACK in kind.needles:
                heads.append(index)
        self._tracebacks.follow(lines, numbers, start, heads)
        self._tail.extend(self._end_of(lines, numbers))
        self._position += len(lines)

    def _end_of(self, lines: Sequence[bytes], numbers: Sequence[int]) -> list[Row]:
        """Return the last lines that are not empty."""
        most = self._tail.maxlen or 0
        rows: list[Row] = []
        for index in range(len(lines) - 1, -1, -1):
            if len(rows) == most:
                break
            if lines[index]:
                text = lines[index][:LONGEST]
                rows.append((self._position + index, numbers[index], text))
        rows.reverse()
        return rows

    def _take(self, kind: Kind, form: bytes, row: Row) -> None:
        """Keep a line if its kind has budget left, or else count it."""
        if kind not in self._admitted and not self._admits(kind, row):
            self._keep_as_last(kind, row)
            return
        if kind.kept >= self._alike(kind) and not self._brings_rank(kind, form, row[2]):
            self.left_out += 1
            return
        kind.kept += 1
        if kind.informs:
            self._sieve.informing += 1
        self._rows[row[0]] = row

    def _alike(self, kind: Kind) -> int:
        """Return how many lines of a kind are kept whichever rank wrote them."""
        budget = self._budget
        if kind.is_vague:
            return budget.vague
        if kind.informs and self._sieve.informing >= budget.informing:
            return budget.few
        return budget.alike

    def _admits(self, kind: Kind, row: Row) -> bool:
        """Whether lines of a kind are kept that is new in this file."""
        if kind in self._refused:
            return False
        most = self._budget.kinds
        counts = self._kinds_of_needle
        if any(counts[needle] < most for needle in kind.needles):
            counts.update(kind.needles)
            self._admitted.add(kind)
            return True
        if kind.has_sign and self._compared < _MOST_COMPARED:
            self._compared += 1
            if self._is_plain(row[2]):
                self._admitted.add(kind)
                return True
        if len(self._refused) < _MOST_REFUSED:
            self._refused.add(kind)
        return False

    def _keep_as_last(self, kind: Kind, row: Row) -> None:
        """Keep the last line of a kind until lines of other kinds with the same needle come."""
        needle = kind.needles[0]
        last = self._last.setdefault(needle, {})
        if last.pop(kind, None):
            self.left_out += 1
        last[kind] = row
        if len(last) > self._budget.last:
            del last[next(iter(last))]
            self._displaced[needle] += 1

    def _brings_rank(self, kind: Kind, form: bytes, text: bytes) -> bool:
        """Whether a line beyond the budget of its kind is one of the first of its rank and file."""
        writer = b"" if kind.informs else writer_of(text)
        lines = kind.lines_of_writer.get((self._name, writer), 0)
        if lines < self._budget.of_writer:
            if len(kind.lines_of_writer) < self._budget.writers:
                kind.lines_of_writer[self._name, writer] = lines + 1
                kind.idle = 0
                return True
            self._cut[kind] = None
        kind.idle += 1
        if kind.informs or kind.idle > _MOST_IDLE:
            self._full[form] = kind
        return False

    def rows(self, frames: int) -> list[Row]:
        """Return the lines that are kept, in their order, with so many lines of tracebacks."""
        for last in self._last.values():
            for row in last.values():
                self._rows[row[0]] = row
        of_tracebacks = self._tracebacks.rows(frames)
        self.frames = len(of_tracebacks)
        for row in (*self._tail, *of_tracebacks):
            self._rows[row[0]] = row
        return sorted(self._rows.values())

    def limits(self) -> list[str]:
        """Return where reading was cut."""
        limits: list[str] = []
        for needle, count in self._displaced.most_common(_MOST_TOLD):
            what = f"{count:,} kinds of lines {_described(needle)}"
            limits.append(f"reading was cut: {what} are left out")
        if len(self._displaced) > _MOST_TOLD:
            further = len(self._displaced) - _MOST_TOLD
            limits.append(f"reading was cut: so are kinds of lines with {further:,} other words")
        for kind in list(self._cut)[:_MOST_TOLD]:
            form = kind.form[:_SHOWN].decode("utf-8", "replace")
            limits.append(f"reading was cut: not every rank's line like «{form}» is kept")
        return limits


def _described(needle: bytes) -> str:
    if needle == VAGUE:
        return "that look like errors"
    if needle == RAISED:
        return "that look like exceptions"
    return f"with «{needle.decode('utf-8', 'replace')}»"
