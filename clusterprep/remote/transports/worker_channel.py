"""A command over SSH whose connection is in a worker process, as the controller sees it."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from typing import Protocol

from clusterprep.errors import LinkLost
from clusterprep.remote.transports.wire import STALL
from clusterprep.remote.transports.worker_messages import (
    PIECE,
    Kind,
    Message,
    MessageStream,
    unpack_error,
)
from clusterprep.runtime.clock import running_seconds

STDERR_KEPT = 8192  # bytes
# Seconds beyond the limits of SshChannel, which the worker's own end of the channel keeps: it knows
# better what is wrong.
MARGIN = 5.0
# Bytes per second that a node takes at least, besides its pauses; see SshChannel.
SLOWEST = 8192
KILL_LIMIT = 1.0  # seconds that a worker has for taking the wish to kill
# Bytes of output that `stderr` takes in at most on its way to the errors behind them.
MOST_BEFORE_STDERR = 1 << 20
CONNECTION_ENDED = "the connection has ended"
WORKER_ENDED = "the process on this machine that held the connection has ended"


class Worker(Protocol):
    """What a channel tells about the process that holds its connection.

    `has_ended` is set where that process has ended, `release` called once, when the channel closes.
    """

    has_ended: bool

    def release(self) -> None: ...


class WorkerChannel:
    """See Channel in clusterprep.remote.transports.protocol."""

    def __init__(self, stream: MessageStream, peer: str | None, near: bool, worker: Worker) -> None:
        self.peer = peer
        self.near = near
        self.alive = True
        self._stream = stream
        self._worker: Worker | None = worker  # until the channel is closed
        self._output: deque[bytes] = deque()
        self._output_size = 0
        self._tail = b""  # of stderr
        self._has_ended = False
        self._lost: Exception | None = None

    def send(self, data: bytes) -> None:
        """Send all of data. Raises LinkLost if it is not taken in the time that SshChannel has."""
        limit = STALL + MARGIN + len(data) / SLOWEST
        end = running_seconds() + limit
        remaining = memoryview(data)
        if self._has_ended:
            raise LinkLost("hung", CONNECTION_ENDED)
        try:
            while remaining:
                seconds = max(end - running_seconds(), 0.0)
                self._stream.send(Kind.INPUT, bytes(remaining[:PIECE]), seconds)
                remaining = remaining[PIECE:]
        except TimeoutError as error:
            raise LinkLost("hung", f"did not take {len(data)} bytes in {limit:.0f} s") from error
        except EOFError as error:
            raise LinkLost("hung", CONNECTION_ENDED) from error

    def recv(self, timeout: float) -> bytes:
        """Return up to 64 KiB, b"" if the command has ended or the connection is gone.

        Raises TimeoutError, and LinkLost if the worker knows more, or has ended itself.
        """
        until = time.monotonic() + timeout
        while True:
            if self._output:
                data = self._output.popleft()
                self._output_size -= len(data)
                return data
            if self._lost is not None:
                raise self._lost
            if self._has_ended:
                return b""
            self._take_next(max(until - time.monotonic(), 0.0))

    def stderr(self) -> bytes:
        """Return the last 8 KiB of stderr so far."""
        with contextlib.suppress(TimeoutError):
            while not self._has_ended and self._output_size < MOST_BEFORE_STDERR:
                self._take_next(0.0)
        return self._tail

    def kill(self) -> None:
        with contextlib.suppress(EOFError, TimeoutError):
            self._stream.send(Kind.KILL, limit=KILL_LIMIT)

    def close(self) -> None:
        """Hang up. The worker then ends the connection at once."""
        self._stream.close()
        worker = self._worker
        self._worker = None
        if worker is not None:
            worker.release()

    def _take_next(self, timeout: float) -> None:
        """Take in the next message. Raises TimeoutError."""
        try:
            message = self._stream.receive(timeout)
        except EOFError:
            self.alive = False
            self._has_ended = True
            if not self._stream.is_closed:
                self._lost = LinkLost("hung", WORKER_ENDED)
                if self._worker is not None:
                    self._worker.has_ended = True
            return
        self._take(message)

    def _take(self, message: Message) -> None:
        kind, content = message
        if kind is Kind.OUTPUT:
            self._output.append(content)
            self._output_size += len(content)
        elif kind is Kind.ERRORS:
            self._tail = (self._tail + content)[-STDERR_KEPT:]
        elif kind is Kind.ENDED:
            self._has_ended = True
            self.alive = json.loads(content)["alive"]
        elif kind is Kind.LOST:
            self.alive = False
            self._has_ended = True
            self._lost = unpack_error(content, lost=True)
