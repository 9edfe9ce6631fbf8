"""What is to go to the tasks of a step, grouped: srun gives its stdin to all of them, so equal bytes go once."""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence

from clusterprep.runtime.lazy_dataclass import dataclass

ROOM = 8 << 20  # bytes that may wait
LARGE = 4096  # bytes from which on it pays to wait for others that send the same
LINGER = 0.01  # seconds
SHARED = 512  # bytes that several have to have in common at the end to be sent the rest one by one
PULSE = b"* 0 pulse 0\n"


@dataclass(frozen=True)
class Message:
    """Bytes for one task's command."""

    channel: int
    op: str
    body: bytes


class Outbox:
    """What waits for srun; put from many threads, taken by one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plain: list[bytes] = []
        self._waiting: dict[int, deque[Message]] = {}
        self._size = 0
        self._closed = False

    def put(self, task: int | None, body: bytes, channel: int = 0, op: str = "") -> None:
        """Queue a message; those without a task are for all, come first and have no envelope."""
        with self._changed:
            if task is None:
                self._plain.append(body)
            else:
                self._waiting.setdefault(task, deque()).append(Message(channel, op, body))
            self._size += len(body) + 1
            self._changed.notify_all()

    def wait_for_room(self, seconds: float) -> bool:
        """Whether there is room for more, or no more is taken, within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._size < ROOM or self._closed, seconds)

    def take(self, seconds: float) -> bytes | None:
        """All that waits, as bytes for srun; a sign of life when nothing does for so long; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._size or self._closed, seconds)
            if self._closed and not self._size:
                return None
            large = self._size >= LARGE
        if large:
            time.sleep(LINGER)
        with self._changed:
            plain, waiting = self._plain, self._waiting
            self._plain, self._waiting, self._size = [], {}, 0
            self._changed.notify_all()
        return b"".join([*plain, *envelopes(waiting)]) or PULSE

    def close(self) -> None:
        """Take no more; what waits goes out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def envelopes(waiting: dict[int, deque[Message]]) -> Iterator[bytes]:
    """Envelopes that bring every task its messages in their order, and as few bytes as is simple."""
    while heads := {task: queue[0] for task, queue in waiting.items() if queue}:
        first = next(iter(heads.values()))
        alike = [task for task, head in heads.items() if head == first]
        near = (
            alike
            if first.op != "data"
            else [task for task, head in heads.items() if _is_near(head, first)]
        )
        shared = first.body
        if len(near) > len(alike):  # such as the source of an agent, behind a line of its own
            alike, shared = near, first.body[-_common([heads[task].body for task in near]) :]
            for task in near:
                if own := heads[task].body[: -len(shared)]:
                    yield _envelope([task], Message(first.channel, first.op, own))
        for task in alike:
            waiting[task].popleft()
        yield _envelope(alike, Message(first.channel, first.op, shared))


def _is_near(one: Message, other: Message) -> bool:
    """Whether most of one message may be the end of the other, too."""
    if (one.channel, one.op) != (other.channel, other.op) or len(other.body) < SHARED:
        return one == other
    return one.body[-SHARED:] == other.body[-SHARED:]


def _common(bodies: Sequence[bytes]) -> int:
    """Length of what all end with."""
    low, high = 0, min(map(len, bodies))
    while low < high:
        middle = (low + high + 1) // 2
        if all(body.endswith(bodies[0][-middle:]) for body in bodies):
            low = middle
        else:
            high = middle - 1
    return low


def _envelope(tasks: Sequence[int], message: Message) -> bytes:
    op, body = message.op, message.body
    if op == "data" and len(body) >= SHARED:
        op, body = "zdata", zlib.compress(body, 1)
    return b"%s %d %s %d\n%s" % (
        ranges(tasks).encode(),
        message.channel,
        op.encode(),
        len(body),
        body,
    )


def ranges(numbers: Sequence[int]) -> str:
    """`0-3,7` of numbers."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
