"""Which GPUs surely work, by what NVML says of them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu_load import GpuLoad, is_busy, sysfs_address
from tests.support.fleet import learned

NO = ["no", "not_applicable"]
# `nvidia-smi -q` of an H100 SXM under a matrix product; composed of its documented fields.
ROW: dict[str, Any] = {
    "pci": "00000000:18:00.0",
    "utilization": 97,
    "state": 0,
    "clock": 1755,
    "clock_max_graphics": 1980,
    "throttle": [4, 4, 4],
}


def of(**change: Any) -> Any:
    return learned("gpu.load", ["ok", {"gpus": [{"index": 0, **ROW, **change}]}])


def test_a_gpu_that_works() -> None:
    assert of() == {0: GpuLoad("0000:18:00.0", True, 97)}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"utilization": 12}, id="little-used"),
        pytest.param({"utilization": NO}, id="mig-has-no-utilisation"),
        pytest.param({"state": 8}, id="low-state"),
        pytest.param({"clock": 345}, id="an-idle-h100-stays-in-p0"),
        pytest.param({"clock": NO}, id="clock-not-told"),
        pytest.param({"throttle": [1, 1, 1]}, id="the-driver-calls-it-idle"),
    ],
)
def test_a_gpu_that_may_rest(change: dict[str, Any]) -> None:
    assert of(**change)[0].busy is False


def test_answers_of_an_older_recording_say_nothing_of_work() -> None:
    answer = {"gpus": [{"index": 0, "pci": "00000000:18:00.0"}]}
    assert learned("gpu.load", ["ok", answer]) == {0: GpuLoad("0000:18:00.0", False)}


@pytest.mark.parametrize("value", ["97", 1.5, {}])
def test_other_shapes_are_garbled(value: Any) -> None:
    assert of(utilization=value).reason == "garbled"


def test_no_reason_is_no_idleness() -> None:
    assert is_busy(97, 0, 1755, 1980, None)


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("0001A000:01:00.0", "1a000:01:00.0"),  # Azure's virtual machines
        ("00100000:00:00.0", "100000:00:00.0"),
    ],
)
def test_the_address_is_that_of_sysfs(nvml: str, sysfs: str) -> None:
    assert sysfs_address(nvml) == sysfs
