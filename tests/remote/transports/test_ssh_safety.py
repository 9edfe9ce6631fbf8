"""What OpenSSH's client or server would allow, and we do not.

Forwarding, weak algorithms, ways around host keys.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from clusterprep.errors import Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.ssh import SshTransport
from tests.remote.transports.heard import read_all
from tests.remote.transports.peers import Relay, Talk, listening
from tests.remote.transports.sshd import Sshd, fingerprint, free_port, keygen, new_key, public

pytestmark = pytest.mark.machine

Fresh = Callable[..., SshTransport]

# Whoever wrote this wants comfort from ssh; {port} and {mark} are for the test.
LAX = """\
Host *
  ForwardAgent yes
  ForwardX11 yes
  ForwardX11Trusted yes
  SendEnv CANARY_*
  SetEnv CANARY_SET=set
  RemoteForward 127.0.0.1:{port} 127.0.0.1:22
  PermitLocalCommand yes
  LocalCommand touch {mark}
  RemoteCommand touch {mark}
  RequestTTY force
  ControlMaster auto
  ControlPath {mark}.m
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  KnownHostsCommand /bin/cat {mark}.known
  NoHostAuthenticationForLocalhost yes
  VerifyHostKeyDNS yes
  CheckHostIP no
  UpdateHostKeys yes
  HostKeyAlgorithms +ssh-rsa
  PubkeyAcceptedAlgorithms +ssh-rsa
  Ciphers +3des-cbc
  MACs +hmac-md5
  KexAlgorithms +diffie-hellman-group1-sha1
"""


def refusal(transport: SshTransport, node: Node) -> Unreached:
    with pytest.raises(Unreached) as caught:
        transport.open(node, "true")
    return caught.value


@pytest.fixture(scope="module")
def willing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server that forwards all that it is asked for, and takes any variable."""
    yes = (
        "AllowAgentForwarding yes",
        "X11Forwarding yes",
        "AllowTcpForwarding yes",
        "AcceptEnv *",
        "PermitTunnel yes",
    )
    server = Sshd.start(
        tmp_path_factory.mktemp("willing") / "sshd", *yes, "RekeyLimit 1M", "LogLevel DEBUG1"
    )
    yield server
    server.stop()


@pytest.fixture
def lax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, int]]:
    """The configuration, with an agent, a display and a variable to forward.

    And the port for RemoteForward.
    """
    path, port = tmp_path / "lax", free_port()
    path.write_text(LAX.format(port=port, mark=tmp_path / "mark"))
    (tmp_path / "mark.known").write_text("")
    agent = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL
    )
    while not (tmp_path / "agent").exists():
        assert agent.poll() is None
    for name, value in {
        "SSH_AUTH_SOCK": f"{tmp_path}/agent",
        "DISPLAY": ":7",
        "CANARY_SENT": "sent",
    }.items():
        monkeypatch.setenv(name, value)
    yield path, port
    agent.terminate()
    agent.wait(5)


