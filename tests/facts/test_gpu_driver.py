"""Versions of module, library and firmware, and the fabric manager, as machines report them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu_driver import FabricManager, FabricState, Firmware, Library
from clusterprep.facts.nvlink import Fabric
from clusterprep.model import Absent
from tests.support.fleet import learned

MODULE = [
    "ok",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Thu Feb 22 01:44:30 UTC 2024\n",
]
PATH = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
FILES = ["ok", {PATH: "libnvidia-ml.so.550.54.15"}]
WORKS = ["ok", {"driver": "550.54.15", "gpus": []}]
MISMATCH = ["no", "driver_library_mismatch", "nvmlInit answered 18"]
GONE = ["no", "missing", "/proc/driver/nvidia/version"]


@pytest.mark.parametrize(
    ("nvml", "module", "files", "expected"),
    [
        (
            WORKS,
            MODULE,
            FILES,
            Library("550.54.15", {PATH: "550.54.15"}, refused=False, works=True),
        ),
        (
            MISMATCH,
            MODULE,
            ["ok", {PATH: "libnvidia-ml.so.550.127.05"}],
            Library("550.54.15", {PATH: "550.127.05"}, refused=True, works=False),
        ),
        (
            WORKS,
            MODULE,
            ["ok", {PATH: "libnvidia-ml.so.1"}],
            Library("550.54.15", {PATH: None}, refused=False, works=True),
        ),
        (
            ["no", "hung", ""],
            MODULE,
            FILES,
            Library("550.54.15", {PATH: "550.54.15"}, refused=False, works=False),
        ),
        (MISMATCH, GONE, ["ok", {}], Library(None, {}, refused=True, works=False)),
        (
            ["ok", None],
            MODULE,
            ["ok", {}],
            Absent("not_applicable", "no NVIDIA management library here"),
        ),
        (
            ["no", "no_driver", ""],
            GONE,
            FILES,
            Absent("not_applicable", "no NVIDIA driver is loaded"),
        ),
        (WORKS, ["no", "denied", "EACCES"], FILES, Absent("denied", "EACCES")),
        (WORKS, MODULE, ["no", "timed_out", ""], Absent("timed_out", "")),
    ],
)
def test_module_and_library(nvml: Any, module: Any, files: Any, expected: Any) -> None:
    assert learned("nv.library", nvml, module, files) == expected


@pytest.mark.parametrize(
    ("module", "files"),
    [
        (["ok", ""], FILES),
        (["ok", "NVRM version:"], FILES),
        (MODULE, ["ok", None]),
        (MODULE, ["ok", []]),
    ],
)
def test_versions_of_another_shape_are_garbled(module: Any, files: Any) -> None:
    assert learned("nv.library", WORKS, module, files).reason == "garbled"


# ---------------------------------------------------------------- firmware

ROW = {
    "index": 0,
    "name": "NVIDIA L20",
    "part": "900-2G133",
    "vbios": "95.02",
    "inforom": "G133.03",
    "gsp": "550.54.15",
}


def firmware(**change: Any) -> Any:
    return learned("gpu.firmware", ["ok", {"gpus": [{**ROW, **change}]}])


def test_firmware_by_part() -> None:
    versions = {"VBIOS": "95.02", "InfoROM": "G133.03", "GSP": "550.54.15"}
    assert firmware() == {0: Firmware("NVIDIA L20 900-2G133", versions)}
    assert firmware(part=["no", "not_applicable"])[0].board == "NVIDIA L20"
    assert firmware(gsp=["no", "not_applicable"], inforom=["no", "nvml_error", 14])[0].versions == {
        "VBIOS": "95.02"
    }


@pytest.mark.parametrize("reason", ["denied", "not_applicable"])
def test_firmware_that_is_refused(reason: str) -> None:
    assert firmware(vbios=["no", reason]).reason == reason


def test_no_version_at_all_is_garbled() -> None:
    assert firmware(vbios="", inforom="", gsp="").reason == "garbled"
    assert learned("gpu.firmware", ["ok", {"gpus": [{"index": 0}]}]).reason == "garbled"


# ---------------------------------------------------------------- the fabric


def nvml(fabric: Any) -> Any:
    return ["ok", {"driver": "550.54.15", "gpus": [{"index": 0, "fabric": fabric}]}]


ACTIVE = [
    "ok",
    {"state": "LoadState=loaded\nActiveState=active\nSubState=running\n", "version": ""},
]
RUNS = FabricManager("loaded", "active", None)
FAILED = [
    "ok",
    {
        "state": "LoadState=loaded\nActiveState=failed\nSubState=failed\n",
        "version": "Fabric Manager version is : 550.127.05\n",
    },
]
SILENT = ["ok", {"state": "", "version": ""}]  # systemctl in a container
NONE = ["ok", None]
NOT_SUPPORTED = ["no", "not_applicable"]
READY = {0: Fabric("completed", 0, ())}


@pytest.mark.parametrize(
    ("fabric", "service", "expected"),
    [
        ([3, 0, 0, 0, 0], ACTIVE, FabricState(READY, RUNS, "550.54.15")),
        ([3, 0, 0, None, None], NONE, FabricState(READY, None, "550.54.15")),
        (
            [3, 0, 0, 0, 0],
            ["no", "missing_tool", "systemctl"],
            FabricState(READY, None, "550.54.15"),
        ),
        (
            [3, 0, 0, 0, 0],
            FAILED,
            FabricState(READY, FabricManager("loaded", "failed", "550.127.05"), "550.54.15"),
        ),
        ([0, 0, 0, 0, 0], NONE, Absent("not_applicable", "no NVSwitch here")),
        (NOT_SUPPORTED, NONE, Absent("not_applicable", "no NVSwitch here")),
        (NOT_SUPPORTED, ACTIVE, FabricState(None, RUNS, "550.54.15")),
        (["no", "missing_tool"], ACTIVE, FabricState(None, RUNS, "550.54.15")),
        (NOT_SUPPORTED, ["no", "missing_tool", "systemctl"], Absent("missing_tool", "systemctl")),
        ([3, 0, 0, 0, 0], SILENT, FabricState(READY, None, "550.54.15")),
        (
            NOT_SUPPORTED,
            SILENT,
            Absent("systemd is not running", "systemctl says nothing of nvidia-fabricmanager"),
        ),
    ],
)
def test_the_fabric_by_gpus_and_by_service(fabric: Any, service: Any, expected: Any) -> None:
    assert learned("gpu.fabric_state", nvml(fabric), service) == expected


@pytest.mark.parametrize("reason", ["hung", "denied", "driver_library_mismatch", "missing_tool"])
def test_gpus_that_do_not_answer_may_have_a_fabric(reason: str) -> None:
    assert learned("gpu.fabric_state", ["no", reason, "why"], ACTIVE) == Absent(reason, "why")


@pytest.mark.parametrize(
    "state", ["ActiveState=active\n", "Failed to connect to bus: No such file or directory\n"]
)
def test_a_state_that_systemd_did_not_tell_is_garbled(state: str) -> None:
    service = ["ok", {"state": state, "version": ""}]
    assert learned("gpu.fabric_state", nvml(NOT_SUPPORTED), service).reason == "garbled"
