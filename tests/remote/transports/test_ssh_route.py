"""Where a node is: inventory, ssh_config, jump hosts and proxies, over real servers."""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.errors import Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.remote.transports.ssh_route import Route, RouteMap
from tests.remote.transports.peers import deaf, listening, silent
from tests.remote.transports.sshd import Sshd, fingerprint, free_port, new_key, public

Fresh = Callable[..., SshTransport]


def route(text: str, tmp_path: Path, address: str = "gpu1", **settings: object) -> Route:
    (tmp_path / "config").write_text(text)
    ssh = replace(SshSettings(config=str(tmp_path / "config")), **settings)  # type: ignore[arg-type]
    return RouteMap().to(Node("gpu1", address, 0, ssh))


BLOCK = "Host gpu1\n HostName real\n User them\n Port 2222\n IdentityFile /their/key\n"


def test_openssh_s_defaults(tmp_path: Path) -> None:
    found = route("", tmp_path)
    assert (found.host, found.port, found.user, found.named) == (
        "gpu1",
        22,
        getpass.getuser(),
        False,
    )
    assert [Path(path).name for path in found.identities] == ["id_rsa", "id_ecdsa", "id_ed25519"]
    assert found.key_names == ("gpu1",)


def test_ssh_config_before_defaults(tmp_path: Path) -> None:
    found = route(BLOCK, tmp_path)
    assert (found.host, found.port, found.user, found.identities) == (
        "real",
        2222,
        "them",
        ("/their/key",),
    )
    assert found.key_names == ("[real]:2222", "real")


@pytest.mark.parametrize(
    ("line", "settings", "files"),
    [
        ("", {}, ["~/.ssh/known_hosts"]),
        ("UserKnownHostsFile /site/keys", {}, ["/site/keys"]),
        ("UserKnownHostsFile /site/%n /site/keys", {}, ["/site/gpu1", "/site/keys"]),
        ('UserKnownHostsFile "/site/a b"', {}, ["/site/a b"]),
        # A file without an end would make every key unknown, and this one accepts any.
        ("UserKnownHostsFile /dev/null", {}, ["~/.ssh/known_hosts"]),
        ("UserKnownHostsFile none", {}, ["~/.ssh/known_hosts"]),
        ("UserKnownHostsFile /site/keys", {"known_hosts": "/my/keys"}, ["/my/keys"]),
    ],
)
def test_files_with_the_keys_of_hosts(
    line: str, settings: dict[str, object], files: list[str], tmp_path: Path
) -> None:
    found = route(f"Host gpu1\n {line}\n" if line else "", tmp_path, **settings)
    assert [found.known_hosts, *found.more_known_hosts] == files


def test_options_of_the_inventory_before_those_of_ssh_config(tmp_path: Path) -> None:
    text = "Host gpu1\n ProxyJump theirs\n HostKeyAlias theirs\n"
    options = (("HostKeyAlias", "Mine"), ("ProxyJump", "op@mine:2200"))
    found = route(text, tmp_path, options=options)
    assert found.via is not None
    assert (found.via.host, found.via.user, found.via.port) == ("mine", "op", 2200)
    assert found.key_names == ("mine",)


def test_the_inventory_before_ssh_config(tmp_path: Path) -> None:
    found = route(BLOCK, tmp_path, "10.0.0.1", user="me", port=22, identity_file="/my/key")
    assert (found.host, found.port, found.user, found.identities) == (
        "10.0.0.1",
        22,
        "me",
        ("/my/key",),
    )


def test_an_alias_for_the_host_key(tmp_path: Path) -> None:
    assert route(BLOCK + " HostKeyAlias Rack1", tmp_path).key_names == ("rack1",)


def test_jumps_in_a_row(tmp_path: Path) -> None:
    text = (
        "Host gpu1\n ProxyJump me@one:2200,[::1]:22,two\n"
        "Host two\n HostName real2\n ProxyJump elsewhere\n"
    )
    found = route(text, tmp_path, user="them")
    two = found.via
    assert two is not None
    assert (two.name, two.host, two.user) == (
        "two",
        "real2",
        getpass.getuser(),
    )  # the node's user is not the jump's
    second = two.via
    assert second is not None
    assert (second.host, second.port) == ("::1", 22)
    first = second.via
    assert first is not None
    assert (first.user, first.host, first.port, first.via) == ("me", "one", 2200, None)