def test_nothing_is_forwarded_whatever_ssh_config_says(
    willing: Sshd, transport: SshTransport, lax: tuple[Path, int], tmp_path: Path
) -> None:
    config, port = lax
    # OpenSSH does it, so the server would have let us, too.
    other = ("RemoteCommand=none", "ControlMaster=no", "VerifyHostKeyDNS=no", "LogLevel=ERROR")
    plain = ["-F", str(config), "-p", str(willing.port), "-i", str(willing.user_key)]
    look = f"env; tty; ss -ltn | grep {port}; echo end"
    by_hand = subprocess.run(
        [
            "ssh",
            *plain,
            *(word for option in other for word in ("-o", option)),
            "root@127.0.0.1",
            look,
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    words = (
        "SSH_AUTH_SOCK=",
        "CANARY_SET=set",
        "CANARY_SENT=sent",
        f"127.0.0.1:{port}",
        "SSH_TTY=",
    )
    assert [word for word in words if word not in by_hand.stdout] == [], by_hand
    assert (tmp_path / "mark").exists()
    (tmp_path / "mark").unlink()

    channel = transport.open(willing.node(tmp_path, config=str(config)), look)
    said = read_all(channel).decode()
    channel.close()
    assert said.endswith("end\n")
    assert "not a tty" in said
    assert [word for word in (*words, "DISPLAY=", "CANARY") if word in said] == []
    assert not (tmp_path / "mark").exists()
    assert not list(tmp_path.glob("mark.m*"))


def test_no_option_of_ssh_config_makes_a_key_known(
    willing: Sshd, fresh: Fresh, lax: tuple[Path, int], tmp_path: Path
) -> None:
    config, _ = lax
    other_key = new_key(tmp_path / "other_key")
    (tmp_path / "mark.known").write_text(willing.known())
    assert (
        refusal(fresh(), willing.node(tmp_path, "", config=str(config))).reason
        == "host_key_unknown"
    )
    known = f"[127.0.0.1]:{willing.port} {public(other_key)}\n"
    error = refusal(fresh(), willing.node(tmp_path, known, config=str(config)))
    assert error.reason == "host_key_changed"
    assert all(fingerprint(key) in str(error) for key in (other_key, willing.host_key()))


class Grasping(paramiko.ServerInterface):
    """A server that lets every user in and then asks for what clients may offer.

    `refused` has the answers.
    """

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True


KINDS = (
    "auth-agent@openssh.com",
    "x11",
    "forwarded-tcpip",
    "direct-tcpip",
    "session",
    "tun@openssh.com",
)


def test_a_hostile_server_can_open_nothing_towards_us(
    transport: SshTransport, tmp_path: Path
) -> None:
    host_key, key = new_key(tmp_path / "host"), new_key(tmp_path / "key")
    refused: dict[str, object] = {}

    def serve(connection: socket.socket) -> None:
        server = paramiko.Transport(connection)
        server.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(host_key)))
        server.start_server(server=Grasping())
        session = server.accept(10)
        for kind in KINDS:
            try:
                server.open_channel(kind, ("127.0.0.1", 22), ("127.0.0.1", 22), timeout=5)
            except paramiko.ChannelException as error:
                refused[kind] = error.code
            else:
                refused[kind] = "opened"
        if session is not None:
            session.sendall(b"done\n")
        server.join(5)

    with listening(serve) as port:
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {public(host_key)}\n")
        node = Node(
            "n1",
            "127.0.0.1",
            0,
            SshSettings("root", port, str(key), "/dev/null", str(tmp_path / "known_hosts")),
        )
        channel = transport.open(node, "true")
        assert channel.recv(20) == b"done\n"
        channel.close()
    assert set(refused) == set(KINDS)
    assert set(refused.values()) == {1}, refused  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED


# ---------------------------------------------------------------- algorithms


