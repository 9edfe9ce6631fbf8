"""Commands on four real nodes of Slurm's through one job step, and errors without one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Inventory, Node, SshSettings
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.transports.slurm import SlurmTransport
from tests.remote.transports.heard import read_all
from tests.support.lab.slurm import Slurm

pytestmark = pytest.mark.hosts

NAMES = ("n1", "n2", "n3", "n4")
Start = Callable[..., SlurmTransport]


def node(name: str, address: str = "", limit: float = 8.0) -> Node:
    return Node(name, address or name, 0, ssh=SshSettings(connect_timeout=limit), transport="slurm")


@pytest.fixture
def start(slurm4: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Makes transports for nodes, on the lab's controller, and ends their steps."""
    for name, value in slurm4.env.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        stack.enter_context(slurm4.lab.controller.entered())

        def begin(*nodes: Node) -> SlurmTransport:
            inventory = Inventory("t", nodes or tuple(node(name) for name in NAMES))
            return stack.enter_context(contextlib.closing(SlurmTransport(inventory)))

        yield begin


def why(transport: SlurmTransport, name: str) -> Unreached:
    with pytest.raises(Unreached) as caught:
        transport.open(node(name), "true")
    return caught.value


def opened(transport: SlurmTransport, command: str, names: Sequence[str] = NAMES) -> list[Channel]:
    return [transport.open(node(name), command) for name in names]


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).hexdigest().encode()


def wait_for(true: Callable[[], object], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


# ---------------------------------------------------------------- a stream of bytes


def test_bytes_go_both_ways_and_every_node_is_itself(start: Start) -> None:
    channels = opened(start(), "hostname; head -c 300000 | md5sum; echo words >&2")
    sent = [os.urandom(300_000) for _ in channels]
    for channel, data in zip(channels, sent, strict=True):
        channel.send(data)
    heard = [read_all(channel).split()[:2] for channel in channels]
    assert heard == [[name.encode(), _md5(data)] for name, data in zip(NAMES, sent, strict=True)]
    assert {(channel.peer, channel.stderr()) for channel in channels} == {(None, b"words\n")}


def test_what_all_are_sent_goes_once(start: Start) -> None:
    """Equal bytes are grouped, and of nearly equal ones only what differs goes to each."""
    transport = start()
    channels = opened(transport, "head -c 1000008 | md5sum")
    before, common = transport.carried[0], os.urandom(1_000_000)
    for index, channel in enumerate(channels):
        channel.send(b"%08d" % index + common)
    expected = [_md5(b"%08d" % index + common) for index in range(4)]
    assert [read_all(channel).split()[0] for channel in channels] == expected
    assert transport.carried[0] - before < 1_010_000


def test_much_from_all_at_once_arrives_whole(start: Start) -> None:
    """Lines that srun tears at the end of a task's output are put together again."""
    command = "head -c 3000000 /dev/urandom | tee /run/sent; md5sum /run/sent >&2"
    channels = opened(start(), command)
    sums = [_md5(read_all(channel)) for channel in channels]
    assert [channel.stderr().split()[0] for channel in channels] == sums


def test_a_command_that_nobody_reads_is_held_up_and_no_other(start: Start) -> None:
    transport = start()
    (flood,) = opened(transport, "cat /dev/urandom & read end; kill $!", ["n1"])
    (other,) = opened(transport, "cat", ["n2"])
    time.sleep(0.5)
    for _ in range(3):
        other.send(b"ping")
        assert other.recv(5) == b"ping"
    assert transport.carried[1] < 4 << 20  # base64 of the window
    read = 0
    while read < 6 << 20:  # and goes on when it is read again
        read += len(flood.recv(5))


def test_recv_waits_no_longer_than_told(start: Start) -> None:
    (channel,) = opened(start(), "cat", ["n1"])
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.recv(0.2)
    assert 0.15 < time.monotonic() - began < 2


# ---------------------------------------------------------------- what a command finds, and leaves


def test_a_command_has_a_login_and_nothing_of_slurm_or_of_the_controller(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "TRACE")
    (channel,) = opened(start(), "env; umask; pwd", ["n2"])
    lines = read_all(channel).decode().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert names >= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "0022", "/"}
    assert not [name for name in names if name.startswith(("SLURM", "NCCL"))]


def test_nothing_is_left_of_a_command_that_is_closed(slurm4: Slurm, start: Start) -> None:
    host = slurm4.lab.host("n3")
    (channel,) = opened(start(), "trap '' HUP TERM; sleep 4711 & sleep 4712; sleep 4713", ["n3"])
    wait_for(lambda: len(host.processes("^sleep 471")) == 2)
    channel.close()
    wait_for(lambda: not host.processes("^sleep 471"))


