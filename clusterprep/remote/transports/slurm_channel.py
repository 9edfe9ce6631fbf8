"""A command in a task of a Slurm step, as a stream of bytes."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Protocol

from clusterprep.errors import LinkLost
from clusterprep.remote.transports.slurm_records import Record

STDERR_KEPT = 8192  # bytes
GRANT = 1 << 19  # bytes read after which the task may send as many more
CLOSE_LIMIT = 1.0  # seconds for the end of the command to be confirmed


class Carrier(Protocol):
    """What a channel needs of the job step that it is part of."""

    def send(self, task: int, channel: int, op: str, body: bytes = b"") -> None:
        """Send bytes to a task. Raises LinkLost."""

    def forget(self, channel: SlurmChannel) -> None:
        """Deliver no more records to this channel."""


class SlurmChannel:
    """A command in a task. See Channel in clusterprep.remote.transports.protocol."""

    peer: str | None = None  # srun is between
    near = False  # srun carries each byte to all tasks

    def __init__(self, step: Carrier, host: str, task: int, number: int) -> None:
        self.host = host
        self.task = task
        self.number = number
        self._step = step
        self._inbox: queue.SimpleQueue[bytes | LinkLost] = queue.SimpleQueue()
        self._tail = b""  # of stderr
        self._read = 0  # bytes since the last grant
        self._final: bytes | LinkLost | None = None  # what every further recv returns or raises
        self._lost: LinkLost | None = None
        self._has_ended = threading.Event()

    @property
    def alive(self) -> bool:
        """Whether the step goes on, and this task in it."""
        return self._lost is None

    def send(self, data: bytes) -> None:
        """Send all of data. Raises LinkLost."""
        if self._lost is not None:
            raise self._lost
        self._step.send(self.task, self.number, "data", data)

    def recv(self, timeout: float) -> bytes:
        """Return up to 64 KiB, b"" at the end of the command.

        Raises TimeoutError, and LinkLost if the step is gone.
        """
        if self._final is None:
            try:
                item = self._inbox.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError from None
            if item and not isinstance(item, LinkLost):
                self._grant(len(item))
                return item
            self._final = item
        if isinstance(self._final, LinkLost):
            raise self._final
        return self._final

    def stderr(self) -> bytes:
        """Return the last 8 KiB of stderr so far."""
        return self._tail

    def kill(self) -> None:
        """Have its task end the command at once."""
        with contextlib.suppress(LinkLost):
            self._step.send(self.task, self.number, "kill")

    def close(self) -> None:
        """End the command, and wait up to a second until all of its processes have ended."""
        if not self._has_ended.is_set():
            with contextlib.suppress(LinkLost):
                self._step.send(self.task, self.number, "close")
                self._has_ended.wait(CLOSE_LIMIT)
        self._step.forget(self)

    def accept(self, record: Record) -> None:
        """Take a record for this command."""
        if record.kind == "o":
            self._inbox.put(record.data)
        elif record.kind == "e":
            self._tail = (self._tail + record.data)[-STDERR_KEPT:]
        elif record.kind in ("f", "x"):
            self._inbox.put(b"")
        if record.kind == "x":
            self._has_ended.set()

    def lose(self, error: LinkLost) -> None:
        """Note that nothing more will come."""
        self._lost = self._lost or error
        self._inbox.put(error)
        self._has_ended.set()

    def _grant(self, count: int) -> None:
        """Allow the task to send as many bytes as were read, once these are enough."""
        self._read += count
        if self._read >= GRANT:
            granted = self._read
            self._read = 0
            with contextlib.suppress(LinkLost):
                self._step.send(self.task, self.number, "grant", b"%d" % granted)
