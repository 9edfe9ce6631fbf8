"""The agent's side of the links stage over loopback.

What is measured, who is served, and that nothing outlives it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.remote.agent import processes, stream
from clusterprep.remote.agent.readers import NoAnswer
from tests.support.patience import LONG, eventually

TOKEN = "t" * 32


@pytest.fixture
def server() -> Iterator[tuple[stream.Server, int]]:
    made, agent = stream.Server(), SimpleNamespace(endings=[])
    port = made.start(agent, {"token": TOKEN})["port"]
    yield made, port
    made.end()
    assert agent.endings == [made.end]


def test_a_node_with_ipv6_alone_is_served() -> None:
    if not Path("/proc/net/if_inet6").read_text():
        pytest.skip("this machine has no IPv6")
    made, agent = stream.Server(), SimpleNamespace(endings=[])
    port = made.start(agent, {"token": TOKEN, "ipv6": True})["port"]
    try:
        found = stream.read_stream("::1", port, TOKEN, 5, SIZE)
    finally:
        made.end()
    assert (found["pings"], found["out"] > 0) == (5, True)


SIZE = 1 << 20  # bytes


def measured(port: int, token: str = TOKEN, size: int = SIZE) -> dict[str, Any]:
    found: dict[str, Any] = stream.read_stream("127.0.0.1", port, token, 50, size)
    return found


def test_small_messages_and_data_both_ways(server: tuple[stream.Server, int]) -> None:
    for _ in range(3):
        began = time.monotonic()
        found = measured(server[1], size=SIZE)
        took = time.monotonic() - began
        assert found["pings"] == 50
        assert found["resent"] == 0
        assert 0 < found["rtt"] <= found["worst"] < took
        assert found["out"] > SIZE / (1 + took)
        assert found["back"] > SIZE / (1 + took)


def test_a_client_without_the_secret_is_served_nothing(server: tuple[stream.Server, int]) -> None:
    with pytest.raises(NoAnswer) as caught:
        measured(server[1], "x" * 32)
    assert caught.value.reason == "refused"
    assert caught.value.why.startswith("small messages: ")
    assert measured(server[1])["pings"] == 50


def children(server: stream.Server) -> int:
    """The processes of the server's session besides itself."""
    found = 0
    for place in Path("/proc").glob("[0-9]*"):
        letter, session = processes.process_stat(int(place.name))
        found += session == server.pid and letter not in "ZX"
    return found - 1


@pytest.fixture
def many() -> Iterator[contextlib.ExitStack]:
    """Connections that end with the test."""
    with contextlib.ExitStack() as stack:
        yield stack


def connect(many: contextlib.ExitStack, port: int, words: bytes = b"") -> socket.socket:
    connection = many.enter_context(socket.create_connection(("127.0.0.1", port)))
    if words:
        connection.sendall(words)
    return connection


@pytest.mark.parametrize("words", [b"", TOKEN[:-1].encode(), b"x" * 32], ids=["", "part", "wrong"])
def test_strangers_cost_no_process_and_keep_no_peer_out(
    server: tuple[stream.Server, int], many: contextlib.ExitStack, words: bytes
) -> None:
    made, port = server
    for _ in range(400):
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connect(many, port, words)
    assert measured(port)["pings"] == 50
    assert children(made) <= 1, "that of the peer may still be ending"


def test_strangers_hold_few_connections(
    server: tuple[stream.Server, int], many: contextlib.ExitStack
) -> None:
    made, port = server
    files = Path(f"/proc/{made.pid}/fd")
    before = len(list(files.iterdir()))
    for _ in range(300):
        connect(many, port)
    assert measured(port)
    assert len(list(files.iterdir())) <= before + stream.MOST_WAITING + 2


def test_peers_with_the_secret_start_few_processes(
    server: tuple[stream.Server, int], many: contextlib.ExitStack
) -> None:
    """A node of the fleet has the secret, and may be hostile."""
    made, port = server
    seen = []
    for _ in range(stream.MOST_SERVED + 20):
        ready = connect(many, port, TOKEN.encode() + b"p" * stream.PING)
        with contextlib.suppress(ConnectionResetError):
            ready.recv(1)  # it is served, or has been turned away
        seen.append(children(made))
    assert 0 < max(seen) <= stream.MOST_SERVED
    many.close()
    assert eventually(lambda: children(made) == 0)
    assert measured(port)["pings"] == 50


def test_several_are_served_at_once_and_a_silent_one_holds_up_nobody(
    server: tuple[stream.Server, int],
) -> None:
    with socket.create_connection(("127.0.0.1", server[1])) as mute:
        assert measured(server[1])["pings"] == 50
        mute.setblocking(False)
        with pytest.raises(BlockingIOError):  # that one is waited for all the same
            mute.recv(1)


def test_a_port_without_a_listener_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswer) as caught:
            measured(free.getsockname()[1])
    assert (caught.value.reason, caught.value.why) == ("refused", "connecting: Connection refused")


def test_a_peer_that_stops_in_the_middle_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STILL", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(NoAnswer) as caught:
        measured(mute.getsockname()[1])
    assert (caught.value.reason, caught.value.why.partition(":")[0]) == (
        "timed_out",
        "small messages",
    )


def test_the_child_ends_when_it_is_told_to(server: tuple[stream.Server, int]) -> None:
    made, port = server
    pid = made.pid
    assert measured(port)
    made.stop(None, {})
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(NoAnswer):
        measured(port)


AGENT = """
import sys
from types import SimpleNamespace
from clusterprep.remote.agent import stream
server = stream.Server()
answer = server.start(SimpleNamespace(endings=[]), {"token": "t" * 32})
print(answer["port"], server.pid, flush=True)
sys.stdin.read()
"""


def test_the_child_ends_with_an_agent_that_is_killed() -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdin
    assert agent.stdout
    port, pid = map(int, agent.stdout.readline().split())
    assert measured(port)["pings"] == 50
    serving = socket.create_connection(("127.0.0.1", port))
    serving.sendall(TOKEN.encode() + b"p" * stream.PING)
    assert serving.recv(1) == b"p"
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    agent.stdin.close()
    agent.stdout.close()
    assert eventually(lambda: processes.process_stat(pid)[0] in "ZX"), "it outlived its agent"
    serving.settimeout(LONG)
    with serving, contextlib.suppress(ConnectionResetError):
        while data := serving.recv(4096):  # what was under way, and then the end
            assert set(data) == {ord("p")}
