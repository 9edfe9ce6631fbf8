"""What a runtime of shells answers, and that a node without one is asked nothing more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterprep.facts.runtime import WRITTEN, Complaint, Setup, shell_runtime_reads
from clusterprep.model import Container, EnvSetting, Inventory, Node, Runtime
from clusterprep.nccl.environment import render
from clusterprep.survey import registry
from tests.support.fleet import healthy, learned

VENV = Runtime(venv="/opt/venv")
ENTERED = {
    "python": "/opt/venv/bin/python3",
    "prefix": "/opt/venv",
    "environment": "",
    "env": {"NCCL_DEBUG": "INFO"},
    "unset": ["NCCL_NET"],
    "lowered": {"nofile": ["65536", "1024"]},
    "complaints": [["source /sw/env.sh", 1, "no such file"]],
    "files": [],
    "modules": {},
    "libraries": {},
}


def test_an_entered_runtime() -> None:
    assert learned("rt.setup", ["ok", ENTERED], runtime=VENV) == Setup(
        python="/opt/venv/bin/python3",
        prefix="/opt/venv",
        env={"NCCL_DEBUG": "INFO"},
        unset=("NCCL_NET",),
        lowered={"nofile": ("65536", "1024")},
        complaints=(Complaint("source /sw/env.sh", 1, "no such file"),),
    )


def test_one_that_cannot_be_entered() -> None:
    failed = ["ok", {"failed": ["no_file", "there is no file /sw/env.sh"]}]
    assert learned("rt.setup", failed, runtime=VENV) == Setup(
        "no_file", "there is no file /sw/env.sh"
    )


@pytest.mark.parametrize("key", ["python", "prefix", "env", "unset", "lowered", "complaints"])
@pytest.mark.parametrize("value", [None, 7, [7], [["a"]]])
def test_another_shape_is_garbled(key: str, value: Any) -> None:
    answer = ["ok", {**ENTERED, key: value}]
    assert learned("rt.setup", answer, runtime=VENV).reason == "garbled"


def node(runtime: Runtime | None) -> Node:
    return Node("n1", "10.0.0.1", 0, runtime=runtime, env={"MINE": EnvSetting("1", "env")})


def reads(runtime: Runtime | None) -> dict[str, tuple[Any, ...]]:
    """The arguments of all reads of a node, by their kind, of those that know runtimes."""
    subject = node(runtime)
    asked = {}
    for fact in registry.facts().values():
        for read in fact.reads(subject, Inventory("c", (subject,))):
            if read.kind in ("job_python", "nccl_address", "shell_runtime"):
                asked[read.kind] = read.args
    return asked


def test_a_node_without_a_runtime_is_asked_as_before() -> None:
    asked = reads(None)
    assert {kind: len(arguments) for kind, arguments in asked.items()} == {
        "job_python": 3,
        "nccl_address": 4,
    }
    assert learned("rt.setup") is None


def test_what_is_about_the_job_is_asked_inside() -> None:
    asked = reads(Runtime(modules=("cuda/12.4",), venv="/opt/venv"))
    told = {"modules": ["cuda/12.4"], "venv": "/opt/venv"}
    assert json.loads(asked["job_python"][3]) == told
    assert json.loads(asked["nccl_address"][4]) == told
    assert json.loads(asked["shell_runtime"][2]) == told
    assert {"MINE", *WRITTEN} == {*asked["shell_runtime"][3]}


def test_containers_are_asked_in_their_own_way() -> None:
    container = Runtime(container=Container("podman", "image"))
    assert shell_runtime_reads(node(container), Inventory("c", ())) == ()


def test_every_variable_that_is_derived_is_looked_at() -> None:
    derived = {value.name for value in render(healthy()).values}
    assert derived <= {*WRITTEN}
