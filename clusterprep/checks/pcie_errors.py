"""Judges errors on PCI Express links: fatal ones since boot, others by how fast they grow."""

from __future__ import annotations

from collections.abc import Mapping
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
from clusterprep.facts.pci import PciTree
from clusterprep.model import Absent, Node
from clusterprep.model.units import format_duration, pluralize
from clusterprep.remedies import Remedy, shell_line

PAST = ("counters.earlier", "host.boot_id", "host.uptime", "ib.counters")
# Correctable errors per second. A link may have one wrong bit in 10**12 (PCI Express 6.0, 8.3): at
# sixteen lanes of 32 GT/s that is one in two seconds, if it carries data all the time.
RATE = 1.0
# What a device does not know is answered so while the system looks for devices.
HARMLESS = ("nonfatal UnsupReq", "nonfatal Unsupported Request")
WANTED = "no fatal error since boot, no growth of others"


def errors(context: CheckContext, node: Node, tree: PciTree, counted: Counters) -> Outcome:
    """Judge fatal errors since boot, then the growth of the others since the earlier run."""
    if not counted:
        return skipped(node, "the kernel counts no errors of PCI functions here")
    fatal = _chosen(counted, "fatal ")
    if fatal:
        message = "a PCI Express link had fatal errors"
        return _failure(node, tree, message, fatal)
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
    uses=PAST,
    judge=each(errors, "pci.tree", "pci.errors"),
    severity="warning",
    title="Errors on PCI Express links",
    why="A link with a bad contact sends packets again and again, and at last drops off the bus in "
    "the middle of a job.",
    how="aer_dev_fatal, aer_dev_nonfatal and aer_dev_correctable in /sys of GPUs, network cards "
    "and the bridges above them: no fatal error since boot; since an earlier run in this boot no "
    "other error that was not corrected, but for UnsupReq, and at most one a second that was. "
    "Where the firmware keeps errors to itself, the kernel counts none.",
    remedy=shell_line("lspci -vv | grep -e UESta -e CESta   # then reseat the card or its riser"),
    proof=Proof("pci.errors", _with_error("fatal MalfTLP", 1)),
)
