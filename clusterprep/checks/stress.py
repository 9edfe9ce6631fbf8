"""Judges what GPUs and memory reach under load: the tier that `check --stress` runs.

A rate is judged by what `require:` demands, else by a floor for its model and by its peers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    each,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.gpu_load import GpuLoad
from clusterprep.facts.pci import PciTree
from clusterprep.facts.stress import DeviceResult, Diagnostics, FailedTest, StressResults
from clusterprep.model import NOT_ASKED, Absent, Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.nodeset import fold
from clusterprep.remedies import Remedy, sentence, shell_line

TAG = "stress"  # of the checks that only --stress runs
ONLY_STRESS = "only --stress judges it"  # reason of a skip
RESULTS, DIAGNOSTICS = "stress.results", "stress.dcgm"
FLOOR_FACTS = ("pci.tree", "gpu.load")  # what a floor may follow from, besides the results
# The tests are started for the GPUs that NVML lists. What they bring is all that is judged.
ONLY_RESULTS = (Part("gpu.nvml", lambda nvml: None),)
EVERY = "every test"

# By model, as NVML names it: dense TFLOP/s of the 16-bit type and GB/s of memory in NVIDIA's data
# sheets (V100, A100, A30, L40S, H100, H200, GH200, HGX B200). The first name that is a part of the
# model's counts. A model is listed where public figures of plain matrix products are well above
# SHARE of its sheet: cards whose power limit keeps them below are judged by their peers alone.
MODELS: tuple[tuple[str, float, float], ...] = (
    ("V100-SXM2", 125, 900),
    ("A100-SXM4-80GB", 312, 2039),
    ("A100-SXM4-40GB", 312, 1555),
    ("A100 80GB PCIe", 312, 1935),
    ("A100-PCIE-40GB", 312, 1555),
    ("A800-SXM4-80GB", 312, 2039),
    ("A30", 165, 933),
    ("L40S", 362, 864),
    ("H100 PCIe", 756, 2000),
    ("H100 NVL", 835, 3900),
    ("H100 80GB HBM3", 989, 3350),
    ("H800", 989, 3350),
    ("H200 NVL", 835, 4800),
    ("H200", 989, 4800),
    ("GH200", 989, 4000),
    ("B200", 2250, 7700),
)
GEMM_SHARE = 0.5  # of the sheet; healthy GPUs reach two thirds and more
COPY_SHARE = 0.7  # reads and writes together; healthy GPUs reach 85 %
# Of the raw rate of the link: Azure's node health checks ask 21 GB/s of PCIe 4 x16 (31.5), which
# is two thirds, and 48 of PCIe 5 x16 (63).
LINK_SHARE = 0.65
ENCODING = 128 / 130  # of PCI Express 3 to 5
# GB/s between two GPUs over NVLink 4: Azure's node health checks for ND H100 v5.
PAIR_FLOORS: tuple[tuple[str, float], ...] = (("H100 80GB HBM3", 335), ("H200", 335))
PEERS = 4  # values of one model of which one may be called an outlier
SIGMA = 1.4826  # times the median absolute deviation: the standard deviation of a normal law
Z = 3.0  # robust standard deviations below the median
LEAST_SPREAD = 0.05  # of the median: below that a difference costs a job nothing that shows


class Rate(Struct, frozen=True):
    """A value that is judged: its device, its number, and the least that it may be with the why."""

    device: str
    value: float
    least: float | None = None
    why: str = ""


class Measure(Struct, frozen=True):
    """How a check gets its rates: the test that brings them, their unit, and a floor.

    `rates(device)` yields name and value; `floor(node, device, context)` is a number with its
    source, or None.
    """

    test: str
    unit: str
    rates: Callable[[DeviceResult], Iterable[tuple[str, float]]]
    floor: Callable[[CheckContext, Node, DeviceResult], tuple[float, str] | None]
    slow: str
    fine: str


# ---------------------------------------------------------------- what all have in common


def results_or_outcome(context: CheckContext, node: Node, fact: str = RESULTS) -> Any:
    """Return what was measured on a node, or the outcome that says why nothing was."""
    value = context.value(node, fact)
    if not isinstance(value, Absent):
        return value
    if value == NOT_ASKED:
        message = "it loads the node, so only `check --stress` runs it"
        return skipped(node, message, reason=ONLY_STRESS)
    if value.reason == "not_applicable":
        return skipped(node, value.detail)
    return unknown(node, value.detail or "nothing was measured", value.reason)


def failures_of(
    node: Node, failures: Mapping[str, FailedTest], what: str, cure: Remedy | None = None
) -> Iterator[Outcome]:
    """Yield the tests that have no value, by the name of the device: a failure, or not known."""
    kinds: dict[str, list[str]] = {}
    for name, failure in failures.items():
        kinds.setdefault(failure.kind, []).append(f"{name}: {failure.text}")
    for kind, texts in kinds.items():
        seen = "; ".join(texts)
        if kind == "missing":
            yield unknown(node, f"{what} was not tested: {seen}", "missing_tool")
        elif kind == "room":
            yield unknown(node, f"{what} was not tested: too little memory is free", seen)
        elif kind == "hung":
            yield failed(node, f"{what} did not end", seen, "an end", cure)
        else:
            yield failed(node, f"{what} ended with an error", seen, "no error", cure)


def failure_of(device: DeviceResult, test: str) -> FailedTest | None:
    """Return why a device has no value of a test; also if none of its tests could be run."""
    return device.failed.get(test) or device.failed.get(EVERY)


def parse_rate(text: str) -> float:
    """Parse the least rate of a `require:` value, such as 600 or «600 GB/s»."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(?: ?(?:GB/s|TFLOPS?|TFLOP/s))?", text)
    if match is None or not float(match[1]):
        raise ValueError(f"expected a rate in GB/s or TFLOP/s, such as 600; seen '{text}'")
    return float(match[1])


