"""What earlier runs tell of a part that fails today: whether it is the part or the slot.

    texts = blame(faults(findings, facts), past)   # past: of earlier runs, the newest first

The same part that failed in another place is at fault itself. Another part that failed in the same
place points at the slot. Only the checks below count: they judge a device by itself, and what they
saw names it in words that are this program's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from clusterprep.history.database import Unusable
from clusterprep.history.encoding import encoded
from clusterprep.history.packing import LONGEST_VALUE
from clusterprep.history.parts import PartId, parts_of, slot_of
from clusterprep.history.runs import Runs
from clusterprep.model import Finding, Report
from clusterprep.model.history import PartPlace

# «GPU 3, 5: 2; GPU 7: 1», with NVML's indices.
BY_INDEX = (
    "gpu.ecc_corr",
    "gpu.ecc_unc",
    "gpu.recovery",
    "gpu.remap",
    "gpu.retired",
    "gpu.temp",
    "gpu.throttle_hw",
)
# «Xid 79 on 0000:1b:00: …», «GPU 0000:1b:00.0 x8 of x16; NIC …».
BY_ADDRESS = ("gpu.xid", "pcie.aer", "pcie.gen", "pcie.width")
# «mlx5_0 DOWN, Disabled; mlx5_1:2 INIT, LinkUp», «mlx5_0:1 once in 1 h, mlx5_1:1 2 times in 1 h».
# A port is the end of a link, so its cable and the switch may be at fault as well.
BY_PORT = ("ib.counters", "ib.downed", "ib.rate", "ib.state")
# «dead: nvme0 MODEL, serial …», «nvme0 MODEL, serial …: read only».
BY_DISK = ("disk.nvme",)
CHECKS = frozenset((*BY_INDEX, *BY_ADDRESS, *BY_PORT, *BY_DISK))
FACTS = ("gpu.nvml", "rdma.devices", "disk.nvme")
TRIED = 30  # newest runs that judged the check: a month of one run a day
MOST = 8  # sentences; more faults at once are no matter of single parts

_INDICES = re.compile(r"(?:^|; )GPU (\d{1,4}(?:, \d{1,4})*): ", re.ASCII)
_ADDRESS = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_OF_XID = re.compile(rf"(?: on |, ){_ADDRESS}(?=[,: ])")
_OF_LINK = re.compile(rf"(?:^|; )(?:GPU|NIC) {_ADDRESS} ")
_OF_PORT = re.compile(r"(?:^|; |, )([^\s:;,]{1,64})(?::\d{1,3})? ", re.ASCII)
_OF_DISK = re.compile(r"(?:[a-z]{1,20}: )?(nvme\d{1,5}) ", re.ASCII)
_KINDS = {"gpu": "GPU", "rdma": "RDMA card", "disk": "disk"}


class Fault(Struct, frozen=True):
    """A check that failed on a part, and where the part was."""

    check: str
    part: PartId
    place: PartPlace


class PastFaults(Struct, frozen=True):
    """The faults of an earlier run that began on `day`."""

    day: str
    faults: frozenset[Fault]


class _Gpu(Struct):
    index: int
    pci: str


class _Nvml(Struct):
    gpus: tuple[_Gpu, ...]


class _Card(Struct):
    name: str
    pci: str | None


class _Disk(Struct):
    name: str
    serial: str


Facts = Mapping[str, Mapping[str, Any]]
"""Fact → node → its value as JSON."""


def faults(findings: Iterable[Finding], facts: Facts) -> frozenset[Fault]:
    """Return the failures of parts that are known. Pure."""
    places = parts_of(facts).places
    part_at = {place: part for part, place in places.items() if place.slot}
    found = set()
    for finding in _failures(findings):
        for node in finding.nodes:
            values = {name: facts.get(name, {}).get(node) for name in FACTS}
            parts = [part_at.get(PartPlace(node, slot)) for slot in _slots(finding, values)]
            parts.extend(_disks(finding, values["disk.nvme"]))
            for part in parts:
                place = None if part is None else places.get(part)
                if part is not None and place is not None and place.node == node:
                    found.add(Fault(finding.check, part, place))
    return frozenset(found)


def _failures(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the failures that count, follow from no other, and are of a check that names parts."""
    for finding in findings:
        counts = finding.verdict == "fail" and not (finding.silenced or finding.fixed)
        if counts and finding.check in CHECKS and not finding.because:
            yield finding


def _slots(finding: Finding, values: Mapping[str, Any]) -> list[str]:
    """Return the slots that a finding names; none for what is said of all GPUs together.

    `values` are the facts of the node.
    """
    own_words, _, _ = finding.seen.partition("«")  # a quoted line of the kernel's log follows it
    if finding.check in BY_INDEX:
        indices: set[int] = set()
        for numbers in _INDICES.findall(finding.seen):
            indices.update(map(int, numbers.split(", ")))
        of_gpus = _slot_by_index(values["gpu.nvml"])
        return [slot for index, slot in of_gpus.items() if index in indices]
    if finding.check in BY_PORT:
        names = set(_OF_PORT.findall(own_words))
        return [slot for name, slot in _slot_by_name(values["rdma.devices"]) if name in names]
    if finding.check not in BY_ADDRESS:
        return []
    pattern = _OF_XID if finding.check == "gpu.xid" else _OF_LINK
    slots = []
    for address in pattern.findall(own_words):
        # An Xid names a GPU without the function, which is 0.
        slots.append(slot_of(address if "." in address else f"{address}.0"))
    return slots


def _slot_by_index(nvml: Any) -> dict[int, str]:
    try:
        gpus = msgspec.convert(nvml, _Nvml).gpus
    except msgspec.ValidationError:
        return {}
    return {gpu.index: slot_of(gpu.pci) for gpu in gpus}


