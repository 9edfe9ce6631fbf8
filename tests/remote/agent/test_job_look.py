"""Which processes are ranks, whoever started them, and what is told of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from clusterprep.jobs.live.look import parse_look
from clusterprep.remote.agent import job_look, tcp_diag

TORCHRUN = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
SRUN = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "77"}


def process(pid: int, parent: int, libraries: bool = False, **env: str) -> dict[str, Any]:
    """A process of the table."""
    row: dict[str, Any] = {"pid": pid, "parent": parent, "started": pid, "comm": "python"}
    row.update(uid=0, gid=0, env=env, libraries=libraries)
    row["number"] = job_look._number(env)
    return row


def found(*rows: dict[str, Any]) -> list[tuple[int, str | None]]:
    """Pid and number of each rank, without looking at the processes that run here."""
    table = {row["pid"]: row for row in rows}
    ranks = job_look._ranks(table)
    return [(rank["pid"], rank["rank"]) for rank in ranks]


FAR = 1 << 22  # pids that no process has


def pids(*numbers: int) -> list[int]:
    return [FAR + number for number in numbers]


ONE, TWO, THREE, FOUR = pids(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(
            [
                process(ONE, 1, True),
                process(TWO, ONE, True, RANK="0", **TORCHRUN),
                process(THREE, ONE, True, RANK="1", **TORCHRUN),
            ],
            [(TWO, "0"), (THREE, "1")],
            id="torchrun",
        ),
        pytest.param(
            [
                process(ONE, 1, True, SLURM_PROCID="0", **SRUN),
                process(TWO, ONE, True, SLURM_PROCID="0", RANK="0", **SRUN, **TORCHRUN),
            ],
            [(TWO, "0")],
            id="torchrun-under-srun",
        ),
        pytest.param(
            [
                process(ONE, 1, False, SLURM_PROCID="1", **SRUN),
                process(TWO, ONE, True, SLURM_PROCID="1", **SRUN),
            ],
            [(TWO, "1")],
            id="a-shell-under-srun",
        ),
        pytest.param(
            [
                process(ONE, 1, True, RANK="0", **TORCHRUN),
                process(TWO, ONE, True, RANK="0", **TORCHRUN),
                process(THREE, TWO, False, RANK="0", **TORCHRUN),
            ],
            [(ONE, "0")],
            id="data-loaders",
        ),
        pytest.param(
            [process(ONE, 1, True, OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="4")],
            [(ONE, "3")],
            id="mpirun",
        ),
        pytest.param([process(ONE, 1, True)], [(ONE, None)], id="ray"),
        pytest.param(
            [process(ONE, 1, True), process(TWO, ONE, True), process(THREE, ONE, True)],
            [(ONE, None)],
            id="spawn-under-its-script",
        ),
        pytest.param([process(ONE, 1)], [], id="no-rank"),
    ],
)
def test_ranks_of_every_launcher(rows: list[dict[str, Any]], expected: list[Any]) -> None:
    assert found(*rows) == expected


def test_of_an_environment_only_the_named_variables_are_read() -> None:
    data = b"RANK=1\0WORLD_SIZE=2\0AWS_SECRET_ACCESS_KEY=abc\0MASTER_ADDR=n1\0NCCL_RAS_ADDR=a:1\0"
    assert set(job_look._variables(data)) == {"RANK", "WORLD_SIZE", "MASTER_ADDR", "NCCL_RAS_ADDR"}


@pytest.fixture
def two_ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes with numbers that are connected with each other; the second one sends."""
    script = (
        "import os,socket,sys,time\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 0:\n"
        "    s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "    c, _ = s.accept()\n"
        "else:\n"
        "    c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); c.send(b'x' * 100)\n"
        "time.sleep(60)\n"
    )
    started: list[subprocess.Popen[bytes]] = []
    port = b"0"
    for rank in ("0", "1"):
        env = {**os.environ, **TORCHRUN, "RANK": rank, "SECRET": "hunter2", "MASTER_PORT": "41"}
        argv = [sys.executable, "-c", script, port.decode()]
        child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
        started.append(child)
        if rank == "0":
            assert child.stdout
            port = child.stdout.readline().strip()
    time.sleep(0.5)
    yield started
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout
        child.stdout.close()


def test_a_look_at_processes_that_run_here(two_ranks: list[subprocess.Popen[bytes]]) -> None:
    began = time.monotonic()
    raw = job_look.read_job(0.3)
    assert time.monotonic() - began < 3
    text = json.dumps(raw)
    assert "hunter2" not in text
    seen = parse_look(json.loads(text))
    mine = {child.pid: number for number, child in enumerate(two_ranks)}
    ranks = [each for each in seen.processes if each.pid in mine]
    assert {(each.pid, each.rank, each.size) for each in ranks} == {
        (pid, number, 2) for pid, number in mine.items()
    }
    for each in ranks:
        assert each.second is not None
        assert each.second.main is not None
        assert each.second.main.call in ("clock_nanosleep", "nanosleep")
        assert each.second.stack[0].path == "<string>"
    sockets = [row for row in seen.sockets if row.pid in mine]
    assert len(sockets) == 2
    assert {(row.state, row.old, row.passed) for row in sockets} == {(1, True, 0)}
    reader = next(row for row in sockets if row.pid == two_ranks[0].pid)
    assert reader.recvq == 100


def test_both_ways_to_read_sockets_agree() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            client.send(b"12345")
            inode = str(os.fstat(client.fileno()).st_ino)
            other = str(os.fstat(accepted.fileno()).st_ino)
            by_netlink = tcp_diag.read_sockets()
            by_file = tcp_diag.read_sockets_of(os.getpid())
            assert by_netlink is not None
            same = ("state", "address", "port", "peer", "peer_port", "recvq", "again", "probing")
            for one in (inode, other):
                assert [by_netlink[one][name] for name in same] == [
                    by_file[one][name] for name in same
                ]
            assert by_netlink[inode]["segments"] > by_netlink[inode]["resent"] == 0
            assert by_netlink[other]["received"] == by_netlink[other]["recvq"] == 5


def test_ras_is_asked_in_its_own_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        rank = {"rank": "0", "libraries": True, "network": False, "ras": f"localhost:{port}"}
        pid = os.fork()
        if pid == 0:
            accepted, _ = server.accept()
            asked = accepted.recv(100)
            accepted.sendall(b"OK\nNCCL version 2.28.9\n" + asked)
            os._exit(0)
        answer = job_look._ras([rank])
        os.waitpid(pid, 0)
    assert answer == "OK\nNCCL version 2.28.9\ntimeout 1\nverbose status\n"


def test_ras_that_does_not_listen_says_nothing() -> None:
    rank = {"rank": "0", "libraries": True, "network": False, "ras": "127.0.0.1:9"}
    assert job_look._ras([rank]) is None
    assert job_look._ras([{**rank, "rank": "1"}]) is None
