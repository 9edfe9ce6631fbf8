"""Files to and from one node: bytes by Fabric's SFTP, places and sums by the agent beside it.

Both share one SSH connection. What is staged on the node is removed by the agent when it ends, and
that is also when the connection does.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from paramiko import ChannelException, SFTPClient, SFTPError

from clusterprep.errors import LinkLost
from clusterprep.fabric.connection import NodeConnection
from clusterprep.fabric.runner import CONNECTION_ERRORS
from clusterprep.model import Node
from clusterprep.remote.transports.link import Frame, Link, Password, open_link
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.untrusted import shortened
from clusterprep.runtime import files

PIECE = 1 << 15  # bytes; what every SFTP server takes at once
LARGEST_ANSWER = (
    PIECE + 4096
)  # bytes of one answer of an SFTP server: a piece, and what is around it
REQUESTS = 64  # pieces that are under way
AHEAD = 16 << 20  # bytes that are asked for together
PULSE = 5.0  # seconds between signs of life to the agent, which gives up after 30
WAIT = 0.5  # seconds
# What is no answer of SFTP is a ValueError: text that is no UTF-8, for one.
SFTP_ERRORS = (*CONNECTION_ERRORS, SFTPError, ValueError)

# Takes bytes that have been transferred since the last call.
Moved = Callable[[int], None]


class Failed(Exception):
    """A file was not brought; the text says why. `is_placed`: it is in place all the same.

    `reason` is the node's own word for it, "" where the node was not asked.
    """

    def __init__(self, why: str, is_placed: bool = False, reason: str = "") -> None:
        super().__init__(why)
        self.is_placed = is_placed
        self.reason = reason


class RemoteFile(Struct, frozen=True):
    """A file of a node: its name there, its size and sum, where it can be read, and its mode."""

    name: str
    size: int
    sha: str
    source: str
    mode: int


class BoundedSftp(SFTPClient):
    """SFTP whose answers are no longer than what is asked for.

    paramiko takes 16 MiB for each, and keeps those that come before it is their turn: a server that
    answers the first of five hundred requests last would have eight gigabytes kept here.
    """

    def _read_packet(self) -> tuple[int, bytes]:
        """Return the kind of the next answer, and what it holds. Raises SFTPError."""
        size = int.from_bytes(self._read_all(4), "big")  # type: ignore[attr-defined]
        if not 0 < size <= LARGEST_ANSWER:
            raise SFTPError(f"an answer of {size:,} bytes")
        data = self._read_all(size)  # type: ignore[attr-defined]
        return data[0], data[1:]


class NodeFiles:
    """One connection with an agent that knows about files. Use `with`, in one thread."""

    def __init__(self, connection: NodeConnection, password: Password, moved: Moved) -> None:
        self._connection = connection
        self._moved = moved
        self._pulsed = time.monotonic()
        self._closed = False
        connection.open()
        over = _OverConnection(connection)
        self._link: Link = open_link(over, connection.node, ("look", "copying"), password)
        self._opened_sftp: SFTPClient | None = None

    def ask(self, op: str, **body: Any) -> Frame:
        """Return the answer to a request, however long it takes. Raises LinkLost or Failed."""
        number = self._link.send(op, **body)
        answer = None
        while answer is None:
            self._pulse()
            answer = self._link.receive_now(number, WAIT)
        if "no" in answer:
            why = shortened(answer.get("why") or answer["no"])
            is_placed = answer.get("placed") is True
            raise Failed(why, is_placed, str(answer["no"]))
        return answer

    def put(self, source: Path, place: str) -> None:
        """Write the bytes of a file here to a file there. Raises Failed."""
        with _told():
            sftp = self._sftp()
            with source.open("rb") as data, sftp.open(place, "wb") as sink:
                sink.set_pipelined(True)
                while piece := data.read(PIECE):
                    sink.write(piece)
                    self._move(len(piece))

    def get(self, file: RemoteFile, place: Path) -> None:
        """Write the bytes of a file there to a file here, all of it or nothing. Raises Failed.

        Users who may not read the file there may not read the one here either.
        """
        beside = files.draft_beside(place)
        mode = files.PRIVATE | (files.SHARED & file.mode)
        total = hashlib.sha256()
        try:
            with _told(), os.fdopen(files.open_exclusively(beside, mode), "wb") as sink:
                for piece in self._pieces(file):
                    sink.write(piece)
                    total.update(piece)
                sink.flush()
                os.fsync(sink.fileno())
            if total.hexdigest() != file.sha:
                raise Failed("it changed while it was being fetched")
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)

    def _pieces(self, file: RemoteFile) -> Iterator[bytes]:
        """Yield the bytes of a file there, as many as it had when its sum was taken."""
        with self._sftp().open(file.source, "rb") as source:
            for start in range(0, file.size, AHEAD):
                # Not all at once: paramiko lists them, and the size is what the node says.
                end = min(file.size, start + AHEAD)
                chunks = [(at, min(PIECE, end - at)) for at in range(start, end, PIECE)]
                for piece in source.readv(chunks, REQUESTS):
                    self._move(len(piece))
                    yield piece

    def _sftp(self) -> SFTPClient:
        if self._opened_sftp is None:
            try:
                opened = BoundedSftp.from_transport(self._connection.opened.transport)
            except ChannelException:
                # The agent has the one session of an sshd with MaxSessions 1.
                opened = BoundedSftp.from_transport(self._connection.open_another().transport)
            if opened is None:
                raise SFTPError("the node opens no session")
            self._opened_sftp = opened
        return self._opened_sftp

    def _move(self, count: int) -> None:
        self._moved(count)
        self._pulse()

    def _pulse(self) -> None:
        """Give the agent a sign of life if it is time for one, and take its own."""
        if time.monotonic() - self._pulsed > PULSE:
            self._pulsed = time.monotonic()
            self._link.pulse()
            self._link.send_waiting()
            self._link.poll(0.0)

    def close(self) -> None:
        self._link.close()


class _told:  # noqa: N801 - used as a function
    """Turns errors of SFTP and of files here into Failed."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LinkLost | Failed):
            return
        if isinstance(error, SFTP_ERRORS):
            raise Failed(f"the transfer ended: {error or type(error).__name__}") from error


class _OverConnection:
    """Starts commands on a connection that is open. See Transport in transports.protocol."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection

    def open(self, node: Node, command: str) -> Channel:
        return self._connection.opened.start(command)

    def unheard(self) -> list[str]:
        return []

    def close(self) -> None:
        """Do nothing: the connection is its owner's."""
