"""Driver libraries that are empty, gone or mixed, and driver packages that may be updated."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.driver_files import DriverLibrary
from clusterprep.facts.packages import DriverPackages
from tests.support.fleet import absent, findings, fleet, same, told

LIB = "/usr/lib/x86_64-linux-gnu"
CUDA = DriverLibrary(f"{LIB}/libcuda.so.1", 28386840, "550.54.15")
NVML = DriverLibrary(f"{LIB}/libnvidia-ml.so.1", 2078360, "550.54.15")
PTX = DriverLibrary(f"{LIB}/libnvidia-ptxjitcompiler.so.1", 28674464, "550.54.15")
OLD = DriverLibrary(f"{LIB}/libnvidia-ptxjitcompiler.so.1", 28674464, "535.183.01")
COMPAT = DriverLibrary("/usr/local/cuda/compat/libcuda.so.1", 33182728, "560.35.03")
EMPTY = DriverLibrary(f"{LIB}/libcuda.so.1", 0, "550.54.15")
GONE = DriverLibrary(f"{LIB}/libcuda.so.1", None, None)


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        pytest.param((CUDA, NVML, PTX), "pass", id="whole"),
        pytest.param((CUDA, NVML, COMPAT), "pass", id="a-compatibility-package-beside-it"),
        pytest.param((EMPTY, NVML), "fail warning", id="empty"),
        pytest.param((GONE, NVML), "fail warning", id="leads-nowhere"),
        pytest.param((CUDA, NVML, OLD), "fail warning", id="half-upgraded"),
        pytest.param((EMPTY, OLD), "fail warning + fail warning", id="two-faults"),
        pytest.param((), "skip not_applicable", id="no-driver"),
        pytest.param(absent("denied"), "unknown warning denied", id="denied"),
    ],
)
def test_the_libraries_of_the_driver_are_whole(libraries: Any, expected: str) -> None:
    seen = fleet(**same("nv.libraries", libraries))
    assert told(seen, "nv.lib_integrity") == {"n1": expected}


def test_the_library_is_named() -> None:
    seen = fleet(**same("nv.libraries", (EMPTY, NVML), (CUDA, NVML, OLD)))
    texts = {finding.nodes[0]: finding.seen for finding in findings(seen, "nv.lib_integrity")}
    assert texts["n1"] == f"{LIB}/libcuda.so.1"
    assert texts["n2"] == (
        f"libcuda.so.1 550.54.15, libnvidia-ptxjitcompiler.so.1 535.183.01 in {LIB}"
    )


NAMES = ("nvidia-dkms-550", "nvidia-driver-550")


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (DriverPackages("apt", NAMES, (), automatic=True), "pass"),
        (DriverPackages("apt", (), NAMES, automatic=False), "pass"),
        (DriverPackages("apt", (), (), automatic=True), "pass"),
        (DriverPackages("apt", NAMES[:1], NAMES[1:], automatic=True), "fail warning"),
        (absent("not_applicable"), "skip not_applicable"),
        (absent("hung"), "unknown warning hung"),
    ],
)
def test_nothing_updates_the_driver_by_itself(packages: Any, expected: str) -> None:
    assert told(fleet(**same("nv.packages", packages)), "nv.pkg_hold") == {"n1": expected}


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt", "apt-mark hold nvidia-dkms-550 nvidia-driver-550"),
        ("dnf", "dnf versionlock add nvidia-dkms-550 nvidia-driver-550"),
    ],
)
def test_the_remedy_holds_what_is_loose(manager: str, line: str) -> None:
    packages = DriverPackages(manager, (), NAMES, automatic=True)
    (finding,) = findings(fleet(**same("nv.packages", packages)), "nv.pkg_hold")
    assert finding.remedy == line
