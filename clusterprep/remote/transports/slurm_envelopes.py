"""Group what is to be sent to the tasks of a step.

srun gives its stdin to all tasks, so bytes that several tasks are to get are sent once.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

ROOM = 8 << 20  # bytes that may wait
LARGE = 4096  # bytes from which on it pays to wait for other messages with the same content
LINGER = 0.01  # seconds
SHARED = 512  # bytes of a common end from which on it is sent once, and the beginnings one by one
FASTEST = 1  # level of zlib
PULSE = b"* 0 pulse 0\n"


class Message(Struct, frozen=True):
    """Bytes for one task's command."""

    channel: int  # number of the command among those of its task
    op: str  # what the relay does with the body: see clusterprep/remote/agent/relay.py
    body: bytes


class Outbox:
    """What waits for srun. Many threads put messages, one takes them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plain: list[bytes] = []  # for all tasks, without an envelope
        self._waiting: dict[int, deque[Message]] = {}  # by task
        self._size = 0
        self._closed = False

    def put_for_all(self, data: bytes) -> None:
        """Queue bytes that all tasks read as they are, before the first message."""
        with self._changed:
            self._plain.append(data)
            self._add_size(data)

    def put(self, task: int, channel: int, op: str, body: bytes) -> None:
        """Queue a message for a command of one task."""
        with self._changed:
            queue = self._waiting.setdefault(task, deque())
            queue.append(Message(channel, op, body))
            self._add_size(body)

    def _add_size(self, data: bytes) -> None:
        self._size += len(data) + 1  # a message without a body waits, too
        self._changed.notify_all()

    def wait_for_room(self, seconds: float) -> bool:
        """Return whether there is room within `seconds`, or the outbox is closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._size < ROOM or self._closed, seconds)

    def take(self, seconds: float) -> bytes | None:
        """Return all that waits, as bytes for srun.

        A sign of life if nothing comes within `seconds`, None when closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._size or self._closed, seconds)
            if self._closed and not self._size:
                return None
            is_large = self._size >= LARGE
        if is_large:
            time.sleep(LINGER)
        with self._changed:
            plain = self._plain
            waiting = self._waiting
            self._plain = []
            self._waiting = {}
            self._size = 0
            self._changed.notify_all()
        return b"".join([*plain, *envelopes(waiting)]) or PULSE

    def close(self) -> None:
        """Take no more messages. Those that wait are still sent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def envelopes(waiting: dict[int, deque[Message]]) -> Iterator[bytes]:
    """Yield envelopes that bring every task its messages in order, with equal bytes sent once."""
    while True:
        heads = _heads(waiting)
        if not heads:
            return
        first = next(iter(heads.values()))
        tasks = _tasks_with(heads, first)
        shared = first.body
        similar = _similar_tasks(heads, first, tasks)
        # Such as the source of an agent, behind a line with a nonce for each task.
        if len(similar) > len(tasks):
            tasks = similar
            bodies = [heads[task].body for task in tasks]
            shared = first.body[-_common_end(bodies) :]
            for task, body in zip(tasks, bodies, strict=True):
                beginning = body[: -len(shared)]
                if beginning:
                    yield _envelope([task], Message(first.channel, first.op, beginning))
        for task in tasks:
            waiting[task].popleft()
        yield _envelope(tasks, Message(first.channel, first.op, shared))


def _heads(waiting: Mapping[int, deque[Message]]) -> dict[int, Message]:
    """Return the first message of each task that has any."""
    return {task: queue[0] for task, queue in waiting.items() if queue}


def _tasks_with(heads: Mapping[int, Message], message: Message) -> list[int]:
    return [task for task, head in heads.items() if head == message]


def _similar_tasks(
    heads: Mapping[int, Message], first: Message, equal_tasks: list[int]
) -> list[int]:
    """Return the tasks whose message may end like the first one."""
    if first.op != "data":
        return equal_tasks
    return [task for task, head in heads.items() if _is_similar(head, first)]


def _is_similar(one: Message, other: Message) -> bool:
    """Return whether most of one message may be the end of the other, too."""
    is_same_channel = (one.channel, one.op) == (other.channel, other.op)
    if not is_same_channel or len(other.body) < SHARED:
        return one == other
    return one.body[-SHARED:] == other.body[-SHARED:]


def _common_end(bodies: Sequence[bytes]) -> int:
    """Return the length of what all bodies end with, found by bisection."""
    low = 0
    high = min(map(len, bodies))
    while low < high:
        middle = (low + high + 1) // 2
        end = bodies[0][-middle:]
        if all(body.endswith(end) for body in bodies):
            low = middle
        else:
            high = middle - 1
    return low


def _envelope(tasks: Sequence[int], message: Message) -> bytes:
    """Return a message with the line before it: tasks, channel, op and length of the body."""
    op = message.op
    body = message.body
    if op == "data" and len(body) >= SHARED:
        op = "zdata"
        body = zlib.compress(body, FASTEST)
    header = f"{ranges(tasks)} {message.channel} {op} {len(body)}\n"
    return header.encode() + body


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges.

    >>> ranges([3, 0, 1, 2, 7])
    '0-3,7'
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in spans]
    return ",".join(texts)
