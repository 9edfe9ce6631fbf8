"""Processes of each node: declared, set in a launch path, or one for each visible GPU."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, nvml, told

CHECK = "launch.nproc"


def node(
    gpus: Any = 8, login: dict[str, str] | None = None, command: dict[str, str] | None = None
) -> dict[str, Any]:
    """What a login shell sets, and what an ssh command; alike where only one is given."""
    paths = {
        "login shell": login or {},
        "ssh command": (login or {}) if command is None else command,
        "nccl": {},
    }
    settings = {
        path: tuple(Setting(name, value, "/etc/environment", 1) for name, value in values.items())
        for path, values in paths.items()
    }
    return {"env.paths": settings, "gpu.nvml": nvml(gpus) if isinstance(gpus, int) else gpus}


def seen(*nodes: dict[str, Any], **settings: Any) -> Any:
    return fleet(each=settings, **{f"n{number}": facts for number, facts in enumerate(nodes, 1)})


FEWER = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}


def test_the_nodes_on_each_side_are_named() -> None:
    """Incident I-5: some nodes set CUDA_VISIBLE_DEVICES, some do not."""
    found = seen(node(), node(8, FEWER), node(), node(8, FEWER))
    assert set(told(found, CHECK).values()) == {"fail error"}
    (bad,) = findings(found, CHECK)
    assert (bad.nodes, bad.seen) == (("n1", "n2", "n3", "n4"), "8 on n[1,3]; 4 on n[2,4]")


def test_a_majority_blames_the_odd_one() -> None:
    assert told(seen(node(), node(7), node()), CHECK) == {
        "n1": "pass",
        "n2": "fail error",
        "n3": "pass",
    }


@pytest.mark.parametrize(
    ("login", "declared", "expected"),
    [
        ({}, None, "pass"),
        ({"NPROC_PER_NODE": "8"}, None, "pass"),
        ({"NPROC_PER_NODE": "4"}, None, "pass"),  # fewer, but all the same
        ({"NPROC_PER_NODE": "9"}, None, "fail error"),
        ({"PET_NPROC_PER_NODE": "9", "NPROC_PER_NODE": "8"}, None, "fail error"),
        ({"PET_NPROC_PER_NODE": "gpu"}, None, "pass"),
        ({"NPROC_PER_NODE": "4"}, 4, "pass"),
        ({"NPROC_PER_NODE": "8"}, 4, "fail error"),
        (FEWER, 4, "pass"),
        ({}, 16, "fail error"),
    ],
)
def test_on_each_of_two_nodes(login: dict[str, str], declared: int | None, expected: str) -> None:
    found = seen(node(8, login), node(8, login), gpus=Gpus(8), nproc_per_node=declared)
    assert told(found, CHECK) == {"n1": expected, "n2": expected}


def test_launch_paths_that_disagree_are_told_apart() -> None:
    found = seen(node(), node(8, {"NPROC_PER_NODE": "4"}, {}), node())
    (bad,) = [f for f in findings(found, CHECK) if f.verdict == "fail"]
    assert (bad.nodes, bad.seen) == (
        ("n2",),
        "8 on n[1,3]; 4 in login shell, 8 in ssh command on n2",
    )


def test_declared_numbers_that_differ_are_no_job() -> None:
    found = fleet(
        some={"n1": {"nproc_per_node": 8}, "n2": {"nproc_per_node": 4}}, n1=node(), n2=node()
    )
    assert set(told(found, CHECK).values()) == {"fail error"}


def test_without_a_driver_a_node_starts_one() -> None:
    assert set(
        told(seen(node(absent("missing_tool")), node(absent("missing_tool"))), CHECK).values()
    ) == {"pass"}


def test_gpus_that_cannot_be_counted_are_not_guessed() -> None:
    assert told(seen(node(), node(absent("hung")), node()), CHECK)["n2"] == "unknown error hung"
    assert set(
        told(seen(node(absent("hung")), node(absent("hung")), nproc_per_node=8), CHECK).values()
    ) == {"pass"}


def test_a_launch_path_that_is_not_known_passes_nobody() -> None:
    hole = node()
    hole["env.paths"] = {**hole["env.paths"], "login shell": absent("timed_out")}
    assert "unknown error timed_out" in told(seen(node(), hole), CHECK)["n2"]
