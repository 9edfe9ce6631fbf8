"""Leftovers of launchers: right where they agree with the inventory, wrong where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
from tests.support.fleet import absent, eth, findings, fleet, nvml, told

CHECK = "launch.ranks"


def node(number: int, path: str = "login shell", **values: str) -> dict[str, Any]:
    settings = tuple(Setting(name, value, "/root/.bashrc", 3) for name, value in values.items())
    return {
        "env.paths": {"login shell": (), "nccl": (), path: settings},
        "gpu.nvml": nvml(8),
        "net.interfaces": (eth("eth0", f"10.0.0.{number}/16"),),
        "ssh.peer": f"10.0.0.{number}",
    }


def second(nproc: int | None = 8, **values: str) -> str:
    """What is said of the second of two nodes that has these in its ~/.bashrc."""
    found = fleet(each={"nproc_per_node": nproc}, n1=node(1), n2=node(2, **values))
    answers = told(found, CHECK)
    assert answers["n1"] == "pass"
    return answers["n2"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"NODE_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
        {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
        {"MASTER_ADDR": "10.0.0.1"},
        {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_RDZV_ENDPOINT": "n1:29500"},
        {"PET_NNODES": "2:2", "PET_RDZV_BACKEND": "c10d", "PET_STANDALONE": "0"},
        {"CUDA_HOME": "/usr/local/cuda"},
    ],
)
def test_what_agrees_is_left_alone(values: dict[str, str]) -> None:
    assert second(**values) == "pass"


@pytest.mark.parametrize(
    "values",
    [
        {"MASTER_ADDR": "fd00::1"},
        {"PET_RDZV_ENDPOINT": "[fd00::1]:29500"},
        {"MASTER_ADDR": "FD00:0:0::1"},
        {"PET_RDZV_ENDPOINT": "[fd00:0::1]:29400"},
        {"MASTER_ADDR": "fd00::2"},
    ],
)
def test_the_first_node_may_be_named_by_ipv6(values: dict[str, str]) -> None:
    dual = {**node(1), "net.interfaces": (eth("eth0", "10.0.0.1/16", ipv6=("fd00::1/64",)),)}
    said = told(fleet(n1=dual, n2=node(2, **values)), CHECK)
    assert said["n2"] == ("fail error" if "fd00::2" in values.values() else "pass")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "0"),
        ("RANK", "8"),  # right for one of its eight ranks
        ("LOCAL_RANK", "0"),
        ("NODE_RANK", "0"),
        ("GROUP_RANK", "2"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("NNODES", "4"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_ADDR", "10.0.0.2"),
        ("MASTER_PORT", "12355"),
        ("PET_NNODES", "1:4"),
        ("PET_RDZV_ENDPOINT", "old-master:29400"),
        ("PET_STANDALONE", "1"),
    ],
)
def test_what_contradicts_is_named_with_its_place(name: str, value: str) -> None:
    assert second(**{name: value}) == "fail error"
    (bad,) = [
        f
        for f in findings(fleet(n1=node(1), n2=node(2, **{name: value})), CHECK)
        if f.verdict == "fail"
    ]
    assert f"{name}={value} from /root/.bashrc line 3" in bad.seen
    assert bad.remedy.endswith("# &/' /root/.bashrc")


def test_one_rank_on_a_node_may_have_its_number() -> None:
    assert second(1, RANK="1", LOCAL_RANK="0", WORLD_SIZE="2") == "pass"
    assert second(1, RANK="0") == "fail error"


def test_nccl_conf_sends_nobody_anywhere() -> None:
    assert set(told(fleet(n1=node(1), n2=node(2, "nccl", MASTER_ADDR="old")), CHECK).values()) == {
        "pass"
    }


def test_where_gpus_cannot_be_counted_only_their_numbers_are_left_out() -> None:
    lost = {"gpu.nvml": absent("hung")}
    found = fleet(n1={**node(1), **lost}, n2={**node(2, WORLD_SIZE="3", NODE_RANK="0"), **lost})
    (bad,) = [f for f in findings(found, CHECK) if f.verdict == "fail"]
    assert "NODE_RANK=0" in bad.seen
