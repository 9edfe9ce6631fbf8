"""Count the threads that use a descriptor, so that the last one frees it.

If the thread that closes freed it, the descriptor could belong to a new connection before a thread
that waits in poll(2) is awake. poll would then look at the new connection and go on waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class UserCount:
    """The threads inside a `with` statement of this object.

    After `close` and `release`, the last of these threads calls `free`, or `release` itself if no
    thread is inside.
    """

    def __init__(self, free: Callable[[], None]) -> None:
        self.closed = False
        self._free = free
        self._users = 0
        self._is_released = False
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        """Count this thread. Raises ValueError after `close`."""
        with self._lock:
            if self.closed:
                raise ValueError("closed")
            self._users += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._users -= 1
            is_unused = self._is_released and self._users == 0
        if is_unused:
            self._free()

    def close(self) -> bool:
        """Admit no thread any more. Return False if that was so before."""
        with self._lock:
            was_closed = self.closed
            self.closed = True
        return not was_closed

    def release(self) -> None:
        """Let `free` be called: now, or by the last thread. Call it once, after `close`."""
        with self._lock:
            self._is_released = True
            is_unused = self._users == 0
        if is_unused:
            self._free()
