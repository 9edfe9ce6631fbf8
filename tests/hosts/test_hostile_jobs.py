"""A hostile node in verify and in launch.

No lie of it makes a pass or blames another node, the processes of the others end, and the command
ends in time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.command import Answer, clusterprep
from tests.support.hostile import JOBS, hostile
from tests.support.lab import Lab

pytestmark = pytest.mark.hosts

LIAR = "n2"
HONEST = ("n1", "n3", "n4")
TIMEOUT = 10  # seconds of verify
MOST = 60  # seconds of a command
PROGRAM = "sleep 4.25; test $RANK != 0 || sleep 300.25"


@pytest.fixture
def lab(lab4: Lab) -> Iterator[Lab]:
    """The module's lab; nothing that was started runs on behind a test."""
    yield lab4
    for host in lab4.hosts:
        if host.name in HONEST:
            assert host.processes("clusterprep-rank|sleep [34]") == []


def culprits(seen: Answer, part: str) -> list[list[str]]:
    return [row["nodes"] for row in seen.report[part]["culprits"]]


@pytest.mark.parametrize(
    "way",
    [
        "others_rank",
        pytest.param("babbles", marks=pytest.mark.slow),
        pytest.param("never_ends", marks=pytest.mark.slow),
    ],
)
def test_launch_ends_and_names_the_node(lab: Lab, way: str) -> None:
    """Rank 0 would go on for minutes; it is ended when the hostile node is known for what it is."""
    words = ["--direct", "--no-preflight"]
    if way == "never_ends":
        words += ["--timeout", "8"]
    began = time.monotonic()
    with hostile(lab.host(LIAR), way):
        inventory = lab.inventory(lab.folder / "job.yaml", nproc_per_node=1)
        seen = clusterprep(
            lab, "launch", *words, "--", "sh", "-c", PROGRAM, inventory=inventory, timeout=MOST
        )
    assert seen.code != 0
    assert time.monotonic() - began < MOST
    assert seen.report["verdict"] != "pass"
    if way != "never_ends":  # that one does its part, and only does not end it
        assert culprits(seen, "launch") == [[LIAR]]


@pytest.mark.torch
@pytest.mark.parametrize(
    "way",
    ["pretends", *(pytest.param(way, marks=pytest.mark.slow) for way in JOBS if way != "pretends")],
)
def test_verify_never_passes_by_a_lie_and_blames_no_other_node(lab: Lab, way: str) -> None:
    began = time.monotonic()
    with hostile(lab.host(LIAR), way):
        inventory = lab.inventory(
            lab.folder / "job.yaml",
            nproc_per_node=1,
            verify={"sizes": ["8", "1M"], "timeout": TIMEOUT},
        )
        seen = clusterprep(lab, "verify", inventory=inventory, timeout=2 * MOST)
    assert time.monotonic() - began < 2 * MOST
    if way == "never_ends":  # its ranks did what they should, and end with its agent
        assert all(nodes == [LIAR] for nodes in culprits(seen, "verify"))
        return
    assert seen.code != 0
    assert seen.report["verify"]["verdict"] != "pass"
    assert culprits(seen, "verify") == [[LIAR]]
