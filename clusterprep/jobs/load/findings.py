"""Compare what nodes showed before, while and after a job loaded them. Pure.

What has a check is judged by that check, of facts that hold what happened meanwhile alone: new
lines of the log, the growth of counters, the GPUs as they were at work. So its limits, severity and
remedy are those of `check`. Of the rest, growth is judged here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import date
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.checks.gpu_health import HARD
from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.gpu_counters import COUNTERS
from clusterprep.facts.gpu_health import ECC, EccErrors, Temperatures
from clusterprep.facts.gpu_load import GpuLoad, is_busy, sysfs_address
from clusterprep.facts.kernel_log import KernelLog, KernelRecord
from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.jobs.load.growth import (
    MEANWHILE,
    fallen_links,
    interface_errors,
    low_clocks,
    replays,
)
from clusterprep.jobs.load.samples import (
    COUNTED,
    GpuSample,
    Looks,
    NodeLooks,
    NodeSamples,
    SampledGpu,
)
from clusterprep.model import Absent, Finding, Fleet
from clusterprep.survey import registry
from clusterprep.survey.judge import judge

# Facts that are asked before and after; those of them that exist.
COMPARED = ("ib.counters", "pci.errors", "log.records", "gpu.xids", "gpu.sxids")
# Checks that judge what happened meanwhile.
CHECKS = (
    "gpu.ecc_corr",
    "gpu.ecc_unc",
    "gpu.sxid",
    "gpu.temp",
    "gpu.throttle_hw",
    "gpu.xid",
    "ib.counters",
    "ib.downed",
    "log.kernel",
    "nvl.errors",
    "pcie.aer",
    "pcie.gen",
    "pcie.width",
)

THROTTLED = 2  # samples in a row; one alone may be a change of clocks


def judge_load(fleet: Fleet, looks: Looks) -> tuple[Finding, ...]:
    """Return what appeared, grew or fell, and what could not be known.

    Passes are returned of `pcie.gen` alone: without load GPUs cannot be judged by it.
    """
    facts = {name: _facts_meanwhile(fleet, name, node, looks) for name, node in looks.nodes.items()}
    loaded = fleet.with_facts(facts)
    known = registry.checks()
    checks: list[Check] = [known[name] for name in CHECKS if name in known]
    findings: list[Finding] = []
    # Silences that end some day are applied by the stage, which knows what day it is.
    for finding in judge(loaded, checks, date.max):
        findings.extend(_of_load(finding, looks))
    # Packets that are sent again are counted by NVML, and as errors by the kernel where it may.
    named: set[str] = set()
    for finding in findings:
        if (finding.check, finding.verdict) == ("pcie.aer", "fail"):
            named.update(finding.nodes)
    for node in fleet.reached:
        if node.name not in named:
            findings.extend(replays(node, looks))
        findings.extend(fallen_links(node, looks))
        findings.extend(interface_errors(node, looks))
    findings.extend(low_clocks(fleet, looks))
    return tuple(findings)


def _of_load(finding: Finding, looks: Looks) -> Iterator[Finding]:
    """Yield a check's finding as one of the load, without nodes of which it says nothing new."""
    message = f"{MEANWHILE}: {finding.message}"
    if finding.verdict == "fail":
        yield replace(finding, message=message)
    elif finding.verdict == "unknown":
        # That samples are missing is no fault of the node: the job itself was judged.
        yield replace(finding, message=message, severity="warning")
    elif finding.check == "pcie.gen":
        worked = tuple(name for name in finding.nodes if _has_worked(looks.nodes[name].samples))
        if finding.verdict == "pass" and worked:
            yield replace(finding, message=message, nodes=worked)
        if finding.reason == "at_rest" and looks.on_gpus:
            yield replace(
                finding,
                verdict="unknown",
                message=f"{MEANWHILE} no sample shows the GPU at work, and its link is slow",
            )


# ---------------------------------------------------------------- facts of what happened meanwhile


