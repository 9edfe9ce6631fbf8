"""The flight recorder is switched on where there is a folder for its dumps."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.nccl.interfaces import Choice
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.flight_recorder import derive
from tests.support.fleet import absent, fleet, same, torch

OLD = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/dumps/test_rank_",
}
SINCE_2_8 = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/dumps/test_rank_",
}
SINCE_2_15 = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_DUMP_TEMP_FILE": "/scratch/dumps/test_rank_",
}


def derived(build: Any, **settings: Any) -> dict[str, str | None]:
    seen = fleet(each=settings, **same("torch.build", build))
    return {value.name: value.value for value in derive(Basis(seen, Choice()))}


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        pytest.param(torch("2.5.1"), OLD, id="2.5"),
        pytest.param(torch("2.7.0+cu126"), OLD, id="2.7"),
        pytest.param(torch("2.8.0"), SINCE_2_8, id="2.8"),
        pytest.param(torch("2.13.0"), SINCE_2_8, id="2.13"),
        pytest.param(torch("2.15.0"), SINCE_2_15, id="2.15"),
        pytest.param(absent("hung"), OLD, id="not-known"),
    ],
)
def test_names_are_those_that_torch_reads(build: Any, expected: dict[str, str]) -> None:
    assert derived(build, flight_recorder="/scratch/dumps") == expected


def test_without_a_folder_nothing_is_set() -> None:
    assert derived(torch("2.8.0")) == {}
