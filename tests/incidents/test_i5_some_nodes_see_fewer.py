"""Several nodes load the model and stop.

Some of them set CUDA_VISIBLE_DEVICES, so nodes started different numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.incidents.families import FAMILIES
from tests.jobs.launch import TABLE, tables
from tests.support.command import clusterprep
from tests.support.lab import Host, Lab, faults
from tests.support.lab.fixtures import require_lab

pytestmark = pytest.mark.hosts
NAMES = ("CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE")


@pytest.fixture(scope="module", params=FAMILIES)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Four nodes of eight GPUs each; half of them show their sessions four."""
    if request.param is None:
        shared: Lab = request.getfixturevalue("lab4")
        some_show_fewer(shared)
        yield shared
        return
    require_lab()
    with Lab(4, ipv6=request.param) as four:
        some_show_fewer(four)
        yield four


def some_show_fewer(lab: Lab) -> None:
    for host in lab.hosts:
        faults.gpus(host, [{"count": 8}])
    for host in lab.hosts[1::2]:
        faults.session_environment(host, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})


def seen_by_a_login(lab: Lab, host: Host) -> dict[str, str]:
    out = lab.controller.run([*lab.ssh(host), "bash -lc env"]).stdout
    return {
        name: value
        for name, _, value in (line.partition("=") for line in out.splitlines())
        if name in NAMES
    }


def test_sessions_differ_before(lab: Lab) -> None:
    assert [seen_by_a_login(lab, host) for host in lab.hosts] == [
        {},
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
    ] * 2


def test_the_nodes_of_each_side_are_named_before(lab: Lab) -> None:
    answer = clusterprep(
        lab, "check", "--only", "env.cuda_visible", inventory=lab.inventory(gpus=8)
    )
    assert answer.code == 1
    (found,) = answer.findings("env.cuda_visible")
    assert (found["nodes"], found["severity"]) == ([host.name for host in lab.hosts], "error")
    assert found["seen"] == "unset on n[1,3]; 0,1,2,3 on n[2,4]"


def test_the_number_of_processes_that_each_side_starts_is_told_before(lab: Lab) -> None:
    """On machines with GPUs; a launcher of the job counts those that it sees."""
    answer = clusterprep(lab, "check", "--only", "launch.nproc", inventory=lab.inventory(gpus=8))
    (found,) = answer.findings("launch.nproc")
    assert (answer.code, found["nodes"]) == (1, [host.name for host in lab.hosts])
    assert found["seen"] == "8 on n[1,3]; 4 on n[2,4]"


def test_one_command_for_all_nodes_starts_as_many_on_each(lab: Lab) -> None:
    """Whatever their sessions show.

    What the checks find of torch and of the library's stand-in is not asked here.
    """
    inventory = lab.inventory(gpus={"count": 8, "use": "0-3"}, nproc_per_node=4)
    found = clusterprep(
        lab, "launch", "--no-preflight", "--direct", "--", TABLE, inventory=inventory
    )
    assert found.code == 0
    rows = tables(found)
    assert [(row["node"], row["RANK"]) for row in rows] == [
        (f"n{rank // 4 + 1}", str(rank)) for rank in range(16)
    ]
    assert {(row["CUDA_VISIBLE_DEVICES"], row["LOCAL_WORLD_SIZE"]) for row in rows} == {
        ("0,1,2,3", "4")
    }


def test_a_node_that_shows_fewer_than_declared_is_named(lab: Lab) -> None:
    inventory = lab.inventory(gpus={"count": 8, "use": "0-7"}, nproc_per_node=8)
    answer = clusterprep(lab, "check", "--only", "env.cuda_visible", inventory=inventory)
    assert answer.blamed("env.cuda_visible") == ["n2", "n4"]


def test_apply_makes_device_list_and_number_of_ranks_equal_everywhere(lab: Lab) -> None:
    inventory = lab.inventory(gpus=8, nproc_per_node=8)
    answer = clusterprep(lab, "apply", "--no-verify", inventory=inventory)
    assert answer.outcomes() == {"done"}
    assert {seen_by_a_login(lab, host)["NPROC_PER_NODE"] for host in lab.hosts} == {"8"}

    narrowed = lab.inventory(gpus={"count": 8, "use": "0-3"}, nproc_per_node=4)
    answer = clusterprep(lab, "apply", "--no-verify", inventory=narrowed)
    values = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "NPROC_PER_NODE": "4"}
    assert [seen_by_a_login(lab, host) for host in lab.hosts] == [values] * 4
    written = {row["name"]: row for row in answer.report["env"]}
    assert written["NPROC_PER_NODE"]["nodes"] == [host.name for host in lab.hosts]
