"""Threads that send what waits on links, so that no node holds up the requests of another one.

A send may block for as long as the other end takes nothing: SSH has a window, TCP has a buffer, and
either end may negotiate keys. Then one thread waits for that node, and another thread goes on with
the others. So there are WIDTH threads at most, and one more for each node that takes nothing. Each
holds the text that it sends: no more threads are started while these texts are MOST_BYTES together.

A send that is taken at once needs no thread of its own, and a thread's start costs more than the
send. So the first threads are few, and as soon as one is held up there are as many as links wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque

from clusterprep.remote.transports.link import Link

WIDTH = 16  # threads that send at once, besides those that are held up
SHARE = 16  # links that wait for one thread, as long as none is held up
MOST_BYTES = 256 << 20
HELD_UP = 0.2  # seconds in one node's send after which a thread counts as held up


class Senders:
    """Send what waits on links, each in its order. `put` and `relieve` never wait for a node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: deque[Link] = deque()
        # Of each thread: when it began to send, and to which node.
        self._sending: dict[threading.Thread, tuple[float, Link | None]] = {}

    def put(self, link: Link) -> None:
        """Have a thread send what waits on a link."""
        with self._lock:
            self._links.append(link)
            self._start_threads(math.ceil(len(self._links) / SHARE))

    def relieve(self) -> None:
        """Start threads in place of those that are held up, if links wait."""
        with self._lock:
            self._start_threads(len(self._links))

    def _start_threads(self, count: int) -> None:
        """Start threads until `count` of them send, WIDTH at most. The caller holds the lock."""
        now = time.monotonic()
        going_on = 0
        under_way = 0
        for began, link in self._sending.values():
            going_on += now - began < HELD_UP
            under_way += link.under_way if link is not None else 0
        if under_way > MOST_BYTES:
            return
        for _ in range(min(WIDTH, count) - going_on):
            thread = threading.Thread(target=self._send, daemon=True, name="sender")
            self._sending[thread] = (now, None)
            thread.start()

    def _send(self) -> None:
        thread = threading.current_thread()
        while True:
            with self._lock:
                if not self._links:
                    del self._sending[thread]
                    return
                link = self._links.popleft()
                self._sending[thread] = (time.monotonic(), link)
            link.send_waiting()
