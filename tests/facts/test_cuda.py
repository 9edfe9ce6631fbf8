"""Where the toolkit says its version, and what is no version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fleet import learned

# As the packages of CUDA 12.4.1 and 10.2 install them; the first without most components.
JSON = """\
{
   "cuda" : {
      "name" : "CUDA SDK",
      "version" : "12.4.1"
   },
   "cuda_cudart" : {
      "name" : "CUDA Runtime (cudart)",
      "version" : "12.4.127"
   }
}
"""
MISSING = ["no", "missing", "/usr/local/cuda"]


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        pytest.param(["ok", JSON], MISSING, "12.4.1", id="since-11"),
        pytest.param(MISSING, ["ok", "CUDA Version 10.2.89\n"], "10.2.89", id="before"),
        pytest.param(["ok", JSON], ["ok", "CUDA Version 10.2.89\n"], "12.4.1", id="both"),
        pytest.param(MISSING, MISSING, None, id="none"),
    ],
)
def test_the_version_is_found(new: list[Any], old: list[Any], expected: str | None) -> None:
    assert learned("cuda.toolkit", new, old) == expected


def dated(version: str, nvcc: str | None) -> list[Any]:
    """version.json of a release with a date; public dumps have 11.8.20220929 with nvcc 11.8.89."""
    components = {"cuda": {"name": "CUDA SDK", "version": version}}
    if nvcc is not None:
        components["cuda_nvcc"] = {"name": "CUDA NVCC", "version": nvcc}
    return ["ok", json.dumps(components)]


@pytest.mark.parametrize(
    ("version", "nvcc", "expected"),
    [
        ("11.8.20220929", "11.8.89", "11.8.0"),
        ("12.1.20230222", "12.1.66", "12.1.0"),
        ("12.2.20230823", "12.2.140", "12.2.2"),
        ("12.2.20230823", None, "12.2"),
        ("12.2.20230823", "12.2.9999", "12.2"),
        ("13.0.3", "13.0.88", "13.0.3"),
    ],
)
def test_a_day_in_place_of_the_third_number(version: str, nvcc: str | None, expected: str) -> None:
    assert learned("cuda.toolkit", dated(version, nvcc), MISSING) == expected


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (["ok", JSON[:60]], MISSING),
        (["ok", ""], MISSING),
        (["ok", "{}"], MISSING),
        (["ok", '{"cuda": {"version": 12.4}}'], MISSING),
        (["ok", JSON.replace("12.4.1", "")], MISSING),
        (MISSING, ["ok", ""]),
        (MISSING, ["ok", "CUDA-Version zehn"]),
    ],
)
def test_another_file_is_garbled(new: list[Any], old: list[Any]) -> None:
    assert learned("cuda.toolkit", new, old).reason == "garbled"


def test_a_file_that_may_not_be_read_is_not_one_that_is_not_there() -> None:
    assert learned("cuda.toolkit", ["no", "denied", "EACCES"], MISSING).reason == "denied"