def least_of_peers(values: Iterable[float]) -> float | None:
    """Return the least value that is no outlier, by median and MAD; None for too few values."""
    known = sorted(values)
    if len(known) < PEERS:
        return None
    middle = median(known)
    deviation = median(abs(value - middle) for value in known)
    return middle - max(Z * SIGMA * deviation, LEAST_SPREAD * middle)


# ---------------------------------------------------------------- rates of devices


def judge_rates(measure: Measure, context: CheckContext) -> Iterator[Outcome]:
    """Yield the outcome of each node for one rate of its devices."""
    peers = _peers(measure, context)
    for nodes in context.alike(RESULTS, *FLOOR_FACTS):
        yield from about_all(nodes, _rates_of_node(measure, context, nodes[0], peers))


def _rates_of_node(
    measure: Measure,
    context: CheckContext,
    node: Node,
    peers: Mapping[tuple[str, str], float],
) -> Iterator[Outcome]:
    """Yield the outcomes of one node for one rate of its devices."""
    results = results_or_outcome(context, node)
    if isinstance(results, Outcome):
        yield results
        return
    failures: dict[str, FailedTest] = {}
    rates: list[Rate] = []
    for device in results.devices:
        failure = failure_of(device, measure.test)
        if failure is not None:
            failures[device.name] = failure
        rates.extend(_rates(measure, context, node, device, peers))
    yield from failures_of(node, failures, measure.fine)
    yield from _judge_node(context, node, rates, measure, bool(failures))


def _peers(measure: Measure, context: CheckContext) -> dict[tuple[str, str], float]:
    """Return the least value that is no outlier, by the rate's name and the device's model."""
    values: dict[tuple[str, str], list[float]] = {}
    for results in context.values(RESULTS).values():
        if not isinstance(results, StressResults):
            continue
        for device in results.devices:
            for name, value in measure.rates(device):
                values.setdefault((name, device.model), []).append(value)
    least: dict[tuple[str, str], float] = {}
    for key, numbers in values.items():
        limit = least_of_peers(numbers)
        if limit is not None:
            least[key] = limit
    return least


def _rates(
    measure: Measure,
    context: CheckContext,
    node: Node,
    device: DeviceResult,
    peers: Mapping[tuple[str, str], float],
) -> Iterator[Rate]:
    """Yield the rates of a device with the highest of the limits that they have to reach."""
    wanted = context.wanted(node)
    floor = measure.floor(context, node, device)
    for name, value in measure.rates(device):
        rate = Rate(f"{device.name}{name}", value)
        limit = peers.get((name, device.model))
        if wanted is not None:
            yield replace(rate, least=parse_rate(wanted), why="required")
            continue
        if floor is not None:
            rate = replace(rate, least=floor[0], why=floor[1])
        if limit is not None and limit > (rate.least or 0.0):
            rate = replace(rate, least=limit, why="as the same devices have it")
        yield rate