def test_a_jump_host_that_matches_its_own_rule(tmp_path: Path) -> None:
    found = route("Host *\n ProxyJump bastion\n", tmp_path)
    assert found.via is not None
    assert (found.via.host, found.via.via) == ("bastion", None)


def test_jumps_that_never_end(tmp_path: Path) -> None:
    with pytest.raises(Unreached, match="never ends"):
        route("Host gpu1\n ProxyJump a\nHost a\n ProxyJump b\nHost b\n ProxyJump a\n", tmp_path)


def test_the_first_kind_of_proxy_counts(tmp_path: Path) -> None:
    assert route("Host gpu1\n ProxyJump none\nHost *\n ProxyCommand no\n", tmp_path).command is None
    found = route("Host gpu1\n Port 7\n ProxyCommand nc %h %p\nHost *\n ProxyJump no\n", tmp_path)
    assert (found.command, found.via) == ("nc gpu1 7", None)


@pytest.mark.parametrize("port", ["http", "0", "65536"])
def test_a_port_that_is_none(tmp_path: Path, port: str) -> None:
    with pytest.raises(Unreached, match=f'"{port}" is not a port'):
        route(f"Port {port}", tmp_path)


# ---------------------------------------------------------------- over real servers


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd.start(tmp_path_factory.mktemp("bastion") / "sshd", "LogLevel VERBOSE")
    yield server
    server.stop()


def behind(
    bastion: Sshd, sshd: Sshd, tmp_path: Path, known: str | None = None, jump: str = ""
) -> Node:
    """The node behind the bastion, found by its name in ssh_config alone."""
    (tmp_path / "config").write_text(
        f"Host gpu*\n HostName 127.0.0.1\n Port {sshd.port}\n User root\n"
        f" IdentityFile {sshd.user_key}\n ProxyJump bastion{jump}\n"
        f"Host bastion\n HostName 127.0.0.1\n Port {bastion.port}\n User root\n"
        f" IdentityFile {bastion.user_key}\n"
    )
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(sshd.known() + bastion.known() if known is None else known)
    ssh = SshSettings(config=str(tmp_path / "config"), known_hosts=str(known_hosts))
    return Node("gpu1", "gpu1", 0, ssh)


def hello(transport: SshTransport, node: Node) -> bytes:
    channel = transport.open(node, "echo hello; cat")
    channel.send(b"x" * 100_000)
    data = b""
    while len(data) < 100_006:
        data += channel.recv(10)
    channel.close()
    assert channel.peer is None
    return data[:5]


