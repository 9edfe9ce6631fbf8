"""Results of collectives on four real hosts.

Exact on sound ones; a rank that computes wrong values is named.

The faults are in the job's own interpreter, where those of hardware show: what it finds first on
its path changes torch's collectives on one host, as a broken device or library would.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Answer, clusterprep
from tests.support.lab import Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
QUICK = {"sizes": ["8", "64K"], "timeout": 20}
HOME, SITE = "/opt/job/bin/python", "/opt/job/site"
OTHERS = ["all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all"]

# What stands in sitecustomize.py of the job's interpreter on one host: it waits for torch, and
# changes it.
SPOILED = """
import os, sys, threading, time
def spoil():
    while not hasattr(sys.modules.get("torch.distributed"), "{name}"):
        time.sleep(0.005)
    dist = sys.modules["torch.distributed"]
    right = dist.{name}
    def {name}(tensor, *more, **words):
        mine = os.environ["LOCAL_RANK"] == "1" and tensor.numel() > 1000
        if mine:
            {before}
        done = right(tensor, *more, **words)
        if mine:
            {after}
        return done
    dist.{name} = {name}
threading.Thread(target=spoil, daemon=True).start()
"""

SLOWED = """
def slow():
    while not hasattr(sys.modules.get("torch"), "Tensor"):
        time.sleep(0.005)
    copy = sys.modules["torch"].Tensor.copy_
    def copy_(self, *more):
        time.sleep(0.2 if self.numel() > 100000 else 0)
        return copy(self, *more)
    sys.modules["torch"].Tensor.copy_ = copy_
threading.Thread(target=slow, daemon=True).start()
"""


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    """The job's python on all hosts is a wrapper that puts a folder first on the path."""
    with contextlib.ExitStack() as stack:
        for host in lab4.hosts:
            text = f'#!/bin/sh\nPYTHONPATH={SITE} exec {sys.executable} "$@"\n'
            stack.enter_context(faults.written(host, HOME, text, 0o755))
        yield lab4
    for host in lab4.hosts:
        assert host.processes("clusterprep") == []


def verify(lab: Lab, *words: str, inventory: Path | None = None, **settings: object) -> Answer:
    target = inventory or lab.inventory(verify=QUICK | settings, python=HOME, nproc_per_node=2)
    return clusterprep(lab, "verify", *words, inventory=target)


def spoiled(lab: Lab, name: str, before: str = "pass", after: str = "pass") -> faults.Fault:
    text = SPOILED.format(name=name, before=before, after=after)
    return faults.written(lab.host("n3"), f"{SITE}/sitecustomize.py", text)


def culprits(found: Answer) -> list[tuple[str, list[str], int | None]]:
    rows = found.report["verify"]["culprits"]
    return [(row["kind"], row["nodes"], row["rank"]) for row in rows if "slow" not in row["cause"]]


def names(lab: Lab) -> list[str]:
    return [host.name for host in lab.hosts]


def test_all_collectives_are_exact_on_sound_hosts(lab: Lab) -> None:
    found = verify(lab)
    rows = found.report["verify"]["collectives"]
    assert [row["op"] for row in rows] == [*["all_reduce"] * 4, *OTHERS]
    assert [row.get("dtype") for row in rows[2:4]] == ["bfloat16", "int32"]
    assert all(row["wrong"] == 0 for row in rows)
    assert culprits(found) == []
    for check in (
        "nccl.correct",
        "nccl.broadcast",
        "nccl.allgather",
        "nccl.init_time",
        "rank.consistency",
    ):
        assert found.blamed(check, "pass") == names(lab)


