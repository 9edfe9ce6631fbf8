"""One remote command over SSH: a paramiko channel whose every wait is bounded.

A command that writes much to stderr never blocks. Reading never waits for the peer to take
something: what allows it to send more is sent by a thread of its own, where paramiko would do it in
the thread that reads.
"""

from __future__ import annotations

import contextlib
import threading
import time

from paramiko import Channel as Session
from paramiko import SSHException

from clusterprep.errors import LinkLost
from clusterprep.remote.transports.ssh_paramiko import BoundedBuffer
from clusterprep.remote.transports.ssh_state import ConnectionState
from clusterprep.runtime.clock import running_seconds

STDERR_KEPT = 8192  # bytes
# What paramiko raises for a connection that has ended.
CONNECTION_ERRORS = (OSError, EOFError, SSHException)
PACKET = 32000  # bytes; what paramiko fits into one packet
READ_SIZE = 1 << 16  # bytes
WINDOW = 1 << 21  # bytes that the peer may send before they are read; paramiko's default
GRANT_FROM = WINDOW // 8  # bytes read after which the peer may send as many more
# Bytes per second that a peer takes at least, besides its pauses: one that takes a byte in every
# pause would otherwise be waited for without end.
SLOWEST = 8192


class SshChannel:
    """A command over SSH. One thread may send while another one receives.

    It is made of a session before its command is started, as nothing may have come by then. See
    Channel in clusterprep.remote.transports.protocol.
    """

    def __init__(self, connection: ConnectionState, session: Session) -> None:
        self.peer = connection.peer
        self.near = connection.near
        self._connection = connection
        self._session = session
        self._tail = b""  # of stderr
        self._new_in_tail = 0  # bytes that `recv_both` has not returned
        self._tail_lock = threading.Lock()
        self._has_news = threading.Event()
        self._read_bytes = 0  # for which no further ones were granted yet
        self._granting = threading.Lock()
        session.settimeout(connection.wire.stall)  # for sending; receiving waits for the event
        self._out = BoundedBuffer(WINDOW + PACKET)
        self._err = BoundedBuffer(WINDOW + PACKET)
        session.in_buffer = self._out
        session.in_stderr_buffer = self._err
        self._out.set_event(self._has_news)
        self._err.set_event(self._has_news)

    @property
    def alive(self) -> bool:
        """Whether the connection is open."""
        return self._connection.alive

    def send(self, data: bytes) -> None:
        """Send all of data.

        Raises LinkLost if the peer is gone, accepts nothing for 20 s or accepts less than 8 KiB/s.
        """
        remaining = memoryview(data)
        limit = self._connection.wire.stall + len(data) / SLOWEST
        end = running_seconds() + limit
        try:
            while remaining:
                count = self._session.send(bytes(remaining[:PACKET]))
                if not count:
                    raise self._lost()
                remaining = remaining[count:]
                if remaining and running_seconds() > end:
                    raise LinkLost("hung", f"did not take {len(data)} bytes in {limit:.0f} s")
        except TimeoutError as error:
            message = f"took nothing for {self._connection.wire.stall:.0f} s"
            raise LinkLost("hung", message) from error
        except CONNECTION_ERRORS as error:
            raise LinkLost("hung", self._connection.end_reason or str(error)) from error
        # paramiko drops packets for a dead connection without an error.
        if not self._connection.alive:
            raise self._lost()

    def recv(self, timeout: float) -> bytes:
        """Return up to 64 KiB, b"" if the command has ended or the connection is gone.

        Raises TimeoutError.
        """
        until = time.monotonic() + timeout
        while True:
            data, has_ended = self._look()
            if data or has_ended:
                return data
            self._await_news(until)

    def recv_both(self, timeout: float) -> tuple[bytes, bytes]:
        """Return what has come of stdout and of stderr since the last call, once anything has.

        Up to 64 KiB and 8 KiB; both are b"" if the command has ended or the connection is gone.
        Raises TimeoutError.
        """
        until = time.monotonic() + timeout
        while True:
            data, has_ended = self._look()
            stderr = self._take_new_stderr()
            if data or stderr or has_ended:
                return data, stderr
            self._await_news(until)

    def stderr(self) -> bytes:
        """Return the last 8 KiB of stderr so far."""
        self._drain()
        # Reading may have cleared the event of a thread that waits for stdout.
        self._has_news.set()
        return self._tail

    def kill(self) -> None:
        """Ask sshd for SIGKILL. Releases before OpenSSH 7.9 ignore it."""
        with contextlib.suppress(*CONNECTION_ERRORS):
            self._connection.transport.send_signal(self._session.remote_chanid, "KILL")

    def close(self) -> None:
        """End the connection, and with it the remote command's stdin, without waiting."""
        self._connection.close()

    def _look(self) -> tuple[bytes, bool]:
        """Return what has come of stdout, and whether the stream had ended before."""
        # Cleared before looking: what comes after the look sets it again.
        self._has_news.clear()
        # Taken before reading: if the stream has ended by now, nothing comes after the read.
        has_ended = bool(self._session.eof_received or self._session.closed)
        self._drain()
        return self._read(), has_ended

    def _await_news(self, until: float) -> None:
        """Wait for further data. Raises TimeoutError at `until`, a moment of time.monotonic()."""
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._has_news.wait(remaining)

    def _take_new_stderr(self) -> bytes:
        """Return the end of stderr that came since the last call."""
        with self._tail_lock:
            count = min(self._new_in_tail, len(self._tail))
            self._new_in_tail = 0
            return self._tail[len(self._tail) - count :]

    def _read(self) -> bytes:
        """Return what has come of stdout, without waiting. Raises LinkLost for an endless flood."""
        if self._out.overflowed or self._err.overflowed:
            raise LinkLost("garbled", "the node sent more than it was allowed to")
        if not self._out.read_ready():
            return b""
        data: bytes = self._out.read(READ_SIZE, 0.0)
        self._grant(len(data))
        return data

    def _drain(self) -> None:
        """Keep the end of what stderr has, without waiting."""
        count = 0
        with self._tail_lock:
            while self._err.read_ready():
                data = self._err.read(READ_SIZE, 0.0)
                count += len(data)
                self._tail = (self._tail + data)[-STDERR_KEPT:]
            self._new_in_tail += count
        self._grant(count)

    def _grant(self, count: int) -> None:
        """Count bytes that were read, and let the peer send as many more once they are enough."""
        with self._granting:
            self._read_bytes += count
            if self._read_bytes < GRANT_FROM:
                return
            granted = self._read_bytes
            self._read_bytes = 0
        # A peer that takes nothing holds up this thread, and gets no further one.
        threading.Thread(target=self._send_grant, args=(granted,), daemon=True).start()

    def _send_grant(self, count: int) -> None:
        with contextlib.suppress(*CONNECTION_ERRORS):
            self._connection.transport.grant(self._session.remote_chanid, count)

    def _lost(self) -> LinkLost:
        return LinkLost("hung", self._connection.end_reason or "the connection has ended")
