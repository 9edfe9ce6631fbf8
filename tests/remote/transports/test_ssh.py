"""A command over a real sshd: its bytes, its ends, and every way in which it does not start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node
from clusterprep.remote.transports.protocol import Transport
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.remote.transports.ssh_channel import SshChannel
from clusterprep.remote.transports.workers import WorkerTransport
from tests.remote.transports.heard import read_all
from tests.remote.transports.peers import (
    Relay,
    Talk,
    babbles,
    deaf,
    hangs_up,
    listening,
    says,
    silent,
)
from tests.remote.transports.sshd import Sshd, free_port
from tests.support.patience import LONG, eventually

HOURS = 36_000.0  # seconds; a limit that no test lives to see
SHORT = 1.5  # seconds; a limit that is waited for
Fresh = Callable[..., SshTransport]


@pytest.fixture(params=["in-this-process", "in-a-worker"])
def transport(request: pytest.FixtureRequest, fresh: Fresh) -> Iterator[Transport]:
    """The same is wanted of a connection in a worker process."""
    if request.param == "in-this-process":
        yield fresh()
        return
    with contextlib.closing(WorkerTransport(1)) as in_a_worker:
        yield in_a_worker


def refused(transport: Transport, node: Node) -> Unreached:
    with pytest.raises(Unreached) as caught:
        transport.open(node, "true")
    return caught.value


# ---------------------------------------------------------------- the channel


@pytest.mark.machine
def test_bytes_go_both_ways_and_the_end_is_seen(
    sshd: Sshd, transport: Transport, tmp_path: Path
) -> None:
    channel = transport.open(sshd.node(tmp_path), "head -c 3000000 | wc -c; echo done")
    channel.send(b"x" * 3_000_000)
    assert read_all(channel).split() == [b"3000000", b"done"]
    assert channel.recv(1) == b""
    assert channel.peer == "127.0.0.1"
    channel.close()


@pytest.mark.machine
def test_much_stderr_does_not_stop_the_command(
    sshd: Sshd, transport: Transport, tmp_path: Path
) -> None:
    command = "head -c 4194304 /dev/zero | tr '\\0' e >&2; echo last words >&2; echo out"
    channel = transport.open(sshd.node(tmp_path), command)
    assert read_all(channel) == b"out\n"
    assert channel.stderr().endswith(b"eee" + b"last words\n")
    assert len(channel.stderr()) == 8192
    channel.close()


@pytest.mark.machine
def test_recv_waits_no_longer_than_told(sshd: Sshd, transport: Transport, tmp_path: Path) -> None:
    channel = transport.open(sshd.node(tmp_path), "cat")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.recv(0.2)
    assert time.monotonic() - began >= 0.2
    channel.close()


@pytest.mark.machine
def test_send_while_another_thread_receives(
    sshd: Sshd, transport: Transport, tmp_path: Path
) -> None:
    channel = transport.open(sshd.node(tmp_path), "cat")
    sender = threading.Thread(target=lambda: [channel.send(b"y" * 65536) for _ in range(64)])
    sender.start()
    size = 0
    while size < 64 * 65536:
        size += len(channel.recv(10))
    sender.join()
    channel.close()


@pytest.mark.machine
def test_close_ends_the_command_s_input(sshd: Sshd, transport: Transport, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    channel = transport.open(sshd.node(tmp_path), f"echo ready; cat > /dev/null; touch {mark}")
    assert channel.recv(10) == b"ready\n"
    channel.close()
    channel.close()
    assert eventually(mark.exists)
    with pytest.raises(LinkLost):
        channel.send(b"x")
    assert channel.recv(1) == b""


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.machine
def test_a_frozen_sshd_holds_nobody_up(fresh: Fresh, sshd: Sshd, tmp_path: Path) -> None:
    """No limit passes, and sshd stays frozen: neither ends what waits for it."""
    transport = fresh(stall=1.0)
    channel = transport.open(sshd.node(tmp_path), "echo $PPID; sleep 60")
    with frozen(int(channel.recv(10))):
        with pytest.raises(LinkLost, match="took nothing for 1 s"):
            channel.send(b"x" * (64 << 20))
        channel.close()
        transport.close()


@pytest.mark.machine
def test_close_while_another_thread_is_stuck_in_send(
    fresh: Fresh, sshd: Sshd, tmp_path: Path
) -> None:
    channel = fresh(stall=HOURS).open(sshd.node(tmp_path), "echo $PPID; sleep 60")
    assert isinstance(channel, SshChannel)
    ends: list[BaseException] = []

    def fill() -> None:
        try:
            channel.send(b"x" * (64 << 20))
        except LinkLost as error:
            ends.append(error)

    with frozen(int(channel.recv(10))):
        sender = threading.Thread(target=fill)
        sender.start()
        assert eventually(lambda: channel._session.out_window_size == 0)
        channel.close()
        sender.join(LONG)
    assert ends


@pytest.mark.machine
def test_an_sshd_that_dies_is_noticed(sshd: Sshd, transport: Transport, tmp_path: Path) -> None:
    channel = transport.open(sshd.node(tmp_path), "echo $PPID; sleep 2")
    os.kill(int(channel.recv(10)), signal.SIGKILL)
    assert channel.recv(LONG) == b""
    with pytest.raises(LinkLost):
        channel.send(b"x" * 100)
    channel.close()


# ---------------------------------------------------------------- what does not start


@pytest.mark.machine
def test_a_name_that_nobody_knows(sshd: Sshd, transport: Transport, tmp_path: Path) -> None:
    node = replace(sshd.node(tmp_path), address="no-such-host.invalid")
    error = refused(transport, node)
    assert (error.reason, error.answered) == ("name_unknown", False)
    assert "no-such-host.invalid" in str(error)


@pytest.mark.machine
def test_a_name_of_which_one_address_answers(
    sshd: Sshd, transport: Transport, tmp_path: Path
) -> None:
    node = replace(
        sshd.node(tmp_path, sshd.known(name=f"[localhost]:{sshd.port}")), address="localhost"
    )
    channel = transport.open(node, "echo hello")  # where localhost is ::1 too, sshd is not there
    assert channel.recv(10) == b"hello\n"
    assert channel.peer == "127.0.0.1"
    channel.close()


@pytest.mark.machine
def test_a_closed_port(sshd: Sshd, transport: Transport, tmp_path: Path) -> None:
    assert refused(transport, sshd.node(tmp_path, port=free_port())).reason == "refused"


@pytest.mark.machine
def test_a_port_behind_a_dropping_firewall(
    sshd: Sshd, transport: Transport, tmp_path: Path
) -> None:
    with deaf() as port:
        began = time.monotonic()
        error = refused(transport, sshd.node(tmp_path, port=port, connect_timeout=0.5))
        assert (error.reason, error.answered) == ("timed_out", False)
        assert time.monotonic() - began > 0.4


@pytest.mark.machine
@pytest.mark.parametrize(
    ("talk", "words", "limit"),
    [
        (silent, "says nothing", SHORT),
        (hangs_up, "closes the connection before its banner", HOURS),
        (
            says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            'not with SSH: "HTTP/1.1 400 Bad Request"',
            SHORT,
        ),
        (babbles, "not with SSH", HOURS),
        (says(b"SSH-2.0-x\r\n"), "in the middle of the key exchange", SHORT),
        (says(b"SSH-1.5-old\r\n"), "Incompatible version", HOURS),
        (says(b"SSH-2.0-x\r\n" + b"\0\0\0\x0c\x0a" + b"\xff" * 60), "ends the key exchange", HOURS),
    ],
    ids=["silent", "hangs up", "HTTP", "babble", "banner only", "SSH 1", "broken packets"],
)
def test_a_port_where_no_sshd_answers(
    sshd: Sshd,
    transport: Transport,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    talk: Talk,
    words: str,
    limit: float,
) -> None:
    """Only what says no more than sshd might keeps us until the limit."""
    before = paramiko_threads()
    with listening(talk) as port:
        error = refused(transport, sshd.node(tmp_path, port=port, connect_timeout=limit))
        assert error.reason == "no_banner"
        assert words in str(error)
    assert eventually(lambda: paramiko_threads() <= before)
    assert capfd.readouterr().err == ""


def paramiko_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if type(thread).__name__ == "NodeTransport"}


@pytest.mark.machine
@pytest.mark.parametrize(
    ("short", "reason", "words", "limit"),
    [
        (3000, "no_banner", "in the middle of the key exchange", 3.0),
        (1, "hung", "start of the command", 4.0),
    ],
    ids=["in the key exchange", "at the command"],
)
def test_an_sshd_that_stops_on_the_way(
    sshd: Sshd,
    transport: Transport,
    tmp_path: Path,
    short: int,
    reason: str,
    words: str,
    limit: float,
) -> None:
    """The limits leave ten times as long as the way there takes."""
    whole = Relay(sshd.port)
    with listening(whole) as port:
        transport.open(
            sshd.node(tmp_path, sshd.known(name=f"[127.0.0.1]:{port}"), port=port), "sleep 9"
        ).close()
    cut = Relay(sshd.port, max(whole.passed - short, 200))
    with listening(cut) as port:
        known = sshd.known(name=f"[127.0.0.1]:{port}")
        error = refused(
            transport, sshd.node(tmp_path / "..", known, port=port, connect_timeout=limit)
        )
        assert (error.reason, error.answered) == (reason, False)
        assert words in str(error)


@pytest.mark.machine
def test_a_login_that_hangs(transport: Transport, tmp_path: Path) -> None:
    """As where the directory that knows the users' keys is down."""
    command = ("AuthorizedKeysCommand /usr/bin/sleep 60", "AuthorizedKeysCommandUser nobody")
    server = Sshd.start(tmp_path / "slow", *command)
    try:
        (server.folder / "authorized_keys").unlink()
        error = refused(transport, server.node(tmp_path, connect_timeout=3.0))
        assert error.reason == "hung"
        assert "the login gives no answer" in str(error)
    finally:
        server.stop()


