"""CUDA of torch, of the driver and of the toolkit: what runs, what does not, what is not known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.model import Gpus
from tests.support.fleet import NO_TORCH, absent, findings, fleet, nvml, same, told, torch

DRIVERS_OWN = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01"
COMPAT = "/usr/local/cuda-13.0/compat/libcuda.so.580.65.06"
NGC = "/usr/local/cuda/compat/lib.real/libcuda.so.580.95.05"
CPU = torch("2.6.0+cpu", None, None)


def node(
    cuda: Any, driver: str | None, able: str = "", libcuda: Any = DRIVERS_OWN
) -> dict[str, Any]:
    by_nvml = None if driver is None else replace(nvml(driver=driver), cuda=able)
    build = torch(cuda=cuda) if isinstance(cuda, str) else cuda
    return {"torch.build": build, "gpu.nvml": by_nvml, "cuda.libcuda": libcuda}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(node("12.4", "550.54.15", "12.4"), "pass", id="the-same"),
        pytest.param(node("11.8", "550.54.15", "12.4"), "pass", id="an-older-torch"),
        pytest.param(node("10.2", "550.54.15", "12.4"), "pass", id="a-very-old-torch"),
        pytest.param(node("12.8", "550.54.15", "12.4"), "pass", id="a-newer-minor-version"),
        pytest.param(node("12.9", "525.60.13", "12.0"), "pass", id="on-the-minimum"),
        pytest.param(node("12.9", "525.60.12", "12.0"), "fail error", id="just-under-the-minimum"),
        pytest.param(node("11.8", "450.80.02", "11.0"), "pass", id="11-on-the-minimum"),
        pytest.param(node("11.8", "450.51.06", "11.0"), "fail error", id="11-under-the-minimum"),
        pytest.param(node("13.2", "580.65.06", "13.0"), "pass", id="13-on-the-minimum"),
        pytest.param(node("13.0", "575.57.08", "12.9"), "fail error", id="a-newer-major-version"),
        pytest.param(node("12.1", "520.61.05", "11.8"), "fail error", id="12-on-a-driver-of-11"),
        pytest.param(
            node("10.2", "418.39", "10.1"), "fail error", id="no-such-compatibility-before-11"
        ),
        pytest.param(
            node("13.0", "535.183.01", "12.2", COMPAT), "pass", id="a-compatibility-package"
        ),
        pytest.param(node("13.0", "535.183.01", "12.2", NGC), "pass", id="ngc"),
        pytest.param(
            node("13.0", "535.183.01", "12.2", COMPAT.replace("580.65.06", "570.124.06")),
            "fail error",
            id="too-old",
        ),
        pytest.param(
            node("13.0", "535.183.01", "12.2", None), "fail error", id="no-libcuda-at-all"
        ),
        pytest.param(node("14.1", "610.10", "14.0"), "pass", id="versions-to-come"),
        pytest.param(node(CPU, "550.54.15", "12.4"), "skip not_applicable", id="a-cpu-build"),
        pytest.param(node(NO_TORCH, "550.54.15", "12.4"), "skip not_applicable", id="no-torch"),
        pytest.param(node("12.4", None), "skip not_applicable", id="no-driver-and-no-gpu"),
        pytest.param(
            {**node("12.4", "1"), "gpu.nvml": replace(nvml(), cuda=None)},
            "unknown error missing_tool",
            id="no-libcuda-for-nvml",
        ),
        pytest.param(
            {**node("12.4", "1"), "gpu.nvml": replace(nvml(), driver=None)},
            "unknown error nvml_error",
            id="a-driver-without-its-version",
        ),
        pytest.param(
            node("12.4", "550.54.15", "?"), "unknown error garbled", id="nonsense-of-the-driver"
        ),
        pytest.param(
            {**node("12.4", "1"), "gpu.nvml": absent("denied")}, "unknown error denied", id="denied"
        ),
        pytest.param(
            {**node("12.4", "1"), "gpu.nvml": absent("hung")}, "unknown error hung", id="hung"
        ),
        pytest.param(
            {**node("12.4", "1"), "torch.build": absent("missing_tool")},
            "unknown error missing_tool",
            id="no-python",
        ),
    ],
)
def test_the_driver_must_run_the_cuda_of_torch(facts: dict[str, Any], expected: str) -> None:
    assert told(fleet(n1=facts), "cuda.runtime_vs_driver") == {"n1": expected}


def test_gpus_without_a_driver_are_not_known_and_not_skipped() -> None:
    seen = fleet(each={"gpus": Gpus(8)}, n1=node("12.4", None))
    assert told(seen, "cuda.runtime_vs_driver") == {"n1": "unknown error no_driver"}


@pytest.mark.parametrize(
    ("wanted", "cuda", "gpus", "expected"),
    [
        pytest.param("12.4", "12.4", 8, "pass", id="as-required"),
        pytest.param(">=12.4,<13", "12.8", 8, "pass", id="a-range"),
        pytest.param("12.4", "12.1", 8, "fail error", id="another"),
        pytest.param("12.4", CPU, 8, "fail error", id="a-cpu-build-where-gpus-are"),
        pytest.param("12.4", CPU, 0, "skip not_applicable", id="a-cpu-build-where-none-are"),
        pytest.param("13.0", "13.0", 8, "fail error", id="as-required-and-the-driver-cannot"),
    ],
)
def test_what_is_required_is_the_cuda_of_torch(
    wanted: str, cuda: Any, gpus: int, expected: str
) -> None:
    settings = {"gpus": Gpus(gpus), "require": {"cuda.runtime_vs_driver": wanted}}
    seen = fleet(each=settings, n1=node(cuda, "550.54.15", "12.4"))
    assert told(seen, "cuda.runtime_vs_driver") == {"n1": expected}


def test_the_remedy_has_the_nodes_python_and_a_wheel_that_runs() -> None:
    seen = fleet(each={"python": "/opt/venv/bin/python"}, n1=node("13.0", "550.54.15", "12.4"))
    (bad,) = findings(seen, "cuda.runtime_vs_driver")
    assert bad.remedy == "/opt/venv/bin/python -m pip install torch==2.6.0+cu124"
    assert "upgrade the driver to 580.65.06" in bad.remedy.note


# ---------------------------------------------------------------- the toolkit


def kits(*versions: Any, by_nvml: Any = None, **options: Any) -> Any:
    facts = {
        n: {**f, "gpu.nvml": by_nvml or nvml()} for n, f in same("cuda.toolkit", *versions).items()
    }
    return fleet(**options, **facts)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        pytest.param(["12.4.1"] * 3, ["pass"] * 3, id="equal"),
        pytest.param(
            ["12.4.1", "11.8.0", "12.4.1"], ["pass", "fail warning", "pass"], id="one-odd"
        ),
        pytest.param(
            ["12.4.1", "12.4.0", "12.4.1"], ["pass", "fail warning", "pass"], id="another-update"
        ),
        pytest.param(["12.4.1", "12.2.0"], ["fail warning"] * 2, id="two-nodes"),
        pytest.param([None, None, None], ["skip not_applicable"] * 3, id="none-anywhere"),
        pytest.param(
            ["12.4.1", None, "12.4.1"], ["pass", "fail warning", "pass"], id="missing-on-one"
        ),
        pytest.param(["12.4.1"], ["skip not_applicable"], id="one-node"),
        pytest.param(
            ["13.0.1"], ["fail warning + skip not_applicable"], id="newer-than-the-driver"
        ),
        pytest.param(["13.0.1"] * 2, ["fail warning"] * 2, id="newer-than-the-driver-everywhere"),
        pytest.param(["12.9.0"] * 2, ["pass"] * 2, id="a-newer-minor-version"),
        pytest.param(
            ["12.4.1", "12.4.1", absent()], ["pass", "pass", "unknown warning denied"], id="denied"
        ),
        pytest.param([absent("garbled")] * 2, ["unknown warning garbled"] * 2, id="garbled"),
    ],
)
def test_one_toolkit_on_all_nodes_that_the_driver_runs(
    versions: list[Any], expected: list[str]
) -> None:
    assert list(told(kits(*versions), "cuda.toolkit").values()) == expected


def test_a_head_node_needs_no_toolkit_and_kinds_may_differ() -> None:
    kinds = {
        "n1": Gpus(0),
        "n2": Gpus(8, "H100"),
        "n3": Gpus(8, "H100"),
        "n4": Gpus(4, "A100"),
        "n5": Gpus(4, "A100"),
    }
    seen = kits(
        None,
        "12.4.1",
        "12.4.1",
        "11.8.0",
        "11.8.0",
        some={n: {"gpus": gpus} for n, gpus in kinds.items()},
    )
    assert told(seen, "cuda.toolkit") == {
        "n1": "skip not_applicable",
        **dict.fromkeys(("n2", "n3", "n4", "n5"), "pass"),
    }


def test_a_required_toolkit_is_an_error_where_it_differs_or_is_missing() -> None:
    seen = kits("12.4.1", "12.2.0", None, each={"require": {"cuda.toolkit": "==12.4.*"}})
    assert told(seen, "cuda.toolkit") == {"n1": "pass", "n2": "fail error", "n3": "fail error"}


def test_a_driver_that_does_not_answer_leaves_the_toolkit_unknown() -> None:
    seen = kits("12.4.1", "12.4.1", by_nvml=absent("hung"))
    assert set(told(seen, "cuda.toolkit").values()) == {"unknown warning hung"}


def test_a_toolkit_is_not_compared_with_a_driver_that_does_not_tell_its_cuda() -> None:
    seen = kits("12.4.1", "12.4.1", by_nvml=replace(nvml(), cuda=None))
    assert told(seen, "cuda.toolkit") == dict.fromkeys(("n1", "n2"), "unknown warning missing_tool")
