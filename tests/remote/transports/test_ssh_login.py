"""Logins with keys from files and agents, and what is said when there is none that fits."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import paramiko
import pytest
from msgspec.structs import replace

from clusterprep.errors import Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.ssh import SshTransport
from tests.remote.transports.peers import listening
from tests.remote.transports.sshd import Sshd, fingerprint, keygen, new_key, public

pytestmark = pytest.mark.machine

Fresh = Callable[..., SshTransport]


def who(transport: SshTransport, node: Node) -> str:
    channel = transport.open(node, "echo $USER")
    try:
        return channel.recv(10).decode().strip()
    finally:
        channel.close()


def refusal(transport: SshTransport, node: Node) -> Unreached:
    with pytest.raises(Unreached) as caught:
        transport.open(node, "true")
    assert (caught.value.reason, caught.value.answered) == ("auth_refused", True)
    return caught.value


@pytest.fixture
def allow(sshd: Sshd) -> Iterator[Path]:
    """The file of keys that are let in; afterwards as it was."""
    file = sshd.folder / "authorized_keys"
    before = file.read_text()
    yield file
    file.write_text(before)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    while not path.exists():
        assert process.poll() is None
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    process.terminate()
    process.wait(5)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".ssh"


def add(key: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL)


FORMATS = [
    ("ed25519", "", ""),
    ("ed25519", "", "open sesame"),
    ("ecdsa", "", ""),
    ("ecdsa", "PEM", ""),
    ("ecdsa", "PKCS8", "open sesame"),
    ("rsa", "", ""),
    ("rsa", "PEM", "open sesame"),
    ("rsa", "PKCS8", ""),
]


@pytest.mark.parametrize(("kind", "form", "passphrase"), FORMATS)
def test_key_formats(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, allow: Path, kind: str, form: str, passphrase: str
) -> None:
    key = new_key(tmp_path / "key", kind, passphrase, *(["-m", form] if form else []))
    allow.write_text(public(key))
    asked: list[str] = []
    transport = fresh(lambda prompt: asked.append(prompt) or passphrase)  # type: ignore[func-returns-value]
    assert who(transport, sshd.node(tmp_path, identity_file=str(key))) == "root"
    assert asked == ([f"Passphrase for {key}: "] if passphrase else [])


def test_a_wrong_user(sshd: Sshd, transport: SshTransport, tmp_path: Path) -> None:
    error = refusal(transport, sshd.node(tmp_path, user="nobody"))
    assert "does not let user nobody in" in str(error)
    assert f"refused: {sshd.user_key} ({fingerprint(sshd.user_key)})" in str(error)
    copied = f"ssh-copy-id -i {sshd.user_key} -p {sshd.port} nobody@127.0.0.1"
    assert str(error.remedy) == copied
    assert "if ssh.user is right" in error.remedy.note


def test_a_key_file_that_is_not_there(sshd: Sshd, transport: SshTransport, tmp_path: Path) -> None:
    error = refusal(transport, sshd.node(tmp_path, identity_file="/nowhere/key"))
    assert str(error.remedy) == "correct ssh.identity_file: there is no /nowhere/key here"


def test_a_passphrase_is_asked_once_for_all_nodes(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, allow: Path
) -> None:
    key = new_key(tmp_path / "key", passphrase="open sesame")
    allow.write_text(public(key))
    asked: list[str] = []
    answers = iter(["wrong", "open sesame"])
    slow = threading.Event()

    def ask(prompt: str) -> str:
        asked.append(prompt)
        slow.wait(1.6)
        return next(answers)

    transport = fresh(ask)
    node = sshd.node(
        tmp_path, identity_file=str(key), connect_timeout=3.0
    )  # typing takes longer than that
    nodes = [replace(node, name=f"n{number}") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda one: who(transport, one), nodes)) == ["root"] * 4
    assert len(asked) == 2


def test_a_passphrase_without_a_terminal_to_ask_at(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    key = new_key(tmp_path / "key", passphrase="open sesame")
    error = refusal(transport, sshd.node(tmp_path, identity_file=str(key)))
    assert f"not usable: {key} (needs its passphrase: ssh-add {key})" in str(error)
    assert str(error.remedy) == f"ssh-add {key}"


def test_default_keys_that_are_no_good_stop_nothing(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, home: Path, allow: Path
) -> None:
    (home / "id_rsa").write_text("no key at all")
    new_key(home / "id_ecdsa", "ecdsa", "open sesame")
    key = new_key(home / "id_ed25519")
    node = sshd.node(tmp_path, identity_file=None)
    error = refusal(transport, node)
    assert all(f"{home}/{name}" in str(error) for name in ("id_rsa", "id_ecdsa", "id_ed25519"))
    allow.write_text(public(key))
    assert who(transport, node) == "root"


def test_there_is_no_key(sshd: Sshd, transport: SshTransport, tmp_path: Path, home: Path) -> None:
    assert "there was no key to try" in str(
        refusal(transport, sshd.node(tmp_path, identity_file=None))
    )
    missing = sshd.node(tmp_path, identity_file="~/.ssh/gone")
    assert f"{home}/gone (No such file or directory)" in str(refusal(transport, missing))


def test_a_key_of_the_agent(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, home: Path, agent: Path, allow: Path
) -> None:
    rsa, key = new_key(tmp_path / "other", "rsa"), new_key(tmp_path / "key")
    add(rsa)
    add(key)
    node = sshd.node(tmp_path, identity_file=None)
    assert f"agent key key ({fingerprint(key)})" in str(refusal(fresh(), node))
    for chosen in (rsa, key):
        allow.write_text(public(chosen))
        nodes = [replace(node, name=f"n{number}") for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(partial(who, fresh()), nodes)) == ["root"] * 4


def test_the_agent_knows_the_passphrase(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, agent: Path, allow: Path
) -> None:
    key = new_key(tmp_path / "key")
    add(key)
    keygen("-q", "-p", "-N", "open sesame", "-f", key)
    (tmp_path / "key.pub").rename(tmp_path / "elsewhere.pub")
    allow.write_text(public(tmp_path / "elsewhere"))
    assert who(transport, sshd.node(tmp_path, identity_file=str(key))) == "root"


def test_a_key_s_file_is_read_for_the_first_node_alone(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, agent: Path, allow: Path
) -> None:
    """A home on a network file system is not asked for it once for each node."""
    key = new_key(tmp_path / "key")
    add(key)
    allow.write_text(public(key))
    config = tmp_path / "config"
    config.write_text("IdentitiesOnly yes")
    node = sshd.node(tmp_path, identity_file=str(key), config=str(config))
    assert who(transport, node) == "root"
    key.unlink()
    (tmp_path / "key.pub").unlink()
    assert who(transport, replace(node, name="n2")) == "root"


def test_the_agent_s_keys_are_left_alone(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, home: Path, agent: Path, allow: Path
) -> None:
    key, named = new_key(tmp_path / "key"), new_key(tmp_path / "named")
    add(key)
    allow.write_text(public(key))
    for words in (
        f"IdentitiesOnly yes\nIdentityFile {named}",
        f"IdentityAgent none\nIdentityFile {named}",
    ):
        (tmp_path / "config").write_text(words)
        error = refusal(
            fresh(), sshd.node(tmp_path, identity_file=None, config=str(tmp_path / "config"))
        )
        assert "agent key" not in str(error)
        assert fingerprint(named) in str(error)


def test_an_agent_that_is_gone(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    assert who(fresh(), sshd.node(tmp_path)) == "root"


def test_an_agent_that_will_not_sign(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, home: Path, agent: Path, allow: Path
) -> None:
    key = new_key(tmp_path / "key")
    subprocess.run(
        ["ssh-add", "-q", "-c", str(key)], check=True
    )  # asks its owner, who is not there
    allow.write_text(public(key))
    error = refusal(fresh(), sshd.node(tmp_path, identity_file=None))
    assert "agent key key (ssh-agent refused to sign)" in str(error)


def test_a_user_s_certificate(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, allow: Path
) -> None:
    authority, key = new_key(tmp_path / "authority"), new_key(tmp_path / "key")
    keygen("-q", "-s", authority, "-I", "me", "-n", "root", f"{key}.pub")
    allow.write_text(f"cert-authority {public(authority)}\n")
    assert who(transport, sshd.node(tmp_path, identity_file=str(key))) == "root"


def test_a_certificate_in_the_agent(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, home: Path, agent: Path, allow: Path
) -> None:
    authority, key = new_key(tmp_path / "authority"), new_key(tmp_path / "key", "rsa")
    keygen("-q", "-s", authority, "-I", "me", "-n", "root", f"{key}.pub")
    add(key)
    allow.write_text(f"cert-authority {public(authority)}\n")
    assert who(fresh(), sshd.node(tmp_path, identity_file=None)) == "root"


class Edwards(paramiko.ServerInterface):
    """Takes one key, and announces that it takes no RSA signatures.

    Sshd announces all that it knows.
    """

    def __init__(self, key: Path) -> None:
        self._line = public(key)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = f"{key.get_name()} {key.get_base64()}" == self._line
        return paramiko.AUTH_SUCCESSFUL if known else paramiko.AUTH_FAILED


def test_a_node_that_takes_no_rsa(transport: SshTransport, tmp_path: Path, home: Path) -> None:
    rsa, key, host_key = (
        new_key(home / "id_rsa", "rsa"),
        new_key(tmp_path / "key"),
        new_key(tmp_path / "host"),
    )
    no_rsa = {"pubkeys": ["rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"]}

    def serve(connection: socket.socket) -> None:
        server = paramiko.Transport(connection, disabled_algorithms=no_rsa)
        server.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(host_key)))
        server.start_server(server=Edwards(key))
        server.join(5)

    with listening(serve) as port:
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {public(host_key)}\n")
        settings = SshSettings("root", port, None, "/dev/null", str(tmp_path / "known_hosts"))
        node = Node("n1", "127.0.0.1", 0, settings)
        assert f"{rsa} (the node takes no RSA signatures)" in str(refusal(transport, node))
        key.rename(home / "id_ed25519")
        with pytest.raises(
            Unreached, match="start of the command"
        ) as caught:  # it is in, and there is no more to get
            transport.open(node, "true")
        assert caught.value.reason == "hung"


class HangsUp(paramiko.ServerInterface):
    """Says what it takes, and ends the connection, or says no more, once it is shown a key."""

    def __init__(self, connection: socket.socket, stays: bool) -> None:
        self._connection = connection
        self._stays = stays
        self.has_ended = threading.Event()  # the other side has gone

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self._stays:
            self.has_ended.wait(30)
        else:
            self._connection.shutdown(socket.SHUT_RDWR)
        return paramiko.AUTH_FAILED


@pytest.mark.parametrize("stays", [False, True])
def test_a_node_that_is_gone_or_silent_once_it_is_shown_a_key(
    transport: SshTransport, tmp_path: Path, home: Path, stays: bool
) -> None:
    key, host_key = new_key(home / "id_ed25519"), new_key(tmp_path / "host")
    servers: list[HangsUp] = []

    def serve(connection: socket.socket) -> None:
        servers.append(HangsUp(connection, stays))
        server = paramiko.Transport(connection)
        server.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(host_key)))
        server.start_server(server=servers[0])
        servers[0].has_ended.wait(30)

    with listening(serve) as port:
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {public(host_key)}\n")
        settings = SshSettings(
            "root",
            port,
            str(key),
            "/dev/null",
            str(tmp_path / "known_hosts"),
            connect_timeout=3 if stays else 60,
        )
        try:
            with pytest.raises(Unreached, match="login") as caught:
                transport.open(Node("n1", "127.0.0.1", 0, settings), "true")
        finally:
            servers[0].has_ended.set()
    assert caught.value.reason == "hung"


def test_more_keys_than_the_node_will_try(
    fresh: Fresh, tmp_path: Path, home: Path, agent: Path
) -> None:
    server = Sshd.start(tmp_path / "strict", "MaxAuthTries 2")
    try:
        for number in range(3):
            add(new_key(tmp_path / f"key{number}"))
        error = refusal(fresh(), server.node(tmp_path, identity_file=None))
        assert 'it said "Too many authentication failures"' in str(error)
        assert (
            who(fresh(), server.node(tmp_path)) == "root"
        )  # a key asked for comes before the agent's
    finally:
        server.stop()


def test_a_node_that_wants_more_than_a_key(transport: SshTransport, tmp_path: Path) -> None:
    server = Sshd.start(
        tmp_path / "both", "AuthenticationMethods publickey,password", "PasswordAuthentication yes"
    )
    try:
        assert "it wants password" in str(refusal(transport, server.node(tmp_path)))
    finally:
        server.stop()


def test_a_node_that_wants_two_keys(transport: SshTransport, tmp_path: Path) -> None:
    server = Sshd.start(tmp_path / "two", "AuthenticationMethods publickey,publickey")
    try:
        second = new_key(tmp_path / "second")
        with (server.folder / "authorized_keys").open("a") as file:
            file.write(public(second) + "\n")
        (tmp_path / "config").write_text(f"IdentityFile {server.user_key}\nIdentityFile {second}\n")
        assert (
            who(
                transport,
                server.node(tmp_path, identity_file=None, config=str(tmp_path / "config")),
            )
            == "root"
        )
    finally:
        server.stop()


def test_a_node_that_takes_no_keys(transport: SshTransport, tmp_path: Path) -> None:
    server = Sshd.start(tmp_path / "old", "PubkeyAuthentication no", "PasswordAuthentication yes")
    try:
        assert "it wants password" in str(refusal(transport, server.node(tmp_path)))
    finally:
        server.stop()
