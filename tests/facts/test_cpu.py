"""Processors from /proc/cpuinfo of Intel, AMD, ARM and virtual machines, and their governors."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.cpu import Cpus, Governor, virtual
from clusterprep.model import Absent
from tests.support.fleet import learned

XEON = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\n"
    "model name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: fpu vme tsc\n"
)
EPYC = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\n"
    "model name\t: AMD EPYC 9654 96-Core Processor\nflags\t\t: fpu sse\n"
)
PADDED = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU           X5650  @ 2.67GHz\n"
GRACE = (
    "processor\t: 0\nBogoMIPS\t: 2000.00\n"
    "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n"
)
GUEST = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu tsc hypervisor lahf_lm\n"


def answer(text: str, sockets: int = 2, cores: int = 112, cpus: int = 224) -> list[Any]:
    return ["ok", {"cpuinfo": text, "sockets": sockets, "cores": cores, "cpus": cpus}]


@pytest.mark.parametrize(
    ("text", "model"),
    [
        pytest.param(XEON, "Intel(R) Xeon(R) Platinum 8480C", id="xeon"),
        pytest.param(EPYC, "AMD EPYC 9654 96-Core Processor", id="epyc"),
        pytest.param(PADDED, "Intel(R) Xeon(R) CPU X5650 @ 2.67GHz", id="filled-with-blanks"),
        pytest.param(GRACE, "CPU implementer 0x41 part 0xd4f", id="grace"),
    ],
)
def test_processors_have_a_model_and_numbers(text: str, model: str) -> None:
    assert learned("cpu.processors", answer(text)) == Cpus(model, 2, 112, 224)


def test_processors_read_as_people_say_it() -> None:
    assert str(Cpus("EPYC", 2, 192, 384)) == "2 × EPYC, 192 cores, 384 CPUs"
    assert str(Cpus("EPYC", 1, 1, 1)) == "1 × EPYC, 1 core, 1 CPU"


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(answer(""), id="empty"),
        pytest.param(answer("processor\t: 0\n"), id="no-model"),
        pytest.param(answer("CPU implementer\t: 0x41\n"), id="half-of-arm"),
        pytest.param(answer(XEON, sockets=0, cores=0, cpus=0), id="no-sysfs"),
        pytest.param(answer(XEON, cores=300), id="more-cores-than-processors"),
        pytest.param(["ok", {"cpuinfo": XEON}], id="no-numbers"),
        pytest.param(["ok", XEON], id="another-type"),
        pytest.param(["no", "missing", "/proc/cpuinfo"], id="no-file"),
    ],
)
def test_what_are_no_processors_is_garbled(given: list[Any]) -> None:
    assert learned("cpu.processors", given).reason == "garbled"


def test_a_guest_says_so() -> None:
    assert virtual({"cpuinfo": GUEST})
    assert not virtual({"cpuinfo": XEON})
    assert not virtual({"cpuinfo": GRACE})


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(
            [["intel_pstate", "powersave", "balance_performance", 224, "policy0"]],
            (Governor("intel_pstate", "powersave", "balance_performance", 224, "policy0"),),
            id="intel",
        ),
        pytest.param(
            [
                ["acpi-cpufreq", "ondemand", None, 1, "policy7"],
                ["acpi-cpufreq", "performance", None, 63, "policy0"],
            ],
            (
                Governor("acpi-cpufreq", "ondemand", None, 1, "policy7"),
                Governor("acpi-cpufreq", "performance", None, 63, "policy0"),
            ),
            id="two-kinds",
        ),
    ],
)
def test_governors_are_counted(rows: list[Any], expected: tuple[Governor, ...]) -> None:
    assert learned("cpu.governors", ["ok", rows]) == expected


def test_without_cpufreq_there_is_nothing_to_judge() -> None:
    found = learned("cpu.governors", ["ok", []])
    assert isinstance(found, Absent)
    assert found.reason == "not_applicable"


@pytest.mark.parametrize(
    "rows",
    [
        [["intel_pstate", None, None, 224, "policy0"]],
        [["intel_pstate", "", None, 224, "policy0"]],
        [[None, "performance", None, 224, "policy0"]],
        [["intel_pstate", "performance", None, 0, "policy0"]],
        [["intel_pstate", "performance", None, "many", "policy0"]],
        [[]],
        [None],
        "performance",
    ],
)
def test_a_policy_without_a_governor_is_garbled_and_not_fast(rows: object) -> None:
    assert learned("cpu.governors", ["ok", rows]).reason == "garbled"


@pytest.mark.parametrize("fact", ["cpu.processors", "cpu.governors"])
def test_a_reason_survives(fact: str) -> None:
    assert learned(fact, ["no", "denied", "EACCES"]) == Absent("denied", "EACCES")
