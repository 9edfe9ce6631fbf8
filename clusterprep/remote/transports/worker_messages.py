"""What the controller and a worker process say to each other, on one socket pair for each node.

A message is its kind (one byte), the length of its content (four bytes) and the content. The end of
the socket says that the other side wants nothing more of the node, or that its process has ended.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remedies import pack, unpack
from clusterprep.remote.transports.user_count import UserCount
from clusterprep.runtime.clock import running_seconds

PIECE = 1 << 16  # bytes of one read, and of the largest content
LOOK = 1.0  # seconds between two looks at the limit of a send
_HEAD = 5  # bytes of kind and length


class Kind(enum.IntEnum):
    """The kinds of messages, in the order in which they come."""

    # from the controller
    OPEN = 1  # the node and the command, by `pack_question`; the first one on a socket
    ANSWER = 2  # to ASK
    INPUT = 3  # bytes for the command
    KILL = 4  # end the command by SIGKILL
    # from the worker
    HEARD = 11  # the node has sent its first byte
    ASK = 12  # a passphrase: the prompt
    FAILED = 13  # no command was started: the error, by `pack_error`
    OPENED = 14  # the command was started: a JSON object with `peer` and `near`
    OUTPUT = 15  # bytes of stdout
    ERRORS = 16  # bytes of stderr
    ENDED = 17  # the stream has ended: a JSON object with `alive`
    LOST = 18  # nothing more will come: the error, by `pack_error`


Message = tuple[Kind, bytes]


class MessageStream:
    """One end of a socket pair. One thread may receive; any thread may send and close."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._users = UserCount(end.close)
        self._sending = threading.Lock()
        self._received = bytearray()

    def send(self, kind: Kind, content: bytes = b"", limit: float | None = None) -> None:
        """Send a message of at most PIECE bytes.

        Raises EOFError if this or the other side has closed, and TimeoutError if the other side
        has not taken it after `limit` seconds.
        """
        remaining = memoryview(b"%c%b%b" % (kind, len(content).to_bytes(4, "big"), content))
        end = None if limit is None else running_seconds() + limit
        with self._sending, self._in_use():
            while remaining:
                with contextlib.suppress(BlockingIOError):
                    remaining = remaining[self._socket.send(remaining) :]
                    continue
                if end is not None and running_seconds() > end:
                    raise TimeoutError
                self._wait(select.POLLOUT, LOOK)

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message, once it has arrived completely.

        Raises TimeoutError after `timeout` seconds, and EOFError after the last message.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._first_message()
            if message is not None:
                return message
            with self._in_use():
                self._read(until)

    @property
    def has_ended(self) -> bool:
        """Whether either side has closed, also if messages are left to be received."""
        try:
            with self._in_use():
                return self._wait(0, 0.0)
        except EOFError:
            return True

    @property
    def is_closed(self) -> bool:
        """Whether this side has closed."""
        return self._users.closed

    def close(self) -> None:
        """Close this end. Threads that send or receive get an EOFError at once. Never raises."""
        if not self._users.close():
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._users.release()

    def _first_message(self) -> Message | None:
        """Take the first message off what was received, None if it is not there completely."""
        received = self._received
        end = _HEAD + int.from_bytes(received[1:_HEAD], "big")
        if len(received) < max(end, _HEAD):
            return None
        message = Kind(received[0]), bytes(received[_HEAD:end])
        del received[:end]
        return message

    def _read(self, until: float | None) -> None:
        """Add what comes before `until` to what was received. Raises TimeoutError and EOFError."""
        while True:
            with contextlib.suppress(BlockingIOError):
                data = self._socket.recv(PIECE)
                if not data:
                    raise EOFError
                self._received += data
                return
            seconds = None if until is None else until - time.monotonic()
            if seconds is not None and seconds <= 0:
                raise TimeoutError
            self._wait(select.POLLIN, seconds)

    def _wait(self, event: int, seconds: float | None) -> bool:
        """Wait until the socket can be used. Return whether anything, or its end, has come."""
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the descriptor while it is used. Raises EOFError if either side has closed."""
        try:
            with self._users:
                yield
        except (ValueError, ConnectionError) as error:
            raise EOFError from error


# ---------------------------------------------------------------- contents


def pack_question(node: Node, command: str) -> bytes:
    """Return as JSON what a worker has to know to start a command on a node: its login alone."""
    login = {name: getattr(node.ssh, name) for name in SshSettings.__annotations__}
    question = {"name": node.name, "address": node.address, "login": login, "command": command}
    return json.dumps(question).encode()


def unpack_question(content: bytes) -> tuple[Node, str]:
    """Return the node, with its login alone, and the command."""
    question = json.loads(content)
    login = question["login"]
    login["options"] = tuple(tuple(option) for option in login["options"])
    node = Node(question["name"], question["address"], 0, SshSettings(**login))
    return node, question["command"]


def pack_error(error: Exception) -> bytes:
    """Return an error of `Transport.open` or of a channel as JSON."""
    body: dict[str, Any]
    if isinstance(error, Unreached):
        body = {"reason": error.reason, "text": error.message, "remedy": pack(error.remedy)}
    elif isinstance(error, OSError) and error.errno is not None:
        body = {"errno": error.errno}
    else:
        body = {"text": f"{type(error).__name__}: {error}"}
    return json.dumps(body).encode()


def unpack_error(content: bytes, *, lost: bool = False) -> Exception:
    """Return the error that was packed: Unreached, or LinkLost if `lost`, or an OSError.

    Any other error is a mistake of ours, and becomes a RuntimeError with its text.
    """
    body: Mapping[str, Any] = json.loads(content)
    if "reason" in body:
        kind = LinkLost if lost else Unreached
        return kind(body["reason"], body["text"], unpack(body["remedy"]))
    if "errno" in body:
        return OSError(body["errno"], os.strerror(body["errno"]))
    return RuntimeError(body["text"])