def _judge_node(
    context: CheckContext, node: Node, rates: list[Rate], measure: Measure, has_failures: bool
) -> Iterator[Outcome]:
    slow = [rate for rate in rates if rate.least is not None and rate.value < rate.least]
    judged = [rate for rate in rates if rate.least is not None]
    if slow:
        seen = ", ".join(f"{rate.device} {_figure(rate.value)}" for rate in slow)
        first = slow[0]
        wanted = f"{_figure(first.least or 0.0)} {measure.unit}, {first.why}"
        yield failed(node, measure.slow, f"{seen} {measure.unit}", wanted)
    elif has_failures:
        return
    elif judged:
        lowest = min(judged, key=lambda rate: rate.value / (rate.least or 1.0))
        wanted = f"{_figure(lowest.least or 0.0)} {measure.unit}, {lowest.why}"
        yield passed(node, f"{measure.fine} is as it should be", _span(rates, measure), wanted)
    elif rates:
        message = "nothing is known of this model, and fewer than four are alike"
        yield skipped(node, message, _span(rates, measure), reason="first_sample")
    else:
        yield skipped(node, "no device here has this rate")


def _span(rates: list[Rate], measure: Measure) -> str:
    values = [rate.value for rate in rates]
    devices = len({rate.device.split(" ")[1] if " " in rate.device else "" for rate in rates})
    low, high = _figure(min(values)), _figure(max(values))
    span = low if low == high else f"{low} to {high}"
    return f"{span} {measure.unit} of {devices} device{'s' if devices > 1 else ''}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def data_sheet(model: str) -> tuple[float, float] | None:
    """Return TFLOP/s and GB/s of a model's data sheet, None for a model that is not listed."""
    for name, flops, memory in MODELS:
        if name in model:
            return flops, memory
    return None


def _gemm_floor(
    context: CheckContext, node: Node, device: DeviceResult
) -> tuple[float, str] | None:
    sheet = data_sheet(device.model)
    if sheet is None:
        return None
    return GEMM_SHARE * sheet[0], f"half of the data sheet's {sheet[0]:g}"


def _copy_floor(
    context: CheckContext, node: Node, device: DeviceResult
) -> tuple[float, str] | None:
    sheet = data_sheet(device.model)
    if sheet is None:
        return None
    return COPY_SHARE * sheet[1], f"70 % of the data sheet's {sheet[1]:g}"


def _link_floor(
    context: CheckContext, node: Node, device: DeviceResult
) -> tuple[float, str] | None:
    """Return 65 % of what the slowest PCIe link between a GPU and the processor can carry."""
    tree = context.value(node, "pci.tree")
    loads = context.value(node, "gpu.load")
    if not isinstance(tree, PciTree) or not isinstance(loads, Mapping):
        return None
    load = loads.get(device.index)
    found = tree.device(load.pci) if isinstance(load, GpuLoad) else None
    if found is None or not found.above:
        return None
    carried = []
    for link in (found.link, *(tree.bridges[at] for at in found.above)):
        if link.max_speed is None or link.max_width is None:
            return None
        carried.append((link.max_speed * link.max_width, link.max_speed, link.max_width))
    product, speed, width = min(carried)
    raw = product * ENCODING / 8
    return LINK_SHARE * raw, f"65 % of PCIe's {raw:.1f} at {speed:g} GT/s x{width}"


def _value(name: str) -> Callable[[DeviceResult], Iterator[tuple[str, float]]]:
    def rates(device: DeviceResult) -> Iterator[tuple[str, float]]:
        if name in device.values:
            yield "", device.values[name]

    return rates


def _both_ways(device: DeviceResult) -> Iterator[tuple[str, float]]:
    for name, text in (("to_device", " from the host"), ("to_host", " to the host")):
        if name in device.values:
            yield text, device.values[name]


# ---------------------------------------------------------------- pairs, memory of the host


def pairs(context: CheckContext, node: Node) -> Iterator[Outcome]:
    """Judge copies between the GPUs of a node, each pair in both directions."""
    results = results_or_outcome(context, node)
    if isinstance(results, Outcome):
        yield results
        return
    failure = results.failed.get("pairs")
    if len(results.devices) < 2:
        yield skipped(node, "fewer than two GPUs here")
    elif failure is not None:
        yield from failures_of(node, {"GPUs": failure}, "the copy between GPUs")
    elif not results.pairs:
        yield unknown(node, "no copy between GPUs was measured", "timed_out")
    else:
        yield _judge_pairs(context, node, results)


