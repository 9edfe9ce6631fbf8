"""Nodes that share this machine.

The whole command with real agents and real ranks, over its own interface or none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.jobs.verify.agents import children
from tests.jobs.verify.loopback import free_port
from tests.jobs.verify.moments import wait_for
from tests.support.command import CLI, Answer, finished

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
PATIENCE = 90  # seconds for what takes some on a machine with nothing else to do
LONG = ["8", *["4M"] * 400]  # far more than can be done before a rank is stopped
NO_NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def inventory(folder: Path, names: str, sizes: Sequence[str] = ("8", "1M"), **more: object) -> Path:
    """One node for each letter, all of them this machine.

    Under the address that every machine has.
    """
    nodes = [{"name": name, "address": "127.0.0.1", "env": {"NCCL_HOSTID": name}} for name in names]
    content = {
        "cluster": "one-machine",
        "transport": "local",
        "python": sys.executable,
        "gpus": 0,
        "ports": {"master": free_port()},
        "verify": {"sizes": list(sizes), "timeout": 10},
        "nodes": nodes,
    }
    path = folder / "inventory.yaml"
    path.write_text(json.dumps({**content, **more}))
    return path


@contextlib.contextmanager
def started(
    folder: Path, command: str, path: Path, before: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    pipe, state = subprocess.PIPE, {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    argv = [*before, *CLI, command, str(path), "--format", "json"]
    with subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=state
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ran(folder: Path, command: str, path: Path, before: Sequence[str] = ()) -> Answer:
    with started(folder, command, path, before) as process:
        return finished(process)


def below(pid: int) -> list[int]:
    """A process's children, theirs, and so on."""
    return [one for child in children(pid) for one in (child, *below(child))]


def ranks(pid: int) -> dict[int, int]:
    """The ranks that a command runs: number → process."""
    found = {}
    for one in below(pid):
        with contextlib.suppress(OSError):
            if said := re.search(
                "'clusterprep-rank ([0-9]+)'", Path(f"/proc/{one}/cmdline").read_text()
            ):
                found[int(said[1])] = one
    return found


def connected(pid: int, world: int) -> bool:
    """Whether every rank has reached the others.

    As many connections as there are, and one to the store.
    """
    own = ranks(pid)
    lines = subprocess.run(
        ["ss", "-tnpH", "state", "established"], capture_output=True, text=True, check=True
    ).stdout
    return len(own) == world and all(lines.count(f"pid={rank},") >= world for rank in own.values())


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_nodes_of_one_machine_pass(tmp_path: Path, names: str) -> None:
    found = ran(tmp_path, "verify", inventory(tmp_path, names))
    verify = found.report["verify"]
    assert (found.code, verify["verdict"], verify["culprits"]) == (0, "pass", [])
    assert (verify["backend"], verify["world_size"], verify["nproc_per_node"]) == (
        "gloo",
        len(names),
        1,
    )
    assert [(row["node"], row["local_rank"]) for row in verify["ranks"]] == [
        (name, 0) for name in names
    ]
    assert {row["wrong"] for row in verify["collectives"]} == {0}
    assert {stage["verdict"] for stage in verify["stages"]} <= {"pass", "skip"}
    assert found.failed() == {}
    (identity,) = found.findings("host.identity", "pass")
    assert identity["nodes"] == list(names)
    assert "share this machine on purpose" in identity["message"]
    for check in ("net.ports", "net.tcp_bw", "eth.iface_choice", "rank.consistency"):
        assert found.blamed(check, "pass") == list(names)
    pairs = len(names) * (len(names) - 1)
    assert (
        f"{pairs} of {pairs} directed pairs" in found.findings("net.tcp_bw", "pass")[0]["message"]
    )


@pytest.mark.hosts
def test_ranks_of_one_machine_need_no_network_but_loopback(tmp_path: Path) -> None:
    from tests.support.lab.fixtures import require_lab

    require_lab()
    found = ran(tmp_path, "verify", inventory(tmp_path, "ab"), NO_NETWORK)
    assert (found.code, found.report["verify"]["verdict"]) == (0, "pass")
    assert found.report["verify"]["rendezvous"].startswith("127.0.0.1:")
    (chosen,) = found.findings("eth.iface_choice", "pass")
    assert (chosen["nodes"], chosen["seen"]) == (["a", "b"], "lo")
    checked = ran(tmp_path, "check", inventory(tmp_path, "ab"), NO_NETWORK)
    for check in ("host.identity", "net.ports", "eth.iface_choice", "eth.mtu", "eth.path_mtu"):
        assert checked.blamed(check, "pass") == ["a", "b"], check
    for check in ("name.resolve", "net.firewall"):
        assert checked.blamed(check, "skip") == ["a", "b"], check


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("names", "stopped"), [("ab", 1), ("abcd", 2)])
def test_a_stopped_rank_is_named_and_nothing_is_left(
    tmp_path: Path, names: str, stopped: int
) -> None:
    with started(tmp_path, "verify", inventory(tmp_path, names, LONG)) as process:
        wait_for(lambda: connected(process.pid, len(names)), PATIENCE)
        everything, own = below(process.pid), ranks(process.pid)
        os.kill(own[stopped], signal.SIGSTOP)
        found = finished(process, timeout=PATIENCE)
    culprits = [
        (row["kind"], row["nodes"], row["rank"]) for row in found.report["verify"]["culprits"]
    ]
    assert (found.code, culprits) == (1, [("rank", [names[stopped]], stopped)])
    assert found.blamed("nccl.hang") == [names[stopped]]
    assert set(own.values()) < set(everything)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in everything), PATIENCE)


def test_without_host_ids_of_their_own_they_are_one_machine_listed_twice(tmp_path: Path) -> None:
    nodes = [{"name": name, "address": f"127.0.0.{number}"} for number, name in enumerate("ab", 1)]
    found = ran(tmp_path, "verify", inventory(tmp_path, "ab", nodes=nodes))
    assert found.code == 1
    (identity,) = found.findings("host.identity")
    assert identity["nodes"] == ["a", "b"]
    assert "NCCL_HOSTID" in identity["remedy"]
