"""What is sent without waiting for the peer's consent, which would cost a round trip."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.auth_handler import AuthHandler
from paramiko.common import MSG_KEXINIT

from clusterprep.errors import Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.ssh import SshTransport
from tests.remote.transports.peers import Talk, listening
from tests.remote.transports.sshd import new_key, public
from tests.support.hostile_sshd import Server
from tests.support.patience import LONG

pytestmark = pytest.mark.machine


@contextlib.contextmanager
def node_at(talk: Talk, folder: Path, host_key: Path) -> Iterator[Node]:
    key = new_key(folder / "key")
    with listening(talk) as port:
        known = folder / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {public(host_key)}\n")
        yield Node(
            "n1", "127.0.0.1", 0, SshSettings("root", port, str(key), "/dev/null", str(known))
        )


def test_algorithms_are_proposed_before_the_node_has_greeted(
    transport: SshTransport, tmp_path: Path
) -> None:
    kinds = []

    def listens_first(connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            assert stream.readline().startswith(b"SSH-2.0-")
            size, _, kind = struct.unpack(">IBB", stream.read(6))
            kinds.append(kind)
            stream.read(size - 2)

    with node_at(listens_first, tmp_path, new_key(tmp_path / "host")) as node:
        with pytest.raises(Unreached) as caught:
            transport.open(node, "true")
        assert caught.value.reason == "no_banner"
    assert kinds == [MSG_KEXINIT]


class NeverConsents(AuthHandler):
    """Takes a login, and does not say before that one may be tried."""

    def _parse_service_request(self, message: paramiko.Message) -> None:
        assert message.get_text() == "ssh-userauth"


def test_a_login_does_not_wait_for_consent_to_try_it(
    transport: SshTransport, tmp_path: Path
) -> None:
    host_key = new_key(tmp_path / "host")

    def never_consents(connection: socket.socket) -> None:
        peer: Any = paramiko.Transport(connection)
        peer.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(host_key)))
        peer.auth_handler = NeverConsents(peer)  # paramiko makes one only where there is none
        server = Server()
        peer.start_server(server=server)
        session = peer.accept(LONG)
        assert server.has_command.wait(LONG)
        session.sendall(server.command.encode())
        peer.join(LONG)

    with node_at(never_consents, tmp_path, host_key) as node:
        channel = transport.open(node, "true")
        assert channel.recv(LONG) == b"true"
        channel.close()