def _slot_by_name(devices: Any) -> list[tuple[str, str]]:
    """Return the names of RDMA devices that are hardware, each with its slot."""
    try:
        cards = msgspec.convert(devices, tuple[_Card, ...])
    except msgspec.ValidationError:
        return []
    return [(card.name, slot_of(card.pci)) for card in cards if card.pci is not None]


def _disks(finding: Finding, disks: Any) -> list[PartId]:
    """Return the disk that a finding names. Its serial number is that of the fact."""
    named = _OF_DISK.match(finding.seen)
    if finding.check not in BY_DISK or named is None:
        return []
    try:
        known = msgspec.convert(disks, tuple[_Disk, ...])
    except msgspec.ValidationError:
        return []
    return [("disk", disk.serial.strip()) for disk in known if disk.name == named[1]]


def blame(today: Iterable[Fault], past: Sequence[PastFaults]) -> tuple[str, ...]:
    """Return a sentence for each part or slot that failed before; `past` has the newest first.

    Pure. Nothing is said of a part that failed where it is now, or failed never before.
    """
    now = sorted(today, key=lambda fault: (fault.check, fault.place.node, fault.place.slot))
    failing = {(fault.check, fault.part) for fault in now}
    sentences: list[str] = []
    for fault in now:
        sentences.extend(_sentences(fault, past, failing))
    if len(sentences) <= MOST:
        return tuple(sentences)
    return (*sentences[:MOST], f"{len(sentences) - MOST} more parts that fail failed before")


def _sentences(
    fault: Fault, past: Sequence[PastFaults], failing: set[tuple[str, PartId]]
) -> Iterator[str]:
    """Yield what blames the part, then what blames its slot: the newest run that tells it."""
    beginning = f"{_name(fault.part)} in {_at(fault.place)} fails {fault.check}"
    elsewhere = _newest(past, lambda old: _is_same_elsewhere(old, fault))
    if elsewhere is not None:
        day, old = elsewhere
        where = "slot" if old.place.node == fault.place.node else "node"
        blamed = f"the part is at fault, not the {where}"
        if fault.check in BY_PORT:
            blamed += "; or its cable, if that moved with it"
        yield f"{beginning}, as it did in {_at(old.place)} on {day}: {blamed}"
    # Another part that fails today too took its fault with it, or has only another address now.
    other = _newest(
        past,
        lambda old: _is_other_here(old, fault) and (old.check, old.part) not in failing,
    )
    if other is not None:
        day, old = other
        before = f"as {_name(old.part)} did in this slot on {day}"
        places = "slot, riser, cooling and power"
        if fault.check in BY_PORT:
            places = "cable, transceiver and switch port"
        yield f"{beginning}, {before}: look at {places}"


def _newest(
    past: Sequence[PastFaults], matches: Callable[[Fault], bool]
) -> tuple[str, Fault] | None:
    """Return the newest fault that matches, with its day; None if there is none."""
    for run in past:
        found = [fault for fault in run.faults if matches(fault)]
        if found:
            return run.day, min(found, key=lambda fault: (fault.part, _at(fault.place)))
    return None


def _is_same_elsewhere(old: Fault, fault: Fault) -> bool:
    is_same = old.check == fault.check and old.part == fault.part
    return is_same and old.place != fault.place


def _is_other_here(old: Fault, fault: Fault) -> bool:
    """Return whether another part of the same kind failed the same check in the same slot.

    Of a disk only the node is known, where others have failed in slots of their own.
    """
    is_here = old.check == fault.check and old.place == fault.place and bool(fault.place.slot)
    return is_here and old.part != fault.part and old.part[0] == fault.part[0]


def _name(part: PartId) -> str:
    kind, name = part
    return f"{_KINDS[kind]} {name}"


def _at(place: PartPlace) -> str:
    return f"{place.node} {place.slot}".rstrip()


# ---------------------------------------------------------------- the history


def blamed(runs: Runs, report: Report) -> tuple[str, ...]:
    """Return what earlier runs of this cluster tell of the parts that fail in a report.

    A run that cannot be read tells nothing. Raises Unusable if the file cannot be used at all.
    """
    failing = {finding.check for finding in _failures(report.findings or ())}
    if not failing:
        return ()
    today = faults(report.findings or (), _facts_now(report))
    if not today:
        return ()
    failing = {fault.check for fault in today}
    past = []
    for run, checks in runs.checks(report.cluster, TRIED):
        if failing.isdisjoint(checks):
            continue
        try:
            past.append(PastFaults(run.started[:10], _faults_of(runs, run.run, failing)))
        except Unusable:
            continue
    return blame(today, past)


def _facts_now(report: Report) -> Facts:
    """Return the facts of a report as the history would give them back."""
    facts: dict[str, dict[str, Any]] = {name: {} for name in FACTS}
    for snapshot in report.nodes or ():
        for name, values in facts.items():
            if name in snapshot.facts:
                data = encoded(snapshot.facts[name], LONGEST_VALUE)
                values[snapshot.node] = json.loads(data)
    return facts


def _faults_of(runs: Runs, run: str, checks: set[str]) -> frozenset[Fault]:
    """Return the faults that these checks found in a recorded run.

    Its facts are read only if there are any, and looked at only of the nodes that have them.
    """
    report = runs.report(run, only=("findings", "nodes"))
    failures = [failure for failure in _failures(report.findings or ()) if failure.check in checks]
    failed: set[str] = set()
    for failure in failures:
        failed.update(failure.nodes)
    if not failed:
        return frozenset()
    nodes = [snapshot.node for snapshot in report.nodes or ()]
    facts = {}
    for name in FACTS:
        column = runs.column(run, name, nodes)
        facts[name] = {node: value for node, value in column.items() if node in failed}
    return faults(failures, facts)
