"""A pool of threads that runs one function for many items.

pool = WorkerPool(nodes, look_at)
pool.start_threads(64)
while pool.unfinished:
    pool.wait()
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

# Items whose threads may be replaced. Each of these threads and its connection stay open while they
# wait.
MOST_REPLACED = 1024

Item = TypeVar("Item")


class WorkerPool(Generic[Item]):
    """Run `work` for every item in daemon threads, which do not hold up the exit of the process.

    A thread takes the next item as soon as it is done with one. One thread, the owner of the pool,
    calls the public methods.
    """

    def __init__(self, items: Iterable[Item], work: Callable[[Item], None]) -> None:
        self.unfinished = 0
        self._work = work
        self._pending: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # Names of items whose threads end after them, because other threads took their place.
        self._replaced: set[str] = set()
        for item in items:
            self._pending.put(item)
            self.unfinished += 1

    @property
    def has_pending(self) -> bool:
        """Whether there are items that no thread has begun."""
        return not self._pending.empty()

    def start_threads(self, count: int) -> None:
        """Start `count` threads, or as many as there are unfinished items."""
        for _ in range(min(count, self.unfinished)):
            threading.Thread(target=self._run_items, daemon=True).start()

    def replace_threads(self, names: Iterable[str]) -> None:
        """Start further threads in place of those that work at the items of these names."""
        allowed = MOST_REPLACED - len(self._replaced)
        fresh = [name for name in names if name not in self._replaced]
        stuck = fresh[:allowed]
        self._replaced.update(stuck)
        self.start_threads(len(stuck))

    def wait(self, limit: float | None = None) -> None:
        """Wait until an item is done, `limit` seconds at most. Raises what `work` raised for it."""
        try:
            error = self._results.get(timeout=limit)
        except queue.Empty:
            return
        self.unfinished -= 1
        if error is not None:
            raise error

    def _run_items(self) -> None:
        while True:
            try:
                item = self._pending.get_nowait()
            except queue.Empty:
                return
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001 - `wait` raises it in the owner's thread
                self._results.put(error)
            else:
                self._results.put(None)
            if getattr(item, "name", None) in self._replaced:
                return