@pytest.mark.machine
def test_too_many_connections_at_once(transport: Transport, tmp_path: Path) -> None:
    server = Sshd.start(tmp_path / "full", "MaxStartups 1:100:1")

    def the_only_place() -> socket.socket:
        while True:
            taken = socket.create_connection(("127.0.0.1", server.port))
            if taken.recv(100).startswith(b"SSH-"):
                return taken
            taken.close()
            time.sleep(0.05)

    try:
        with the_only_place():
            error = refused(transport, server.node(tmp_path))
        assert (error.reason, "MaxStartups" in error.remedy) == ("no_banner", True)
    finally:
        server.stop()


def test_importing_the_ssh_transport_loads_no_paramiko() -> None:
    code = (
        "import sys, clusterprep.remote.transports.ssh\n"
        "sys.exit('paramiko' in sys.modules or 'fabric' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_process_that_reached_nobody_ends_at_once() -> None:
    """paramiko's own timer would keep it for 15 s, because its thread is no daemon."""
    code = (
        "import sys, threading\n"
        "from clusterprep.model import Node, SshSettings\n"
        "from clusterprep.remote.transports.ssh import SshTransport\n"
        "SETTINGS = SshSettings('root', int(sys.argv[1]), connect_timeout=36_000)\n"
        "NODE = Node('n', '127.0.0.1', 0, SETTINGS)\n"
        "try: SshTransport().open(NODE, '')\n"
        "except Exception as error: print(error.reason)\n"
        "print([thread for thread in threading.enumerate()[1:] if not thread.daemon])\n"
    )

    def leaves(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-x\r\n")
        connection.recv(100)

    with listening(leaves) as port:
        done = subprocess.run(
            [sys.executable, "-c", code, str(port)],
            capture_output=True,
            text=True,
            timeout=LONG,
            check=True,
        )
    assert (done.stdout, done.stderr) == ("no_banner\n[]\n", "")


def test_several_commands_of_one_program_begin_at_once() -> None:
    """None of them leaves `invoke`, which paramiko is imported without, hidden from the program."""
    program = (
        "import threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from clusterprep.remote.transports.ssh import SshTransport\n"
        "both = threading.Barrier(2)\n"
        "def begin(_):\n"
        "    both.wait()\n"
        "    SshTransport().close()\n"
        "with ThreadPoolExecutor(2) as pool:\n"
        "    list(pool.map(begin, range(2)))\n"
        "import invoke\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
