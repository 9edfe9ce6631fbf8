"""Host keys are trusted, refused and explained as OpenSSH would."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.remote.transports.host_certificate import HostCertificate
from clusterprep.remote.transports.ssh import SshTransport
from tests.remote.transports.sshd import Sshd, fingerprint, keygen, new_key, public

pytestmark = pytest.mark.machine

Fresh = Callable[..., SshTransport]


def says_hello(transport: SshTransport, node: Node) -> bool:
    channel = transport.open(node, "echo hello")
    try:
        return channel.recv(10) == b"hello\n"
    finally:
        channel.close()


def refusal(transport: SshTransport, node: Node) -> Unreached:
    with pytest.raises(Unreached) as caught:
        transport.open(node, "true")
    assert caught.value.answered
    return caught.value


@pytest.fixture(scope="module")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("other_key") / "key")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("authority") / "key", "ecdsa")


def test_an_unknown_key(sshd: Sshd, transport: SshTransport, tmp_path: Path) -> None:
    error = refusal(transport, sshd.node(tmp_path, ""))
    assert error.reason == "host_key_unknown"
    assert f"ssh-ed25519 {fingerprint(sshd.host_key())}" in str(error)
    assert f'no key for "[127.0.0.1]:{sshd.port}"' in str(error)
    assert (
        f"ssh-keyscan -t ed25519 -p {sshd.port} 127.0.0.1 >> {tmp_path}/known_hosts" in error.remedy
    )
    assert "--host-keys accept-new" in error.remedy.note
    assert not (tmp_path / "known_hosts").exists()


def test_the_key_is_in_the_second_file_of_ssh_config(
    fresh: Fresh, sshd: Sshd, tmp_path: Path
) -> None:
    node = sshd.node(tmp_path, "")
    keys, config = tmp_path / "site_keys", tmp_path / "config"
    keys.write_text(sshd.known())
    config.write_text(f"Host *\n UserKnownHostsFile {tmp_path}/none_yet {keys}\n")
    ssh = replace(node.ssh, known_hosts=None, config=str(config))
    node = replace(node, ssh=ssh)
    assert says_hello(fresh(), node)
    keys.write_text("")
    assert f"{tmp_path}/none_yet, {keys} and /etc" in str(refusal(fresh(), node))


def test_a_changed_key(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, other_key: Path
) -> None:
    name = f"[127.0.0.1]:{sshd.port}"
    error = refusal(transport, sshd.node(tmp_path, f"# mine\n{name} {public(other_key)}\n"))
    assert error.reason == "host_key_changed"
    assert f"seen ssh-ed25519 {fingerprint(sshd.host_key())}" in str(error)
    assert f"expected ssh-ed25519 {fingerprint(other_key)} ({tmp_path}/known_hosts:2)" in str(error)
    assert f"ssh-keygen -R '{name}' -f {tmp_path}/known_hosts; ssh-keyscan" in error.remedy


def test_the_remedy_is_one(fresh: Fresh, sshd: Sshd, tmp_path: Path, other_key: Path) -> None:
    node = sshd.node(tmp_path, f"[127.0.0.1]:{sshd.port} {public(other_key)}\n")
    commands = (
        refusal(fresh(), node)
        .remedy.removeprefix("if the node was reinstalled: ")
        .split("; first")[0]
    )
    subprocess.run(["/bin/sh", "-ec", commands], check=True, capture_output=True)
    assert says_hello(fresh(), node)


@pytest.mark.parametrize(
    "line",
    [
        "{key}",
        "x,{key}",
        "[127.0.0.*]:* {bare}",
        "127.0.0.1 {bare}",
        "HASHED",
        "[127.0.0.1]:1 {bare}\n{key}",
    ],
)
def test_known_in_many_forms(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, line: str
) -> None:
    key = sshd.known()
    node = sshd.node(
        tmp_path, line.format(key=key, bare=public(sshd.host_key())).replace("HASHED", key)
    )
    if line == "HASHED":
        keygen("-H", "-f", node.ssh.known_hosts)
        assert "127.0.0.1" not in Path(node.ssh.known_hosts).read_text()
    assert says_hello(transport, node)


def test_the_known_kind_of_key_is_asked_for(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    assert says_hello(transport, sshd.node(tmp_path, sshd.known("rsa")))


def test_a_known_kind_that_the_node_no_longer_has(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, authority: Path
) -> None:
    known = f"[127.0.0.1]:{sshd.port} {public(authority)}\n"  # an ECDSA key
    for rule in ("strict", "accept-new"):
        error = refusal(fresh(), sshd.node(tmp_path, known, host_keys=rule))
        assert error.reason == "host_key_changed"
        assert fingerprint(authority) in str(error)
    assert (tmp_path / "known_hosts").read_text() == known


@pytest.mark.parametrize("pattern", ["*", "[127.0.0.1]:{port}", "127.0.0.1"])
def test_a_revoked_key(sshd: Sshd, transport: SshTransport, tmp_path: Path, pattern: str) -> None:
    known = f"{sshd.known()}@revoked {pattern.format(port=sshd.port)} {public(sshd.host_key())}\n"
    error = refusal(transport, sshd.node(tmp_path, known))
    assert error.reason == "host_key_changed"
    assert "revoked" in str(error)
    assert f"{tmp_path}/known_hosts:2" in str(error)


def test_accept_new_remembers(fresh: Fresh, sshd: Sshd, tmp_path: Path) -> None:
    node = sshd.node(
        tmp_path, "", known_hosts=str(tmp_path / "new" / "known_hosts"), host_keys="accept-new"
    )
    assert says_hello(fresh(), node)
    file = Path(node.ssh.known_hosts)
    assert file.read_text() == sshd.known()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert says_hello(fresh(), sshd.node(tmp_path / "new"))
    assert file.read_text() == sshd.known()


def test_accept_new_replaces_nothing(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, other_key: Path
) -> None:
    known = f"[127.0.0.1]:{sshd.port} {public(other_key)}"  # without an end of line
    error = refusal(transport, sshd.node(tmp_path, known, host_keys="accept-new"))
    assert error.reason == "host_key_changed"
    assert (tmp_path / "known_hosts").read_text() == known


def test_accept_new_beside_a_revoked_key(
    fresh: Fresh, sshd: Sshd, tmp_path: Path, other_key: Path
) -> None:
    revoked = f"@revoked * {public(other_key)}\n"
    assert says_hello(fresh(), sshd.node(tmp_path, revoked, host_keys="accept-new"))
    assert (tmp_path / "known_hosts").read_text() == revoked + sshd.known()


def test_accept_new_that_cannot_be_remembered(
    sshd: Sshd, transport: SshTransport, tmp_path: Path
) -> None:
    error = refusal(
        transport,
        sshd.node(tmp_path, "", known_hosts="/dev/null/known_hosts", host_keys="accept-new"),
    )
    assert error.reason == "host_key_unknown"
    assert "/dev/null/known_hosts cannot be written" in str(error)


def test_a_changed_key_that_fits_the_plain_name(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, other_key: Path
) -> None:
    known = f"127.0.0.1 {public(sshd.host_key())}\n[127.0.0.1]:{sshd.port} {public(other_key)}\n"
    assert refusal(transport, sshd.node(tmp_path, known)).reason == "host_key_changed"


def test_accept_new_hashes_where_openssh_would(fresh: Fresh, sshd: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("HashKnownHosts yes\n")
    other = f"other {public(sshd.host_key())}"  # without an end of line
    node = sshd.node(tmp_path, other, host_keys="accept-new", config=str(config))
    assert says_hello(fresh(), node)
    assert (tmp_path / "known_hosts").read_text().startswith(f"{other}\n|1|")
    assert keygen("-F", f"[127.0.0.1]:{sshd.port}", "-f", tmp_path / "known_hosts")
    assert says_hello(fresh(), node)


def test_accept_new_by_many_at_once(sshd: Sshd, tmp_path: Path) -> None:
    """Two processes with two threads each, and one line in the end."""
    code = (
        "import sys\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from clusterprep.model import Node, SshSettings\n"
        "from clusterprep.remote.transports.ssh import SshTransport\n"
        "port, key, known = int(sys.argv[1]), sys.argv[2], sys.argv[3]\n"
        "ssh = SshSettings('root', port, key, '/dev/null', known, 'accept-new', 20.0)\n"
        "transport = SshTransport()\n"
        "node = lambda i: Node(f'n{i}', '127.0.0.1', i, ssh)\n"
        "open = lambda i: transport.open(node(i), 'echo hello').recv(20)\n"
        "print(list(ThreadPoolExecutor(2).map(open, range(2))))\n"
    )
    known = tmp_path / "known_hosts"
    command = [sys.executable, "-c", code, str(sshd.port), str(sshd.user_key), str(known)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [one.communicate(timeout=30)[0] for one in running] == [
        r"[b'hello\n', b'hello\n']" + "\n"
    ] * 2
    assert known.read_text() == sshd.known()


# ---------------------------------------------------------------- certificates


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, authority: Path) -> Sshd:  # type: ignore[misc]
    folder = tmp_path_factory.mktemp("signed")
    server = Sshd.start(folder / "sshd", f"HostCertificate {folder}/sshd/host_ed25519-cert.pub")
    certify(server, authority, "-n", "127.0.0.1,other")
    yield server
    server.stop()


def certify(server: Sshd, authority: Path, *options: str) -> None:
    """Make a new certificate. On SIGHUP sshd restarts on the same port and reads it."""
    keygen("-q", "-s", authority, "-I", "a host", *options, f"{server.host_key()}.pub")
    server.reload()


def test_a_certificate_of_a_known_authority(
    signed: Sshd, transport: SshTransport, tmp_path: Path, authority: Path
) -> None:
    certify(signed, authority, "-h", "-n", "127.0.0.1,other")
    assert says_hello(
        transport,
        signed.node(tmp_path, f"@cert-authority 127.0.0.*,[127.0.0.1]:* {public(authority)}\n"),
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-h", "-n", "another"), "its certificate is for another"),
        (("-n", "127.0.0.1"), "a user's, not a host's"),
        (("-h", "-n", "127.0.0.1", "-V", "20200101:20200102"), "valid only from 2020"),
    ],
    ids=["name", "kind", "day"],
)
def test_a_certificate_that_proves_nothing(
    signed: Sshd,
    transport: SshTransport,
    tmp_path: Path,
    authority: Path,
    options: tuple[str, ...],
    words: str,
) -> None:
    certify(signed, authority, *options)
    error = refusal(transport, signed.node(tmp_path, f"@cert-authority * {public(authority)}\n"))
    assert error.reason == "host_key_unknown"
    assert words in str(error)


def test_a_certificate_of_another_authority(
    fresh: Fresh,
    signed: Sshd,
    transport: SshTransport,
    tmp_path: Path,
    authority: Path,
    other_key: Path,
) -> None:
    certify(signed, other_key, "-h", "-n", "127.0.0.1")
    error = refusal(transport, signed.node(tmp_path, f"@cert-authority * {public(authority)}\n"))
    assert (error.reason, fingerprint(other_key) in str(error)) == ("host_key_unknown", True)
    revoked = f"@cert-authority * {public(other_key)}\n@revoked * {public(other_key)}\n"
    assert refusal(fresh(), signed.node(tmp_path, revoked)).reason == "host_key_unknown"


def test_an_authority_but_no_certificate(
    sshd: Sshd, transport: SshTransport, tmp_path: Path, authority: Path
) -> None:
    known = f"@cert-authority * {public(authority)}\n"
    error = refusal(transport, sshd.node(tmp_path, known, host_keys="accept-new"))
    assert error.reason == "host_key_unknown"
    assert f"only a @cert-authority line ({tmp_path}/known_hosts:1) matches" in str(error)
    assert (tmp_path / "known_hosts").read_text() == known


def test_a_certified_node_whose_plain_key_is_known(
    signed: Sshd, transport: SshTransport, tmp_path: Path, authority: Path
) -> None:
    certify(signed, authority, "-h", "-n", "another")
    assert says_hello(
        transport, signed.node(tmp_path, f"@cert-authority * {public(authority)}\n{signed.known()}")
    )


@pytest.mark.parametrize(
    ("principal", "host", "proves"),
    [
        ("n1", "n1", True),
        ("n2", "n1", False),
        ("n*", "n1", True),
        ("*.example.com", "n1.example.com", True),
        ("*.example.com", "n1.example.org", False),
        ("n?", "n1", True),
        ("N1", "n1", False),
        ("!n2", "n1", False),
        (None, "n1", False),
    ],
)
def test_principals_are_compared_as_in_openssh(
    principal: str | None, host: str, proves: bool, authority: Path, tmp_path: Path
) -> None:
    """As since 10.3: wildcards count, case counts, `!` negates nothing, no name is no host."""
    key = new_key(tmp_path / "host")
    names = () if principal is None else ("-n", principal)
    keygen("-s", str(authority), "-I", "id", "-h", *names, str(key.with_suffix(".pub")))
    text = (tmp_path / "host-cert.pub").read_text().split()[1]
    certificate = HostCertificate.parse(base64.b64decode(text))
    signer = base64.b64decode(public(authority).split()[1])
    assert (certificate.objection(host, {signer}) is None) is proves