def _judge_pairs(context: CheckContext, node: Node, results: StressResults) -> Outcome:
    least, why = 0.0, ""
    wanted = context.wanted(node)
    model = results.devices[0].model
    if wanted is not None:
        least, why = parse_rate(wanted), "required"
    else:
        for name, floor in PAIR_FLOORS:
            if name in model:
                least, why = floor, "as over NVLink 4"
                break
        usual = least_of_peers(results.pairs.values())
        if usual is not None and usual > least:
            least, why = usual, "as the other pairs have it"
    low, high = min(results.pairs.values()), max(results.pairs.values())
    span = f"{_figure(low)} to {_figure(high)} GB/s of {len(results.pairs)} pairs"
    if not why:
        message = "nothing is known of this model, and there are few pairs"
        return skipped(node, message, span, reason="first_sample")
    limit = f"{_figure(least)} GB/s, {why}"
    slow = {ends: speed for ends, speed in results.pairs.items() if speed < least}
    if not slow:
        return passed(node, "copies between GPUs are as fast as they should be", span, limit)
    parts = [f"{ends} {_figure(speed)}" for ends, speed in slow.items()]
    seen = f"{', '.join(parts)} GB/s"
    return failed(node, "a copy between GPUs is slow", seen, limit)


def stream(context: CheckContext) -> Iterator[Outcome]:
    """Judge the bandwidth of the host's memory, by what is required or by nodes of one kind."""
    speeds: dict[tuple[str, int], list[float]] = {}
    measured = context.values(RESULTS)
    for node in context.nodes:
        results = measured[node.name]
        if isinstance(results, StressResults) and results.stream is not None:
            speeds.setdefault(_host_kind(node, results), []).append(results.stream)
    for nodes in context.alike(RESULTS):
        yield from about_all(nodes, _stream_of_node(context, nodes[0], speeds))


def _stream_of_node(
    context: CheckContext, node: Node, speeds: Mapping[tuple[str, int], list[float]]
) -> Iterator[Outcome]:
    """Yield the outcomes of one node; `speeds` has those of all nodes by their kind."""
    results = results_or_outcome(context, node)
    if isinstance(results, Outcome):
        yield results
        return
    failure = results.failed.get("stream")
    if failure is not None:
        yield from failures_of(node, {"host": failure}, "the copy in memory")
    elif results.stream is None:
        yield unknown(node, "the bandwidth of memory was not measured", "timed_out")
    else:
        yield _judge_stream(context, node, results, speeds[_host_kind(node, results)])


def _host_kind(node: Node, results: StressResults) -> tuple[str, int]:
    return (node.gpus.model or "") if node.gpus else "", results.threads


def _judge_stream(
    context: CheckContext, node: Node, results: StressResults, alike: list[float]
) -> Outcome:
    speed = results.stream or 0.0
    seen = f"{_figure(speed)} GB/s with {results.threads} threads"
    wanted = context.wanted(node)
    least = parse_rate(wanted) if wanted is not None else least_of_peers(alike)
    if least is None:
        message = "nothing is known of this machine, and fewer than four are alike"
        return skipped(node, message, seen, reason="first_sample")
    why = "required" if wanted is not None else "as the same machines have it"
    limit = f"{_figure(least)} GB/s, {why}"
    if speed < least:
        return failed(node, "the host's memory is slow", seen, limit)
    return passed(node, "the host's memory is as fast as it should be", seen, limit)


# ---------------------------------------------------------------- sums, life, DCGM


def checksums(context: CheckContext) -> Iterator[Outcome]:
    """Judge the checksums of one chain of products: equal in itself, and on all GPUs of a model."""
    usual = _usual_checksums(context)
    for nodes in context.alike(RESULTS):
        yield from about_all(nodes, _checksums_of_node(context, nodes[0], usual))


