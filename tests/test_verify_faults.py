"""Ranks and nodes that die, stop or vanish while the all-reduce runs: each is named, and nothing is left behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Answer, clusterprep, finished, started
from tests.lab import Host, Lab, faults

TIMEOUT = 8  # seconds for one collective stage
LIMIT = 60 + TIMEOUT + 5  # the start's own limit, the stage's, and what the report may take


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    yield lab4
    for host in lab4.hosts:
        _gone(host)


def inventory(lab: Lab, **more: object) -> Path:
    words = {"nproc_per_node": 2, "verify": {"timeout": TIMEOUT, "sizes": ["8", "1M", "16M"]}, **more}
    return lab.inventory(lab.folder / "verify.yaml", **words)


def ranks_on(host: Host) -> list[int]:
    end = time.monotonic() + 30
    while len(host.processes("clusterprep-rank")) < 2:
        assert time.monotonic() < end, "no ranks appeared"
        time.sleep(0.02)
    return host.processes("clusterprep-rank")


def _gone(host: Host) -> None:
    end = time.monotonic() + 3
    while host.processes("clusterprep|EsSB") and time.monotonic() < end:
        time.sleep(0.05)
    assert host.processes("clusterprep|EsSB") == [], host.name


def culprits(answer: Answer) -> list[tuple[str, list[str], int | None]]:
    return [(c["kind"], c["nodes"], c["rank"]) for c in answer.report["verify"]["culprits"]]


def _finish(process: subprocess.Popen[str]) -> Answer:
    return finished(process, timeout=LIMIT)


def test_a_killed_rank_is_named(lab: Lab) -> None:
    process = started(lab, "verify", inventory=inventory(lab))
    victim = lab.host("n3")
    pid = ranks_on(victim)[1]
    time.sleep(1.5)
    victim.run(["kill", "-9", str(pid)])
    answer = _finish(process)
    assert answer.code == 1
    kind, nodes, rank = culprits(answer)[0]
    assert (kind, nodes) == ("rank", ["n3"])
    assert rank in (4, 5)
    assert answer.blamed("nccl.hang") == ["n3"]


def test_a_stopped_rank_is_named(lab: Lab) -> None:
    process = started(lab, "verify", inventory=inventory(lab))
    victim = lab.host("n2")
    pid = ranks_on(victim)[0]
    time.sleep(1.5)
    victim.run(["kill", "-STOP", str(pid)])
    answer = _finish(process)
    assert answer.code == 1
    kind, nodes, rank = culprits(answer)[0]
    assert (kind, nodes) == ("rank", ["n2"])
    assert rank in (2, 3)


def test_a_stopped_sshd_is_a_lost_node(lab: Lab) -> None:
    process = started(lab, "verify", inventory=inventory(lab))
    victim = lab.host("n4")
    ranks_on(victim)
    with faults.stop_sshd(victim):
        answer = _finish(process)
        assert answer.code in (1, 3)
        assert culprits(answer)[0][:2] == ("node", ["n4"])
    kept = {rank["node"]: rank["last_event"] for rank in answer.report["verify"]["ranks"]}
    assert set(kept) == {"n1", "n2", "n3", "n4"}


def test_a_dropped_interface_is_a_lost_node(lab: Lab) -> None:
    process = started(lab, "verify", inventory=inventory(lab))
    victim = lab.host("n4")
    ranks_on(victim)
    with faults.link_down(victim):
        answer = _finish(process)
    assert answer.code in (1, 3)
    assert culprits(answer)[0][:2] == ("node", ["n4"])
    end = time.monotonic() + 35  # the agent gives its controller 30 s
    while victim.processes("clusterprep") and time.monotonic() < end:
        time.sleep(0.2)


def test_a_node_without_torch_is_named_and_no_rank_starts(lab: Lab) -> None:
    content = lab.inventory_content()
    nodes = [{"name": "n[1-3]", "address": "10.77.0.[2-4]"}, {"name": "n4", "address": "10.77.0.5", "python": "/usr/bin/python3"}]
    answer = clusterprep(lab, "verify", inventory=inventory(lab, nodes=nodes, python=content["python"]))
    assert answer.code == 1
    assert answer.blamed("torch.version") == ["n4"]
    assert culprits(answer)[0][:2] == ("node", ["n4"])


def test_no_node_with_torch_is_not_known(lab: Lab) -> None:
    answer = clusterprep(lab, "verify", inventory=inventory(lab, python="/usr/bin/python3"))
    assert answer.code == 3
    assert answer.findings("torch.version", "unknown")[0]["reason"] == "missing_tool"