def _facts_meanwhile(fleet: Fleet, name: str, node: NodeLooks, looks: Looks) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for fact in ("log.records", "gpu.xids", "gpu.sxids"):
        if fact in node.after:
            facts[fact] = _new_lines(node.before[fact], node.after[fact])
    facts["ib.counters"] = _first_absent(node.before["ib.counters"], node.after["ib.counters"])
    facts["pci.errors"] = _pcie_errors(node.before["pci.errors"], node.after["pci.errors"])
    facts["counters.earlier"] = _before(node, looks.seconds)
    facts.update(_gpus_meanwhile(node.samples))
    facts.update(_counted_meanwhile(node.samples))
    tree = fleet.fact(name, "pci.tree")
    if isinstance(tree, PciTree):
        facts["pci.tree"] = _tree_at_work(tree, node.samples)
    return facts


def _new_lines(before: Any, after: Any) -> Any:
    """Return the log, or the events of the log, with the lines that were written meanwhile."""
    if isinstance(after, Absent):
        return after
    if isinstance(before, Absent):
        return before if before.reason != "not_applicable" else after
    old_log, log = _log_of(before), _log_of(after)
    if log.first_seconds > old_log.now and not log.whole:
        return Absent("truncated", "lines of the log were overwritten meanwhile")
    old = {(record.number, record.text) for record in old_log.records}
    counts = {(record.since, record.level): record.count for record in old_log.records}
    records: dict[KernelRecord, KernelRecord] = {}
    for record in log.records:
        if (record.number, record.text) not in old:
            # It stands for all lines of its kind, also for those from before.
            more = record.count - counts.get((record.since, record.level), 0)
            records[record] = replace(record, count=max(1, more))
    # It is complete for the time of the job, which is all that is asked here.
    new_log = replace(
        log,
        first_number=0,
        first_seconds=0.0,
        records=tuple(records.values()),
        cut={},
    )
    if isinstance(after, KernelLog):
        return new_log
    events = []
    for event in after.events:
        if event.record in records:
            events.append(replace(event, record=records[event.record]))
    return replace(after, log=new_log, events=tuple(events))


def _log_of(value: Any) -> KernelLog:
    log: KernelLog = value if isinstance(value, KernelLog) else value.log
    return log


def _before(node: NodeLooks, seconds: float) -> Earlier:
    """Return the counters before the job as the earlier sample."""
    first = node.samples.first
    pcie = _known(node.before["pci.errors"])
    sample = Sample(
        seconds,
        _known(node.before["ib.counters"]),
        pcie={address: {} for address in pcie},
        gpu=None if first is None else _known(first.facts[COUNTERS.name]),
    )
    return Earlier(sample, sample)


def _known(counters: Any) -> Any:
    return {} if isinstance(counters, Absent) else counters


def _pcie_errors(before: Any, after: Any) -> Any:
    """Return the errors of PCI functions that were counted meanwhile.

    The check counts fatal ones from 0, so the earlier sample has zeros.
    """
    whole = _first_absent(before, after)
    if isinstance(whole, Absent):
        return whole
    growth: dict[str, dict[str, int]] = {}
    for address, counts in after.items():
        old = before.get(address, counts)
        growth[address] = {kind: max(0, count - old.get(kind, 0)) for kind, count in counts.items()}
    return growth


def _gpus_meanwhile(samples: NodeSamples) -> dict[str, Any]:
    """Return facts about GPUs as they were at work, by the names of those about GPUs at rest."""
    names = ("gpu.load", "gpu.throttle", "gpu.heat")
    absent = _without_gpus(samples)
    if absent is not None:
        return dict.fromkeys(names, absent)
    facts: dict[str, dict[int, Any]] = {name: {} for name in names}
    for index, gpu in samples.gpus.items():
        of_gpu = samples.of_gpu(index)
        address = sysfs_address(gpu.pci) if gpu.pci else ""
        facts["gpu.load"][index] = GpuLoad(address, any(_is_busy(gpu, one) for one in of_gpu))
        facts["gpu.throttle"][index] = _throttled(of_gpu)
        facts["gpu.heat"][index] = _hottest(gpu, of_gpu)
    return dict(facts)


def _without_gpus(samples: NodeSamples) -> Absent | None:
    """Return why no GPU can be judged, None if they can."""
    if samples.why is not None and samples.why.reason not in ("missing_tool", "no_driver"):
        return samples.why
    return None if samples.gpus else Absent("not_applicable", "no GPU here")


def _counted_meanwhile(samples: NodeSamples) -> dict[str, Any]:
    """Return the facts of what GPUs count, of which that about uncorrected errors knows no past."""
    first, last = samples.first, samples.last
    absent = _without_gpus(samples)
    if absent is not None or first is None or last is None:
        absent = absent or Absent("garbled", "the samples ended before the job")
        return {fact.name: absent for fact in COUNTED}
    facts = dict(last.facts)
    facts[ECC.name] = _uncorrected(first.facts[ECC.name], last.facts[ECC.name])
    return facts


