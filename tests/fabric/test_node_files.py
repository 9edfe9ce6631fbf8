"""SFTP with a server that answers otherwise than it was asked."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from paramiko import SFTPError
from paramiko.sftp import CMD_DATA, CMD_HANDLE, CMD_INIT, CMD_OPEN, CMD_READ, CMD_VERSION

from clusterprep.fabric.node_files import LARGEST_ANSWER, PIECE, SFTP_ERRORS, BoundedSftp

# Takes the number of a read, and returns the bytes that the server sends.
Answer = Callable[[int], bytes]


def packet(kind: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body) + 1, kind) + body


def data_of(length: int) -> Answer:
    return lambda number: packet(CMD_DATA, struct.pack(">II", number, length) + b"x" * length)


class Session(socket.socket):
    """A connection as paramiko uses one of its own."""

    def get_name(self) -> str:
        return "session"


@contextmanager
def served(answer: Answer) -> Iterator[Any]:
    """A file of a server that answers its reads so."""
    one, theirs = socket.socketpair()
    ours = Session(fileno=one.detach())

    def serve() -> None:
        # The client leaves in the middle of an answer that is too long.
        gone = suppress(ConnectionError)
        with gone, theirs, theirs.makefile("rb") as source:
            while head := source.read(4):
                request = source.read(struct.unpack(">I", head)[0])
                kind, number = request[0], int.from_bytes(request[1:5], "big")
                if kind == CMD_INIT:
                    theirs.sendall(packet(CMD_VERSION, struct.pack(">I", 3)))
                elif kind == CMD_OPEN:
                    theirs.sendall(packet(CMD_HANDLE, struct.pack(">II", number, 1) + b"h"))
                elif kind == CMD_READ:
                    theirs.sendall(answer(number))
                else:
                    return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with ours:
        yield BoundedSftp(ours).open("/file", "rb")  # type: ignore[arg-type]


def test_a_piece_is_read() -> None:
    with served(data_of(PIECE)) as file:
        assert file.read(PIECE) == b"x" * PIECE


@pytest.mark.parametrize("length", [LARGEST_ANSWER, 1 << 20, (1 << 24) - 10])
def test_an_answer_is_no_longer_than_what_was_asked_for(length: int) -> None:
    with served(data_of(length)) as file, pytest.raises(SFTPError, match="an answer of "):
        file.read(PIECE)


GARBAGE = [b"\xff\xff\xff\xff", b"\0\0\0\0"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_is_no_answer_is_an_error_of_this_transfer(garbage: bytes) -> None:
    with served(lambda number: garbage) as file, pytest.raises(SFTP_ERRORS):
        file.read(PIECE)
