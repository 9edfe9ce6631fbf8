"""Things that listen on a port and are no good sshd."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator

import paramiko

Talk = Callable[[socket.socket], None]
# Whoever dialled may leave at any moment, also in the middle of paramiko's key exchange.
HUNG_UP = (OSError, EOFError, paramiko.SSHException)


@contextlib.contextmanager
def listening(talk: Talk) -> Iterator[int]:
    """A port whose every connection is handed to `talk`, and then closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(*HUNG_UP):
            talk(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def hangs_up(connection: socket.socket) -> None:
    """Reset a connection once the other side has seen it come about."""
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def says(words: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        connection.sendall(words)
        silent(connection)

    return talk


def babbles(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 4096)


class Relay:
    """In front of a real sshd: passes `limit` bytes of what it says, then nothing more.

    Counts them in `passed`.
    """

    def __init__(self, port: int, limit: int | None = None) -> None:
        self._port = port
        self._limit = limit
        self.passed = 0

    def __call__(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as server:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    if ready is client:
                        server.sendall(data)
                    else:
                        client.sendall(self._allowed(data))

    def _allowed(self, data: bytes) -> bytes:
        if self._limit is not None:
            data = data[: max(self._limit - self.passed, 0)]
        self.passed += len(data)
        return data


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """A port whose queue is full.

    Connecting to it times out, as to a node behind a dropping firewall.
    """
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
