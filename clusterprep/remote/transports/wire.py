"""The byte stream under an SSH connection: bounded in time, because paramiko waits without end in several places."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from clusterprep.runtime.clock import running_seconds

STALL = 20.0  # seconds without a byte taken after which a peer counts as gone (Channel.send)
SLICE = 0.2  # seconds between two looks at the deadline until login is done
IDLE_READ, BULK_READ = (
    2048,
    1 << 16,
)  # bytes; a read that waits holds its buffer, and there is one for each node
LONGEST_LINE = 8192  # bytes; paramiko would collect a greeting without an end, in quadratic time
IDLE = 5.0  # seconds between two looks afterwards, when only close() ends a wait, and wakes it


T = TypeVar("T")


class ByteStream(Protocol):
    """What a wire needs of a socket or of a paramiko channel through a jump host."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Wire:
    """A socket to paramiko. Every way in which it can end looks like an end of file, which paramiko handles best."""

    def __init__(self, stream: ByteStream, deadline: float, stall: float = STALL) -> None:
        self._stream = stream
        self.stall = stall
        self._buffer = b""
        self._at = 0
        self._size = IDLE_READ
        self._closed = False  # paramiko looks at this name, as it would on a socket
        self._deadline: float | None = deadline
        self.ended = False
        self.overdue = False
        self.heard = b""  # what the peer says first: its greeting, or something else
        self.why = ""  # the operating system's word on the end of the stream
        stream.settimeout(SLICE)

    # what paramiko calls

    def settimeout(self, seconds: float | None) -> None:
        """Ignored: paramiko would wake ten times a second to see whether it has been closed."""

    def recv(self, size: int) -> bytes:
        if self._at == len(self._buffer):
            self._buffer, self._at = self._more(), 0
        data = self._buffer[self._at : self._at + size]
        self._at += len(data)
        return data

    def send(self, data: bytes) -> int:
        since = running_seconds()
        while True:
            try:
                return self._stream.send(data)
            except OSError as error:
                if not _is_slice(error):
                    self._overhear()
                    raise self._end(_words(error)) from error
                self._refuse_delay(since + self.stall)

    def close(self) -> None:
        """Ends reads and writes in other threads at once; waits for nobody."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, EOFError):
            self._stream.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, EOFError):
            self._stream.close()

    # what we call

    def limit(self, deadline: float | None) -> None:
        """Set the moment (clusterprep.awake) at which everything on this wire ends; None once the login is done."""
        self._deadline = deadline
        with contextlib.suppress(OSError):
            self._stream.settimeout(IDLE if deadline is None else SLICE)

    def untimed(self, items: Iterable[T]) -> Iterator[T]:
        """The items; the time it takes to get one does not count: somebody may be typing a passphrase."""
        rest = iter(items)
        while True:
            deadline, since = self._deadline, running_seconds()
            self._deadline = None
            try:
                item = next(rest)
            except StopIteration:
                return
            finally:
                self._deadline = deadline and deadline + running_seconds() - since
            yield item

    def _more(self) -> bytes:
        while True:
            try:
                data = self._stream.recv(self._size)
            except OSError as error:
                if not _is_slice(error):
                    raise self._end(_words(error)) from error
                data = None
            self._refuse_delay()  # a peer that never pauses is no better than one that never speaks
            if data is not None:
                self._size = (
                    BULK_READ if len(data) == self._size else IDLE_READ
                )  # where one is full, more has come
                self._listen(data)
                return data

    def _overhear(self) -> None:
        """Who hangs up before our greeting may have said why."""
        if not self.heard:
            with contextlib.suppress(OSError, EOFError):
                self._listen(self._stream.recv(LONGEST_LINE))

    def _listen(self, data: bytes) -> None:
        self.ended = self.ended or not data
        if b"\n" not in self.heard:
            self.heard += data
            if b"\n" not in self.heard and len(self.heard) > LONGEST_LINE:
                raise self._end()

    def _refuse_delay(self, stalled: float | None = None) -> None:
        now = running_seconds()
        if self._closed:
            raise self._end()
        if self._deadline is not None and now > self._deadline:
            self.overdue = True
            raise self._end()
        if stalled is not None and now > stalled:
            raise self._end(f"took nothing for {self.stall:.0f} s")

    def _end(self, why: str = "") -> EOFError:
        self.ended = True
        self.why = self.why or why
        return EOFError(self.why)


def _is_slice(error: OSError) -> bool:
    """Whether only our own time-out has passed; with a number, it is the kernel that gave the peer up."""
    return isinstance(error, TimeoutError) and error.errno != errno.ETIMEDOUT


def _words(error: OSError) -> str:
    return error.strerror or str(error)
