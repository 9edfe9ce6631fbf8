"""One remote command over SSH: a paramiko channel whose every wait is bounded.

A command that writes much to stderr never blocks.
"""

from __future__ import annotations

import contextlib
import threading
import time

from paramiko import Channel as Session
from paramiko import SSHException

from clusterprep.errors import LinkLost
from clusterprep.remote.transports.ssh_state import ConnectionState

STDERR_KEPT = 8192  # bytes
# What paramiko raises for a connection that has ended.
CONNECTION_ERRORS = (OSError, EOFError, SSHException)
PACKET = 32000  # bytes; what paramiko fits into one packet
READ_SIZE = 1 << 16  # bytes


class SshChannel:
    """A command over SSH. One thread may send while another one receives.

    See Channel in clusterprep.remote.transports.protocol.
    """

    def __init__(self, connection: ConnectionState, session: Session) -> None:
        self.peer = connection.peer
        self.near = connection.near
        self._connection = connection
        self._session = session
        self._tail = b""  # of stderr
        self._tail_lock = threading.Lock()
        self._has_news = threading.Event()
        session.settimeout(connection.wire.stall)  # for sending; receiving waits for the event
        session.in_buffer.set_event(self._has_news)
        session.in_stderr_buffer.set_event(self._has_news)

    @property
    def alive(self) -> bool:
        """Whether the connection is open."""
        return self._connection.alive

    def send(self, data: bytes) -> None:
        """Send all of data. Raises LinkLost if the peer is gone or accepts nothing for 20 s."""
        remaining = memoryview(data)
        try:
            while remaining:
                count = self._session.send(bytes(remaining[:PACKET]))
                if not count:
                    raise self._lost()
                remaining = remaining[count:]
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
            # Cleared before looking: what comes after the look sets it again.
            self._has_news.clear()
            # Taken before reading: if the stream has ended by now, nothing comes after the read.
            has_ended = self._session.eof_received or self._session.closed
            self._drain()
            data = self._read()
            if data or has_ended:
                return data
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._has_news.wait(remaining)

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

    def _read(self) -> bytes:
        """Return what has come of stdout, without waiting.

        Reading also sends a message to the peer, which may be gone.
        """
        with contextlib.suppress(*CONNECTION_ERRORS):
            if self._session.recv_ready():
                return self._session.recv(READ_SIZE)
        return b""

    def _drain(self) -> None:
        with self._tail_lock, contextlib.suppress(*CONNECTION_ERRORS):
            while self._session.recv_stderr_ready():
                data = self._session.recv_stderr(READ_SIZE)
                self._tail = (self._tail + data)[-STDERR_KEPT:]

    def _lost(self) -> LinkLost:
        return LinkLost("hung", self._connection.end_reason or "the connection has ended")
