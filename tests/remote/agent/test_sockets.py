"""What the agent sees of real sockets over loopback, and how it reads the kernel's lines."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from clusterprep.remote.agent import sockets


def look() -> dict[str, Any]:
    found: dict[str, Any] = sockets.look({5: os.getpid()})
    return found


@contextlib.contextmanager
def unanswered(family: int, address: str) -> Iterator[socket.socket]:
    """A connection to a listener whose queue is full.

    The kernel drops the first packet of one more.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind((address, 0))
        listener.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket(family))
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield listener


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_connection_without_an_answer_is_told(family: int, address: str) -> None:
    with unanswered(family, address) as listener:
        port = listener.getsockname()[1]
        found = look()
        rows = [row for row in found["rows"] if row[5] == port]
        assert rows
        assert {(row[0], row[1], row[2], row[4]) for row in rows} == {
            (5, sockets.SYN_SENT, address, address)
        }
        assert address in found["own"]
        assert found["cut"] is False


def test_a_connection_that_works_is_none_of_the_rows() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = stack.enter_context(socket.create_connection(listener.getsockname()))
        other = stack.enter_context(listener.accept()[0])
        one.sendall(b"x")
        assert other.recv(1) == b"x"
        found = look()
        port = listener.getsockname()[1]
    assert [row for row in found["rows"] if port in (row[3], row[5])] == []
    assert "127.0.0.1" in found["own"]


def test_sockets_of_other_processes_are_not_told() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with unanswered(socket.AF_INET, "127.0.0.1"):
            assert sockets.look({0: process.pid}) == {"rows": [], "own": [], "cut": False}
    finally:
        process.communicate(b"\n")


def test_a_process_that_is_gone_has_no_sockets() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert sockets.look({0: process.pid}) == {"rows": [], "own": [], "cut": False}


@pytest.mark.skipif(
    sys.byteorder != "little",
    reason="the words of these lines are those of a little-endian machine",
)
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            (
                "   3: 05004D0A:C350 03004D0A:A8DB 02 00000001:00000000 01:00000064 00000006"
                "     0        0 4711 2 ff"
            ),
            (2, "10.77.0.5", 50000, "10.77.0.3", 43227, 6, "4711"),
        ),
        (
            (
                f"   0: {'0' * 16}FFFF0000020010AC:1F90 {'0' * 16}FFFF0000030010AC:0016"
                " 01 0:0 00:0 00000000  1000 0 99 1"
            ),
            (1, "172.16.0.2", 8080, "172.16.0.3", 22, 0, "99"),
        ),
    ],
)
def test_lines_of_the_kernel(line: str, wanted: tuple[Any, ...]) -> None:
    assert sockets.parse(line) == wanted
