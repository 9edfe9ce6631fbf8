"""Servers that do not keep to the windows of SSH, and one that does."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import cMSG_CHANNEL_DATA, cMSG_CHANNEL_WINDOW_ADJUST

from clusterprep.errors import LinkLost
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.remote.transports.ssh_channel import PACKET, WINDOW, SshChannel
from tests.remote.transports.heard import read_all
from tests.remote.transports.peers import HUNG_UP, listening
from tests.remote.transports.sshd import new_key, public
from tests.support.hostile_sshd import Server
from tests.support.patience import LONG, eventually

pytestmark = pytest.mark.machine
FIRST_WINDOW = 2048  # bytes that the client may send at first

Part = Callable[[Any, Any], None]  # what a server does with its transport and the session


@contextlib.contextmanager
def node_of(part: Part, folder: Path) -> Iterator[Node]:
    """A node whose server plays a part once it is told a command."""
    host_key, key = new_key(folder / "host"), new_key(folder / "key")

    def serve(connection: socket.socket) -> None:
        transport = paramiko.Transport(connection, default_window_size=FIRST_WINDOW)
        transport.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(host_key)))
        server = Server()
        transport.start_server(server=server)
        session = transport.accept(LONG)
        assert server.has_command.wait(LONG)
        with contextlib.suppress(*HUNG_UP):
            part(transport, session)
        transport.join(LONG)

    with listening(serve) as port:
        known = folder / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {public(host_key)}\n")
        yield Node(
            "n1", "127.0.0.1", 0, SshSettings("root", port, str(key), "/dev/null", str(known))
        )


def message(kind: bytes, session: Any, value: int | bytes) -> paramiko.Message:
    said = paramiko.Message()
    said.add_byte(kind)
    said.add_int(session.remote_chanid)
    if isinstance(value, int):
        said.add_int(value)
    else:
        said.add_string(value)
    return said


def flood(transport: Any, session: Any) -> None:
    """Send without end, whatever the client allows."""
    while transport.is_active():
        transport._send_user_message(message(cMSG_CHANNEL_DATA, session, b"x" * 30_000))


def drip(transport: Any, session: Any) -> None:
    """Let the client send a byte more every 0.05 s."""
    while transport.is_active():
        transport._send_user_message(message(cMSG_CHANNEL_WINDOW_ADJUST, session, 1))
        time.sleep(0.05)


def test_what_a_node_sends_beyond_its_window_is_not_kept(
    transport: SshTransport, tmp_path: Path
) -> None:
    with node_of(flood, tmp_path) as node:
        channel = transport.open(node, "true")
        assert isinstance(channel, SshChannel)
        assert eventually(lambda: not channel.alive), "the connection is ended, read or not"
        assert len(channel._out) <= WINDOW + PACKET
        with pytest.raises(LinkLost, match="more than it was allowed to"):
            channel.recv(1)
        channel.close()


def test_a_node_that_keeps_to_its_window_may_send_much(
    transport: SshTransport, tmp_path: Path
) -> None:
    count = 5 * WINDOW

    def much(server: Any, session: Any) -> None:
        session.sendall(b"x" * count)
        session.close()

    with node_of(much, tmp_path) as node:
        channel = transport.open(node, "true")
        assert len(read_all(channel)) == count
        channel.close()


def test_a_node_that_takes_a_byte_now_and_then_is_not_waited_for_without_end(
    tmp_path: Path,
) -> None:
    with node_of(drip, tmp_path) as node, contextlib.closing(SshTransport(stall=0.5)) as impatient:
        channel = impatient.open(node, "true")
        began = time.monotonic()
        with pytest.raises(LinkLost, match="did not take 10000 bytes in 2 s"):
            channel.send(b"x" * 10_000)
        assert time.monotonic() - began < LONG / 2
        channel.close()
