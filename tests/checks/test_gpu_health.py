"""Memory errors, heat, slowdowns and a slow driver: at the limit, over it, unknown, unsupported."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.gpu_health import by_text, parse_margin, parse_switch
from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.facts.gpu_health import (
    EccErrors,
    EccMode,
    Remap,
    RetiredPages,
    Temperatures,
)
from clusterprep.model import Gpus
from clusterprep.survey import registry
from tests.support.fleet import absent, findings, fleet, same, told

NOT_HERE = absent("not_applicable", "ecc is not supported by this GPU")
ON, OFF = EccMode(on=True, pending=True), EccMode(on=False, pending=False)
FINE = Remap(2, 0, pending=False, failed=False, spent=0)
# Each check with a healthy reading; all of them read one fact with a reading for each GPU.
HEALTHY: dict[str, tuple[str, Any]] = {
    "gpu.ecc_mode": ("gpu.ecc_mode", ON),
    "gpu.ecc_unc": ("gpu.ecc", EccErrors(0, 0, exceeded=False)),
    "gpu.remap": ("gpu.remap", FINE),
    "gpu.temp": ("gpu.heat", Temperatures(40, 50, 40)),
    "gpu.throttle_hw": ("gpu.throttle", (1, 1, 1)),
    "gpu.throttle_sw": ("gpu.throttle", (1, 1, 1)),
    "gpu.latency": ("gpu.latency", 0.01),
    "gpu.recovery": ("gpu.recovery", 0),
    "gpu.retired": ("gpu.retired", RetiredPages(3, 1, pending=False)),
}


def of(check: str, *readings: Any, **settings: Any) -> str:
    """What a check says of one node with these readings."""
    return told(fleet(**settings, **same(HEALTHY[check][0], dict(enumerate(readings)))), check)[
        "n1"
    ]


def test_every_check_of_one_fact_is_in_the_table() -> None:
    mine = {
        name
        for name, check in registry.checks().items()
        if check.judge.__module__.endswith("gpu_health")
    }
    assert mine - {"gpu.persistence", "gpu.compute_mode"} <= set(HEALTHY)


@pytest.mark.parametrize("check", HEALTHY)
def test_healthy_gpus_pass(check: str) -> None:
    assert of(check, *[HEALTHY[check][1]] * 8) == "pass"


@pytest.mark.parametrize(
    "reason", ["denied", "missing_tool", "hung", "timed_out", "garbled", "gpu_lost"]
)
@pytest.mark.parametrize("check", HEALTHY)
def test_what_is_not_known_is_never_a_pass(check: str, reason: str) -> None:
    fact, fine = HEALTHY[check]
    grade = registry.checks()[check].severity
    assert told(fleet(**same(fact, absent(reason))), check) == {"n1": f"unknown {grade} {reason}"}
    assert of(check, fine, absent(reason), fine) == f"unknown {grade} {reason}"


@pytest.mark.parametrize("check", HEALTHY)
def test_what_a_gpu_does_not_support_is_skipped(check: str) -> None:
    fact, fine = HEALTHY[check]
    assert told(fleet(**same(fact, NOT_HERE)), check) == {"n1": "skip not_applicable"}
    assert of(check, fine, NOT_HERE) == "pass"
    assert of(check, NOT_HERE, NOT_HERE) == "skip not_applicable"


BAD: dict[str, Any] = {
    "gpu.ecc_mode": OFF,
    "gpu.ecc_unc": EccErrors(1, 1, exceeded=False),
    "gpu.remap": Remap(0, 1, pending=True, failed=False, spent=0),
    "gpu.temp": Temperatures(88, 90, 1),
    "gpu.throttle_hw": (8, 8, 8),
    "gpu.latency": 2.0,
}


@pytest.mark.parametrize("check", BAD)
def test_devices_that_are_not_of_this_job_are_not_judged(check: str) -> None:
    fine = HEALTHY[check][1]
    readings = (fine, fine, BAD[check])
    assert of(check, *readings).startswith("fail")
    assert of(check, *readings, each={"gpus": Gpus(3, None, (0, 1))}) == "pass"
    assert of(check, *readings, each={"gpus": Gpus(3, None, (2,))}).startswith("fail")


@pytest.mark.parametrize("check", BAD)
def test_a_failure_is_told_beside_what_is_not_known(check: str) -> None:
    grade = registry.checks()[check].severity
    assert of(check, BAD[check], absent("denied")) == f"fail {grade} + unknown {grade} denied"


# ---------------------------------------------------------------- ECC


@pytest.mark.parametrize(
    ("mode", "required", "expected"),
    [
        (OFF, None, "fail warning"),
        (EccMode(on=True, pending=False), None, "fail warning"),
        (EccMode(on=False, pending=True), None, "fail warning"),
        (EccMode(on=False, pending=False, default=True), None, "fail warning"),
        (EccMode(on=False, pending=False, default=False), None, "pass"),
        (EccMode(on=False, pending=False, default=False), "on", "fail error"),
        (EccMode(on=True, pending=True, default=False), None, "pass"),
        (EccMode(on=False, pending=True, default=False), None, "fail warning"),
        (OFF, "off", "pass"),
        (ON, "off", "fail error"),
        (ON, "on", "pass"),
        (OFF, "on", "fail error"),
        (EccMode(on=False, pending=True), "off", "fail error"),
    ],
)
def test_ecc_is_on_or_as_required_and_nothing_waits(
    mode: EccMode, required: str | None, expected: str
) -> None:
    require = {} if required is None else {"gpu.ecc_mode": required}
    assert of("gpu.ecc_mode", mode, each={"require": require}) == expected


def test_the_remedy_of_ecc_names_the_gpus() -> None:
    (found,) = findings(fleet(**same("gpu.ecc_mode", {0: ON, 1: OFF, 5: OFF})), "gpu.ecc_mode")
    assert found.remedy.startswith("nvidia-smi -i 1,5 -e 1 && nvidia-smi --gpu-reset -i 1,5")
    assert found.seen == "GPU 1, 5: off"


@pytest.mark.parametrize("text", ["", "yes", "1", "enabled"])
def test_a_switch_is_on_or_off(text: str) -> None:
    with pytest.raises(ValueError, match="expected on or off"):
        parse_switch(text)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (EccErrors(0, 0, exceeded=None), "pass"),
        (EccErrors(0, None, exceeded=None), "pass"),
        (EccErrors(0, 12, exceeded=False), "pass"),
        (EccErrors(1, 12, exceeded=False), "fail error"),
        (EccErrors(0, 12, exceeded=True), "fail error"),
    ],
)
def test_errors_since_the_driver_was_loaded_count(errors: EccErrors, expected: str) -> None:
    assert of("gpu.ecc_unc", EccErrors(0, 0, exceeded=False), errors) == expected


def test_errors_of_the_boards_life_are_told() -> None:
    readings = {0: EccErrors(0, 0, exceeded=False), 1: EccErrors(0, 12, exceeded=False)}
    (found,) = findings(fleet(**same("gpu.ecc", readings)), "gpu.ecc_unc")
    assert (found.verdict, found.seen) == ("pass", "GPU 1: 12")
    assert "over the board's life" in found.message


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (Remap(500, 30, pending=False, failed=False, spent=0), "pass"),
        (Remap(0, 1, pending=False, failed=False, spent=None), "pass"),
        (Remap(0, 1, pending=True, failed=False, spent=0), "fail warning"),
        (Remap(0, 8, pending=False, failed=True, spent=1), "fail error"),
        (Remap(0, 8, pending=True, failed=True, spent=1), "fail error"),
        (Remap(0, 8, pending=False, failed=False, spent=1), "fail warning"),
    ],
)
def test_pending_is_a_warning_and_failed_an_error(rows: Remap, expected: str) -> None:
    assert of("gpu.remap", FINE, rows) == expected


# ---------------------------------------------------------------- heat and clocks


@pytest.mark.parametrize(
    ("heat", "required", "expected"),
    [
        (Temperatures(84, 90, 5), None, "pass"),
        (Temperatures(85, 90, 4), None, "fail warning"),
        (Temperatures(90, 90, -1), None, "fail warning"),
        (Temperatures(75, None, 14), "15", "fail error"),
        (Temperatures(75, None, 15), "15", "pass"),
        (Temperatures(85, None, 4), "3", "pass"),
        (Temperatures(60, 60, None), None, "skip not_applicable"),
    ],
)
def test_a_gpu_keeps_away_from_its_slowdown(
    heat: Temperatures, required: str | None, expected: str
) -> None:
    require = {} if required is None else {"gpu.temp": required}
    assert of("gpu.temp", heat, each={"require": require}) == expected


@pytest.mark.parametrize(
    ("chips", "expected"),
    [
        pytest.param([40, 40, 50], ["pass", "pass", "pass"], id="ten-over"),
        pytest.param([40, 40, 51], ["pass", "pass", "fail warning"], id="eleven-over"),
        pytest.param([40, 60], ["pass", "pass"], id="two-nodes-blame-none"),
    ],
)
def test_the_hot_one_is_hot_among_its_seats(chips: list[int], expected: list[str]) -> None:
    """The back row of a box is hotter than the front by design, so equal seats are compared."""
    facts = same(
        "gpu.heat",
        *({0: Temperatures(30, None, 50), 1: Temperatures(chip, None, 40)} for chip in chips),
    )
    assert list(told(fleet(**facts), "gpu.temp").values()) == expected


def test_heat_is_compared_between_nodes_of_a_kind() -> None:
    facts = same("gpu.heat", *({0: Temperatures(chip, None, 30)} for chip in (30, 30, 55)))
    other = {"n3": {"gpus": Gpus(1, "NVIDIA L20")}}
    assert told(fleet(some=other, **facts), "gpu.temp")["n3"] == "pass"
    assert told(fleet(**facts), "gpu.temp")["n3"] == "fail warning"


@pytest.mark.parametrize("text", ["", "5C", "-1", "5.5", "\u0665"])
def test_a_margin_is_whole_degrees(text: str) -> None:
    with pytest.raises(ValueError, match="whole degrees"):
        parse_margin(text)


@pytest.mark.parametrize(
    ("samples", "hard", "soft"),
    [
        ((0, 0, 0), "pass", "pass"),
        ((1, 1, 1), "pass", "pass"),
        ((8, 0, 8), "pass", "pass"),
        ((8, 8, 8), "fail warning", "pass"),
        ((0x48, 0x40, 0x41), "fail warning", "pass"),
        ((0x80, 0x80, 0x80), "fail warning", "pass"),
        ((4, 4, 4), "pass", "skip busy"),
        ((4, 0, 4), "pass", "pass"),
        ((0x20, 0x24, 0x20), "pass", "skip busy"),
        ((0x84, 0x84, 0x84), "fail warning", "skip busy"),
        ((2, 2, 2), "pass", "pass"),
    ],
)
def test_only_the_hardware_is_a_fault_and_only_in_every_sample(
    samples: Any, hard: str, soft: str
) -> None:
    assert of("gpu.throttle_hw", (1, 1, 1), samples) == hard
    assert of("gpu.throttle_sw", (1, 1, 1), samples) == soft


@pytest.mark.parametrize(
    ("seconds", "required", "expected"),
    [
        (1.0, None, "pass"),
        (1.01, None, "fail warning"),
        (9.0, None, "fail warning"),
        (0.2, "100ms", "fail error"),
        (2.0, "3s", "pass"),
    ],
)
def test_a_slow_driver_is_about_to_stick(
    seconds: float, required: str | None, expected: str
) -> None:
    require = {} if required is None else {"gpu.latency": required}
    assert of("gpu.latency", 0.01, seconds, each={"require": require}) == expected


def test_a_driver_that_never_answers_fails_here_and_only_here() -> None:
    assert told(fleet(**same("gpu.latency", None)), "gpu.latency") == {"n1": "fail warning"}


@pytest.mark.parametrize(
    ("said", "total", "text"),
    [
        ({3: "off"}, 8, "GPU 3: off"),
        ({3: "off", 1: "off", 2: "on"}, 8, "GPU 1, 3: off; GPU 2: on"),
        ({0: "off", 1: "off"}, 2, "all 2 GPUs: off"),
        ({0: "off"}, 1, "GPU 0: off"),
    ],
)
def test_equal_texts_are_told_once(said: dict[int, str], total: int, text: str) -> None:
    assert by_text(said, total) == text


# ---------------------------------------------------------------- held down since an earlier run


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param({}, {"thermal": 90 * 10**9}, "pass", id="not-counted-before"),
        pytest.param(
            {"thermal": 0}, {"thermal": 30 * 10**9}, "pass", id="half-a-minute-in-an-hour"
        ),
        pytest.param({"thermal": 0}, {"thermal": 90 * 10**9}, "fail warning", id="too-long"),
        pytest.param({"board_limit": 0}, {"board_limit": 90 * 10**9}, "fail warning", id="board"),
        pytest.param({"power": 0}, {"power": 3600 * 10**9}, "pass", id="the-power-limit-is-normal"),
        pytest.param({"thermal": 10**12}, {"thermal": 0}, "pass", id="a-reset-between"),
    ],
)
def test_the_time_that_heat_held_the_clocks(
    before: dict[str, int], now: dict[str, int], expected: str
) -> None:
    sample = Sample(3600.0, {}, gpu={"GPU-0": {f"held down by {k}": v for k, v in before.items()}})
    facts = {
        "gpu.throttle": {0: (1, 1, 1)},
        "gpu.counters": {"GPU-0": {f"held down by {k}": v for k, v in now.items()}},
        "gpu.nvml": Nvml("580.95.05", "13.0", (Gpu(0, "H100", "GPU-0", "0000:18:00.0"),)),
        "counters.earlier": Earlier(sample, sample),
    }
    assert told(fleet(n1=facts), "gpu.throttle_hw") == {"n1": expected}
