"""Counts the bytes that all links of a command hold, and names the link that has to go.

A link holds what has come and was not taken yet. What one link may hold is limited too, but a
hundred nodes that each use up that limit would take the controller's memory together.
"""

from __future__ import annotations

import threading

MOST = 64 << 20  # bytes; 64 nodes at once that answer everything hold 5 MB


class HeldBytes:
    """The bytes that each link holds. Links report them from many threads."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._by_link: dict[object, int] = {}
        self._total = 0
        self._dropped: set[object] = set()

    @property
    def refusal(self) -> str:
        """Why a link that held most is dropped."""
        return (
            f"all nodes together sent more than {self._most >> 20} MiB that was not taken yet, "
            "and this one most of it"
        )

    def exceeds(self, link: object, held: int) -> bool:
        """Note what a link holds, in bytes. Return whether this link has to be dropped.

        If all links together hold too much, the one that holds most is dropped: now, or as soon
        as it reports itself.
        """
        with self._lock:
            if link in self._dropped:
                return True
            self._total += held - self._by_link.get(link, 0)
            self._by_link[link] = held
            while self._total > self._most:
                largest = max(self._by_link, key=self._by_link.__getitem__)
                self._total -= self._by_link.pop(largest)
                self._dropped.add(largest)
            return link in self._dropped

    def forget(self, link: object) -> None:
        """Count a link no more that was closed."""
        with self._lock:
            self._total -= self._by_link.pop(link, 0)
            self._dropped.discard(link)