@pytest.mark.machine
def test_eight_nodes_through_one_login_on_the_jump_host(
    bastion: Sshd, sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    node = behind(bastion, sshd, tmp_path)
    logins = bastion.log().count("Accepted publickey")
    with ThreadPoolExecutor(8) as pool:
        nodes = [replace(node, name=f"gpu{number}", address=f"gpu{number}") for number in range(8)]
        assert list(pool.map(lambda one: hello(transport, one), nodes)) == [b"hello"] * 8
    assert bastion.log().count("Accepted publickey") == logins + 1


@pytest.mark.machine
def test_a_jump_host_s_key_is_verified_too(
    bastion: Sshd, sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    with pytest.raises(
        Unreached, match=r"jump host bastion: the host key of .* is not known"
    ) as caught:
        transport.open(behind(bastion, sshd, tmp_path, sshd.known()), "true")
    assert caught.value.reason == "host_key_unknown"


@pytest.mark.machine
def test_a_jump_host_whose_key_has_changed(
    bastion: Sshd, sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    """Also where new keys would be learnt."""
    other = new_key(tmp_path / "other")
    known = f"{sshd.known()}[127.0.0.1]:{bastion.port} {public(other)}\n"
    node = behind(bastion, sshd, tmp_path, known)
    with pytest.raises(
        Unreached, match=r"jump host bastion: the host key of .* is not the known one"
    ) as caught:
        transport.open(replace(node, ssh=replace(node.ssh, host_keys="accept-new")), "true")
    assert caught.value.reason == "host_key_changed"
    assert all(fingerprint(key) in str(caught.value) for key in (other, bastion.host_key()))
    assert (tmp_path / "known_hosts").read_text() == known


@pytest.mark.machine
def test_the_node_s_key_behind_a_jump_host(
    bastion: Sshd, sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    with pytest.raises(Unreached) as caught:
        transport.open(behind(bastion, sshd, tmp_path, bastion.known()), "true")
    assert caught.value.reason == "host_key_unknown"
    assert (
        f"echo '{sshd.known().strip()}' >>" in caught.value.remedy
    )  # ssh-keyscan would not get there


@pytest.mark.machine
def test_two_jump_hosts(bastion: Sshd, sshd: Sshd, transport: SshTransport, tmp_path: Path) -> None:
    assert (
        hello(transport, behind(bastion, sshd, tmp_path, jump=f",root@gpu9:{sshd.port}"))
        == b"hello"
    )


@pytest.mark.machine
def test_a_jump_host_that_has_died_is_opened_anew(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    first = Sshd.start(tmp_path / "first")
    try:
        node = behind(first, sshd, tmp_path)
        assert hello(transport, node) == b"hello"
        first.kill()
        with pytest.raises(Unreached, match="jump host bastion") as caught:
            transport.open(node, "true")
        assert caught.value.reason == "refused"
    finally:
        first.stop()


@pytest.mark.machine
def test_a_dead_jump_host_is_waited_for_once(
    bastion: Sshd, sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    node, connections = behind(bastion, sshd, tmp_path), []

    def counted(connection: socket.socket) -> None:
        connections.append(connection)
        silent(connection)

    with listening(counted) as port:
        node = moved(node, bastion, port)
        for _ in range(16):
            with pytest.raises(Unreached, match=r"jump host bastion: .* says nothing"):
                transport.open(node, "true")
    assert len(connections) == 1


@pytest.mark.machine
def test_a_jump_host_behind_a_dropping_firewall(
    bastion: Sshd, sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    with deaf() as port, pytest.raises(Unreached, match="jump host bastion: no TCP connection"):
        transport.open(moved(behind(bastion, sshd, tmp_path), bastion, port), "true")


def moved(node: Node, bastion: Sshd, port: int) -> Node:
    """Return the node with its jump host at another port and half a second to get there."""
    config = Path(node.ssh.config)
    config.write_text(config.read_text().replace(f"Port {bastion.port}", f"Port {port}"))
    return replace(node, ssh=replace(node.ssh, connect_timeout=0.5))


@pytest.mark.machine
def test_what_a_jump_host_cannot_reach(
    bastion: Sshd, sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    node = behind(bastion, sshd, tmp_path)
    closed = replace(node, ssh=replace(node.ssh, port=free_port()))
    nameless = replace(node, address="no-such-host.invalid")
    for one, reason in ((closed, "refused"), (nameless, "name_unknown")):
        with pytest.raises(Unreached, match="says jump host bastion") as caught:
            transport.open(one, "true")
        assert caught.value.reason == reason


@pytest.mark.machine
def test_a_jump_host_that_forwards_nothing(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    server = Sshd.start(tmp_path / "closed", "AllowTcpForwarding no")
    try:
        with pytest.raises(Unreached, match="prohibited") as caught:
            transport.open(behind(server, sshd, tmp_path), "true")
        assert "AllowTcpForwarding" in caught.value.remedy
    finally:
        server.stop()


@pytest.mark.machine
def test_a_proxy_command(fresh: Fresh, sshd: Sshd, transport: SshTransport, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, select, socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    for fd in select.select([0, s.fileno()], [], [])[0]:\n"
        "        data = os.read(fd, 65536)\n"
        "        if not data: sys.exit()\n"
        "        s.sendall(data) if fd == 0 else os.write(1, data)\n"
    )
    (tmp_path / "config").write_text(f"ProxyCommand {sys.executable} {relay} %h %p")
    node = sshd.node(tmp_path, config=str(tmp_path / "config"))
    assert hello(transport, node) == b"hello"
    (tmp_path / "config").write_text("ProxyCommand echo no route today")
    with pytest.raises(Unreached, match='not with SSH: "no route today"') as caught:
        fresh().open(node, "true")
    assert caught.value.reason == "no_banner"


@pytest.mark.machine
def test_the_host_key_under_its_alias(
    fresh: Fresh, sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("HostKeyAlias rack1")
    known = f"rack1 {public(sshd.host_key())}\n"
    node = sshd.node(tmp_path, known, config=str(tmp_path / "config"))
    channel = transport.open(node, "echo hello")
    assert channel.recv(10) == b"hello\n"
    channel.close()
    other = sshd.node(
        tmp_path, f"rack1 {public(new_key(tmp_path / 'other'))}\n", config=str(tmp_path / "config")
    )
    with pytest.raises(Unreached) as caught:
        fresh().open(other, "true")
    assert "ssh-keygen -R rack1" in caught.value.remedy
    assert f"echo '{known.strip()}' >>" in caught.value.remedy
