"""Name what grew, or fell, while a job loaded the nodes and is judged by no check. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from msgspec.structs import replace

from clusterprep.checks.gpu_health import HARD, SOFT, by_text, of_job
from clusterprep.checks.nvlink import SHOW_LINKS
from clusterprep.checks.nvlink import STATE as LINKS
from clusterprep.checks.pcie_errors import AER, RATE
from clusterprep.facts.gpu_load import BUSY, IDLE
from clusterprep.jobs.load.samples import GpuSample, Looks
from clusterprep.model import Absent, Finding, Fleet, Node
from clusterprep.model.units import format_duration
from clusterprep.remedies import Remedy, placed, shell_line

MEANWHILE = "while verify ran"
FALLEN = 3  # samples in a row; use is told of the second before, when the clock was another
OWN_CLOCK = 0.6  # of the highest clock of this GPU at work: a power limit takes a quarter at most
PEER_CLOCK = 0.75  # of the median of the same model at work
PEERS = 4  # GPUs of a model at work, of which one may be called slow


def replays(node: Node, looks: Looks) -> Iterator[Finding]:
    """Yield the GPUs that sent packets on PCIe again more often than `pcie.aer` allows errors."""
    samples = looks.nodes[node.name].samples
    first, last = samples.first, samples.last
    if first is None or last is None:
        return
    texts: list[str] = []
    for index, count in of_job(node, last.replays).items():
        more = count - first.replays.get(index, count)
        if more > RATE * looks.seconds:
            texts.append(f"GPU {index} +{more} replays")
    if texts:
        seen = _in_span(texts, looks)
        yield _grew(AER.name, node, "replays of a PCI Express link grew fast", seen, AER.remedy)


def fallen_links(node: Node, looks: Looks) -> Iterator[Finding]:
    """Yield the NVLinks that were up before and are down."""
    samples = looks.nodes[node.name].samples
    first, last = samples.first, samples.last
    if first is None or last is None:
        return
    down: dict[int, str] = {}
    for index, before in of_job(node, first.links_up).items():
        fallen = before - last.links_up.get(index, before)
        if fallen:
            down[index] = f"down: {','.join(map(str, sorted(fallen)))}"
    if down:
        cure = placed(SHOW_LINKS, GPUS=",".join(map(str, down)))
        seen = by_text(down, len(first.gpus))
        finding = _grew(LINKS.name, node, "NVLinks went down", seen, cure)
        yield replace(finding, severity=LINKS.severity, wanted="as many up as before")


def interface_errors(node: Node, looks: Looks) -> Iterator[Finding]:
    """Yield the interfaces with new errors, or that lost their carrier."""
    look = looks.nodes[node.name]
    before, after = look.before["load.link_errors"], look.after["load.link_errors"]
    if isinstance(before, Absent) or isinstance(after, Absent):
        return
    texts: list[str] = []
    for name, counters in after.items():
        old = before.get(name, {})
        for counter, count in counters.items():
            if counter in old and count > old[counter]:
                texts.append(f"{name} {counter} +{count - old[counter]}")
    if texts:
        cure = shell_line(
            "ip -s -s link; ethtool -S NAME | grep -i err   # cable, transceiver, port"
        )
        seen = _in_span(texts, looks)
        yield _grew("eth.errors", node, "errors of a network interface grow", seen, cure)


def _in_span(texts: Iterable[str], looks: Looks) -> str:
    return f"{', '.join(texts)} in {format_duration(round(looks.seconds))}"


def _grew(check: str, node: Node, message: str, seen: str, cure: Remedy) -> Finding:
    severity = "error" if check in node.require else "warning"
    return Finding(
        check,
        "fail",
        severity,  # type: ignore[arg-type]
        (node.name,),
        f"{MEANWHILE}: {message}",
        seen,
        "no growth",
        cure,
    )


# ---------------------------------------------------------------- clocks


def low_clocks(fleet: Fleet, looks: Looks) -> Iterator[Finding]:
    """Yield the nodes with GPUs whose clock fell at work, or is low against the same model."""
    usual = _usual_clocks(looks)
    for node in fleet.reached:
        samples = looks.nodes[node.name].samples
        slow = []
        for index, gpu in of_job(node, samples.gpus).items():
            text = _describe_fall(samples.of_gpu(index)) or _describe_slower(
                samples.of_gpu(index), usual.get(gpu.model)
            )
            if text:
                slow.append(f"GPU {index} {text}")
        if slow:
            message = "the clock of a GPU at work is low"
            cure = shell_line(
                "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE   # fans, power, -lgc"
            )
            yield replace(
                _grew("gpu.clocks", node, message, "; ".join(slow), cure),
                wanted="its own highest clock, and that of the same GPUs",
            )


def _at_work(samples: Sequence[GpuSample]) -> list[GpuSample]:
    """Return the samples of a GPU in use whose clock is known, whatever the clock is."""
    chosen = []
    for sample in samples:
        is_idle = bool((sample.reasons or 0) & IDLE)
        if sample.clock and not is_idle and (sample.utilization or 0) >= BUSY:
            chosen.append(sample)
    return chosen


def _usual_clocks(looks: Looks) -> dict[str, float]:
    """Return the median clock at work of each model that has enough GPUs at work."""
    clocks: dict[str, list[float]] = {}
    for node in looks.nodes.values():
        for index, gpu in node.samples.gpus.items():
            clock = _clock_at_work(node.samples.of_gpu(index))
            if clock is not None:
                clocks.setdefault(gpu.model, []).append(clock)
    return {model: median(values) for model, values in clocks.items() if len(values) >= PEERS}


def _clock_at_work(samples: Sequence[GpuSample]) -> float | None:
    """Return the median clock of a GPU in MHz; None if it was at work in too few samples."""
    at_work = _at_work(samples)
    if len(at_work) < FALLEN:
        return None
    return median(sample.clock or 0 for sample in at_work)


def _describe_fall(samples: Sequence[GpuSample]) -> str:
    """Return «fell from 1980 to 600 MHz (…)» for samples in a row far below the highest."""
    at_work = _at_work(samples)
    highest = 0
    row: list[GpuSample] = []
    for sample in at_work:
        clock = sample.clock or 0
        highest = max(highest, clock)
        row = [*row, sample] if clock < OWN_CLOCK * highest else []
        if len(row) >= FALLEN:
            return f"fell from {highest} to {clock} MHz{_describe_reasons(row)}"
    return ""


def _describe_slower(samples: Sequence[GpuSample], usual: float | None) -> str:
    own = _clock_at_work(samples)
    if usual is None or own is None or own >= PEER_CLOCK * usual:
        return ""
    reasons = _describe_reasons(_at_work(samples))
    return f"{own:g} MHz where the same GPUs have {usual:g}{reasons}"


def _describe_reasons(samples: Sequence[GpuSample]) -> str:
    """Return « (hardware slowdown)» with the reasons that all samples have, else an empty text."""
    common = -1
    for sample in samples:
        common &= sample.reasons or 0
    texts = [text for bit, text in (HARD | SOFT).items() if common & bit]
    return f" ({' and '.join(texts)})" if texts else ""
