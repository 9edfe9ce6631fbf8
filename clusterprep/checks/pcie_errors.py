"""Judges errors on PCI Express links: fatal ones since boot, others by how fast they grow."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.counters import Counters, Earlier, Sample
from clusterprep.facts.kernel_log import PCI_PHRASES, KernelLog
from clusterprep.facts.pci import PciTree
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import Part, Same
from clusterprep.model.units import format_duration, pluralize
from clusterprep.remedies import Remedy, shell_line

PAST = ("counters.earlier", "host.boot_id", "host.uptime", "ib.counters")
DAY = 86400.0  # seconds
MOST_FUNCTIONS = 8  # that are named
# Correctable errors per second. A link may have one wrong bit in 10**12 (PCI Express 6.0, 8.3): at
# sixteen lanes of 32 GT/s that is one in two seconds, if it carries data all the time.
RATE = 1.0
# What a device does not know is answered so while the system looks for devices.
HARMLESS = ("nonfatal UnsupReq", "nonfatal Unsupported Request")
# What lines of the kernel's log say of a function, the gravest first (facts/kernel_log.py has their
# forms). Each pattern finds the address that a line is about.
_AT = r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
FATAL = "fatal error"
NOT_RECOVERED = "not recovered"
CONTAINED = "cut off what is below it (DPC)"
NOT_FATAL = "error that was not corrected"
GRAVEST_FIRST = (FATAL, NOT_RECOVERED, CONTAINED, NOT_FATAL)
_LINES = (
    (FATAL, re.compile(rf"{_AT}: PCIe Bus Error: severity=Uncorrect\w+ \(Fatal\)")),
    (FATAL, re.compile(rf"AER: .*Uncorrect\w+ \(Fatal\) error .*?{_AT}$")),
    (NOT_RECOVERED, re.compile(rf"{_AT}:.* AER: (?:can't recover|[Dd]evice recovery failed)")),
    (CONTAINED, re.compile(rf"{_AT}:.* DPC:? containment event")),
    (NOT_FATAL, re.compile(rf"{_AT}: PCIe Bus Error: severity=Uncorrect\w+ \(Non-Fatal\)")),
    (NOT_FATAL, re.compile(rf"AER: .*Uncorrect\w+ \(Non-Fatal\) error .*?{_AT}$")),
)
MESSAGES = {
    FATAL: "a PCI Express link had fatal errors",
    NOT_RECOVERED: "the kernel did not recover a PCI Express device after an error",
    CONTAINED: "a PCI Express port has cut off what is below it, after an error",
    NOT_FATAL: "a PCI Express link had errors that were not corrected",
}
WANTED = "no fatal error since boot, no growth of others"


def errors(context: CheckContext, node: Node, tree: PciTree, counted: Counters) -> Outcome:
    """Judge fatal errors since boot, then the growth of the others since the earlier run."""
    fatal = _chosen(counted, "fatal ")
    logged = _logged(context.value(node, "log.records"), counted)
    if fatal or logged:
        return _grave(node, tree, fatal, logged)
    if not counted:
        return skipped(node, "the kernel counts no errors of PCI functions here")
    earlier = context.value(node, "counters.earlier")
    recent = earlier.recent if isinstance(earlier, Earlier) else None
    if recent is None or recent.pcie is None or isinstance(recent.pcie, Absent):
        message = "no fatal error since boot; a run in ten minutes or later can tell about others"
        return skipped(node, message, reason="first_sample")
    silent = sorted(set(recent.pcie) - set(counted))
    if silent:
        message = f"{silent[0]} counted errors before and does not now"
        return unknown(node, message, "garbled")
    growth = _growth(counted, recent.pcie)
    uncorrected = _chosen(growth, "nonfatal ")
    if uncorrected:
        message = f"errors of a PCI Express link grew in {_span(recent)}"
        return _failure(node, tree, message, uncorrected)
    corrected = _fast(growth, recent.seconds)
    if corrected:
        message = f"errors that a PCI Express link corrects grew fast in {_span(recent)}"
        return _failure(node, tree, message, corrected)
    seen = f"{pluralize(len(counted), 'function')} without"
    return passed(node, "PCI Express links have no errors that matter", seen, WANTED)


def _earlier_errors(earlier: object) -> Hashable:
    """Return what is looked at of the earlier run, which noted many other counters too."""
    if not isinstance(earlier, Earlier) or earlier.recent.pcie is None:
        return None
    return earlier.recent.seconds, Same(earlier.recent.pcie)


def _lines_of_errors(log: object) -> Hashable:
    """Return the lines of the kernel's log that are looked at, on most nodes none."""
    if not isinstance(log, KernelLog):
        return None
    lines = []
    for record in log.records:
        if any(phrase in record.text for phrase in PCI_PHRASES):
            lines.append((record.text, log.age(record) <= DAY))
    return tuple(lines)


# The earlier run is found by boot and uptime, which are not looked at besides.
PARTS = (
    Part("counters.earlier", _earlier_errors),
    Part("log.records", _lines_of_errors),
    Part("host.boot_id", lambda boot: None),
    Part("host.uptime", lambda seconds: None),
    Part("ib.counters", lambda counters: None),
)


