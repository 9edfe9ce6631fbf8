"""The machine we run on as a node: `check --local` in a Slurm prolog needs no sshd."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from typing import IO

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node
from clusterprep.remote.transports import Channel
from clusterprep.runtime.clock import running_seconds

STALL = 20.0  # seconds without a byte taken, then the command counts as gone
KEPT = 8192  # bytes of stderr
LEAVE = 0.8  # seconds for the command to end once its stdin is closed
REAP = 0.2  # seconds for the kernel to end it after SIGKILL


class LocalTransport:
    """See clusterprep.transports.Transport."""

    def __init__(self) -> None:
        self._channels: list[LocalChannel] = []

    def open(self, node: Node, command: str) -> Channel:
        try:
            channel = LocalChannel(command)
        except OSError as error:
            raise Unreached(
                "hung", f"{node.name}: /bin/sh cannot be started: {error.strerror}"
            ) from error
        self._channels.append(channel)
        return channel

    def unheard(self) -> tuple[str, ...]:
        """Nobody: there is no network between."""
        return ()

    def close(self) -> None:
        """End the commands that have not ended, as there was no time to wait for it."""
        for channel in list(self._channels):
            channel.kill()


class LocalChannel:
    """See clusterprep.transports.Channel. The command has a session of its own, so that it can be ended whole."""

    peer: str | None = "127.0.0.1"
    near = True
    alive = True  # there is no connection that could break

    def __init__(self, command: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr  # noqa: S101, PT018 - for mypy
        self._stdin, self._stdout, self._stderr = (
            self._process.stdin,
            self._process.stdout,
            self._process.stderr,
        )
        for file in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(file.fileno(), False)
        self._tail = b""
        self._tail_lock = threading.Lock()
        self._err_open = True
        self._closed = False

    def send(self, data: bytes) -> None:
        """Send all of data. Raises LinkLost when the command is gone or takes nothing for 20 s."""
        view, since = memoryview(data), running_seconds()
        while view:
            taken = self._write(view)
            if taken:
                view, since = view[taken:], running_seconds()
            elif running_seconds() - since > STALL:
                raise LinkLost("hung", f"the local command took nothing for {STALL:.0f} s")

    def recv(self, timeout: float) -> bytes:
        """Up to 64 KiB; b"" at the end of stdout. Raises TimeoutError."""
        until = time.monotonic() + timeout
        try:
            while True:
                ready = self._wait(self._stdout, select.POLLIN, max(until - time.monotonic(), 0))
                if ready and (data := self._stdout.read(1 << 16)) is not None:
                    return data
                if time.monotonic() >= until:
                    raise TimeoutError
        except ValueError:  # closed, maybe by another thread
            return b""

    def stderr(self) -> bytes:
        """The last 8 KiB of stderr so far."""
        self._drain()
        return self._tail

    def close(self) -> None:
        """Close stdin, wait a moment, then end whatever is left of the session's group."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._await_end()
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP)
        self._stdout.close()
        self._stderr.close()

    def kill(self) -> None:
        """End the command without waiting for it, where it has not ended yet."""
        if self._process.returncode is None:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(
                self._process.pid, signal.SIGKILL
            )  # the leader is not reaped yet, so the number is still its own

    def _write(self, view: memoryview) -> int:
        try:
            self._wait(self._stdin, select.POLLOUT, 1.0)
            return self._stdin.write(view[: 1 << 16]) or 0
        except (OSError, ValueError) as error:
            raise LinkLost("hung", "the local command has ended") from error

    def _wait(self, wanted: IO[bytes], event: int, seconds: float) -> bool:
        """Whether a pipe is ready; stderr is emptied meanwhile, or a full pipe would stop the command."""
        poll = select.poll()
        poll.register(wanted, event)
        if self._err_open:
            poll.register(self._stderr, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
        self._drain()
        return wanted.fileno() in ready

    def _drain(self) -> None:
        with self._tail_lock, contextlib.suppress(ValueError):
            while self._err_open and (data := self._stderr.read(1 << 16)) is not None:
                self._tail = (self._tail + data)[-KEPT:]
                self._err_open = bool(data)

    def _await_end(self) -> None:
        until = time.monotonic() + LEAVE
        while time.monotonic() < until:
            with contextlib.suppress(ChildProcessError):
                if not os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    time.sleep(0.01)
                    continue
            return
