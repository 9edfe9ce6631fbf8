"""NVML's answers about health: values, reasons of one GPU and of all, and garbled answers."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu_health import EccErrors, EccMode, Remap, Temperatures
from clusterprep.model import Absent
from tests.support.fleet import learned

NO, DENIED, LOST = ["no", "not_applicable"], ["no", "denied"], ["no", "gpu_lost"]
ROW: dict[str, Any] = {
    "ecc": [1, 1],
    "ecc_default": 1,
    "ecc_volatile": 0,
    "ecc_aggregate": 4,
    "sram": [0],
    "remap": [3, 1, 0, 0],
    "remap_banks": [2559, 1, 0, 0, 0],
    "temperature": 34,
    "memory_temperature": 44,
    "slowdown": 89,
    "margin": [53],
    "throttle": [1, 1, 1],
    "seconds": 0.0021,
}
FACTS = {
    "gpu.ecc_mode": ("ecc", EccMode(on=True, pending=True, default=True)),
    "gpu.ecc": ("ecc_volatile", EccErrors(0, 4, exceeded=False)),
    "gpu.remap": ("remap", Remap(3, 1, pending=False, failed=False, spent=0)),
    "gpu.heat": ("temperature", Temperatures(34, 44, 53)),
    "gpu.throttle": ("throttle", (1, 1, 1)),
    "gpu.latency": ("seconds", 0.0021),
}


def of(fact: str, *changes: dict[str, Any]) -> Any:
    """What a fact makes of GPUs that differ from a healthy one so."""
    rows = [{"index": index, **ROW, **change} for index, change in enumerate(changes)]
    return learned(fact, ["ok", {"driver": "550.54.15", "cuda": 12040, "gpus": rows}])


@pytest.mark.parametrize("fact", FACTS)
def test_each_gpu_has_its_reading(fact: str) -> None:
    assert of(fact, {}, {}) == {0: FACTS[fact][1], 1: FACTS[fact][1]}


@pytest.mark.parametrize("fact", FACTS)
def test_one_gpu_that_does_not_say_hides_nothing_of_the_others(fact: str) -> None:
    field, value = FACTS[fact]
    found = of(fact, {}, {field: DENIED})
    assert found[0] == value
    assert (found[1].reason, found[1].detail) == (
        "denied",
        f"{field.replace('_', ' ')} was not answered",
    )


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize(
    ("each", "reason"),
    [
        ([NO, NO], "not_applicable"),
        ([NO, DENIED], "denied"),
        ([["no", "nvml_error", 999]] * 2, "nvml_error"),
    ],
)
def test_where_none_says_the_fact_is_absent(fact: str, each: list[Any], reason: str) -> None:
    assert of(fact, *({FACTS[fact][0]: value} for value in each)).reason == reason


@pytest.mark.parametrize("fact", FACTS)
def test_lost_gpus_are_left_out(fact: str) -> None:
    assert of(fact, {}, {"no": "gpu_lost"}) == {0: FACTS[fact][1]}
    assert of(fact, {"no": "gpu_lost"}) == Absent("gpu_lost", "no GPU answers")


@pytest.mark.parametrize("fact", FACTS)
def test_no_gpu_is_nothing_to_judge(fact: str) -> None:
    assert of(fact).reason == "not_applicable"
    assert learned(fact, ["ok", None]).reason == "not_applicable"
    assert learned(fact, ["no", "no_driver", "nvmlInit answered 9"]).reason == "not_applicable"


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize(
    "reason", ["denied", "timed_out", "driver_library_mismatch", "nvml_error", "garbled"]
)
def test_any_other_trouble_keeps_its_reason(fact: str, reason: str) -> None:
    assert learned(fact, ["no", reason, "why"]) == Absent(reason, "why")


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize(
    "value", [None, "", "on", [], {}, "34 C", -1.5, [None, None, None, None], ["1", "1", "1", "1"]]
)
def test_what_cannot_be_understood_is_garbled(fact: str, value: Any) -> None:
    assert of(fact, {FACTS[fact][0]: value}).reason == "garbled"


@pytest.mark.parametrize("fact", FACTS)
def test_a_row_without_the_field_is_garbled(fact: str) -> None:
    assert learned(fact, ["ok", {"gpus": [{"index": 0}]}]).reason == "garbled"


@pytest.mark.parametrize(
    ("fact", "change", "value"),
    [
        ("gpu.ecc", {"sram": NO, "ecc_aggregate": NO}, EccErrors(0, None, exceeded=None)),
        ("gpu.ecc", {"sram": DENIED}, EccErrors(0, 4, exceeded=None)),
        ("gpu.ecc", {"sram": [1]}, EccErrors(0, 4, exceeded=True)),
        (
            "gpu.remap",
            {"remap_banks": ["no", "missing_tool"]},
            Remap(3, 1, pending=False, failed=False, spent=None),
        ),
        ("gpu.remap", {"remap": [0, 9, 1, 1]}, Remap(0, 9, pending=True, failed=True, spent=0)),
        ("gpu.heat", {"margin": NO}, Temperatures(34, 44, 55)),
        ("gpu.heat", {"margin": NO, "slowdown": NO}, Temperatures(34, 44, None)),
        ("gpu.heat", {"memory_temperature": NO}, Temperatures(34, None, 53)),
        ("gpu.heat", {"margin": [-1]}, Temperatures(34, 44, -1)),
        ("gpu.ecc_mode", {"ecc": [0, 1]}, EccMode(on=False, pending=True, default=True)),
        (
            "gpu.ecc_mode",
            {"ecc": [0, 0], "ecc_default": 0},
            EccMode(on=False, pending=False, default=False),
        ),
        (
            "gpu.ecc_mode",
            {"ecc_default": ["no", "missing_tool"]},
            EccMode(on=True, pending=True, default=None),
        ),
    ],
)
def test_what_some_drivers_do_not_tell(fact: str, change: dict[str, Any], value: Any) -> None:
    assert of(fact, change) == {0: value}


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("gpu.ecc_mode", {"ecc": [2, 0]}),
        ("gpu.ecc_mode", {"ecc": [True, True]}),
        ("gpu.remap", {"remap": [0, 0, 0]}),
        ("gpu.remap", {"remap": [0, 0, 7, 0]}),
        ("gpu.ecc", {"ecc_volatile": -1}),
        ("gpu.throttle", {"throttle": []}),
    ],
)
def test_numbers_that_cannot_be(fact: str, change: dict[str, Any]) -> None:
    assert of(fact, change).reason == "garbled"


def test_a_sample_that_is_missing_is_not_at_rest() -> None:
    assert of("gpu.throttle", {}, {"throttle": [1, LOST, LOST]})[1].reason == "gpu_lost"


def test_no_answer_at_all_is_an_answer_about_how_fast_it_is() -> None:
    assert learned("gpu.latency", ["no", "hung", "no answer within 10 s"]) is None