def _checksums_of_node(
    context: CheckContext, node: Node, usual: Mapping[tuple[str, str], tuple[str, ...]]
) -> Iterator[Outcome]:
    """Yield the outcomes of one node; `usual` has the checksums that are right."""
    wanted = "one checksum on all GPUs of a model"
    results = results_or_outcome(context, node)
    if isinstance(results, Outcome):
        yield results
        return
    failures: dict[str, FailedTest] = {}
    wrong: list[str] = []
    judged = 0
    for device in results.devices:
        failure = failure_of(device, "chain")
        if failure is not None:
            failures[device.name] = failure
        if not device.checksum:
            continue
        judged += device.repeated
        if device.differing:
            wrong.append(f"{device.name}: {device.differing} of {device.repeated} differ")
        elif device.checksum not in usual[_sum_group(device, results)]:
            most = ", ".join(usual[_sum_group(device, results)])
            wrong.append(f"{device.name}: {device.checksum}, elsewhere {most}")
    yield from failures_of(node, failures, "the chain of products")
    if wrong:
        yield failed(node, "a device computes wrong results", "; ".join(wrong), wanted)
    elif judged and not failures:
        yield passed(node, "equal products are equal", f"{judged} repetitions", wanted)
    elif not failures:
        yield skipped(node, "no device here computed a checksum")


def _sum_group(device: DeviceResult, results: StressResults) -> tuple[str, str]:
    return device.model, results.torch


def _usual_checksums(context: CheckContext) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return by model and torch the checksum that most have; without a majority none is right."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for results in context.values(RESULTS).values():
        if not isinstance(results, StressResults):
            continue
        for device in results.devices:
            if device.checksum and not device.differing:
                group = counts.setdefault(_sum_group(device, results), {})
                group[device.checksum] = group.get(device.checksum, 0) + 1
            else:
                counts.setdefault(_sum_group(device, results), {})
    usual: dict[tuple[str, str], tuple[str, ...]] = {}
    for key, sums in counts.items():
        most = max(sums, key=lambda checksum: sums[checksum], default="")
        has_majority = bool(most) and 2 * sums[most] > sum(sums.values())
        usual[key] = (most,) if has_majority else ()
    return usual


def _reset(devices: Iterable[str]) -> Remedy:
    """Return the command that resets these devices: «GPU 3» is the third by nvidia-smi."""
    indices = [name.rpartition(" ")[2] for name in devices]
    return shell_line(
        "nvidia-smi --gpu-reset -i {indices}   # with no process on it; else reboot",
        indices=",".join(indices),
    )


def liveness(context: CheckContext, node: Node) -> Iterator[Outcome]:
    """Judge that every GPU was bound, gave 256 MB, and multiplied right within 15 s."""
    results = results_or_outcome(context, node)
    if isinstance(results, Outcome):
        yield results
        return
    failures: dict[str, FailedTest] = {}
    silent = []
    for device in results.devices:
        failure = failure_of(device, "liveness")
        if failure is not None:
            failures[device.name] = failure
        elif not device.values.get("alive"):
            silent.append(device.name)
    yield from failures_of(node, failures, "a small product", _reset(failures))
    if silent:
        yield unknown(node, f"{fold(silent)} was not tested", "timed_out")
    elif not failures:
        names = f"{len(results.devices)} devices" if len(results.devices) > 1 else "1 device"
        yield passed(node, "every device computes", names, "within 15 s")


def diagnostics(context: CheckContext, node: Node) -> Iterator[Outcome]:
    """Judge DCGM's tests: one that fails or warns is a failure, one that is skipped unknown."""
    absent = context.value(node, DIAGNOSTICS)
    if isinstance(absent, Absent) and absent.reason == "missing_tool":
        yield skipped(node, "dcgmi is not installed")
        return
    found = results_or_outcome(context, node, DIAGNOSTICS)
    if isinstance(found, Outcome):
        yield found
    else:
        yield from _judge_diagnostics(node, found)


def _judge_diagnostics(node: Node, found: Diagnostics) -> Iterator[Outcome]:
    wanted = f"every test of level {found.level} passes"
    by_status: dict[str, list[str]] = {}
    for test in found.tests:
        parts = [test.name]
        if test.entities:
            parts.append(f"on {', '.join(test.entities)}")
        if test.said:
            parts.append(f"«{'; '.join(test.said)}»")
        by_status.setdefault(test.status, []).append(" ".join(parts))
    bad = [*by_status.get("fail", ()), *by_status.get("warn", ())]
    skips = by_status.get("skip", [])
    if bad:
        yield failed(node, "DCGM's diagnostics find a fault", "; ".join(bad), wanted)
    if skips:
        message = f"DCGM left out {len(skips)} tests: {'; '.join(skips)}"
        yield unknown(node, message, "DCGM skipped tests", wanted=wanted)
    if not bad and not skips:
        seen = f"{len(found.tests)} tests"
        yield passed(node, "DCGM's diagnostics find no fault", seen, wanted)


