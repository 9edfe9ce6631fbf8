"""Processors of several models, without a socket or threads, and governors of every driver."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.cpu import parse_governor
from clusterprep.facts.cpu import Cpus, Governor
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, same, told

XEON = Cpus("Intel(R) Xeon(R) Platinum 8480C", 2, 112, 224)
NO_SMT = Cpus("Intel(R) Xeon(R) Platinum 8480C", 2, 112, 112)
ONE_SOCKET = Cpus("Intel(R) Xeon(R) Platinum 8480C", 1, 56, 112)
LOST_CORE = Cpus("Intel(R) Xeon(R) Platinum 8480C", 2, 111, 222)
EPYC = Cpus("AMD EPYC 9654 96-Core Processor", 2, 192, 384)
FEW = "unknown warning fewer than two nodes have a value to compare"


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        pytest.param([XEON] * 3, ["pass"] * 3, id="equal"),
        pytest.param([XEON, EPYC, XEON], ["pass", "fail warning", "pass"], id="another-model"),
        pytest.param([XEON, NO_SMT, XEON], ["pass", "fail warning", "pass"], id="threads-off"),
        pytest.param(
            [XEON, XEON, ONE_SOCKET], ["pass", "pass", "fail warning"], id="a-dead-socket"
        ),
        pytest.param(
            [XEON, XEON, LOST_CORE], ["pass", "pass", "fail warning"], id="a-core-is-offline"
        ),
        pytest.param([XEON, EPYC], ["fail warning"] * 2, id="no-majority"),
        pytest.param([XEON], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [XEON, XEON, absent("denied")], ["pass", "pass", "unknown warning denied"], id="denied"
        ),
        pytest.param([XEON, absent("garbled")], [FEW, "unknown warning garbled"], id="garbled"),
    ],
)
def test_the_odd_one_is_blamed(cpus: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("cpu.processors", *cpus)), "cpu.model").values()) == expected


@pytest.mark.parametrize(
    "other",
    [Gpus(0), Gpus(8, "NVIDIA B200"), Gpus(4, "NVIDIA H100 80GB HBM3")],
    ids=["head", "model", "number"],
)
def test_another_kind_of_machine_may_have_other_processors(other: Gpus) -> None:
    kinds = {"n3": {"gpus": other}, "n4": {"gpus": other}}
    seen = fleet(
        each={"gpus": Gpus(8, "NVIDIA H100 80GB HBM3")},
        some=kinds,
        **same("cpu.processors", XEON, XEON, EPYC, EPYC),
    )
    assert told(seen, "cpu.model") == dict.fromkeys(("n1", "n2", "n3", "n4"), "pass")


def test_a_machine_that_is_the_only_one_of_its_kind_has_nothing_to_be_compared_with() -> None:
    seen = fleet(
        each={"gpus": Gpus(8)},
        some={"n3": {"gpus": Gpus(0)}},
        **same("cpu.processors", XEON, XEON, EPYC),
    )
    assert told(seen, "cpu.model") == {"n1": "pass", "n2": "pass", "n3": "skip not_applicable"}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("8480C", ["pass", "fail error"], id="the-number"),
        pytest.param("intel(R) xeon(R) Platinum 8480C", ["pass", "fail error"], id="the-name"),
        pytest.param(
            "AMD EPYC 9654 96-Core Processor", ["fail error", "pass"], id="the-other-name"
        ),
        pytest.param("8480", ["fail error"] * 2, id="part-of-a-word"),
        pytest.param("Xeon 8480C", ["fail error"] * 2, id="words-that-do-not-follow-each-other"),
    ],
)
def test_what_is_required_are_words_of_the_name(wanted: str, expected: list[str]) -> None:
    seen = fleet(each={"require": {"cpu.model": wanted}}, **same("cpu.processors", XEON, EPYC))
    assert list(told(seen, "cpu.model").values()) == expected


def test_what_differs_can_be_read_off() -> None:
    (bad,) = [
        f
        for f in findings(fleet(**same("cpu.processors", XEON, XEON, NO_SMT)), "cpu.model")
        if f.verdict == "fail"
    ]
    assert "112 cores, 112 CPUs on n3" in bad.seen
    assert bad.wanted == "2 × Intel(R) Xeon(R) Platinum 8480C, 112 cores, 224 CPUs"


# ---------------------------------------------------------------- governors


def governed(driver: str, name: str, preference: str | None = None, count: int = 224) -> Governor:
    return Governor(driver, name, preference, count)


@pytest.mark.parametrize(
    ("governors", "expected"),
    [
        pytest.param([governed("intel_pstate", "performance")], "pass", id="intel"),
        pytest.param(
            [governed("intel_pstate", "powersave", "performance")],
            "pass",
            id="intel-told-to-be-fast",
        ),
        pytest.param(
            [governed("intel_pstate", "powersave", "0")], "pass", id="the-same-as-a-number"
        ),
        pytest.param(
            [governed("intel_pstate", "powersave", "balance_performance")],
            "fail warning",
            id="intel-default",
        ),
        pytest.param(
            [governed("intel_pstate", "powersave", "balance_power")],
            "fail warning",
            id="intel-saving",
        ),
        pytest.param(
            [governed("intel_pstate", "powersave")], "fail warning", id="intel-without-hwp"
        ),
        pytest.param([governed("intel_cpufreq", "schedutil")], "fail warning", id="intel-passive"),
        pytest.param(
            [governed("intel_cpufreq", "powersave", "performance")],
            "fail warning",
            id="here-it-is-a-lid",
        ),
        pytest.param(
            [governed("amd-pstate-epp", "powersave", "performance")],
            "pass",
            id="amd-told-to-be-fast",
        ),
        pytest.param(
            [governed("amd-pstate-epp", "powersave", "balance_power")],
            "fail warning",
            id="amd-saving",
        ),
        pytest.param([governed("amd-pstate", "schedutil")], "fail warning", id="amd-passive"),
        pytest.param([governed("acpi-cpufreq", "performance")], "pass", id="acpi"),
        pytest.param(
            [governed("acpi-cpufreq", "ondemand")], "fail warning", id="acpi-follows-the-load"
        ),
        pytest.param([governed("cppc_cpufreq", "performance")], "pass", id="grace"),
        pytest.param(
            [
                governed("acpi-cpufreq", "performance", count=223),
                governed("acpi-cpufreq", "powersave", count=1),
            ],
            "fail warning",
            id="one-slow-processor",
        ),
        pytest.param(
            absent("not_applicable", "no cpufreq"),
            "skip not_applicable",
            id="a-virtual-machine-has-no-clock-to-set",
        ),
        pytest.param(absent("denied"), "unknown warning denied", id="denied"),
        pytest.param(absent("garbled"), "unknown warning garbled", id="garbled"),
    ],
)
def test_nothing_may_hold_the_clock_back(governors: Any, expected: str) -> None:
    value = tuple(governors) if isinstance(governors, list) else governors
    assert told(fleet(**same("cpu.governors", value)), "cpu.governor") == {"n1": expected}


def test_how_many_are_slow_is_said() -> None:
    mixed = (
        governed("acpi-cpufreq", "performance", count=223),
        governed("acpi-cpufreq", "ondemand", count=1),
    )
    (bad,) = findings(fleet(**same("cpu.governors", mixed)), "cpu.governor")
    assert bad.seen == "ondemand (acpi-cpufreq) on 1 of 224 policies"


@pytest.mark.parametrize(
    ("wanted", "seen", "expected"),
    [
        pytest.param(
            "powersave",
            governed("intel_pstate", "powersave", "balance_performance"),
            "pass",
            id="as-wished",
        ),
        pytest.param(
            "powersave",
            governed("intel_pstate", "performance"),
            "fail error",
            id="faster-than-wished",
        ),
        pytest.param(
            "performance",
            governed("intel_pstate", "powersave", "performance"),
            "fail error",
            id="by-name",
        ),
        pytest.param(
            "performance", governed("intel_pstate", "performance"), "pass", id="performance"
        ),
    ],
)
def test_a_governor_that_is_required_is_meant_by_name(
    wanted: str, seen: Governor, expected: str
) -> None:
    assert told(
        fleet(each={"require": {"cpu.governor": wanted}}, **same("cpu.governors", (seen,))),
        "cpu.governor",
    ) == {"n1": expected}


@pytest.mark.parametrize("text", ["Performance", "", "3.5GHz", "power save"])
def test_what_is_no_governor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a governor"):
        parse_governor(text)


def test_a_governor_is_one_word() -> None:
    assert parse_governor("schedutil") == "schedutil"
