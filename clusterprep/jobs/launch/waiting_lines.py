"""Counts the lines that wait to be shown, so that a terminal that stands still fills no memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

MOST = 20_000  # messages
MOST_OF_NODE = 4 << 20  # characters of the lines of one node
MOST_OF_ALL = 64 << 20


class WaitingLines:
    """What waits, of each node and of all. Threads of nodes add, the main thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages = 0
        self._total = 0
        self._by_node: Counter[str] = Counter()

    def add(self, node: str, lines: Sequence[str]) -> bool:
        """Count lines that are to wait. Return whether there is room for them."""
        size = _size(lines)
        with self._lock:
            is_full = (
                self._messages >= MOST
                or self._by_node[node] + size > MOST_OF_NODE
                or self._total + size > MOST_OF_ALL
            )
            if not is_full:
                self._messages += 1
                self._total += size
                self._by_node[node] += size
        return not is_full

    def take(self, node: str, lines: Sequence[str]) -> None:
        """Count lines no more: they were taken."""
        size = _size(lines)
        with self._lock:
            self._messages -= 1
            self._total -= size
            self._by_node[node] -= size


def _size(lines: Sequence[str]) -> int:
    return sum(map(len, lines))
