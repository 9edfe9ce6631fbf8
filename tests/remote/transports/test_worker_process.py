"""What a worker passes on, with a channel that is no connection."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from clusterprep.errors import LinkLost
from clusterprep.remote.transports.ssh_channel import SshChannel
from clusterprep.remote.transports.worker_channel import WorkerChannel
from clusterprep.remote.transports.worker_messages import Kind, MessageStream
from clusterprep.remote.transports.worker_process import _pass_on_input, _pass_on_output
from tests.support.patience import LONG


class ScriptedChannel:
    """Says what it is told to say, and keeps what it is asked to do."""

    alive = True

    def __init__(self, *says: tuple[bytes, bytes] | Exception) -> None:
        self._says = list(says)
        self.calls: list[Any] = []
        self.takes_input = True

    def recv_both(self, timeout: float) -> tuple[bytes, bytes]:
        said = self._says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def send(self, data: bytes) -> None:
        self.calls.append(data)
        if not self.takes_input:
            raise LinkLost("hung", "took nothing for 20 s")

    def kill(self) -> None:
        self.calls.append("kill")

    def close(self) -> None:
        self.calls.append("close")


class Holder:
    """The process that holds a connection, as the channel sees it."""

    def __init__(self) -> None:
        self.has_ended = False
        self.released = 0

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def ends() -> Iterator[tuple[MessageStream, MessageStream]]:
    """The controller's end and the worker's."""
    controller, worker = map(MessageStream, socket.socketpair())
    yield controller, worker
    controller.close()
    worker.close()


def as_channel(scripted: ScriptedChannel) -> SshChannel:
    return cast("SshChannel", scripted)


def test_output_and_errors_are_passed_on_to_the_end(
    ends: tuple[MessageStream, MessageStream],
) -> None:
    controller, worker = ends
    scripted = ScriptedChannel((b"out", b"err"), (b"", b"more"), (b"last", b""), (b"", b""))
    _pass_on_output(as_channel(scripted), worker)
    channel = WorkerChannel(controller, "10.0.0.1", True, Holder())
    assert [channel.recv(LONG) for _ in range(3)] == [b"out", b"last", b""]
    assert channel.stderr() == b"errmore"
    assert channel.alive
    with pytest.raises(LinkLost):
        channel.send(b"x")


def test_why_a_node_is_lost_comes_after_what_it_said(
    ends: tuple[MessageStream, MessageStream],
) -> None:
    controller, worker = ends
    lost = LinkLost("garbled", "the node sent more than it was allowed to")
    _pass_on_output(as_channel(ScriptedChannel((b"out", b""), lost)), worker)
    channel = WorkerChannel(controller, None, False, Holder())
    assert channel.recv(LONG) == b"out"
    for _ in range(2):
        with pytest.raises(LinkLost, match="more than it was allowed to") as caught:
            channel.recv(LONG)
        assert caught.value.reason == "garbled"
    assert not channel.alive


def test_a_quiet_node_is_left_when_the_controller_has_hung_up(
    ends: tuple[MessageStream, MessageStream],
) -> None:
    controller, worker = ends
    controller.close()
    with pytest.raises(EOFError):
        _pass_on_output(as_channel(ScriptedChannel(TimeoutError())), worker)


def test_a_command_is_killed_before_its_input_ends(
    ends: tuple[MessageStream, MessageStream],
) -> None:
    """At the end of its input sudo would count a wrong password."""
    controller, worker = ends
    channel = WorkerChannel(controller, None, False, Holder())
    channel.send(b"x" * 100_000)
    channel.kill()
    channel.close()
    scripted = ScriptedChannel()
    _pass_on_input(worker, as_channel(scripted))
    assert b"".join(scripted.calls[:-2]) == b"x" * 100_000
    assert scripted.calls[-2:] == ["kill", "close"]
    assert worker.is_closed


def test_a_node_that_takes_nothing_is_lost_and_still_closed(
    ends: tuple[MessageStream, MessageStream],
) -> None:
    controller, worker = ends
    scripted = ScriptedChannel()
    scripted.takes_input = False
    thread = threading.Thread(target=_pass_on_input, args=(worker, as_channel(scripted)))
    thread.start()
    channel = WorkerChannel(controller, None, False, Holder())
    channel.send(b"one")
    with pytest.raises(LinkLost, match="took nothing for 20 s"):
        channel.recv(LONG)
    channel.close()
    thread.join(LONG)
    assert scripted.calls == [b"one", "close"]


def test_a_channel_is_given_back_once(ends: tuple[MessageStream, MessageStream]) -> None:
    controller, _ = ends
    holder = Holder()
    channel = WorkerChannel(controller, None, False, holder)
    channel.close()
    channel.close()
    assert holder.released == 1
    assert channel.recv(LONG) == b""
    assert not holder.has_ended


def test_a_worker_has_ended_where_a_socket_of_it_has(
    ends: tuple[MessageStream, MessageStream],
) -> None:
    controller, worker = ends
    holder = Holder()
    channel = WorkerChannel(controller, None, False, holder)
    worker.close()
    with pytest.raises(LinkLost, match="process on this machine that held the connection"):
        channel.recv(LONG)
    assert holder.has_ended


def test_errors_are_heard_without_the_output_before_them(
    ends: tuple[MessageStream, MessageStream],
) -> None:
    controller, worker = ends
    worker.send(Kind.OUTPUT, b"out")
    worker.send(Kind.ERRORS, b"e" * 9000)
    channel = WorkerChannel(controller, None, False, Holder())
    assert channel.stderr() == b"e" * 8192
    assert channel.recv(LONG) == b"out"
    with pytest.raises(TimeoutError):
        channel.recv(0.0)


def test_a_command_that_has_ended_says_whether_its_connection_has(
    ends: tuple[MessageStream, MessageStream],
) -> None:
    controller, worker = ends
    worker.send(Kind.ENDED, json.dumps({"alive": False}).encode())
    channel = WorkerChannel(controller, None, False, Holder())
    assert channel.recv(LONG) == b""
    assert not channel.alive
