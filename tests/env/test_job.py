"""What every job gets, under the name that its torch reads."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.env import Basis
from clusterprep.env.job import derive
from clusterprep.model import Gpus
from clusterprep.network import Choice
from tests.fleet import NO_TORCH, absent, fleet, same, torch

OLD, NEW = "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def derived(seen: Any) -> dict[tuple[str, str], str | None]:
    return {(d.name, node): d.value for d in derive(Basis(seen, Choice())) for node in d.nodes}


@pytest.mark.parametrize(
    ("builds", "name"),
    [
        pytest.param([torch("2.6.0+cu124")] * 2, NEW, id="torch-2.6"),
        pytest.param([torch("2.2.0")] * 2, NEW, id="torch-2.2-renamed-it"),
        pytest.param([torch("2.1.2+cu121")] * 2, OLD, id="torch-2.1"),
        pytest.param([torch("1.13.1+cu117")] * 2, OLD, id="torch-1.13"),
        pytest.param([torch("2.10.0")] * 2, NEW, id="ten-is-more-than-two"),
        pytest.param([torch("2.1.2"), torch("2.6.0")], NEW, id="mixed"),
        pytest.param([torch("2.1.2"), NO_TORCH], OLD, id="missing-on-one"),
        pytest.param([torch("2.1.2"), absent()], OLD, id="not-known-on-one"),
        pytest.param([NO_TORCH, NO_TORCH], NEW, id="missing"),
        pytest.param([absent(), absent()], NEW, id="not-known"),
        pytest.param([torch("dev-build")] * 2, NEW, id="a-version-without-numbers"),
    ],
)
def test_error_handling_has_one_name_for_the_whole_job(builds: list[Any], name: str) -> None:
    found = derived(fleet(**same("torch.build", *builds)))
    assert [key for key in found if key[0] in (OLD, NEW)] == [(name, "n1"), (name, "n2")]
    assert found[name, "n1"] == "1"


def test_every_node_gets_the_same_word_and_order() -> None:
    found = derived(fleet(n1={}, n2={}))
    for node in ("n1", "n2"):
        assert found["NCCL_DEBUG", node] == "WARN"
        assert found["CUDA_DEVICE_ORDER", node] == "PCI_BUS_ID"


def test_devices_and_processes_appear_only_where_declared() -> None:
    settings = {"n1": {"gpus": Gpus(10, use=(6, 7, 8, 9)), "nproc_per_node": 4}, "n2": {"gpus": Gpus(8)}}
    found = derived(fleet(some=settings, n1={}, n2={}, n3={}))
    chosen = {key: value for key, value in found.items() if key[0] in ("CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE")}
    assert chosen == {("CUDA_VISIBLE_DEVICES", "n1"): "6,7,8,9", ("NPROC_PER_NODE", "n1"): "4"}
