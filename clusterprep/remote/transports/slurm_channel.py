"""A command in a task of a Slurm step, as a stream of bytes."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING

from clusterprep.errors import LinkLost
from clusterprep.remote.transports.slurm_records import Record

if TYPE_CHECKING:
    from clusterprep.remote.transports.slurm_step import JobStep

KEPT = 8192  # bytes of stderr
GRANT = 1 << 19  # bytes read after which the task may send as many more
PART = 1.0  # seconds for the end of the command to be confirmed


class SlurmChannel:
    """See clusterprep.transports.Channel."""

    peer: str | None = None  # srun is between
    near = False  # and carries each byte to all

    def __init__(self, step: JobStep, host: str, task: int, number: int) -> None:
        self.host, self.task, self.number = host, task, number
        self._step = step
        self._inbox: queue.SimpleQueue[bytes | LinkLost] = queue.SimpleQueue()
        self._tail = b""
        self._read = 0
        self._over: bytes | LinkLost | None = None  # what every further recv brings
        self._lost: LinkLost | None = None
        self._gone = threading.Event()

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
        """Up to 64 KiB; b"" at the end of the command. Raises TimeoutError, and LinkLost when the step is gone."""
        if self._over is None:
            try:
                item = self._inbox.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError from None
            if isinstance(item, LinkLost) or not item:
                self._over = item
            else:
                self._grant(len(item))
                return item
        if isinstance(self._over, LinkLost):
            raise self._over
        return self._over

    def stderr(self) -> bytes:
        """The last 8 KiB of stderr so far."""
        return self._tail

    def kill(self) -> None:
        """Have its task end the command at once."""
        with contextlib.suppress(LinkLost):
            self._step.send(self.task, self.number, "kill")

    def close(self) -> None:
        """End the command, and wait up to a second for the word that nothing of it is left."""
        if not self._gone.is_set():
            with contextlib.suppress(LinkLost):
                self._step.send(self.task, self.number, "close")
                self._gone.wait(PART)
        self._step.forget(self)

    def heed(self, record: Record) -> None:
        """Take what came for this command."""
        if record.kind == "o":
            self._inbox.put(record.data)
        elif record.kind == "e":
            self._tail = (self._tail + record.data)[-KEPT:]
        elif record.kind in ("f", "x"):
            self._inbox.put(b"")
        if record.kind == "x":
            self._gone.set()

    def lose(self, why: LinkLost) -> None:
        """Nothing more will come."""
        self._lost = self._lost or why
        self._inbox.put(why)
        self._gone.set()

    def _grant(self, count: int) -> None:
        self._read += count
        if self._read >= GRANT:
            granted, self._read = self._read, 0
            with contextlib.suppress(LinkLost):
                self._step.send(self.task, self.number, "grant", b"%d" % granted)
