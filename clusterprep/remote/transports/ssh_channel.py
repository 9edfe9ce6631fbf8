"""One remote command over SSH: a paramiko channel whose every wait is bounded and whose stderr never blocks it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from paramiko import Channel as Session
from paramiko import SSHException

from clusterprep.errors import LinkLost

if TYPE_CHECKING:
    from clusterprep.remote.transports.ssh_connection import SshConnection

KEPT = 8192  # bytes of stderr
GONE = (OSError, EOFError, SSHException)  # what paramiko raises over a connection that has ended
PIECE = 32000  # bytes; what paramiko fits into one packet


class SshChannel:
    """See clusterprep.transports.Channel. One thread may send while another one receives."""

    def __init__(
        self, connection: SshConnection, session: Session, peer: str | None, near: bool
    ) -> None:
        self.peer = peer
        self.near = near
        self._connection = connection
        self._session = session
        self._tail = b""
        self._tail_lock = threading.Lock()
        self._news = threading.Event()
        session.settimeout(connection.wire.stall)  # for sending; receiving waits for the event
        session.in_buffer.set_event(self._news)
        session.in_stderr_buffer.set_event(self._news)

    @property
    def alive(self) -> bool:
        """Whether the connection stands."""
        return self._connection.alive

    def send(self, data: bytes) -> None:
        """Send all of data. Raises LinkLost when the other end is gone or takes nothing for 20 s."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._session.send(bytes(view[:PIECE])) or self._lost() :]
        except TimeoutError as error:
            raise LinkLost(
                "hung", f"took nothing for {self._connection.wire.stall:.0f} s"
            ) from error
        except GONE as error:
            raise LinkLost("hung", self._why(str(error))) from error
        if (
            not self._connection.alive
        ):  # paramiko drops packets for a dead connection without a word
            self._lost()

    def recv(self, timeout: float) -> bytes:
        """Up to 64 KiB; b"" when the command has ended or the connection is gone. Raises TimeoutError."""
        until = time.monotonic() + timeout
        while True:
            self._news.clear()  # before looking: what comes after the look sets it again
            ended = (
                self._session.eof_received or self._session.closed
            )  # before reading: then nothing comes after
            self._drain()
            data = self._take()
            if data or ended:
                return data
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._news.wait(left)

    def stderr(self) -> bytes:
        """The last 8 KiB of stderr so far."""
        self._drain()
        self._news.set()  # reading may have taken the sign from a thread that waits for stdout
        return self._tail

    def kill(self) -> None:
        """Ask sshd for SIGKILL; one before OpenSSH 7.9 does not heed it."""
        with contextlib.suppress(*GONE):
            self._connection.transport.send_signal(self._session.remote_chanid, "KILL")

    def close(self) -> None:
        """End the connection, and with it the remote command's stdin; waits for nobody."""
        self._connection.close()

    def _take(self) -> bytes:
        """What there is of stdout. It takes no waiting, but tells the other side, which may be gone."""
        with contextlib.suppress(*GONE):
            return self._session.recv(1 << 16) if self._session.recv_ready() else b""
        return b""

    def _drain(self) -> None:
        with self._tail_lock, contextlib.suppress(*GONE):
            while self._session.recv_stderr_ready():
                self._tail = (self._tail + self._session.recv_stderr(1 << 16))[-KEPT:]

    def _lost(self) -> int:
        raise LinkLost("hung", self._why("the connection has ended"))

    def _why(self, fallback: str) -> str:
        return self._connection.why or fallback
