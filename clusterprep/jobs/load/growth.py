"""Name what grew, or fell, while a job loaded the nodes and is judged by no check. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from clusterprep.checks.gpu_health import HARD, SOFT
from clusterprep.facts.gpu_load import BUSY, IDLE
from clusterprep.facts.pci import PciTree
from clusterprep.jobs.load.samples import GpuSample, LinkErrors, Looks, NodeSamples
from clusterprep.model import Absent, Finding, Fleet, Node
from clusterprep.model.units import format_duration
from clusterprep.remedies import Remedy, shell_line

MEANWHILE = "while verify ran"
FALLEN = 3  # samples in a row; use is told of the second before, when the clock was another
OWN_CLOCK = 0.6  # of the highest clock of this GPU at work: a power limit takes a quarter at most
PEER_CLOCK = 0.75  # of the median of the same model at work
PEERS = 4  # GPUs of a model at work, of which one may be called slow
# A healthy link corrects a bit now and then.
PCIE_ERRORS_PER_MINUTE = 10


def growth(fleet: Fleet, node: Node, looks: Looks) -> Iterator[Finding]:
    """Yield what grew on a node: errors of PCIe links and of interfaces."""
    look = looks.nodes[node.name]
    most = _most_pcie_errors(looks.seconds)
    replays = _replays_growth(look.samples, most)
    span = f"in {format_duration(round(looks.seconds))}"
    errors_of_links = [look.before["load.link_errors"], look.after["load.link_errors"]]
    if any(isinstance(value, Absent) for value in errors_of_links):
        pcie, net = [], []
    else:
        before, after = errors_of_links
        tree = fleet.fact(node.name, "pci.tree")
        pcie, net = _aer_growth(before, after, most, tree), _net_growth(before, after)
    if replays or pcie:
        message = "errors of a PCIe link grow"
        seen = f"{', '.join((*replays, *pcie))} {span}"
        cure = shell_line(
            "lspci -vv | grep -e '^[0-9a-f]' -e CESta   # reseat card, riser or cable"
        )
        yield _grew("pcie.aer", node, message, seen, cure)
    if net:
        message = "errors of a network interface grow"
        cure = shell_line(
            "ip -s -s link; ethtool -S NAME | grep -i err   # cable, transceiver, port"
        )
        yield _grew("eth.errors", node, message, f"{', '.join(net)} {span}", cure)


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


def _most_pcie_errors(seconds: float) -> float:
    return max(1.0, PCIE_ERRORS_PER_MINUTE * seconds / 60)


def _replays_growth(samples: NodeSamples, most: float) -> list[str]:
    """Return the GPUs whose PCIe link sent more packets again than `most`."""
    texts: list[str] = []
    first, last = samples.first, samples.last
    if first is None or last is None:
        return texts
    for index, count in last.replays.items():
        more = count - first.replays.get(index, count)
        if more > most:
            texts.append(f"GPU {index} +{more} replays")
    return texts


def _aer_growth(
    before: LinkErrors, after: LinkErrors, most: float, tree: PciTree | Absent
) -> list[str]:
    """Return the PCI functions with a new error that is not corrected, or many that are."""
    texts = []
    for address, counters in after.aer.items():
        old = before.aer.get(address, {})
        for severity, count in counters.items():
            errors = count - old.get(severity, 0)
            if errors > (most if severity == "correctable" else 0):
                texts.append(f"{_kind(address, tree)} {address} +{errors} {severity}")
    return texts


def _kind(address: str, tree: PciTree | Absent) -> str:
    """Return what a PCI function is, as far as the tree shows it."""
    if isinstance(tree, PciTree):
        device = tree.device(address)
        if device is not None:
            return "GPU" if device.gpu else "NIC"
        if address in tree.bridges:
            return "bridge"
    return "device"


def _net_growth(before: LinkErrors, after: LinkErrors) -> list[str]:
    """Return the interfaces with new errors, or that lost their carrier."""
    texts = []
    for name, counters in after.net.items():
        old = before.net.get(name, {})
        for counter, count in counters.items():
            if counter in old and count > old[counter]:
                texts.append(f"{name} {counter} +{count - old[counter]}")
    return texts


# ---------------------------------------------------------------- clocks


def low_clocks(fleet: Fleet, looks: Looks) -> Iterator[Finding]:
    """Yield the nodes with GPUs whose clock fell at work, or is low against the same model."""
    usual = _usual_clocks(looks)
    for node in fleet.reached:
        samples = looks.nodes[node.name].samples
        slow = []
        for index, gpu in samples.gpus.items():
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
            at_work = [sample.clock or 0 for sample in _at_work(node.samples.of_gpu(index))]
            if len(at_work) >= FALLEN:
                clocks.setdefault(gpu.model, []).append(median(at_work))
    return {model: median(values) for model, values in clocks.items() if len(values) >= PEERS}


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
    at_work = _at_work(samples)
    if usual is None or len(at_work) < FALLEN:
        return ""
    own = median(sample.clock or 0 for sample in at_work)
    if own >= PEER_CLOCK * usual:
        return ""
    return f"{own:g} MHz where the same GPUs have {usual:g}{_describe_reasons(at_work)}"


def _describe_reasons(samples: Sequence[GpuSample]) -> str:
    """Return « (hardware slowdown)» with the reasons that all samples have, else an empty text."""
    common = -1
    for sample in samples:
        common &= sample.reasons or 0
    texts = [text for bit, text in (HARD | SOFT).items() if common & bit]
    return f" ({' and '.join(texts)})" if texts else ""
