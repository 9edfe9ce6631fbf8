"""Module against library, firmware of equal boards, and the fabric on machines that have one."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu_driver import FabricManager, FabricState, Firmware, Library
from clusterprep.facts.nvlink import Fabric
from tests.support.fleet import absent, findings, fleet, same, told

DRIVER, OTHER = "550.54.15", "550.127.05"
PATH = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
STALE = "/usr/lib64/libnvidia-ml.so.1"


def library(
    *versions: str | None, module: str | None = DRIVER, refused: bool = False, works: bool = False
) -> Library:
    return Library(module, dict(zip((PATH, STALE), versions, strict=False)), refused, works)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(library(DRIVER, works=True), "pass", id="equal"),
        pytest.param(library(DRIVER), "pass", id="equal-and-nvml-not-asked"),
        pytest.param(library(None, works=True), "pass", id="no-version-in-the-name-and-it-works"),
        pytest.param(
            library(None), "unknown error nvml did not start", id="no-version-and-it-does-not"
        ),
        pytest.param(library(OTHER), "fail error", id="upgraded-under-the-module"),
        pytest.param(library(OTHER, works=True), "fail error", id="another-version"),
        pytest.param(library(OTHER, refused=True), "fail error", id="refused"),
        pytest.param(library(None, refused=True), "fail error", id="refused-without-a-version"),
        pytest.param(
            library(DRIVER, refused=True), "fail error", id="refused-though-it-looks-equal"
        ),
        pytest.param(
            library(None, module=None, refused=True),
            "fail error",
            id="refused-and-no-version-of-the-module",
        ),
        pytest.param(library(DRIVER, OTHER, works=True), "pass", id="a-stale-file-elsewhere"),
        pytest.param(
            library(DRIVER, OTHER), "fail error", id="two-and-the-loaded-one-is-not-known"
        ),
        pytest.param(absent("denied"), "unknown error denied", id="denied"),
        pytest.param(absent("timed_out"), "unknown error timed_out", id="timed-out"),
        pytest.param(absent("garbled"), "unknown error garbled", id="garbled"),
        pytest.param(absent("not_applicable"), "skip not_applicable", id="no-driver"),
    ],
)
def test_the_library_is_the_modules_own(found: Any, expected: str) -> None:
    assert told(fleet(**same("nv.library", found)), "nv.module_vs_lib") == {"n1": expected}


def test_versions_of_module_and_library_are_told() -> None:
    (found,) = findings(fleet(**same("nv.library", library(OTHER))), "nv.module_vs_lib")
    assert found.seen == f"module {DRIVER}; {PATH} {OTHER}"
    assert "reboot" in found.remedy.note


# ---------------------------------------------------------------- firmware


def board(
    vbios: str = "96.00.74",
    inforom: str | None = "G520.05",
    gsp: str | None = DRIVER,
    part: str = "A",
) -> Firmware:
    versions = {"VBIOS": vbios, "InfoROM": inforom, "GSP": gsp}
    return Firmware(f"NVIDIA H100 {part}", {key: text for key, text in versions.items() if text})


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        pytest.param([[board()] * 8] * 3, ["pass"] * 3, id="equal"),
        pytest.param(
            [[board()] * 7 + [board("96.00.30")], [board()] * 8],
            ["fail warning", "pass"],
            id="one-board",
        ),
        pytest.param(
            [[board()] * 8, [board()] * 8, [board("96.00.30")] * 8],
            ["pass", "pass", "fail warning"],
            id="node",
        ),
        pytest.param(
            [[board()] * 8, [board("96.00.30")] * 8], ["fail warning"] * 2, id="half-and-half"
        ),
        pytest.param(
            [[board()] * 8, [board("96.00.30", part="B")] * 8], ["pass"] * 2, id="other-boards"
        ),
        pytest.param([[board()] * 7 + [board(inforom="G520.04")]], ["fail warning"], id="inforom"),
        pytest.param(
            [[board()] * 7 + [board(gsp=None)]], ["fail warning"], id="gsp-switched-off-on-one"
        ),
        pytest.param(
            [[board()] * 8, [board(gsp=OTHER)] * 8], ["pass"] * 2, id="gsp-follows-the-driver"
        ),
        pytest.param([[board(inforom=None)] * 8], ["pass"], id="no-inforom"),
        pytest.param(
            [[board()] * 7 + [absent("denied")]], ["unknown warning denied"], id="one-denied"
        ),
        pytest.param([[absent("not_applicable")] * 8], ["skip not_applicable"], id="not-told"),
        pytest.param([[board()]], ["pass"], id="a-single-gpu"),
    ],
)
def test_equal_boards_have_equal_firmware(each: list[list[Any]], expected: list[str]) -> None:
    seen = fleet(**same("gpu.firmware", *(dict(enumerate(boards)) for boards in each)))
    assert list(told(seen, "fw.gpu").values()) == expected


def test_the_odd_board_is_named_with_what_the_others_have() -> None:
    seen = fleet(**same("gpu.firmware", dict(enumerate([board()] * 7 + [board("96.00.30")]))))
    assert findings(seen, "fw.gpu")[0].seen == "GPU 7: VBIOS 96.00.30, most have 96.00.74"


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
def test_firmware_that_is_not_known(reason: str) -> None:
    assert told(fleet(**same("gpu.firmware", absent(reason))), "fw.gpu") == {
        "n1": f"unknown warning {reason}"
    }


# ---------------------------------------------------------------- the fabric

READY, LATE = Fabric("completed", 0, ()), Fabric("in progress", 0, ())
RUNS, STOPPED = FabricManager("loaded", "active", None), FabricManager("loaded", "failed", DRIVER)


@pytest.mark.parametrize(
    ("fabric", "service", "expected"),
    [
        pytest.param([READY] * 8, RUNS, "pass", id="set-up"),
        pytest.param([READY] * 8, None, "pass", id="set-up-by-the-host-of-a-virtual-machine"),
        pytest.param([READY] * 8, STOPPED, "fail warning", id="set-up-and-the-manager-gone"),
        pytest.param([READY] * 7 + [LATE], RUNS, "fail error", id="one-in-progress"),
        pytest.param([Fabric("not started", 0, ())] * 8, STOPPED, "fail error", id="not-started"),
        pytest.param(
            [Fabric("completed", 999, ())] * 8, RUNS, "fail error", id="completed-with-an-error"
        ),
        pytest.param(
            [Fabric("completed", 0, ("degraded bandwidth",))] * 8,
            RUNS,
            "fail warning",
            id="degraded",
        ),
        pytest.param(
            [READY] * 7 + [Fabric("completed", 0, ("unhealthy",))],
            RUNS,
            "fail error",
            id="one-unhealthy",
        ),
        pytest.param(
            [Fabric("completed", 0, ("unhealthy", "degraded bandwidth"))] * 8,
            RUNS,
            "fail error",
            id="unhealthy-and-degraded",
        ),
        pytest.param(
            [Fabric("completed", 0, ("limited capacity", "too few NVLinks"))] * 8,
            RUNS,
            "fail warning",
            id="limited-capacity",
        ),
        pytest.param(
            [Fabric("completed", 0, ("unhealthy routes",))] * 8,
            RUNS,
            "fail error",
            id="unhealthy-routes-of-a-driver-without-a-summary",
        ),
        pytest.param(
            [Fabric("completed", 0, ("route recovery under way",))] * 8,
            RUNS,
            "fail warning",
            id="route-recovery",
        ),
        pytest.param(
            [
                Fabric("completed", 0, ("unhealthy",)),
                *[Fabric("completed", 0, ("limited capacity",))] * 7,
            ],
            RUNS,
            "fail error + fail warning",
            id="one-unhealthy-and-others-limited",
        ),
        pytest.param(
            [READY] * 7 + [absent("denied")], RUNS, "unknown error denied", id="one-denied"
        ),
        pytest.param(None, RUNS, "pass", id="ampere-and-the-manager-runs"),
        pytest.param(None, STOPPED, "fail error", id="ampere-and-it-does-not"),
        pytest.param(
            None,
            FabricManager("not-found", "inactive", None),
            "fail error",
            id="ampere-and-not-installed",
        ),
    ],
)
def test_the_fabric_is_set_up(fabric: Any, service: FabricManager | None, expected: str) -> None:
    state = FabricState(None if fabric is None else dict(enumerate(fabric)), service, DRIVER)
    assert told(fleet(**same("gpu.fabric_state", state)), "gpu.fabricmanager") == {"n1": expected}


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
def test_a_fabric_that_is_not_known(reason: str) -> None:
    seen = fleet(**same("gpu.fabric_state", absent(reason)))
    assert told(seen, "gpu.fabricmanager") == {"n1": f"unknown error {reason}"}
    seen = fleet(**same("gpu.fabric_state", absent("not_applicable")))
    assert told(seen, "gpu.fabricmanager") == {"n1": "skip not_applicable"}


def test_a_manager_of_another_version_is_the_cause() -> None:
    service = FabricManager("loaded", "failed", OTHER)
    (found,) = findings(
        fleet(**same("gpu.fabric_state", FabricState({0: LATE}, service, DRIVER))),
        "gpu.fabricmanager",
    )
    assert found.seen == "GPU 0: in progress; nvidia-fabricmanager is failed"
    assert found.remedy.startswith(f"apt-get install nvidia-fabricmanager-550={DRIVER}-1")


def test_a_package_of_newer_branches_is_looked_for_under_both_names() -> None:
    """nvidia-fabricmanager-580=580.105.08-1 and nvidia-fabricmanager=580.95.05-1 are both found."""
    state = FabricState({0: LATE}, FabricManager("loaded", "failed", OTHER), "580.95.05")
    (found,) = findings(fleet(**same("gpu.fabric_state", state)), "gpu.fabricmanager")
    assert found.remedy.startswith(
        "apt-cache madison nvidia-fabricmanager nvidia-fabricmanager-580 | grep -F 580.95.05"
    )
