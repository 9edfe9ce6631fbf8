"""Rates, checksums and diagnostics of the stress tier: failures, passes, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.checks.stress import least_of_peers, parse_level, parse_rate
from clusterprep.facts.gpu_load import GpuLoad
from clusterprep.facts.stress import (
    DeviceResult,
    Diagnostics,
    DiagnosticTest,
    FailedTest,
    StressResults,
)
from tests.support.fleet import absent, findings, fleet, told
from tests.support.rails import tree

H100 = "NVIDIA H100 80GB HBM3"
RATES = {"alive": 1.0, "gemm": 690.0, "copy": 2900.0, "to_device": 55.0, "to_host": 53.0}
HUNG = FailedTest("hung", "no answer within 15 s")
HEALTHY = DeviceResult(0, H100, RATES, checksum="aa", repeated=9)


def results(*devices: DeviceResult, **fields: Any) -> StressResults:
    return StressResults(devices or (HEALTHY,), "2.6.0+cu124", **fields)


def device(model: str = H100, **values: float) -> DeviceResult:
    return replace(HEALTHY, model=model, values={**RATES, **values})


def nodes(*seen: Any, require: dict[str, str] | None = None, **facts: Any) -> Any:
    each = {"require": require} if require else {}
    named = {f"n{number}": {"stress.results": value, **facts} for number, value in enumerate(seen)}
    return fleet(each=each, **named)


def said(check: str, *seen: Any, **settings: Any) -> list[str]:
    return list(told(nodes(*seen, **settings), check).values())


ALL = (
    "gpu.gemm",
    "gpu.h2d",
    "gpu.hbm",
    "gpu.liveness",
    "gpu.p2p",
    "gpu.sdc",
    "mem.stream",
)


@pytest.mark.parametrize("check", ALL)
def test_without_stress_nothing_is_known_and_that_is_said(check: str) -> None:
    assert list(told(fleet(n1={}), check).values()) == ["skip only --stress judges it"]


@pytest.mark.parametrize("check", ALL)
@pytest.mark.parametrize("reason", ["busy", "hung", "garbled", "missing_tool"])
def test_results_that_are_missing_are_unknown(check: str, reason: str) -> None:
    severity = "error" if check in ("gpu.liveness", "gpu.sdc") else "warning"
    assert said(check, absent(reason)) == [f"unknown {severity} {reason}"]


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize(
    ("check", "seen", "expected"),
    [
        pytest.param("gpu.gemm", device(), "pass", id="as-public-figures"),
        pytest.param("gpu.gemm", device(gemm=480), "fail warning", id="below-half-of-the-sheet"),
        pytest.param("gpu.gemm", device("NVIDIA L4"), "skip first_sample", id="no-floor"),
        pytest.param("gpu.hbm", device(copy=2000), "fail warning", id="slow-memory"),
        pytest.param("gpu.hbm", device("NVIDIA H100 PCIe", copy=1750), "pass", id="another-sheet"),
        pytest.param("gpu.hbm", device("NVIDIA H200", copy=2900), "fail warning", id="not-an-h100"),
    ],
)
def test_floors_by_model(check: str, seen: DeviceResult, expected: str) -> None:
    assert said(check, results(seen)) == [expected]


@pytest.mark.parametrize(
    ("wanted", "expected"), [("600", "pass"), ("700 TFLOP/s", "fail error"), ("690", "pass")]
)
def test_what_is_required_counts_alone(wanted: str, expected: str) -> None:
    assert said("gpu.gemm", results(), require={"gpu.gemm": wanted}) == [expected]


def test_one_slow_gpu_of_a_model_without_floor_is_an_outlier() -> None:
    devices = [replace(device("NVIDIA L4", gemm=58.0), index=index) for index in range(8)]
    devices[5] = replace(devices[5], values={**RATES, "gemm": 41.0})
    (bad,) = findings(nodes(results(*devices)), "gpu.gemm")
    assert bad.seen == "GPU 5 41 TFLOP/s"
    assert bad.wanted == "55.1 TFLOP/s, as the same devices have it"


def test_peers_are_those_of_all_nodes() -> None:
    usual = [results(device("NVIDIA L4", gemm=58.0))] * 4
    slow = results(device("NVIDIA L4", gemm=40.0))
    assert said("gpu.gemm", *usual, slow) == ["pass"] * 4 + ["fail warning"]


@pytest.mark.parametrize(
    ("values", "least"),
    [
        pytest.param([58, 58, 58], None, id="too-few"),
        pytest.param([100, 100, 100, 100], 95, id="alike"),
        pytest.param([100, 101, 99, 100, 60], 95.55, id="one-far-off"),
        pytest.param([100, 80, 120, 90, 110, 70, 130], 100 - 3 * 1.4826 * 20, id="widely-spread"),
    ],
)
def test_the_least_of_peers(values: list[float], least: float | None) -> None:
    found = least_of_peers(values)
    assert found == least or found == pytest.approx(least, rel=0.01)


def test_the_floor_of_host_copies_is_that_of_the_link() -> None:
    pci = tree()
    load = {0: GpuLoad(pci.gpus[0].at, False)}
    facts = {"pci.tree": pci, "gpu.load": load}
    assert said("gpu.h2d", results(), **facts) == ["pass"]
    slow = results(device(to_device=26.0))
    (bad,) = findings(nodes(slow, **facts), "gpu.h2d")
    assert bad.seen == "GPU 0 from the host 26 GB/s"
    assert bad.wanted == "41 GB/s, 65 % of PCIe's 63.0 at 32 GT/s x16"


def test_a_slower_link_on_the_way_up_sets_the_floor() -> None:
    """A GPU of PCIe 6 below a switch whose way up is PCIe 4."""
    pci = tree()
    gpu = pci.gpus[0]
    up = replace(pci.bridges[gpu.above[1]], max_speed=16.0)
    bridges = {**pci.bridges, gpu.above[1]: up}
    facts = {"pci.tree": replace(pci, bridges=bridges), "gpu.load": {0: GpuLoad(gpu.at, False)}}
    assert said("gpu.h2d", results(device(to_device=24.0, to_host=24.0)), **facts) == ["pass"]


def test_host_copies_without_a_link_are_compared_with_peers_alone() -> None:
    assert said("gpu.h2d", results()) == ["skip first_sample"]
    alike = [results()] * 4
    assert said("gpu.h2d", *alike) == ["pass"] * 4


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (FailedTest("hung", "no answer within 45 s"), "fail warning"),
        (FailedTest("wrong", "RuntimeError: CUDA error: misaligned address"), "fail warning"),
        (FailedTest("room", "OutOfMemoryError: CUDA out of memory"), "unknown warning"),
        (FailedTest("missing", "torch is a build for CPUs only"), "unknown warning missing_tool"),
    ],
)
def test_a_test_without_a_value(failure: FailedTest, expected: str) -> None:
    broken = DeviceResult(3, H100, failed={"gemm": failure})
    (told_of,) = said("gpu.gemm", results(HEALTHY, broken))
    assert told_of.startswith(expected)


# ---------------------------------------------------------------- pairs and memory

ENDS = [f"GPU {a} to GPU {b}" for a in range(4) for b in range(4) if a != b]
FOUR = [replace(HEALTHY, index=index) for index in range(4)]


@pytest.mark.parametrize(
    ("speed", "expected"), [(370.0, "pass"), (300.0, "fail warning")], ids=["nvlink", "pcie"]
)
def test_pairs_of_h100(speed: float, expected: str) -> None:
    pairs = dict.fromkeys(ENDS, speed)
    assert said("gpu.p2p", results(*FOUR, pairs=pairs)) == [expected]


def test_the_slow_pair_is_named() -> None:
    pairs = {**dict.fromkeys(ENDS, 370.0), "GPU 2 to GPU 3": 21.0}
    (bad,) = findings(nodes(results(*FOUR, pairs=pairs)), "gpu.p2p")
    assert bad.seen == "GPU 2 to GPU 3 21 GB/s"


def test_one_gpu_has_no_pairs() -> None:
    assert said("gpu.p2p", results()) == ["skip not_applicable"]


def test_memory_is_compared_between_machines() -> None:
    alike = [results(stream=610.0, threads=96)] * 4
    slow = results(stream=520.0, threads=96)
    assert said("mem.stream", *alike, slow) == ["pass"] * 4 + ["fail warning"]
    assert said("mem.stream", slow) == ["skip first_sample"]
    assert said("mem.stream", slow, require={"mem.stream": "580"}) == ["fail error"]


# ---------------------------------------------------------------- sums and life


def test_equal_checksums_pass() -> None:
    assert said("gpu.sdc", results(), results()) == ["pass", "pass"]


def test_a_gpu_that_computes_otherwise_is_named() -> None:
    odd = replace(HEALTHY, index=3, checksum="bb")
    seen = nodes(results(), results(HEALTHY, odd), results())
    (bad,) = [one for one in findings(seen, "gpu.sdc") if one.verdict == "fail"]
    assert (bad.nodes, bad.severity) == (("n1",), "error")
    assert bad.seen == "GPU 3: bb, elsewhere aa"


def test_a_gpu_that_differs_from_itself_is_named_and_is_no_witness() -> None:
    odd = replace(HEALTHY, checksum="bb", differing=2)
    assert said("gpu.sdc", results(odd), results()) == ["fail error", "pass"]


def test_two_that_differ_are_both_named() -> None:
    odd = replace(HEALTHY, checksum="bb")
    assert said("gpu.sdc", results(odd), results()) == ["fail error", "fail error"]


def test_other_models_and_releases_of_torch_are_not_compared() -> None:
    other = replace(HEALTHY, model="NVIDIA L40S", checksum="bb")
    newer = replace(results(replace(HEALTHY, checksum="cc")), torch="2.9.0+cu130")
    assert said("gpu.sdc", results(), results(other), newer) == ["pass"] * 3


def test_a_gpu_that_hangs_is_an_error() -> None:
    hung = DeviceResult(2, "", failed={"liveness": HUNG})
    (bad,) = [one for one in findings(nodes(results(HEALTHY, hung)), "gpu.liveness") if one.nodes]
    assert (bad.verdict, bad.severity) == ("fail", "error")
    assert bad.seen == "GPU 2: no answer within 15 s"


def test_a_gpu_that_was_not_tested_is_unknown() -> None:
    assert said("gpu.liveness", results(DeviceResult(1, ""))) == ["unknown error timed_out"]


# ---------------------------------------------------------------- DCGM


def diagnosed(*tests: DiagnosticTest) -> list[str]:
    seen = fleet(n1={"stress.dcgm": Diagnostics(2, tests)})
    return list(told(seen, "gpu.dcgm").values())


PASS, FAIL = DiagnosticTest("memory", "pass"), DiagnosticTest("pcie", "fail", ("GPU 3",), ("AER",))
SKIP, WARN = DiagnosticTest("sm_stress", "skip"), DiagnosticTest("software", "warn")


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ([PASS], "pass"),
        ([PASS, FAIL], "fail warning"),
        ([PASS, WARN], "fail warning"),
        ([PASS, SKIP], "unknown warning DCGM skipped tests"),
        ([SKIP, FAIL], "fail warning + unknown warning DCGM skipped tests"),
    ],
)
def test_diagnostics(tests: list[DiagnosticTest], expected: str) -> None:
    assert diagnosed(*tests) == [expected]


def test_the_test_and_its_gpu_are_named() -> None:
    (bad,) = findings(fleet(n1={"stress.dcgm": Diagnostics(2, (PASS, FAIL))}), "gpu.dcgm")
    assert bad.seen == "pcie on GPU 3 «AER»"


def test_a_node_without_dcgmi_is_skipped() -> None:
    seen = fleet(n1={"stress.dcgm": absent("missing_tool")})
    assert told(seen, "gpu.dcgm") == {"n1": "skip not_applicable"}


# ---------------------------------------------------------------- require


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "6e2", "600 MB/s", "1" * 20])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["0", "5", "two", ""])
def test_what_is_no_level_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a level"):
        parse_level(text)
