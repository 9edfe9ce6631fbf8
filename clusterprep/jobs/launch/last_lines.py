"""The last lines of a stream, bounded in number and in size. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

KEPT = 400  # lines; a stack of every thread takes some hundred
KEPT_CHARACTERS = 64 << 10  # of these lines: with ten thousand ranks they are memory


class LastLines(Iterable[str]):
    """Keeps the end of what a stream printed, the newest line always."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def extend(self, lines: Iterable[str]) -> None:
        """Add lines, and drop those that there is no more room for."""
        for line in lines:
            self._lines.append(line)
            self._size += len(line)
            while len(self._lines) > 1 and self._is_too_much():
                self._size -= len(self._lines.popleft())

    def _is_too_much(self) -> bool:
        return len(self._lines) > KEPT or self._size > KEPT_CHARACTERS
