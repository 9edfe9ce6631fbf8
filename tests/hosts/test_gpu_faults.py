"""Faults of GPUs on real hosts: each is blamed on its host, by its check and no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.command import Answer, clusterprep
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

AREAS = "gpu.,nvl.,fw.gpu,nv.module_vs_lib"


def check(lab: Lab, *gpus: dict[str, Any], **system: Any) -> Answer:
    """`check` of GPUs on four hosts with eight each, of which n3 differs so."""
    made = [
        faults.gpus(
            host,
            [{"count": 8}, *(gpus if host.name == "n3" else ())],
            **(system if host.name == "n3" else {}),
        )
        for host in lab.hosts
    ]
    try:
        return clusterprep(lab, "check", "--only", AREAS, "--skip", "gpu.xid")
    finally:
        for fault in made:
            fault.undo()


def told(answer: Answer) -> dict[tuple[str, str], str]:
    """Verdicts by check and host, but for what passes and is skipped."""
    return {
        (finding["check"], node): finding["verdict"]
        for finding in answer.report["findings"]
        if finding["verdict"] not in ("pass", "skip")
        for node in finding["nodes"]
    }


def test_healthy_gpus(lab4: Lab) -> None:
    answer = check(lab4)
    assert (told(answer), answer.code) == ({}, 0)
    assert answer.blamed("nvl.topology", "pass") == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("fault", "name", "code"),
    [
        pytest.param({"index": 3, "lost": "calls"}, "gpu.lost", 1, id="lost"),
        pytest.param(
            {"index": 3, "remap_failed": 1}, "gpu.remap", 1, id="memory-that-cannot-be-repaired"
        ),
        pytest.param({"index": 3, "power_enforced": 400}, "gpu.power_limit", 0, id="capped"),
        pytest.param({"index": 3, "vbios": "96.00.30.00.01"}, "fw.gpu", 0, id="other-firmware"),
    ],
)
def test_one_gpu_of_one_host(lab4: Lab, fault: dict[str, Any], name: str, code: int) -> None:
    answer = check(lab4, fault)
    assert (told(answer), answer.code) == ({(name, "n3"): "fail"}, code)


def test_libraries_of_another_version_than_the_module(lab4: Lab) -> None:
    answer = check(lab4, init=18)
    failed = {key for key, verdict in told(answer).items() if verdict == "fail"}
    assert failed == {("nv.module_vs_lib", "n3")}
    assert answer.code == 1


def test_a_driver_that_hangs_costs_its_own_limit_and_hides_nothing_of_other_hosts(
    lab4: Lab,
) -> None:
    answer = check(lab4, {"index": 2, "hangs": ["nvmlDeviceGetEccMode"]})
    assert {node for _, node in told(answer)} == {"n3"}
    assert answer.blamed("gpu.latency") == ["n3"]
    assert answer.code == 3  # a warning, and errors that are not known
    assert 10 <= answer.report["seconds"] < 20
