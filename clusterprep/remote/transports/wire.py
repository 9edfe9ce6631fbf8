"""The byte stream under an SSH connection: every wait is bounded, and paramiko's are not."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from clusterprep.remote.transports.user_count import UserCount
from clusterprep.runtime.clock import running_seconds

STALL = 20.0  # seconds without an accepted byte after which a peer counts as gone (Channel.send)
SLICE = 0.5  # seconds between two looks at the deadline until login is done
IDLE = 5.0  # seconds between two looks afterwards, when only close() ends a wait, and wakes it
# Bytes. A read that waits holds its buffer, and there is one for each node: so it is small while
# nothing is transferred.
IDLE_READ = 2048
BULK_READ = 1 << 16
LONGEST_LINE = 8192  # bytes; paramiko would collect a greeting without an end, in quadratic time


T = TypeVar("T")


class ByteStream(Protocol):
    """What a wire needs of a socket or of a paramiko channel through a jump host.

    `shutdown` ends the stream, and with it every `recv` and `send` that waits in another thread.
    `close` frees what the stream holds, and is called when no thread uses it any more.
    """

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Wire:
    """A socket to paramiko.

    Every way in which it can end looks like an end of file, which paramiko handles best.
    """

    def __init__(self, stream: ByteStream, deadline: float, stall: float = STALL) -> None:
        self._stream = stream
        self.stall = stall
        self._buffer = b""
        self._position = 0  # in the buffer
        self._read_size = IDLE_READ
        self._users = UserCount(self._free)  # threads that are inside the stream's recv or send
        self._deadline: float | None = deadline
        self.ended = False
        self.overdue = False
        self.greeting = b""  # what the peer sends first: SSH's greeting, or something else
        self.end_reason = ""  # the operating system's text on the end of the stream
        stream.settimeout(SLICE)

    # what paramiko calls

    def settimeout(self, seconds: float | None) -> None:
        """Do nothing: paramiko would wake ten times a second to see whether it has been closed."""

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes as soon as there are any. Raises EOFError."""
        if self._position == len(self._buffer):
            self._buffer = self._read()
            self._position = 0
        data = self._buffer[self._position : self._position + size]
        self._position += len(data)
        return data

    def send(self, data: bytes) -> int:
        """Return how many bytes the stream took. Raises EOFError."""
        since = running_seconds()
        while True:
            try:
                with self._users:
                    return self._stream.send(data)
            except ValueError as error:
                raise self._end() from error
            except OSError as error:
                if not _is_slice(error):
                    self._read_last_words()
                    raise self._end(_message(error)) from error
                self._check_limits(since + self.stall)

    def close(self) -> None:
        """End reads and writes in other threads at once, without waiting."""
        if not self._users.close():
            return
        with contextlib.suppress(OSError, EOFError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._users.release()

    @property
    def _closed(self) -> bool:
        """Whether `close` was called. paramiko looks at this name, as it would on a socket."""
        return self._users.closed

    # what we call

    def limit(self, deadline: float | None) -> None:
        """Set the moment of `running_seconds` at which everything on this wire ends, None: never.

        It is None once the login is done.
        """
        self._deadline = deadline
        with contextlib.suppress(OSError):
            self._stream.settimeout(IDLE if deadline is None else SLICE)

    def notice_silence(self, seconds: float) -> None:
        """Have the kernel end the connection if the peer acknowledges nothing for so long.

        Only a TCP connection has that: behind a jump host it is not noticed that a node is gone.
        """
        stream = self._stream
        if not isinstance(stream, socket.socket):
            return
        idle = max(1, round(seconds / 3))
        options = {
            "TCP_KEEPIDLE": idle,
            "TCP_KEEPALIVE": idle,  # what macOS calls the same
            "TCP_KEEPINTVL": idle,
            "TCP_KEEPCNT": 2,  # probes; where the next one is known, it decides instead
            "TCP_USER_TIMEOUT": round(seconds * 1000),
        }
        with contextlib.suppress(OSError):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            number = getattr(socket, name, None)  # another kernel has some of them
            if number is not None:
                with contextlib.suppress(OSError):
                    stream.setsockopt(socket.IPPROTO_TCP, number, value)

    def untimed(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and move the deadline by the time that it takes to get each one.

        The user may be typing a passphrase in that time.
        """
        remaining = iter(items)
        while True:
            deadline = self._deadline
            since = running_seconds()
            self._deadline = None
            try:
                item = next(remaining)
            except StopIteration:
                return
            finally:
                if deadline is not None:
                    deadline += running_seconds() - since
                self._deadline = deadline
            yield item

    def _read(self) -> bytes:
        while True:
            data = self._read_slice()
            # Also where data came: a peer that never pauses must not outlast the deadline.
            self._check_limits()
            if data is None:
                continue
            is_full = len(data) == self._read_size
            self._read_size = BULK_READ if is_full else IDLE_READ
            self._note(data)
            return data

    def _read_slice(self) -> bytes | None:
        """Return what comes within the stream's timeout, None if nothing does."""
        try:
            with self._users:
                return self._stream.recv(self._read_size)
        except ValueError as error:
            raise self._end() from error
        except OSError as error:
            if not _is_slice(error):
                raise self._end(_message(error)) from error
            return None

    def _read_last_words(self) -> None:
        """Read what a peer that hangs up before our greeting may have sent as its reason."""
        if not self.greeting:
            with contextlib.suppress(OSError, EOFError, ValueError), self._users:
                self._note(self._stream.recv(LONGEST_LINE))

    def _free(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._stream.close()

    def _note(self, data: bytes) -> None:
        """Keep the peer's first line, and note the end of the stream."""
        self.ended = self.ended or not data
        if b"\n" in self.greeting:
            return
        self.greeting += data
        if b"\n" not in self.greeting and len(self.greeting) > LONGEST_LINE:
            raise self._end()

    def _check_limits(self, stalled_at: float | None = None) -> None:
        """Raise EOFError if the wire is closed, past its deadline or past the moment given."""
        now = running_seconds()
        if self._closed:
            raise self._end()
        if self._deadline is not None and now > self._deadline:
            self.overdue = True
            raise self._end()
        if stalled_at is not None and now > stalled_at:
            raise self._end(f"took nothing for {self.stall:.0f} s")

    def _end(self, reason: str = "") -> EOFError:
        self.ended = True
        self.end_reason = self.end_reason or reason
        return EOFError(self.end_reason)


def _is_slice(error: OSError) -> bool:
    """Return whether only our own timeout has passed.

    A timeout with an error number is the kernel's, which has given up the peer.
    """
    return isinstance(error, TimeoutError) and error.errno != errno.ETIMEDOUT


def _message(error: OSError) -> str:
    return error.strerror or str(error)
