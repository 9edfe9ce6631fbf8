"""NVML's answers about settings and use, and what some drivers, GPUs and containers leave out."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu_state import NO_SIZE, Clocks, GpuProcess, Persistence, Power, Use
from clusterprep.model import Absent
from tests.support.fleet import learned

NO = ["no", "not_applicable"]
TOP = (1980, 2619)
ROW: dict[str, Any] = {
    "clock_max_graphics": 1980,
    "clock_max_memory": 2619,
    "clock_application_graphics": 1200,
    "clock_application_memory": 2619,
    "clock_default_graphics": 1980,
    "clock_default_memory": 2619,
    "power_enforced": 650000,
    "power_default": 700000,
    "processes": [[4711, 512 << 20, "python3"]],
    "memory": [80 << 30, 551 << 20, 512 << 20],
    "persistence": 1,
    "virtualization": 0,
    "mig": [0, 1],
    "compute_mode": 3,
}
FACTS = {
    "gpu.clocks": ("clock_max_graphics", Clocks(TOP, (1200, 2619), TOP)),
    "gpu.power": ("power_enforced", Power(650.0, 700.0)),
    "gpu.use": ("processes", Use((GpuProcess(4711, 512 << 20, "python3"),), 512 << 20, apart=True)),
    "gpu.persistence": ("persistence", Persistence(on=True, virtual=False)),
    "gpu.mig": ("mig", (False, True)),
    "gpu.compute_mode": ("compute_mode", "exclusive process"),
}


def of(fact: str, **change: Any) -> Any:
    return learned(fact, ["ok", {"gpus": [{"index": 0, **ROW, **change}]}])


@pytest.mark.parametrize("fact", FACTS)
def test_a_reading(fact: str) -> None:
    assert of(fact) == {0: FACTS[fact][1]}


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("reason", ["denied", "not_applicable", "missing_tool"])
def test_a_reading_that_is_refused(fact: str, reason: str) -> None:
    if (fact, reason) == ("gpu.use", "not_applicable"):
        pytest.skip("its memory is told instead")
    assert of(fact, **{FACTS[fact][0]: ["no", reason]}).reason == reason


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"processes": NO}, Use(None, 512 << 20, apart=True)),
        ({"memory": NO, "processes": []}, Use((), None, apart=False)),
        (
            {"memory": NO, "processes": NO},
            Absent("missing_tool", "neither processes nor memory are told"),
        ),
    ],
)
def test_what_a_gpu_does_not_tell_of_its_use(change: dict[str, Any], expected: Any) -> None:
    found = of("gpu.use", **change)
    assert (found if isinstance(expected, Absent) else found[0]) == expected


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (NO, None),
        (["no", "missing_tool"], None),
        (["no", "nvml_error", 26], None),  # deprecated
        (["no", "nvml_error", 2], "nvml_error"),
        (["no", "denied"], "denied"),
    ],
)
def test_application_clocks_that_are_not_told(refusal: Any, expected: str | None) -> None:
    found = of("gpu.clocks", clock_application_memory=refusal)
    if expected is None:
        assert found[0].application is None
    else:
        assert found.reason == expected


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("value", [None, "", "1", {}, [None], 1.5, "650.00 W"])
def test_states_of_another_shape_are_garbled(fact: str, value: Any) -> None:
    assert of(fact, **{FACTS[fact][0]: value}).reason == "garbled"


@pytest.mark.parametrize(
    ("fact", "change", "value"),
    [
        ("gpu.clocks", {"clock_application_graphics": NO}, Clocks(TOP, None, TOP)),
        (
            "gpu.clocks",
            {"clock_default_memory": NO, "clock_application_memory": NO},
            Clocks(TOP, None, None),
        ),
        (
            "gpu.use",
            {"processes": [], "memory": [80 << 30, None, 600 << 20]},
            Use((), 600 << 20, apart=False),
        ),
        (
            "gpu.use",
            {"processes": [[7, NO_SIZE, None]]},
            Use((GpuProcess(7, None, None),), 512 << 20, apart=True),
        ),
        ("gpu.persistence", {"virtualization": 1}, Persistence(on=True, virtual=True)),
        (
            "gpu.persistence",
            {"virtualization": 3, "persistence": 0},
            Persistence(on=False, virtual=False),
        ),
        ("gpu.persistence", {"virtualization": NO}, Persistence(on=True, virtual=False)),
        ("gpu.compute_mode", {"compute_mode": 0}, "default"),
    ],
)
def test_what_some_machines_say(fact: str, change: dict[str, Any], value: Any) -> None:
    assert of(fact, **change) == {0: value}


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("gpu.compute_mode", {"compute_mode": 9}),
        ("gpu.power", {"power_default": 0}),
        ("gpu.mig", {"mig": [2, 2]}),
        ("gpu.mig", {"mig": [0]}),
        ("gpu.use", {"memory": [1, 2]}),
        ("gpu.use", {"processes": [[1, 2]]}),
    ],
)
def test_numbers_that_cannot_be(fact: str, change: dict[str, Any]) -> None:
    assert of(fact, **change).reason == "garbled"


@pytest.mark.parametrize("fact", FACTS)
def test_a_driver_that_does_not_answer(fact: str) -> None:
    assert learned(fact, ["no", "hung", "no answer within 10 s"]) == Absent(
        "hung", "no answer within 10 s"
    )
