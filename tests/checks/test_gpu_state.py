"""Clocks, power limits, modes and other processes: stragglers are blamed, choices are not."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.gpu_state import parse_clock, parse_watts
from clusterprep.facts.gpu import Model
from clusterprep.facts.gpu_state import Clocks, GpuProcess, Persistence, Power, Use
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, told

H100, L20 = (
    Model("NVIDIA H100 80GB HBM3", 85520809984, "9.0"),
    Model("NVIDIA L20", 46068 << 20, "8.9"),
)
TOP = (1980, 2619)
FACTORY, LOWERED, WITHOUT = (
    Clocks(TOP, TOP, TOP),
    Clocks(TOP, (1200, 2619), TOP),
    Clocks(TOP, None, None),
)
FULL, CAPPED = Power(700.0, 700.0), Power(500.0, 700.0)
FACTS = {
    "gpu.clocks": "gpu.clocks",
    "gpu.power_limit": "gpu.power",
    "gpu.persistence": "gpu.persistence",
    "gpu.mig": "gpu.mig",
    "gpu.compute_mode": "gpu.compute_mode",
    "gpu.busy": "gpu.use",
}
FREE = Use((), 0, apart=True)


def nodes(check: str, *each: list[Any], model: Model = H100) -> dict[str, dict[str, Any]]:
    """Nodes n1, n2, … with a reading for each GPU."""
    return {
        f"n{number}": {
            FACTS[check]: dict(enumerate(readings)),
            "gpu.model": dict.fromkeys(range(len(readings)), model),
        }
        for number, readings in enumerate(each, 1)
    }


def of(check: str, *each: list[Any], **settings: Any) -> list[str]:
    return list(told(fleet(**settings, **nodes(check, *each)), check).values())


# ---------------------------------------------------------------- clocks and power


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        pytest.param([[FACTORY] * 8] * 3, ["pass"] * 3, id="factory"),
        pytest.param(
            [[FACTORY] * 7 + [LOWERED], [FACTORY] * 8], ["fail warning", "pass"], id="one-lowered"
        ),
        pytest.param([[LOWERED] * 8] * 2, ["pass"] * 2, id="all-lowered-alike"),
        pytest.param([[LOWERED] * 8, [FACTORY] * 8], ["fail warning"] * 2, id="half-and-half"),
        pytest.param(
            [[FACTORY] * 8, [FACTORY] * 8, [LOWERED] * 8],
            ["pass", "pass", "fail warning"],
            id="one-node",
        ),
        pytest.param([[WITHOUT] * 8] * 2, ["pass"] * 2, id="no-application-clocks"),
        pytest.param([[FACTORY]], ["pass"], id="a-single-gpu"),
        pytest.param([[FACTORY, absent("denied")]], ["unknown warning denied"], id="one-denied"),
        pytest.param([[absent("not_applicable")] * 2], ["skip not_applicable"], id="not-supported"),
    ],
)
def test_a_gpu_with_other_clocks_is_a_straggler(each: list[list[Any]], expected: list[str]) -> None:
    assert of("gpu.clocks", *each) == expected


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        pytest.param([[FULL] * 8] * 3, ["pass"] * 3, id="factory"),
        pytest.param(
            [[FULL] * 7 + [CAPPED], [FULL] * 8], ["fail warning", "pass"], id="one-capped"
        ),
        pytest.param([[CAPPED] * 8] * 2, ["pass"] * 2, id="all-capped-alike-is-a-choice"),
        pytest.param([[CAPPED] * 8, [FULL] * 8], ["fail warning"] * 2, id="half-and-half"),
        pytest.param([[CAPPED] * 7 + [FULL]], ["fail warning"], id="one-uncapped"),
        pytest.param([[CAPPED]], ["pass"], id="a-single-gpu"),
        pytest.param(
            [[FULL, absent("garbled")]], ["unknown warning garbled"], id="one-not-understood"
        ),
        pytest.param([[FULL, absent("not_applicable")]], ["pass"], id="one-not-supported"),
    ],
)
def test_a_cap_on_one_is_a_straggler_and_on_all_a_choice(
    each: list[list[Any]], expected: list[str]
) -> None:
    assert of("gpu.power_limit", *each) == expected


def test_gpus_of_different_models_are_not_compared() -> None:
    mixed = nodes(
        "gpu.power_limit",
        [Power(700.0, 700.0), Power(700.0, 700.0), Power(275.0, 275.0), Power(275.0, 275.0)],
    )
    mixed["n1"]["gpu.model"] = {0: H100, 1: H100, 2: L20, 3: L20}
    assert told(fleet(**mixed), "gpu.power_limit") == {"n1": "pass"}


def test_devices_of_others_do_not_count() -> None:
    assert of(
        "gpu.power_limit", [FULL] * 3 + [CAPPED], each={"gpus": Gpus(4, None, (0, 1, 2))}
    ) == ["pass"]


@pytest.mark.parametrize(
    ("check", "each", "required", "expected"),
    [
        ("gpu.clocks", [LOWERED] * 2, "1200", "pass"),
        ("gpu.clocks", [FACTORY] * 2, "1200 MHz", "fail error"),
        ("gpu.clocks", [WITHOUT] * 2, "1200", "unknown error missing_tool"),
        ("gpu.power_limit", [CAPPED] * 2, "500W", "pass"),
        ("gpu.power_limit", [FULL] * 2, "500", "fail error"),
        ("gpu.mig", [(True, True)] * 2, "on", "pass"),
        ("gpu.mig", [(False, False)] * 2, "on", "fail error"),
        ("gpu.busy", [Use((), 3 << 30, apart=True)], "4GiB", "pass"),
        ("gpu.busy", [Use((), 16 << 20, apart=True)], "15MiB", "fail error"),
    ],
)
def test_what_is_required(check: str, each: list[Any], required: str, expected: str) -> None:
    assert of(check, each, each={"require": {check: required}}) == [expected]


def test_the_straggler_is_told_what_to_type() -> None:
    (bad, _) = findings(
        fleet(**nodes("gpu.power_limit", [FULL] * 7 + [CAPPED], [FULL] * 8)), "gpu.power_limit"
    )
    assert (bad.nodes, bad.seen, bad.wanted, bad.remedy) == (
        ("n1",),
        "GPU 7: 500",
        "700",
        "nvidia-smi -i 7 -pl 700",
    )


def test_a_cap_on_all_is_told() -> None:
    (found,) = findings(fleet(**nodes("gpu.power_limit", [CAPPED] * 8)), "gpu.power_limit")
    assert found.message == "all are capped alike: 500 W instead of 700 W"


@pytest.mark.parametrize("text", ["", "fast", "1980GHz", "-5"])
def test_clocks_and_limits_are_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_clock(text)
    with pytest.raises(ValueError, match="expected watts"):
        parse_watts(text)


# ---------------------------------------------------------------- modes and use

ME = GpuProcess(4711, 70 << 30, "python3")


@pytest.mark.parametrize(
    ("check", "reading", "expected"),
    [
        ("gpu.persistence", Persistence(on=True, virtual=False), "pass"),
        ("gpu.persistence", Persistence(on=False, virtual=False), "fail warning"),
        ("gpu.persistence", Persistence(on=False, virtual=True), "pass"),
        ("gpu.mig", (False, False), "pass"),
        ("gpu.mig", (True, True), "fail warning"),
        ("gpu.mig", (False, True), "fail warning"),
        ("gpu.mig", (True, False), "fail warning"),
        ("gpu.compute_mode", "default", "pass"),
        ("gpu.compute_mode", "exclusive process", "fail warning"),
        ("gpu.compute_mode", "prohibited", "fail warning"),
        ("gpu.busy", FREE, "pass"),
        ("gpu.busy", Use((), (2 << 30) - 1, apart=True), "pass"),
        ("gpu.busy", Use((), 2 << 30, apart=True), "fail warning"),
        ("gpu.busy", Use((ME,), 70 << 30, apart=True), "fail warning"),
        ("gpu.busy", Use((GpuProcess(1, None, None),), 0, apart=True), "fail warning"),
        (
            "gpu.busy",
            Use((GpuProcess(99, 30 << 20, "nvidia-cuda-mps"),), 30 << 20, apart=True),
            "pass",
        ),
    ],
)
def test_modes_and_use_of_one_gpu(check: str, reading: Any, expected: str) -> None:
    fine: dict[str, Any] = {"gpu.persistence": Persistence(True, False), "gpu.mig": (False, False)}
    usual = fine.get(check, "default" if check == "gpu.compute_mode" else FREE)
    assert of(check, [usual, reading, usual]) == [expected]


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
@pytest.mark.parametrize("check", FACTS)
def test_what_is_not_known_is_never_a_pass(check: str, reason: str) -> None:
    facts = {"n1": {FACTS[check]: absent(reason), "gpu.model": {0: H100}}}
    assert told(fleet(**facts), check) == {"n1": f"unknown warning {reason}"}


@pytest.mark.parametrize("check", FACTS)
def test_what_does_not_apply_is_skipped(check: str) -> None:
    facts = {"n1": {FACTS[check]: absent("not_applicable"), "gpu.model": {0: H100}}}
    assert told(fleet(**facts), check) == {"n1": "skip not_applicable"}


def test_another_users_process_is_named_with_the_way_to_find_out_more() -> None:
    (found,) = findings(
        fleet(**nodes("gpu.busy", [FREE, Use((ME,), 70 << 30, apart=True)])), "gpu.busy"
    )
    assert found.seen == "GPU 1: python3 4711 (71680 MiB)"
    assert found.remedy == "ps -o user,pid,lstart,args -p 4711"
