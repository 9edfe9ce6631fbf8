"""CUDA_VISIBLE_DEVICES: nodes that differ, launch paths that differ, lists with holes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.model import Gpus
from tests.support.fleet import REASONS, absent, env, findings, fleet, told

CHECK = "env.cuda_visible"
FULL = "0,1,2,3,4,5,6,7"


def node(
    login: str | None = None, command: str | object | None = ..., **more: Any
) -> dict[str, Any]:
    """What both launch paths see, or each."""
    values = {"login shell": login, "ssh command": login if command is ... else command}
    paths = {
        path: ()
        if value is None
        else (Setting("CUDA_VISIBLE_DEVICES", str(value), "/etc/environment", 1),)
        for path, value in values.items()
    }
    return {"env.paths": {**paths, "nccl": (), **more}}


def eight(*nodes: dict[str, Any], **settings: Any) -> Any:
    named = {f"n{number}": facts for number, facts in enumerate(nodes, 1)}
    return fleet(each={"gpus": Gpus(8), **settings}, **named)


def test_the_nodes_on_each_side_are_named() -> None:
    seen = eight(node(), node("0,1,2,3"), node(), node("0,1,2,3"))
    assert told(seen, CHECK) == dict.fromkeys(("n1", "n2", "n3", "n4"), "fail error")
    (found,) = findings(seen, CHECK)
    assert found.seen == "unset on n[1,3]; 0,1,2,3 on n[2,4]"
    assert "/etc/environment line 1 of n2" in found.message


def test_a_majority_blames_the_odd_one() -> None:
    seen = eight(node(), node("0,1"), node(), node())
    assert told(seen, CHECK) == {"n1": "pass", "n2": "fail error", "n3": "pass", "n4": "pass"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "pass"),
        (FULL, "pass"),
        ("7,6,5,4,3,2,1,0", "pass"),
        ("0, 1,2,3,4,5,6,7", "pass"),
        ("0,1,2,3", "fail warning"),
        ("", "fail warning"),
        ("GPU-8932f937,GPU-1234abcd", "fail warning"),
        ("0,1,,3", "fail error"),
        ("0,1,-1,3", "fail error"),
        ("0,1,2,8", "fail error"),
        ("0,0,1", "fail error"),
    ],
)
def test_undeclared_and_the_same_everywhere(value: str | None, expected: str) -> None:
    assert set(told(eight(node(value), node(value)), CHECK).values()) == {expected}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,1,2,3", "pass"),
        (
            None,
            "pass",
        ),  # apply has not run yet, or writes a file that this launch path does not read
        ("0,1", "fail error"),
        (FULL, "fail error"),
    ],
)
@pytest.mark.parametrize(
    "declared",
    [
        {"gpus": Gpus(8, None, (0, 1, 2, 3))},
        {"env": env(CUDA_VISIBLE_DEVICES="0,1,2,3")},
        {"require": {CHECK: "0,1,2,3"}},
    ],
    ids=["use", "env", "require"],
)
def test_what_is_declared_is_held_against_it(
    value: str | None, expected: str, declared: dict[str, Any]
) -> None:
    assert told(eight(node(value), node("0,1,2,3"), **declared), CHECK) == {
        "n1": expected,
        "n2": "pass",
    }


def test_a_declared_list_of_one_launch_path_is_no_fault() -> None:
    """The file of profile.d does not reach an ssh command; the report says which paths have it."""
    seen = eight(node("0,1", None), node("0,1", None), gpus=Gpus(8, None, (0, 1)))
    assert told(seen, CHECK) == {"n1": "pass", "n2": "pass"}


def test_launch_paths_of_a_node_that_differ() -> None:
    seen = eight(node(FULL, None), node(FULL, None))
    assert told(seen, CHECK) == {"n1": "fail error", "n2": "fail error"}
    assert "launch paths" in findings(seen, CHECK)[0].message


def test_machines_of_other_kinds_are_not_compared() -> None:
    seen = fleet(
        some={"n1": {"gpus": Gpus(8)}, "n2": {"gpus": Gpus(4)}}, n1=node(FULL), n2=node("0,1,2,3")
    )
    assert told(seen, CHECK) == {"n1": "pass", "n2": "pass"}


def test_slurm_hands_out_devices_itself() -> None:
    slurm = (Setting("CUDA_VISIBLE_DEVICES", "0"),)
    assert told(eight(node(None, None, slurm=slurm)), CHECK) == {"n1": "pass"}


@pytest.mark.parametrize("reason", REASONS)
def test_not_knowing_is_as_grave(reason: str) -> None:
    whole = eight(node(), {"env.paths": absent(reason)})
    part = eight(node(), node(None, None, **{"login shell": absent(reason)}))
    assert told(whole, CHECK)["n2"] == told(part, CHECK)["n2"] == f"unknown error {reason}"


UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-d1b93026-6d5b-03bd-3a71-f85b47a61bde")


@pytest.mark.parametrize(
    ("value", "expected", "words"),
    [
        pytest.param(",".join(UUIDS), "fail warning", "hides GPUs", id="whole"),
        pytest.param("GPU-8932,GPU-d1b9", "fail warning", "hides GPUs", id="beginnings"),
        pytest.param(
            "GPU-8932,GPU-ffff", "fail error", "from item 2 on, which is «GPU-ffff»", id="gone"
        ),
        pytest.param("GPU-8932,GPU-8932f9", "fail error", "names a device twice", id="twice"),
    ],
)
def test_uuids_are_looked_up_where_nvml_was_asked(value: str, expected: str, words: str) -> None:
    gpus = tuple(
        Gpu(index, "NVIDIA H100", uuid, f"0000:{index:02x}:00.0")
        for index, uuid in enumerate(UUIDS)
    )
    known = {"gpu.nvml": Nvml("550.54.15", "12.4", gpus)}
    seen = fleet(each={"gpus": Gpus(2)}, n1={**node(value), **known})
    (found,) = findings(seen, CHECK)
    assert f"{found.verdict} {found.severity}" == expected
    assert words in found.message


def test_a_gpu_that_does_not_answer_may_have_any_uuid() -> None:
    known = {"gpu.nvml": Nvml("550.54.15", "12.4", (), ("GPU 1: gpu_lost",))}
    seen = fleet(each={"gpus": Gpus(2)}, n1={**node("GPU-ffff"), **known})
    assert told(seen, CHECK) == {"n1": "fail warning"}