def parse_level(text: str) -> int:
    """Parse a level of DCGM's diagnostics, 1 to 4."""
    if text not in ("1", "2", "3", "4"):
        raise ValueError(f"expected a level of `dcgmi diag`, 1 to 4; seen '{text}'")
    return int(text)


# ---------------------------------------------------------------- the checks


def _turned(change: Callable[[DeviceResult], DeviceResult]) -> Callable[[Any], Any]:
    """Return a function for proofs that changes the first device."""

    def turn(results: StressResults) -> StressResults:
        first, *others = results.devices
        return replace(results, devices=(change(first), *others))

    return turn


def _slower(*names: str) -> Callable[[Any], Any]:
    def change(device: DeviceResult) -> DeviceResult:
        slow = {name: device.values[name] / 3 for name in names}
        return replace(device, values={**device.values, **slow})

    return _turned(change)


def _hung(device: DeviceResult) -> DeviceResult:
    failed_test = {"liveness": FailedTest("hung", "no answer within 15 s")}
    return replace(device, failed=failed_test)


def _with_slow_pair(results: StressResults) -> StressResults:
    return replace(results, pairs={**results.pairs, "GPU 0 to GPU 1": 12.0})


def _with_failed_test(found: Diagnostics) -> Diagnostics:
    first, *others = found.tests
    return replace(found, tests=(replace(first, status="fail"), *others))


GEMM = Measure(
    "gemm",
    "TFLOP/s",
    _value("gemm"),
    _gemm_floor,
    "a device multiplies slowly",
    "the rate of matrix products",
)
HBM = Measure(
    "copy",
    "GB/s",
    _value("copy"),
    _copy_floor,
    "the memory of a device is slow",
    "the bandwidth of device memory",
)
H2D = Measure(
    "host_copy",
    "GB/s",
    _both_ways,
    _link_floor,
    "copies between host and device are slow",
    "the bandwidth between host and device",
)
_CLOCKS = shell_line(
    "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE   # clocks, power and cooling; then RMA"
)
_LINK = shell_line("lspci -vv | grep -e '^[0-9a-f]' -e LnkSta   # its link, and its NUMA node")

