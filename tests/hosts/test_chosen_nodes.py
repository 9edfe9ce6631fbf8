"""Good nodes of several, on four real hosts: --pick of verify, --spares of launch, both lists.

n1 is off the network. On n3 a second rank of torch computes wrong values, where a test says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.launch import TABLE, tables
from tests.support.command import CLI, Answer, answer, clusterprep
from tests.support.lab import Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
HOME, SITE = "/opt/job/bin/python", "/opt/job/site"
# In the interpreter of the job on n3: every large all-reduce is wrong by one.
SPOILED = """
import sys, threading, time
def spoil():
    while not hasattr(sys.modules.get("torch.distributed"), "all_reduce"):
        time.sleep(0.005)
    dist = sys.modules["torch.distributed"]
    right = dist.all_reduce
    def all_reduce(tensor, *more, **words):
        done = right(tensor, *more, **words)
        tensor.add_(1 if tensor.numel() > 1000 else 0)
        return done
    dist.all_reduce = all_reduce
threading.Thread(target=spoil, daemon=True).start()
"""


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    """Four hosts of which n1 cannot be reached."""
    cable = faults.cable_out(lab4.host("n1"))
    yield lab4
    cable.undo()


def inventory(lab: Lab, python: str = sys.executable) -> Path:
    content = lab.inventory_content()
    ssh = {**content["ssh"], "connect_timeout": 2}
    verify = {"sizes": ["8", "64K"], "timeout": 20}
    return lab.inventory(ssh=ssh, python=python, nproc_per_node=1, verify=verify)


def test_verify_finds_the_good_ones_and_tries_them_alone(lab: Lab, tmp_path: Path) -> None:
    wrapper = f'#!/bin/sh\nPYTHONPATH={SITE} exec {sys.executable} "$@"\n'
    for host in lab.hosts[1:]:
        host.write(HOME, wrapper, 0o755)
        host.write(f"{SITE}/sitecustomize.py", SPOILED if host.name == "n3" else "", 0o644)
    try:
        words = ("--pick", "2", "--write-lists", str(tmp_path))
        found = clusterprep(lab, "verify", *words, inventory=inventory(lab, HOME))
    finally:
        for host in lab.hosts[1:]:
            host.run(["rm", "-r", "/opt/job"])
    lists = found.report["lists"]
    assert (found.code, found.report["verdict"]) == (0, "pass"), found.report["notices"]
    assert lists["picked"] == lists["passing"] == ["n2", "n4"]
    assert (lists["failing"], lists["unknown"]) == (["n3"], ["n1"])
    assert found.report["verify"]["world_size"] == 2
    assert "n[2,4] pass the all-reduce without the others" in found.report["notices"]
    assert (tmp_path / "hostfile").read_text() == (
        "# n2\n10.77.0.3 slots=1\n# n4\n10.77.0.5 slots=1\n"
    )
    assert (tmp_path / "exclude.txt").read_text() == "n[1,3]\n"


def launched(lab: Lab, *words: str) -> Answer:
    argv = [*CLI, "launch", str(inventory(lab)), "--format", "json", *words]
    return answer(lab.controller.run(argv, timeout=110))


def test_a_job_runs_on_the_nodes_that_are_left(lab: Lab) -> None:
    found = launched(lab, "--spares", "1", "--direct", "--", TABLE)
    assert found.code == 0, found.stderr[-4000:]
    rows = tables(found)
    assert [(row["RANK"], row["node"]) for row in rows] == [("0", "n2"), ("1", "n3"), ("2", "n4")]
    assert {row["MASTER_ADDR"] for row in rows} == {"10.77.0.3"}
    assert "left out: n1: ssh.reach unknown on n1" in found.report["notices"]


def test_a_spare_takes_the_place_of_the_node_where_ranks_cannot_meet(lab: Lab) -> None:
    """n2 would be the first one, and another program has its port."""
    holds = "import socket, time; it = socket.create_server(('', 29500)); print(flush=True)"
    listener = lab.host("n2").popen(
        [sys.executable, "-c", f"{holds}; time.sleep(99)"], stdout=subprocess.PIPE
    )
    with listener:
        assert listener.stdout is not None
        listener.stdout.readline()
        found = launched(lab, "--spares", "2", "--direct", "--", TABLE)
        listener.kill()
    assert found.code == 0, json.dumps(found.report["notices"])
    assert [row["node"] for row in tables(found)] == ["n3", "n4"]


def test_without_spares_nothing_starts_and_the_text_has_all_nodes(lab: Lab) -> None:
    found = launched(lab, "--direct", "--", TABLE)
    assert (found.code, found.report["launch"]["ranks"]) == (3, [])
    argv = [*CLI, "launch", str(inventory(lab)), "--print", "hostfile", "--", TABLE]
    printed = lab.controller.run(argv, timeout=60)
    assert printed.returncode == 3
    assert printed.stdout.splitlines()[0].startswith("# not reached: n1 (")
    assert printed.stdout.count("slots=1") == 4