def proposal(transport: SshTransport, tmp_path: Path) -> list[list[str]]:
    """The ten lists of our first packet (RFC 4253, 7.1)."""
    packets: list[bytes] = []

    def listen(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-x\r\n")
        with connection.makefile("rb") as stream:
            stream.readline()
            packets.append(stream.read(int.from_bytes(stream.read(4), "big")))

    with listening(listen) as port:
        settings = SshSettings("root", port, None, "/dev/null", str(tmp_path / "known_hosts"))
        refusal(transport, Node("n1", "127.0.0.1", 0, settings))
    message = paramiko.Message(packets[0][2 + 16 :])  # padding length, message number, cookie
    return [message.get_list() for _ in range(10)]


def test_we_offer_nothing_that_openssh_has_given_up(
    transport: SshTransport, tmp_path: Path
) -> None:
    kex, keys, ciphers, _, macs, _, compression, *_ = proposal(transport, tmp_path)
    said = subprocess.run(
        ["ssh", "-G", "-F", "none", "x"], capture_output=True, text=True, check=True
    ).stdout
    theirs = dict(line.partition(" ")[::2] for line in said.splitlines())
    offered = {"kexalgorithms": kex, "hostkeyalgorithms": keys, "ciphers": ciphers, "macs": macs}
    marks = {"ext-info-c", "kex-strict-c-v00@openssh.com"}
    assert marks <= set(kex), "without its mark there is no strict key exchange, and Terrapin works"
    for name, ours in offered.items():
        assert ours, name
        assert [
            word for word in ours if word not in theirs[name].split(",") and word not in marks
        ] == [], name
    assert compression == ["none"]
    assert ciphers[0] == "aes128-gcm@openssh.com"


@pytest.mark.parametrize(
    "options",
    [
        ("Ciphers 3des-cbc,aes128-cbc",),
        ("Ciphers aes128-ctr", "MACs hmac-md5,hmac-sha1-96"),
        ("KexAlgorithms diffie-hellman-group1-sha1,diffie-hellman-group14-sha1",),
        ("HostKeyAlgorithms ssh-rsa",),
    ],
    ids=["cipher", "mac", "kex", "host key"],
)
def test_a_server_that_knows_weak_algorithms_alone(
    transport: SshTransport, tmp_path: Path, options: tuple[str, ...]
) -> None:
    server = Sshd.start(tmp_path / "weak", *options, kinds=("rsa",))
    try:
        error = refusal(transport, server.node(tmp_path, server.known("rsa")))
    finally:
        server.stop()
    assert (error.reason, "ends the key exchange" in str(error)) == ("no_banner", True), str(error)


def test_new_keys_in_the_middle(willing: Sshd, transport: SshTransport, tmp_path: Path) -> None:
    """The server wants new keys after each megabyte."""
    before = willing.log().count("SSH2_MSG_NEWKEYS received")
    channel = transport.open(
        willing.node(tmp_path), "head -c 3000000 | wc -c; head -c 3000000 /dev/zero"
    )
    channel.send(b"x" * 3_000_000)
    said = read_all(channel)
    channel.close()
    assert (said[:8], len(said)) == (b"3000000\n", 3_000_008)
    assert willing.log().count("SSH2_MSG_NEWKEYS received") - before > 3


def with_a_packet_more(port: int) -> Talk:
    """In front of a real sshd.

    Puts SSH_MSG_IGNORE behind its KEXINIT, as Terrapin does (CVE-2023-48795).
    """
    ignore = b"\0\0\0\x0c\x06\x02\0\0\0\0" + b"\0" * 6

    class Inserting(Relay):
        done = False

        def _allowed(self, data: bytes) -> bytes:
            at = data.find(b"\n") + 1 if data.startswith(b"SSH-") else 0
            if self.done or len(data) < at + 4:
                return data
            self.done = True
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            return data[:end] + ignore + data[end:]

    return Inserting(port)


def test_a_packet_that_somebody_inserts_ends_the_key_exchange(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    with listening(with_a_packet_more(sshd.port)) as port:
        node = sshd.node(tmp_path, sshd.known(name=f"[127.0.0.1]:{port}"), port=port)
        error = refusal(transport, node)
    assert (error.reason, "strict-kex" in str(error)) == ("no_banner", True), str(error)


# ---------------------------------------------------------------- revoked keys


@pytest.mark.parametrize("form", ["text", "krl"])
def test_a_key_that_ssh_config_s_list_revokes(
    sshd: Sshd, fresh: Fresh, tmp_path: Path, form: str
) -> None:
    other_key, listed = new_key(tmp_path / "other_key"), tmp_path / "listed"
    (tmp_path / "config").write_text(f"RevokedHostKeys {listed}\n")
    node = sshd.node(tmp_path, config=str(tmp_path / "config"))
    error = refusal(fresh(), node)
    assert (error.reason, f"{listed} cannot be asked" in str(error)) == ("host_key_unknown", True)
    for key, revoked in ((other_key, False), (sshd.host_key(), True)):
        if form == "krl":
            keygen("-k", "-f", listed, f"{key}.pub")
        else:
            listed.write_text(f"# lost\n{public(key)} comment\n")
        if revoked:
            error = refusal(fresh(), node)
            assert (error.reason, fingerprint(key) in str(error)) == ("host_key_changed", True)
        else:
            fresh().open(node, "true").close()


def test_an_authority_that_signs_with_sha_1(transport: SshTransport, tmp_path: Path) -> None:
    authority = new_key(tmp_path / "authority", "rsa")
    server = Sshd.start(tmp_path / "sshd", f"HostCertificate {tmp_path}/sshd/host_ed25519-cert.pub")
    known = f"@cert-authority * {public(authority)}\n"
    try:
        for kind, trusted in (("ssh-rsa", False), ("rsa-sha2-256", True)):
            keygen(
                "-q",
                "-s",
                authority,
                "-t",
                kind,
                "-I",
                "a host",
                "-h",
                "-n",
                "127.0.0.1",
                f"{server.host_key()}.pub",
            )
            server.reload()
            if trusted:
                transport.open(server.node(tmp_path, known), "true").close()
            else:
                assert "the signature on its certificate is wrong" in str(
                    refusal(transport, server.node(tmp_path, known))
                )
    finally:
        server.stop()