def test_nothing_is_left_when_the_step_ends(slurm4: Slurm, start: Start) -> None:
    transport = start()
    opened(transport, "sleep 4721 & sleep 4722 & cat")
    hosts = [slurm4.lab.host(name) for name in NAMES]
    wait_for(lambda: all(len(host.processes("^sleep 472")) == 2 for host in hosts))
    transport.close()
    assert [host.processes("sleep 472|relay") for host in hosts] == [[], [], [], []]
    wait_for(lambda: not slurm4.run("squeue", "--noheader").stdout)


def test_a_process_that_holds_the_stream_open_holds_up_nobody(start: Start) -> None:
    (channel,) = opened(start(), "sleep 4731 & echo done", ["n1"])
    assert read_all(channel) == b"done\n"


# ---------------------------------------------------------------- ends


def test_a_task_that_is_killed_is_one_node_lost(slurm4: Slurm, start: Start) -> None:
    transport = start()
    first, second = opened(transport, "cat", ["n1", "n2"])
    slurm4.lab.host("n2").run(["pkill", "-KILL", "-o", "-f", "g=lambda n:"])
    with pytest.raises(LinkLost, match="n2: task 1: Killed"):
        second.recv(5)
    assert not second.alive
    first.send(b"still here")
    assert first.recv(5) == b"still here"
    assert "task 1: Killed" in str(why(transport, "n2"))


def test_a_step_that_is_cancelled_is_told_in_slurms_words(slurm4: Slurm, start: Start) -> None:
    transport = start()
    channels = opened(transport, "cat")
    job = slurm4.run("squeue", "--noheader", "--format=%i").stdout.strip()
    slurm4.run("scancel", f"{job}.0", check=True)
    # srun does not always hear the words before it has ended, and then says what it saw.
    words = r"the Slurm step was cancelled: STEP .* CANCELLED AT|task \d: Killed"
    for channel in channels:
        with pytest.raises(LinkLost, match=words):
            channel.recv(60)
    assert re.search(words, str(why(transport, "n1")))
    with pytest.raises(LinkLost):
        channels[0].send(b"x")


# ---------------------------------------------------------------- nodes that take no part


def test_nodes_are_found_by_name_and_else_by_address(slurm4: Slurm, start: Start) -> None:
    address = slurm4.lab.host("n2").address
    transport = start(
        node("n1", "10.9.9.9"), node("second", address), node("third", "n3"), node("n9")
    )
    for name, host in (("n1", b"n1\n"), ("second", b"n2\n"), ("third", b"n3\n")):
        assert read_all(transport.open(node(name), "hostname")) == host
    lost = why(transport, "n9")
    assert (lost.reason, str(lost)) == ("name_unknown", "Slurm knows no node n9")


def test_a_drained_node_keeps_nobody_from_the_others(slurm4: Slurm, start: Start) -> None:
    slurm4.run("scontrol", "update", "node=n2", "state=drain", "reason=bad cable", check=True)
    try:
        transport = start()
        assert [read_all(channel) for channel in opened(transport, "hostname", ["n1", "n4"])] == [
            b"n1\n",
            b"n4\n",
        ]
        lost = why(transport, "n2")
        transport.close()
    finally:
        slurm4.run("scontrol", "update", "node=n2", "state=resume", check=True)
        slurm4.wait_state("idle", *NAMES)
    assert (lost.reason, lost.answered) == ("refused", False)
    assert "Slurm says IDLE+DRAIN: bad cable" in str(lost)


@contextlib.contextmanager
def allocated(slurm: Slurm, *names: str) -> Iterator[str]:
    """The number of a job that has these nodes."""
    slurm.run(
        "salloc",
        "--quiet",
        "--no-shell",
        "--exclusive",
        f"--nodelist={','.join(names)}",
        check=True,
    )
    job = slurm.run("squeue", "--noheader", "--format=%i").stdout.strip()
    try:
        yield job
    finally:
        slurm.run("scancel", job)
        slurm.wait_state("idle", *NAMES)


