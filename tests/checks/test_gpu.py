"""GPUs by NVML, on the bus and as declared: all there, one gone, none meant, and not seen."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.model import Gpus
from tests.fleet import absent, findings, fleet, nvml, told


def node(by_nvml: Any, on_bus: int) -> dict[str, Any]:
    return {"gpu.nvml": by_nvml, "gpu.pci": tuple(f"0000:{i:02x}:00.0" for i in range(on_bus))}


@pytest.mark.parametrize(
    ("by_nvml", "on_bus", "declared", "expected"),
    [
        pytest.param(nvml(8), 8, None, "pass", id="eight"),
        pytest.param(nvml(8), 8, 8, "pass", id="eight-as-declared"),
        pytest.param(nvml(7), 8, None, "fail error", id="one-fell-out-of-the-driver"),
        pytest.param(nvml(7), 7, 8, "fail error", id="one-fell-off-the-bus"),
        pytest.param(nvml(7, ("GPU 7: gpu_lost",)), 8, 8, "fail error", id="one-lost-while-the-driver-counts-it"),
        pytest.param(nvml(8, ("GPU 8: gpu_lost",)), 8, 8, "fail error", id="lost-and-the-number-still-right"),
        pytest.param(None, 8, None, "fail error", id="no-library-and-gpus-on-the-bus"),
        pytest.param(nvml(8), 8, 10, "fail error", id="fewer-than-declared"),
        pytest.param(nvml(8), 8, 4, "fail error", id="more-than-declared"),
        pytest.param(nvml(8), 8, 0, "fail error", id="declared-as-none"),
        pytest.param(nvml(8), 7, 8, "fail error", id="more-than-the-bus-has"),
        pytest.param(nvml(4), 0, 4, "pass", id="no-view-of-the-bus"),
        pytest.param(nvml(4), 0, None, "pass", id="no-view-of-the-bus-and-nothing-declared"),
        pytest.param(None, 0, None, "skip not_applicable", id="no-gpu-and-none-meant"),
        pytest.param(None, 0, 0, "skip not_applicable", id="no-gpu-and-none-declared"),
        pytest.param(nvml(0), 0, None, "skip not_applicable", id="a-library-and-no-gpu"),
        pytest.param(None, 0, 8, "fail error", id="none-where-eight-are-declared"),
        pytest.param(absent("denied"), 8, 8, "unknown error denied", id="nvml-denied"),
        pytest.param(absent("driver_library_mismatch"), 8, 8, "unknown error driver_library_mismatch", id="mismatch"),
        pytest.param(absent("hung"), 8, 8, "unknown error hung", id="nvml-hung"),
    ],
)
def test_nvml_the_bus_and_the_inventory_say_the_same(
    by_nvml: Any, on_bus: int, declared: int | None, expected: str
) -> None:
    settings = {"gpus": None if declared is None else Gpus(declared)}
    assert told(fleet(each=settings, n1=node(by_nvml, on_bus)), "gpu.count") == {"n1": expected}


def test_a_job_on_some_devices_still_declares_all_of_them() -> None:
    seen = fleet(each={"gpus": Gpus(10, use=(6, 7, 8, 9))}, n1=node(nvml(10), 10), n2=node(nvml(9), 10))
    assert told(seen, "gpu.count") == {"n1": "pass", "n2": "fail error"}


def test_a_lost_device_is_named() -> None:
    seen = fleet(n1=node(nvml(7, ("GPU 3: gpu_lost",)), 8))
    assert "GPU 3" in findings(seen, "gpu.count")[0].message


@pytest.mark.parametrize(
    ("seen", "words"), [(nvml(7), "missing from the driver"), (nvml(9), "more GPUs than declared")]
)
def test_fewer_and_more_are_told_apart(seen: Any, words: str) -> None:
    (bad,) = findings(fleet(each={"gpus": Gpus(8)}, n1=node(seen, 9)), "gpu.count")
    assert words in bad.message
    assert bad.wanted == "8 declared"


def test_a_bus_that_was_not_read_is_not_an_empty_bus() -> None:
    seen = fleet(n1={"gpu.nvml": nvml(8), "gpu.pci": absent("timed_out")})
    assert told(seen, "gpu.count") == {"n1": "unknown error timed_out"}


def test_undeclared_numbers_are_compared_between_the_nodes_that_have_gpus() -> None:
    """A GPU that left the bus altogether leaves NVML and PCI agreeing with each other."""
    seen = fleet(n1=node(nvml(8), 8), n2=node(nvml(8), 8), n3=node(nvml(7), 7), head=node(None, 0))
    assert told(seen, "gpu.count") == {"n1": "pass", "n2": "pass", "n3": "fail error", "head": "skip not_applicable"}
