"""Format the lines that ranks print for a terminal.

Each line stands behind the name of its rank. Equal lines of several ranks can be folded into one.
"""

from __future__ import annotations

from msgspec import Struct, field

from clusterprep.model.nodeset import fold

WAIT = 0.3  # seconds that a line waits for equal lines of other ranks

Source = tuple[str, "int | None"]  # node, and rank; no rank: the node's torchrun


def label(source: Source) -> str:
    node, rank = source
    if rank is None:
        return f"[{node} torchrun]"
    return f"[{node} rank {rank}]"


class _WaitingLine(Struct, eq=False):
    text: str
    since: float  # when it was first printed, in seconds of `now`
    sources: set[Source] = field(default_factory=set)
    rank_count: int = 0  # of the sources, how many are ranks

    def add(self, source: Source) -> None:
        self.sources.add(source)
        _, rank = source
        if rank is not None:
            self.rank_count += 1


class Prefixed:
    """Shows every line at once, behind its own label."""

    def add(self, source: Source, text: str, now: float) -> list[str]:
        return [f"{label(source)} {text}"]

    def due(self, now: float, *, flush: bool = False) -> list[str]:
        return []


class Folded:
    """Holds lines for a moment until the same lines of other ranks arrive, and shows them once.

    Lines of one source keep their order.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._waiting: list[_WaitingLine] = []
        self._by_text: dict[str, list[_WaitingLine]] = {}
        self._last_by_source: dict[Source, _WaitingLine] = {}

    def add(self, source: Source, text: str, now: float) -> list[str]:
        line = self._line_to_join(source, text)
        if line is None:
            line = _WaitingLine(text, now)
            self._waiting.append(line)
            self._by_text.setdefault(text, []).append(line)
        line.add(source)
        self._last_by_source[source] = line
        return self.due(now)

    def due(self, now: float, *, flush: bool = False) -> list[str]:
        """Return the lines to show now. `flush` shows all of them.

        No line overtakes one that still waits before it.
        """
        count = 0
        for line in self._waiting:
            is_complete = line.rank_count == self._world_size
            is_old = now - line.since >= WAIT
            if not (flush or is_complete or is_old):
                break
            count += 1
        due = self._waiting[:count]
        del self._waiting[:count]
        shown: list[str] = []
        for line in due:
            self._forget(line)
            shown.append(f"{_common_label(line, self._world_size)} {line.text}")
        return shown

    def _line_to_join(self, source: Source, text: str) -> _WaitingLine | None:
        """Return the first equal line that can be shown behind the source's own last line.

        It is moved there if it waits before it.
        """
        last = self._last_by_source.get(source)
        for line in self._by_text.get(text, ()):
            if source in line.sources:
                continue
            if last is None or self._put_behind(last, line):
                return line
        return None

    def _put_behind(self, last: _WaitingLine, line: _WaitingLine) -> bool:
        """Move `line` behind `last`, and with it all lines that its sources printed after it.

        Return False if `last` is one of these.
        """
        begin = self._waiting.index(line)
        end = self._waiting.index(last) + 1
        if end <= begin:
            return True
        staying: list[_WaitingLine] = []
        moving: list[_WaitingLine] = []
        moving_sources = set(line.sources)
        for other in self._waiting[begin:end]:
            if moving_sources.isdisjoint(other.sources):
                staying.append(other)
            else:
                moving.append(other)
                moving_sources.update(other.sources)
        if moving[-1] is last:
            return False
        self._waiting[begin:end] = staying + moving
        return True

    def _forget(self, line: _WaitingLine) -> None:
        """Remove a line that is no longer waiting from what is known by text and by source."""
        equal_lines = self._by_text[line.text]
        equal_lines.remove(line)
        if not equal_lines:
            del self._by_text[line.text]
        for source in line.sources:
            if self._last_by_source[source] is line:
                del self._last_by_source[source]


def _common_label(line: _WaitingLine, world_size: int) -> str:
    """Return `[all ranks]`, `[ranks 0-2,5]` or `[rank 1, n1 torchrun]`."""
    if len(line.sources) == 1:
        (source,) = line.sources
        return label(source)
    ranks = sorted(rank for _, rank in line.sources if rank is not None)
    torchrun_nodes = [node for node, rank in line.sources if rank is None]
    parts: list[str] = []
    if line.rank_count == world_size:
        parts.append("all ranks")
    elif ranks:
        noun = "rank" if line.rank_count == 1 else "ranks"
        parts.append(f"{noun} {spans(ranks)}")
    if torchrun_nodes:
        parts.append(f"{fold(torchrun_nodes)} torchrun")
    joined = ", ".join(parts)
    return f"[{joined}]"


def spans(numbers: list[int]) -> str:
    """Return sorted numbers with ranges: [0, 1, 2, 3, 7] is "0-3,7"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    parts: list[str] = []
    for first, last in ranges:
        if first == last:
            parts.append(str(first))
        else:
            parts.append(f"{first}-{last}")
    return ",".join(parts)


def visible(text: str) -> str:
    """Return what a terminal shows of a line that has written over itself, as progress bars do."""
    line = text.rstrip("\r")
    return line.rsplit("\r", 1)[-1]