def test_a_node_without_slurmd_keeps_nobody_from_the_others(
    slurm4: Slurm, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm has not noticed yet; it would end the step of all after some ten seconds."""
    host = slurm4.lab.host("n3")
    with allocated(slurm4, *NAMES) as job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        slurm4.stop_slurmd(host)
        try:
            transport = start()
            assert [
                read_all(channel) for channel in opened(transport, "hostname", ["n1", "n4"])
            ] == [b"n1\n", b"n4\n"]
            lost = why(transport, "n3")
            transport.close()
        finally:
            slurm4.start_slurmd(host)
    assert (lost.reason, lost.answered) == ("refused", False)
    assert f"slurmd of n3: {host.address} port 6818 refuses TCP connections" in str(lost)


@pytest.mark.slow
def test_a_node_whose_slurmd_hangs_keeps_nobody_from_the_others(
    slurm4: Slurm, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is taken, and the task not started."""
    host = slurm4.lab.host("n4")
    with allocated(slurm4, *NAMES) as job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        host.run(["pkill", "-STOP", "-x", "slurmd"])
        try:
            transport = start(*(node(name, limit=2.0) for name in NAMES))
            assert [
                read_all(channel) for channel in opened(transport, "hostname", ["n1", "n3"])
            ] == [b"n1\n", b"n3\n"]
            lost = why(transport, "n4")
            transport.close()
        finally:
            host.run(["pkill", "-CONT", "-x", "slurmd"])
    assert (lost.reason, str(lost)) == ("timed_out", "Slurm did not start the task of n4 in 2 s")


def test_within_an_allocation_only_its_nodes_take_part(
    slurm4: Slurm, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what runs there; and from without, nodes that belong to jobs are left alone."""
    with allocated(slurm4, "n1", "n2") as job:
        outside = start()
        busy = why(outside, "n1")
        assert read_all(*opened(outside, "hostname", ["n3"])) == b"n3\n"
        outside.close()
        changing = {
            "SLURM_LABELIO": "0",
            "SLURM_UNBUFFEREDIO": "1",
            "SLURM_NTASKS": "7",
            "SLURM_JOB_ID": job,
        }
        for name, value in changing.items():
            monkeypatch.setenv(name, value)
        transport = start()
        assert [read_all(channel) for channel in opened(transport, "hostname", ["n1", "n2"])] == [
            b"n1\n",
            b"n2\n",
        ]
        lost = why(transport, "n3")
        transport.close()
    assert (busy.reason, str(busy)) == (
        "busy",
        "all of n1 belongs to jobs, so that Slurm starts nothing of ours there",
    )
    assert lost.reason == "refused"
    assert f"n3 is not part of the allocation that this runs in: job {job} has n[1-2]" in str(lost)
    assert f"Slurm has no running job {job}" in str(why(start(), "n1"))


def test_srun_waits_for_resources_no_longer_than_for_a_login(slurm4: Slurm, start: Start) -> None:
    slurm4.run("scontrol", "update", "partition=main", "state=down", check=True)
    try:
        lost = why(start(*(node(name, limit=1.0) for name in NAMES)), "n1")
    finally:
        slurm4.run("scontrol", "update", "partition=main", "state=up", check=True)
    assert lost.reason == "timed_out"
    assert "srun waits for resources: after 1 s its job is PENDING (PartitionDown)" in str(lost)
    assert not slurm4.run("squeue", "--noheader").stdout


def test_what_srun_refuses_is_said_in_its_words(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PARTITION", "nowhere")
    lost = why(start(), "n1")
    assert lost.reason == "refused"
    assert "invalid partition specified: nowhere" in str(lost)


def test_a_missing_srun_is_said(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    lost = why(start(), "n1")
    assert (lost.reason, lost.answered) == ("missing_tool", False)
    assert "there is no srun on this machine" in str(lost)
    assert "transport: ssh" in lost.remedy


def test_a_missing_slurmctld_is_said(
    slurm4: Slurm, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm's commands try for longer than a user wants to wait."""
    conf = tmp_path / "slurm.conf"
    conf.write_text((slurm4.folder / "slurm.conf").read_text() + "SlurmctldPort=6999\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    lost = why(start(*(node(name, limit=1.0) for name in NAMES)), "n1")
    assert lost.reason == "timed_out"
    assert "Slurm gave no answer to `scontrol` in 1 s" in str(lost)


def test_a_node_without_python_says_so(slurm4: Slurm, start: Start) -> None:
    host, hidden = slurm4.lab.host("n3"), ("/usr/bin/python3", "/usr/bin/python3.hidden")
    host.run(["mv", *hidden])
    try:
        transport = start(*(replace(node(name), python="/none") for name in NAMES))
        assert read_all(*opened(transport, "hostname", ["n4"])) == b"n4\n"
        lost = why(transport, "n3")
    finally:
        host.run(["mv", *hidden[::-1]])
    assert (lost.reason, str(lost)) == ("no_python", "no python3 was found on the node")


def test_a_command_is_killed_before_its_input_ends(start: Start) -> None:
    """sudo that waits for a password takes the end of its input for a wrong one."""
    (channel,) = opened(start(), "echo on; cat; echo its input ended >&2; sleep 60", ("n1",))
    assert channel.recv(10) == b"on\n"
    channel.kill()
    assert channel.recv(10) == b""
    assert b"its input ended" not in channel.stderr()
    channel.close()