def _uncorrected(before: Any, after: Any) -> Any:
    """Return the readings of uncorrected errors, with their growth in the place of the count."""
    whole = _first_absent(before, after)
    if isinstance(whole, Absent):
        return whole
    readings = {}
    for index, errors in after.items():
        readings[index] = _first_absent(before[index], errors)
        if isinstance(readings[index], EccErrors):
            # A lower count is one of a driver that was loaded anew.
            more = max(0, errors.since_load - before[index].since_load)
            readings[index] = replace(errors, since_load=more)
    return readings


def _first_absent(before: Any, after: Any) -> Any:
    """Return what was learned afterwards, if it was known before too."""
    return before if isinstance(before, Absent) else after


def _throttled(samples: Sequence[GpuSample]) -> tuple[int, ...] | Absent:
    """Return the reasons of samples in a row that share one of the hardware, else those of rest."""
    hard = sum(HARD)
    reasons = [sample.reasons for sample in samples]
    if not any(bits is not None for bits in reasons):
        return Absent("not_applicable", "this GPU tells no reasons of its clocks")
    for start in range(len(reasons) - THROTTLED + 1):
        row = [bits or 0 for bits in reasons[start : start + THROTTLED]]
        common = hard
        for bits in row:
            common &= bits
        if common:
            return tuple(row)
    return (0,)


def _hottest(gpu: SampledGpu, samples: Sequence[GpuSample]) -> Temperatures | Absent:
    degrees = [sample.temperature for sample in samples if sample.temperature is not None]
    if not degrees:
        return Absent("not_applicable", "this GPU tells no temperature")
    chip = max(degrees)
    left = None if gpu.slowdown is None else gpu.slowdown - chip
    return Temperatures(chip, None, left)


def _is_busy(gpu: SampledGpu, sample: GpuSample) -> bool:
    return is_busy(
        sample.utilization,
        sample.state,
        sample.clock,
        gpu.clock_max,
        sample.reasons,
    )


def _has_worked(samples: NodeSamples) -> bool:
    """Return whether at least one GPU of the node was seen at work."""
    for index, gpu in samples.gpus.items():
        if any(_is_busy(gpu, sample) for sample in samples.of_gpu(index)):
            return True
    return False


# ---------------------------------------------------------------- links of the PCI bus


def _tree_at_work(tree: PciTree, samples: NodeSamples) -> PciTree:
    """Return the tree with the links as the samples show them."""
    busy: dict[str, set[int]] = {}
    for index, gpu in samples.gpus.items():
        if gpu.pci:
            moments = [
                number
                for number, sample in enumerate(samples.samples)
                if index in sample.gpus and _is_busy(gpu, sample.gpus[index])
            ]
            busy[sysfs_address(gpu.pci)] = set(moments)
    devices = []
    for device in tree.devices:
        link = _sampled_link(device, samples, busy.get(device.at, ()))
        devices.append(device if link is None else replace(device, link=link))
    return replace(tree, devices=tuple(devices))


def _sampled_link(device: PciDevice, samples: NodeSamples, busy: Collection[int]) -> PciLink | None:
    """Return the link of a device meanwhile, None if it was not sampled.

    Of a GPU it is the fastest at work, else the fastest at all, with the highest maximum: at rest a
    GPU may lower both. Of a card it is the slowest that two samples show, as it keeps its speed.
    """
    links = {}
    for number, sample in enumerate(samples.samples):
        if device.at in sample.links:
            links[number] = sample.links[device.at]
    if not links:
        return None
    counted = [link for number, link in links.items() if number in busy] or list(links.values())
    speeds = sorted(link.speed for link in counted if link.speed is not None)
    widths = sorted(link.width for link in counted if link.width is not None)
    if not speeds or not widths:
        return None
    speed = speeds[-1] if device.gpu else speeds[min(1, len(speeds) - 1)]
    most = [link.max_speed for link in links.values() if link.max_speed is not None]
    return replace(
        device.link,
        speed=speed,
        width=widths[min(1, len(widths) - 1)],
        max_speed=max(most, default=device.link.max_speed),
    )