def _logged(log: object, counted: Counters) -> dict[str, list[str]]:
    """Return address → what the kernel's log says of it, the gravest first; none without a log.

    What is fatal or was not recovered counts since boot, the rest for a day. A function whose
    counters show that its errors are harmless ones is left out.
    """
    if not isinstance(log, KernelLog):
        return {}
    said: dict[str, set[str]] = {}
    for record in log.records:
        if not any(phrase in record.text for phrase in PCI_PHRASES):
            continue
        is_recent = log.age(record) <= DAY
        for words, pattern in _LINES:
            match = pattern.search(record.text)
            if match and (is_recent or words in (FATAL, NOT_RECOVERED)):
                said.setdefault(match[1], set()).add(words)
    found = {}
    for address, errors_said in said.items():
        if errors_said != {NOT_FATAL} or not _only_harmless(counted.get(address, {})):
            found[address] = sorted(errors_said, key=GRAVEST_FIRST.index)
    by_gravity = sorted(found.items(), key=lambda item: (GRAVEST_FIRST.index(item[1][0]), item[0]))
    return dict(by_gravity)


def _only_harmless(counts: Mapping[str, int]) -> bool:
    """Return whether a function counts errors that were not corrected, and harmless ones alone."""
    kinds = {name for name, count in counts.items() if count}
    uncorrected = {name for name in kinds if not name.startswith("correctable ")}
    return bool(uncorrected) and uncorrected <= set(HARMLESS)


def _grave(
    node: Node,
    tree: PciTree,
    fatal: Mapping[str, Mapping[str, int]],
    logged: Mapping[str, list[str]],
) -> Outcome:
    """Return the failure of what was counted and of what the log has, each function once."""
    worst = FATAL
    if not fatal:
        first = next(iter(logged.values()))
        worst = first[0]
    addresses = list(dict.fromkeys([*fatal, *logged]))
    texts = []
    for address in addresses[:MOST_FUNCTIONS]:
        parts = _parts_of(fatal.get(address, {}), logged.get(address, []))
        texts.append(f"{_name(tree, address)} {', '.join(parts)}")
    if len(addresses) > MOST_FUNCTIONS:
        texts.append(f"and {len(addresses) - MOST_FUNCTIONS} more")
    seen = "; ".join(texts)
    return failed(node, MESSAGES[worst], seen, WANTED, _remedy(addresses[0]))


def _parts_of(counts: Mapping[str, int], said: Iterable[str]) -> list[str]:
    """Return what one function counted, and what the log says of it besides."""
    parts = [f"{name} {count}" for name, count in counts.items()]
    for words in said:
        if words != FATAL or not counts:  # the counts themselves are of fatal errors
            parts.append(words)
    return parts


def _span(sample: Sample) -> str:
    return format_duration(round(sample.seconds))


def _growth(now: Counters, before: Counters) -> dict[str, dict[str, int]]:
    """Return how much each kind of error grew; what is counted for the first time began at 0."""
    growth: dict[str, dict[str, int]] = {}
    for address, counts in now.items():
        old = before.get(address)
        if old is None:  # the function came meanwhile
            continue
        grown = {name: count - old.get(name, 0) for name, count in counts.items()}
        growth[address] = {name: more for name, more in grown.items() if more > 0}
    return growth


def _chosen(counts: Counters, kind: str) -> dict[str, dict[str, int]]:
    """Return the functions with errors of a kind, and these errors."""
    chosen = {}
    for address, errors_of_one in counts.items():
        own = {}
        for name, count in errors_of_one.items():
            if name.startswith(kind) and name not in HARMLESS and count:
                own[name] = count
        if own:
            chosen[address] = own
    return chosen


def _fast(growth: Counters, seconds: float) -> dict[str, dict[str, int]]:
    """Return the functions whose corrected errors together grew faster than RATE."""
    corrected = _chosen(growth, "correctable ")
    return {at: own for at, own in corrected.items() if sum(own.values()) > RATE * seconds}


def _failure(
    node: Node, tree: PciTree, message: str, errors_by_address: Mapping[str, Mapping[str, int]]
) -> Outcome:
    texts = []
    for address, counts in errors_by_address.items():
        kinds = ", ".join(f"{name} {count}" for name, count in counts.items())
        texts.append(f"{_name(tree, address)} {kinds}")
    return failed(node, message, "; ".join(texts), WANTED, _remedy(next(iter(errors_by_address))))


def _name(tree: PciTree, address: str) -> str:
    device = tree.device(address)
    if device is not None:
        kind = "GPU" if device.gpu else "NIC"
        return f"{kind} {address}"
    below = [other.at for other in tree.devices if address in other.above]
    return f"the bridge {address} above {', '.join(below)}" if below else address


def _remedy(address: str) -> Remedy:
    return shell_line(
        "lspci -s {at} -vv | grep -e UESta -e CESta   # then reseat the card or its riser",
        at=address,
    )


def _with_error(name: str, count: int) -> Any:
    """Return a function for proofs that gives one GPU an error."""

    def turn(counted: Counters) -> Counters:
        address = next(iter(counted))
        own = {**counted[address], name: count}
        return {**counted, address: own}

    return turn


AER = Check(
    "pcie.aer",
    facts=("pci.tree", "pci.errors"),
    uses=(*PAST, "log.records"),
    judge=each(errors, "pci.tree", "pci.errors", parts=PARTS),
    severity="warning",
    title="Errors on PCI Express links",
    why="A link with a bad contact sends packets again and again, and at last drops off the bus in "
    "the middle of a job.",
    how="aer_dev_fatal, aer_dev_nonfatal and aer_dev_correctable in /sys of GPUs, network cards "
    "and the bridges above them: no fatal error since boot; since an earlier run in this boot no "
    "other error that was not corrected, but for UnsupReq, and at most one a second that was. "
    "The kernel's log, of all functions: errors that were fatal or after which a device was not "
    "recovered, since boot; others that were not corrected, and ports that cut off what is below "
    "them (DPC), within a day. Where the firmware keeps errors to itself, the kernel counts none.",
    remedy=shell_line("lspci -vv | grep -e UESta -e CESta   # then reseat the card or its riser"),
    proof=Proof("pci.errors", _with_error("fatal MalfTLP", 1)),
)
