"""What every job gets, under the name that its torch reads."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.model import Gpus
from clusterprep.nccl.interfaces import Choice
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.job import derive
from tests.support.fleet import NO_TORCH, absent, env, fleet, same, torch

OLD, NEW = "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def derived(seen: Any) -> dict[tuple[str, str], str | None]:
    return {(d.name, node): d.value for d in derive(Basis(seen, Choice())) for node in d.nodes}


@pytest.mark.parametrize(
    ("builds", "names"),
    [
        pytest.param([torch("2.6.0+cu124")] * 2, [NEW, NEW], id="torch-2.6"),
        pytest.param([torch("2.2.0")] * 2, [NEW, NEW], id="torch-2.2-renamed-it"),
        pytest.param([torch("2.2.0a0+git1234")] * 2, [NEW, NEW], id="built-from-source"),
        pytest.param([torch("2.1.2+cu121")] * 2, [OLD, OLD], id="torch-2.1"),
        pytest.param([torch("1.13.1+cu117")] * 2, [OLD, OLD], id="torch-1.13"),
        pytest.param([torch("2.10.0")] * 2, [NEW, NEW], id="ten-is-more-than-two"),
        pytest.param([torch("2.1.2"), torch("2.6.0")], [OLD, NEW], id="each-as-its-torch-reads-it"),
        pytest.param([torch("2.1.2"), NO_TORCH], [OLD, OLD], id="missing-on-one"),
        pytest.param(
            [torch("2.1.2"), torch("2.6.0"), NO_TORCH], [OLD, NEW, NEW], id="missing-beside-both"
        ),
        pytest.param(
            [torch("2.1.2"), absent("missing_tool")], [OLD, OLD], id="no-such-interpreter-on-one"
        ),
        pytest.param([NO_TORCH, NO_TORCH], [NEW, NEW], id="missing"),
    ],
)
def test_error_handling_has_the_name_that_torch_reads(builds: list[Any], names: list[str]) -> None:
    found = derived(fleet(**same("torch.build", *builds)))
    assert {key: value for key, value in found.items() if key[0] in (OLD, NEW)} == {
        (name, f"n{number}"): "1" for number, name in enumerate(names, 1)
    }


@pytest.mark.parametrize(
    ("build", "why"),
    [
        pytest.param(absent("hung", "job_python"), "hung job_python", id="hung"),
        pytest.param(absent("denied"), "denied EACCES", id="denied"),
        pytest.param(torch("dev-build"), "dev-build is no version", id="a-version-without-numbers"),
    ],
)
def test_a_torch_that_is_not_known_is_a_gap_of_its_node(build: Any, why: str) -> None:
    seen = fleet(**same("torch.build", torch("2.1.2"), build))
    found = [d for d in derive(Basis(seen, Choice())) if d.name in (OLD, NEW)]
    assert [(d.name, d.value, d.nodes) for d in found] == [
        (NEW, None, ("n2",)),
        (OLD, "1", ("n1",)),
    ]
    assert found[0].why == f"which name torch reads is not known: {why}"


@pytest.mark.parametrize("declared", [OLD, NEW])
@pytest.mark.parametrize("build", [torch("2.6.0"), torch("2.1.2"), absent("hung")])
def test_either_name_declared_is_left_alone_for_torch_prefers_the_new_one(
    declared: str, build: Any
) -> None:
    found = derived(fleet(each={"env": env(**{declared: "3"})}, **same("torch.build", build)))
    assert not [key for key in found if key[0] in (OLD, NEW)]


def test_every_node_gets_the_same_word_and_order() -> None:
    found = derived(fleet(n1={}, n2={}))
    for node in ("n1", "n2"):
        assert found["NCCL_DEBUG", node] == "WARN"
        assert found["CUDA_DEVICE_ORDER", node] == "PCI_BUS_ID"


def test_devices_and_processes_appear_only_where_declared() -> None:
    settings = {
        "n1": {"gpus": Gpus(10, use=(6, 7, 8, 9)), "nproc_per_node": 4},
        "n2": {"gpus": Gpus(8)},
    }
    found = derived(fleet(some=settings, n1={}, n2={}, n3={}))
    chosen = {
        key: value
        for key, value in found.items()
        if key[0] in ("CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE")
    }
    assert chosen == {("CUDA_VISIBLE_DEVICES", "n1"): "6,7,8,9", ("NPROC_PER_NODE", "n1"): "4"}
