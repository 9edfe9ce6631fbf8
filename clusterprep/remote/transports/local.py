"""The machine that clusterprep runs on, as a node.

`check --local` in a Slurm prolog so needs no sshd.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import IO

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.transports.user_count import UserCount
from clusterprep.runtime.clock import running_seconds

STALL = 20.0  # seconds without an accepted byte after which the command counts as gone
STDERR_KEPT = 8192  # bytes
END_LIMIT = 0.8  # seconds for the command to end once its stdin is closed
REAP_LIMIT = 0.2  # seconds for the kernel to end it after SIGKILL
PIECE = 1 << 16  # bytes of one read or write


class LocalTransport:
    """Starts commands on this machine. See Transport in clusterprep.remote.transports.protocol."""

    def __init__(self) -> None:
        self._channels: list[LocalChannel] = []

    def open(self, node: Node, command: str) -> Channel:
        try:
            channel = LocalChannel(command)
        except OSError as error:
            message = f"{node.name}: /bin/sh cannot be started: {error.strerror}"
            raise Unreached("hung", message) from error
        self._channels.append(channel)
        return channel

    def unheard(self) -> tuple[str, ...]:
        """Return an empty tuple: local nodes need no login."""
        return ()

    def close(self) -> None:
        """End the commands that still run, without waiting for them."""
        for channel in list(self._channels):
            channel.kill()


class SharedPipe:
    """One end of a pipe that does not block. Several threads use it, and the last one frees it."""

    def __init__(self, file: IO[bytes]) -> None:
        os.set_blocking(file.fileno(), False)
        self._file = file
        self._users = UserCount(self._free)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[int]:
        """Yield the descriptor, which is not freed meanwhile. Raises ValueError if closed."""
        with self._users:
            yield self._file.fileno()

    def read(self, size: int) -> bytes | None:
        """Return up to `size` bytes, None if the pipe is empty, b"" at its end."""
        with self._users:
            return self._file.read(size)

    def write(self, data: memoryview) -> int:
        """Return how many bytes the pipe took. Raises OSError if the other end is closed."""
        with self._users:
            return self._file.write(data) or 0

    def close(self) -> None:
        """Refuse further use, and free the pipe once no thread uses it."""
        if self._users.close():
            self._users.release()

    def _free(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class LocalChannel:
    """A command of this machine, in a session of its own, so that all its processes can be ended.

    See Channel in clusterprep.remote.transports.protocol.
    """

    peer: str | None = "127.0.0.1"
    near = True
    alive = True  # there is no connection that could break

    def __init__(self, command: str) -> None:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd="/",  # the user's folder may hold files that others wrote
            start_new_session=True,
        )
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018 - for mypy
        self._process = process
        self._stdin = SharedPipe(process.stdin)
        self._stdout = SharedPipe(process.stdout)
        self._stderr = SharedPipe(process.stderr)
        self._tail = b""  # of stderr
        self._tail_lock = threading.Lock()
        self._stderr_open = True
        self._closed = False

    def send(self, data: bytes) -> None:
        """Send all of data. Raises LinkLost if the command is gone or accepts nothing for 20 s."""
        remaining = memoryview(data)
        since = running_seconds()
        while remaining:
            count = self._write(remaining)
            if count:
                remaining = remaining[count:]
                since = running_seconds()
            elif running_seconds() - since > STALL:
                raise LinkLost("hung", f"the local command took nothing for {STALL:.0f} s")

    def recv(self, timeout: float) -> bytes:
        """Return up to 64 KiB, b"" at the end of stdout. Raises TimeoutError."""
        until = time.monotonic() + timeout
        try:
            while True:
                seconds = max(until - time.monotonic(), 0)
                if self._wait(self._stdout, select.POLLIN, seconds):
                    data = self._stdout.read(PIECE)
                    if data is not None:
                        return data
                if time.monotonic() >= until:
                    raise TimeoutError
        except ValueError:  # closed, maybe by another thread
            return b""

    def stderr(self) -> bytes:
        """Return the last 8 KiB of stderr so far."""
        self._drain()
        return self._tail

    def close(self) -> None:
        """Close stdin, wait a moment, then end the remaining processes of the session's group."""
        if self._closed:
            return
        self._closed = True
        self._stdin.close()
        self._await_end()
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_LIMIT)
        self._stdout.close()
        self._stderr.close()

    def kill(self) -> None:
        """End the command if it still runs, without waiting for it."""
        if self._process.returncode is None:
            self._kill()

    def _kill(self) -> None:
        # The group's leader is not reaped yet, so that the number still belongs to it.
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _write(self, data: memoryview) -> int:
        try:
            self._wait(self._stdin, select.POLLOUT, 1.0)
            return self._stdin.write(data[:PIECE])
        except (OSError, ValueError) as error:
            raise LinkLost("hung", "the local command has ended") from error

    def _wait(self, pipe: SharedPipe, event: int, seconds: float) -> bool:
        """Return whether a pipe is ready within `seconds`. Raises ValueError if it is closed.

        Stderr is emptied meanwhile, because a full pipe would stop the command.
        """
        poll = select.poll()
        with pipe.in_use() as descriptor, self._stderr.in_use() as stderr:
            poll.register(descriptor, event)
            if self._stderr_open:
                poll.register(stderr, select.POLLIN)
            ready = [number for number, _ in poll.poll(seconds * 1000)]
        self._drain()
        return descriptor in ready

    def _drain(self) -> None:
        """Keep the end of what stderr has, without waiting."""
        with self._tail_lock, contextlib.suppress(ValueError):
            while self._stderr_open:
                data = self._stderr.read(PIECE)
                if data is None:
                    break
                self._tail = (self._tail + data)[-STDERR_KEPT:]
                self._stderr_open = bool(data)

    def _await_end(self) -> None:
        """Wait until the command has ended, END_LIMIT at most, and do not reap it."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        until = time.monotonic() + END_LIMIT
        while time.monotonic() < until:
            try:
                if os.waitid(os.P_PID, self._process.pid, options):
                    return
            except ChildProcessError:
                return
            time.sleep(0.01)