@pytest.mark.parametrize(
    ("name", "before", "cause"),
    [
        pytest.param(
            "all_reduce",
            "tensor[777] = -tensor[777]",
            "is wrong on all others in all_reduce",
            id="a-sign",
        ),
        pytest.param(
            "all_reduce",
            "tensor.zero_()",
            "is missing in all_reduce",
            id="nothing",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "broadcast", "tensor[5] += 1", "is wrong on all others in broadcast", id="one-element"
        ),
    ],
)
def test_a_rank_that_gives_wrong_values_is_named(
    lab: Lab, name: str, before: str, cause: str
) -> None:
    with spoiled(lab, name, before):
        found = verify(lab)
    assert (found.code, culprits(found)) == (1, [("rank", ["n3"], 5)])
    check = "nccl.broadcast" if name == "broadcast" else "nccl.correct"
    assert found.blamed(check) == ["n3"]
    assert found.blamed("nccl.hang", "pass") == names(lab)
    (culprit,) = (row for row in found.report["verify"]["culprits"] if row["rank"] == 5)
    assert cause in culprit["cause"]
    index = {"all_reduce": 0 if "zero" in before else 777, "broadcast": 5}[name]
    assert any(f"first at element {index}:" in line for line in culprit["evidence"])


@pytest.mark.slow
def test_a_rank_that_gets_wrong_values_is_named(lab: Lab) -> None:
    with spoiled(lab, "all_reduce", after="tensor[4321] += 1"):
        found = verify(lab)
    assert (found.code, culprits(found)) == (1, [("rank", ["n3"], 5)])
    (culprit,) = (row for row in found.report["verify"]["culprits"] if row["rank"] == 5)
    assert "wrong here and right elsewhere" in culprit["cause"]
    assert "first at element 4321:" in culprit["evidence"][0]


@pytest.mark.slow
def test_a_rank_that_takes_long_between_collectives_is_a_straggler(lab: Lab) -> None:
    """As on a node whose memory or clock is slow.

    What fills a piece of a buffer takes a tenth of a second longer.
    """
    text = SPOILED.split("def spoil", maxsplit=1)[0] + SLOWED
    with faults.written(lab.host("n2"), f"{SITE}/sitecustomize.py", text):
        found = verify(lab, sizes=["16M"])
    (row,) = found.findings("nccl.straggler")
    assert (row["nodes"], row["severity"]) == (["n2"], "warning")
    assert (
        "rank [2-3] on n2 keeps the others waiting between collectives of 16 MiB" in row["message"]
    )
    assert culprits(found) == []
    assert found.report["verify"]["verdict"] == "pass" or found.findings("net.tcp_bw")


def test_another_package_variable_or_file_on_one_host_is_listed(lab: Lab) -> None:
    with contextlib.ExitStack() as stack:
        for host in lab.hosts:
            version = "2.0" if host.name == "n3" else "1.0"
            place = f"{SITE}/example_data-{version}.dist-info/METADATA"
            stack.enter_context(
                faults.written(host, place, f"Name: example-data\nVersion: {version}\n")
            )
            text = "seed: 1\n" if host.name == "n2" else "seed: 0\n"
            stack.enter_context(faults.written(host, "/etc/job.yaml", text))
        wrapper = (
            f'#!/bin/sh\nexport NCCL_ALGO=Tree PYTHONPATH={SITE}\nexec {sys.executable} "$@"\n'
        )
        stack.enter_context(faults.written(lab.host("n4"), HOME, wrapper, 0o755))
        found = verify(lab, same_files=["/etc/job.yaml"])
    rows = {row["nodes"][0]: row for row in found.findings("rank.consistency")}
    assert {tuple(row["nodes"]) for row in rows.values()} == {("n2",), ("n3",), ("n4",)}
    assert "example-data: 1.0 on rank [0-3,6-7], 2.0 on rank [4-5]" in rows["n3"]["seen"]
    assert "/etc/job.yaml" in rows["n2"]["message"]
    assert "NCCL_ALGO: none on rank [0-5], Tree on rank [6-7]" in rows["n4"]["seen"]
    assert all(row["severity"] == "warning" for row in rows.values())
    assert culprits(found) == []
