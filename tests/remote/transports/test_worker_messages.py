"""Messages between controller and worker: whole ones from any pieces, bounded waits, and ends."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remedies import shell_line
from clusterprep.remote.transports.worker_messages import (
    PIECE,
    Kind,
    MessageStream,
    pack_error,
    pack_question,
    unpack_error,
    unpack_question,
)
from tests.support.patience import LONG

SHORT = 0.1  # seconds; a limit that is waited for


@pytest.fixture
def pair() -> Iterator[tuple[MessageStream, MessageStream]]:
    one, other = map(MessageStream, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_in_order(pair: tuple[MessageStream, MessageStream]) -> None:
    one, other = pair
    one.send(Kind.INPUT, b"bytes")
    one.send(Kind.KILL)
    assert other.receive(LONG) == (Kind.INPUT, b"bytes")
    assert other.receive(LONG) == (Kind.KILL, b"")


def test_a_message_may_come_byte_by_byte() -> None:
    raw, end = socket.socketpair()
    stream = MessageStream(end)
    with raw:
        for byte in b"%c\0\0\0\3abc" % Kind.OUTPUT:
            with pytest.raises(TimeoutError):
                stream.receive(0.0)
            raw.sendall(bytes([byte]))
        assert stream.receive(LONG) == (Kind.OUTPUT, b"abc")
    stream.close()


def test_what_was_sent_before_the_end_is_received(
    pair: tuple[MessageStream, MessageStream],
) -> None:
    one, other = pair
    assert not other.has_ended
    one.send(Kind.OUTPUT, b"last")
    one.close()
    assert other.has_ended
    assert other.receive(LONG) == (Kind.OUTPUT, b"last")
    with pytest.raises(EOFError):
        other.receive(LONG)
    with pytest.raises(EOFError):
        other.send(Kind.INPUT, b"x")


def test_a_receiver_that_waits_is_woken_by_its_own_end(
    pair: tuple[MessageStream, MessageStream],
) -> None:
    one, _ = pair
    ends: list[type[BaseException]] = []

    def receive() -> None:
        try:
            one.receive()
        except EOFError as error:
            ends.append(type(error))

    thread = threading.Thread(target=receive)
    thread.start()
    one.close()
    thread.join(LONG)
    assert ends == [EOFError]
    assert one.is_closed


def test_a_send_that_is_not_taken_ends_at_its_limit(
    pair: tuple[MessageStream, MessageStream],
) -> None:
    one, _ = pair

    def send_without_end() -> None:
        while True:
            one.send(Kind.INPUT, b"x" * PIECE, SHORT)

    with pytest.raises(TimeoutError):
        send_without_end()


def test_two_senders_do_not_mix_their_messages(
    pair: tuple[MessageStream, MessageStream],
) -> None:
    one, other = pair
    contents = [b"a" * PIECE, b"b" * PIECE]
    threads = []
    for content in contents:
        thread = threading.Thread(
            target=lambda content=content: [one.send(Kind.INPUT, content) for _ in range(20)]
        )
        thread.start()
        threads.append(thread)
    received = [other.receive(LONG)[1] for _ in range(40)]
    for thread in threads:
        thread.join(LONG)
    assert sorted(received) == sorted(contents * 20)


def test_a_node_travels_with_its_login_alone() -> None:
    settings = SshSettings(
        "me",
        2222,
        "~/.ssh/a key",
        "/dev/null",
        "known\udcff",
        "accept-new",
        3.5,
        True,
        (("ProxyJump", "bastion"), ("HashKnownHosts", "yes")),
    )
    node = Node("n7", "10.0.0.7", 6, settings, env={}, python="/opt/python")
    content = pack_question(node, "true")
    assert unpack_question(content) == (Node("n7", "10.0.0.7", 0, settings), "true")


@pytest.mark.parametrize("lost", [False, True])
def test_an_error_of_a_node_travels_whole(lost: bool) -> None:
    remedy = shell_line("ssh-keygen -R {name}   # only if it is new", name="n 1")
    sent = Unreached("host_key_changed", "another key", remedy)
    received = unpack_error(pack_error(sent), lost=lost)
    assert type(received) is (LinkLost if lost else Unreached)
    assert isinstance(received, Unreached)
    assert (received.reason, received.message, received.remedy) == (
        "host_key_changed",
        "another key",
        remedy,
    )
    assert (received.remedy.is_command, received.remedy.note) == (True, "only if it is new")


def test_that_no_file_can_be_opened_is_known_by_its_number() -> None:
    received = unpack_error(pack_error(OSError(errno.EMFILE, "Too many open files")))
    assert isinstance(received, OSError)
    assert received.errno == errno.EMFILE


def test_a_mistake_of_ours_keeps_its_text() -> None:
    received = unpack_error(pack_error(KeyError("x")))
    assert isinstance(received, RuntimeError)
    assert str(received) == "KeyError: 'x'"