GEMM_CHECK = Check(
    "gpu.gemm",
    facts=(),
    uses=(RESULTS, "gpu.nvml"),
    judge=partial(judge_rates, GEMM),
    severity="warning",
    title="The rate of matrix products",
    why="One GPU that multiplies at two thirds makes the whole job as slow, and no setting or "
    "counter shows it.",
    how="With --stress: a product of 8192 × 8192 in bfloat16 for four seconds on all GPUs at "
    "once, in the job's torch. Less than half of the model's data sheet, or an outlier among four "
    "or more of one model (median and MAD, at least 5 %), or less than `require: {gpu.gemm: 600}` "
    "says.",
    remedy=_CLOCKS,
    tags=(TAG,),
    wants=parse_rate,
    proof=Proof(RESULTS, _slower("gemm")),
)
HBM_CHECK = Check(
    "gpu.hbm",
    facts=(),
    uses=(RESULTS, "gpu.nvml"),
    judge=partial(judge_rates, HBM),
    severity="warning",
    title="The bandwidth of GPU memory",
    why="Memory that has lost channels or repeats accesses slows every kernel that is not bound by "
    "arithmetic.",
    how="With --stress: a copy of 2 GiB within the GPU's memory for four seconds, read and written "
    "bytes together. Less than 70 % of the model's data sheet, or an outlier among its peers, or "
    "less than `require: {gpu.hbm: 2500}` says.",
    remedy=shell_line("nvidia-smi -q -d ECC,ROW_REMAPPER,CLOCK   # reset; replace the GPU"),
    tags=(TAG,),
    wants=parse_rate,
    proof=Proof(RESULTS, _slower("copy")),
)
H2D_CHECK = Check(
    "gpu.h2d",
    facts=(),
    uses=(RESULTS, "gpu.nvml", "gpu.load", "pci.tree"),
    judge=partial(judge_rates, H2D),
    severity="warning",
    title="Copies between host and GPU",
    why="Batches, checkpoints and offloaded weights pass here; a link with half of its lanes, or "
    "memory of the other socket, halves the rate.",
    how="With --stress: pinned memory of 256 MiB to each GPU and back, one GPU after the other. "
    "Less than 65 % of what its PCIe link carries, or an outlier among its peers, or less than "
    "`require: {gpu.h2d: 48}` says.",
    remedy=_LINK,
    tags=(TAG,),
    wants=parse_rate,
    proof=Proof(RESULTS, _slower("to_device", "to_host")),
)
P2P_CHECK = Check(
    "gpu.p2p",
    facts=(),
    uses=(RESULTS, "gpu.nvml"),
    judge=each(pairs, parts=ONLY_RESULTS),
    severity="warning",
    title="Copies between GPUs",
    why="A pair that has lost its NVLinks goes through the processor, and the ring of NCCL is as "
    "slow as its slowest pair.",
    how="With --stress: 512 MiB from each GPU of a node to each other one. Less than 335 GB/s "
    "between H100 or H200 over NVLink, or an outlier among the pairs, or less than "
    "`require: {gpu.p2p: 335}` says.",
    remedy=shell_line("nvidia-smi topo -m; nvidia-smi nvlink -s   # NVLinks, ACS, fabric manager"),
    tags=(TAG,),
    wants=parse_rate,
    proof=Proof(RESULTS, _with_slow_pair),
)
SDC_CHECK = Check(
    "gpu.sdc",
    facts=(),
    uses=(RESULTS, "gpu.nvml"),
    judge=checksums,
    severity="error",
    title="The same products on all GPUs",
    why="A GPU that computes wrong without an error spoils the weights of all ranks, "
    "without a message.",
    how="With --stress: a chain of matrix products of small whole numbers, which every device adds "
    "exactly, from one seed for twenty seconds. Its checksum is equal at each repetition, and on "
    "all devices of a model with the same torch.",
    remedy=sentence("take the GPU out of use, test it with `dcgmi diag -r 4`, and replace it"),
    tags=(TAG,),
    proof=Proof(RESULTS, _turned(lambda device: replace(device, differing=1))),
)
LIVENESS_CHECK = Check(
    "gpu.liveness",
    facts=(),
    uses=(RESULTS, "gpu.nvml"),
    judge=each(liveness, parts=ONLY_RESULTS),
    severity="error",
    title="Every GPU computes",
    why="The driver may list a GPU that hangs at the first kernel: the job then hangs in its first "
    "collective, and blames the network.",
    how="With --stress: a process for each GPU binds it, allocates 256 MB and multiplies; it is "
    "ended after 15 s.",
    remedy=shell_line("nvidia-smi --gpu-reset -i GPU   # with no process on it; else reboot"),
    tags=(TAG,),
    proof=Proof(RESULTS, _turned(_hung)),
)
STREAM_CHECK = Check(
    "mem.stream",
    facts=(),
    uses=(RESULTS, "gpu.nvml"),
    judge=stream,
    severity="warning",
    title="The bandwidth of the host's memory",
    why="A missing or badly seated DIMM takes a channel away: data loading and offloading get "
    "slower, and the size of the memory may even look right.",
    how="With --stress: STREAM's triad (two arrays read, one written) over all processors. An "
    "outlier among four or more machines (median and MAD, at least 5 %), or less than "
    "`require: {mem.stream: 580}` says.",
    remedy=shell_line("dmidecode -t memory | grep -e Locator -e Size -e Speed   # a missing DIMM"),
    tags=(TAG,),
    wants=parse_rate,
    proof=Proof(RESULTS, lambda results: replace(results, stream=results.stream / 3)),
)
DCGM_CHECK = Check(
    "gpu.dcgm",
    facts=(),
    uses=(DIAGNOSTICS, "gpu.nvml"),
    judge=each(diagnostics, parts=ONLY_RESULTS),
    severity="warning",
    title="DCGM's diagnostics",
    why="NVIDIA's own tests of memory, PCIe and power find what a short load does not.",
    how="With --stress, where dcgmi is installed: `dcgmi diag -r 2 -j`, or the level that "
    "`require: {gpu.dcgm: 3}` names. A test that fails or warns is a failure; tests that DCGM "
    "skipped are unknown.",
    remedy=shell_line("dcgmi diag -r 3   # the whole report; /var/log/nvidia-dcgm/nvvs.log"),
    tags=(TAG,),
    wants=parse_level,
    proof=Proof(DIAGNOSTICS, _with_failed_test),
)
