"""The local transport runs real commands and leaves none behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from clusterprep.errors import LinkLost
from clusterprep.model import Node
from clusterprep.remote.transports.local import LocalTransport, SharedPipe
from clusterprep.remote.transports.protocol import Channel
from tests.remote.transports.heard import read_all
from tests.support.patience import eventually

NODE = Node("here", "here", 0, transport="local")


def start(command: str) -> Channel:
    return LocalTransport().open(NODE, command)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_bytes_go_both_ways_and_the_end_is_seen() -> None:
    channel = start("head -c 3000000 | wc -c; echo done")
    channel.send(b"x" * 3_000_000)
    assert read_all(channel).split() == [b"3000000", b"done"]
    assert channel.peer == "127.0.0.1"
    channel.close()


def test_much_stderr_does_not_stop_the_command() -> None:
    channel = start("head -c 4194304 /dev/zero | tr '\\0' e >&2; echo last words >&2; echo out")
    assert read_all(channel) == b"out\n"
    assert channel.stderr().endswith(b"eee" + b"last words\n")
    assert len(channel.stderr()) == 8192
    channel.close()


def test_much_stderr_while_we_send() -> None:
    channel = start("head -c 4194304 /dev/zero >&2; head -c 1000000 | wc -c")
    channel.send(b"x" * 1_000_000)
    assert read_all(channel).strip() == b"1000000"
    channel.close()


def test_recv_waits_no_longer_than_told() -> None:
    channel = start("echo early; sleep 60; echo late")
    assert channel.recv(60) == b"early\n"
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.recv(0.2)
    assert time.monotonic() - began >= 0.2
    channel.close()


def test_send_to_an_ended_command() -> None:
    channel = start("exec true")
    assert channel.recv(60) == b""
    with pytest.raises(LinkLost):
        channel.send(b"x" * 1_000_000)
    channel.close()


def test_close_lets_the_command_end_by_itself(tmp_path: Path) -> None:
    channel = start(f"cat; echo ended > {tmp_path}/mark")
    channel.close()
    assert (tmp_path / "mark").read_text() == "ended\n"


def test_close_ends_what_will_not_end() -> None:
    channel = start("trap '' TERM HUP INT; sleep 600 & echo $! $$; exec <&-; sleep 600")
    pids = [int(word) for word in channel.recv(60).split()]
    channel.close()
    assert eventually(lambda: not any(map(alive, pids)))
    channel.close()  # once more does no harm


@pytest.mark.machine
def test_the_session_is_its_own() -> None:
    channel = start("ps -o sid= -p $$")
    assert int(read_all(channel)) != os.getsid(0)
    channel.close()


def test_the_end_of_the_transport_ends_what_nobody_closed() -> None:
    transport = LocalTransport()
    channel = transport.open(NODE, "trap '' HUP TERM; echo $$; sleep 600")
    pid = int(channel.recv(60))
    transport.close()
    assert channel.recv(60) == b""
    channel.close()
    assert not alive(pid)


def test_close_ends_a_wait_in_another_thread_whose_descriptor_is_used_again() -> None:
    """A process in a session of its own keeps stdout open: the wait outlives the close."""
    channel = start("setsid sleep 600 & echo $!")
    pid = int(channel.recv(60))
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(channel.recv(60)), daemon=True)
    reader.start()
    time.sleep(0.3)  # until it waits in poll(2)
    channel.close()
    others = [os.pipe() for _ in range(16)]  # the lowest free descriptors; nothing is written here
    os.kill(pid, signal.SIGKILL)
    reader.join(20)
    assert received == [b""]
    for ends in others:
        for descriptor in ends:
            os.close(descriptor)


def test_a_pipe_is_freed_by_the_last_thread_that_uses_it() -> None:
    reading_end, writing_end = os.pipe()
    pipe = SharedPipe(os.fdopen(reading_end, "rb", buffering=0))
    with pipe.in_use() as descriptor:
        with pipe.in_use():
            pipe.close()
        os.fstat(descriptor)
        with pytest.raises(ValueError, match="closed"):
            pipe.read(1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    pipe.close()  # once more does no harm
    os.close(writing_end)


def test_a_command_does_not_run_in_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write there could otherwise give root a file to run."""
    monkeypatch.chdir(tmp_path)
    channel = start("pwd")
    assert read_all(channel) == b"/\n"
    channel.close()
