"""Errors of RDMA ports by how fast they grow: totals since the driver was loaded say nothing about today."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.ib import NONE_IN_USE, NOT_KNOWN
from clusterprep.facts.counters import Counters, Earlier, Sample
from clusterprep.model import Absent, Node
from clusterprep.model.units import format_duration
from clusterprep.nccl.rails import training_sets

FACTS = ("rdma.devices", "pci.tree", "ib.counters")
PAST = (
    "counters.earlier",
    "host.boot_id",
    "host.uptime",
)  # the latter two for whoever looks for the former
FIRST = "the counters are noted now; a run in ten minutes or later can tell how fast they grow"
FLAPPING = 5  # times a day

# Growth that is too much: times, and seconds in which it may happen so often. 0: every one is too many.
LIMITS: Mapping[str, tuple[int, float, str]] = {
    "symbol_error": (120, 3600.0, "per hour"),
    "link_error_recovery": (5, 60.0, "per minute"),
    "port_rcv_errors": (10, 1.0, "per second"),
    "port_xmit_discards": (100, 1.0, "per second"),
    "local_ack_timeout_err": (1, 1.0, "per second"),
    "roce_slow_restart": (10, 1.0, "per second"),
    "local_link_integrity_errors": (0, 1.0, ""),
    "excessive_buffer_overrun_errors": (0, 1.0, ""),
    "rnr_nak_retry_err": (0, 1.0, ""),
}


def of_samples(
    judge: Callable[[Node, Counters, Earlier, tuple[str, ...]], Outcome],
) -> Callable[[CheckContext], Iterable[Outcome]]:
    """A judge for nodes with training ports and an earlier sample; the others are answered here."""

    def judge_all(context: CheckContext) -> Iterable[Outcome]:
        sets = training_sets(context.fleet)
        for node in context.nodes:
            training = sets[node.name]
            earlier = context.value(node, "counters.earlier")
            if isinstance(training, Absent):
                yield Outcome(
                    "unknown", (node.name,), training.detail or NOT_KNOWN, reason=training.reason
                )
            elif not training.rails:
                yield Outcome("skip", (node.name,), NONE_IN_USE, reason="not_applicable")
            elif not isinstance(earlier, Earlier):
                yield Outcome("skip", (node.name,), FIRST, reason="first_sample")
            else:
                ports = tuple(f"{rail.device.name}:{rail.port.number}" for rail in training.rails)
                counters = context.value(node, "ib.counters")
                yield _lost(node, counters, earlier, ports) or judge(node, counters, earlier, ports)

    return judge_all


def _lost(node: Node, now: Counters, earlier: Earlier, ports: tuple[str, ...]) -> Outcome | None:
    """What was counted in the earlier run and is not there now: nobody knows how much it grew."""
    was = earlier.recent.ib
    gone = [
        f"{port} {name}"
        for port in ports
        for name in was.get(port, {})
        if name not in now.get(port, {})
    ]
    if not gone:
        return None
    return Outcome(
        "unknown", (node.name,), f"{gone[0]} was counted before and is not now", reason="garbled"
    )


def errors(node: Node, now: Counters, earlier: Earlier, ports: tuple[str, ...]) -> Outcome:
    """Every counter of every training port against its limit."""
    sample = earlier.recent
    found, judged = [], 0
    for port in ports:
        for name, growth in _growth(now, sample, port).items():
            if name in LIMITS:
                judged += 1
                found += (
                    [f"{port} {said}"] if (said := _too_much(name, growth, sample.seconds)) else []
                )
    if not judged:
        message = "the ports do not count errors, or did not in the earlier run"
        return Outcome("skip", (node.name,), message, reason="not_applicable")
    wanted = "growth below the limits of `clusterprep explain ib.counters`"
    if not found:
        return Outcome(
            "pass", (node.name,), "no error counter of a training port grows", "no growth", wanted
        )
    device, _, number = found[0].partition(" ")[0].partition(":")
    cure = f"mlxlink -d {device} -p {number} -c   # error rates of the link; then clean or replace the cable"
    return Outcome(
        "fail", (node.name,), "errors on a training port grow", "; ".join(found), wanted, cure
    )


def _growth(now: Counters, then: Sample, port: str) -> dict[str, int]:
    """What both looks saw of a port."""
    was = then.ib.get(port, {})
    return {name: value - was[name] for name, value in now.get(port, {}).items() if name in was}


def _too_much(name: str, growth: int, seconds: float) -> str:
    times, window, unit = LIMITS[name]
    rate = growth * window / seconds
    if rate <= times:
        return ""
    span = format_duration(round(seconds))
    return f"{name} +{growth} in {span}" + (
        f", {rate:.3g} {unit} where {times} are the limit" if unit else ""
    )


def downed(node: Node, now: Counters, earlier: Earlier, ports: tuple[str, ...]) -> Outcome:
    """None since the last sample; over a day often enough is a link that flaps."""
    new: dict[str, int] = {}
    often: dict[str, int] = {}
    for port in ports:
        for sample, found in ((earlier.recent, new), (earlier.long, often)):
            if growth := _growth(now, sample, port).get("link_downed", 0):
                found[port] = growth
    wanted = "none"
    span, day = (
        format_duration(round(sample.seconds)) for sample in (earlier.recent, earlier.long)
    )
    flapping = {port: growth for port, growth in often.items() if growth >= FLAPPING}
    if not new and not flapping:
        return Outcome(
            "pass",
            (node.name,),
            "no training port lost its link since the earlier run",
            "none",
            wanted,
        )
    found = flapping or new
    message = (
        "the link of a training port comes and goes"
        if flapping
        else "a training port lost its link meanwhile"
    )
    seen = ", ".join(
        f"{port} {_times(growth)} in {day if flapping else span}" for port, growth in found.items()
    )
    return Outcome("fail", (node.name,), message, seen, wanted)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _grown(name: str, by: int) -> Callable[[Any], Any]:
    """The counters with one of them higher on one training port, for proofs."""

    def turn(counters: Counters) -> Counters:
        port = "mlx5_0:1"
        return {**counters, port: {**counters[port], name: counters[port].get(name, 0) + by}}

    return turn


COUNTERS = Check(
    "ib.counters",
    facts=FACTS,
    uses=PAST,
    judge=of_samples(errors),
    severity="warning",
    title="Errors of RDMA ports do not grow",
    why="A dirty connector or a bad cable lets a link pass every test of its state and sends everything twice. The "
    "whole job then waits for one port.",
    how="counters and hw_counters of the training ports in /sys/class/infiniband, now and in an earlier run at least "
    "ten minutes ago, within one boot. Too much is: symbol_error over 120 per hour, link_error_recovery over 5 per "
    "minute, port_rcv_errors over 10, port_xmit_discards over 100, local_ack_timeout_err over 1, roce_slow_restart "
    "over 10 per second; any local_link_integrity_errors, excessive_buffer_overrun_errors or rnr_nak_retry_err.",
    remedy="mlxlink -d DEVICE -c   # error rates of the link; then clean or replace the cable",
    proof=Proof("ib.counters", _grown("symbol_error", 100_000)),
)
DOWNED = Check(
    "ib.downed",
    facts=FACTS,
    uses=PAST,
    judge=of_samples(downed),
    severity="warning",
    title="Links of RDMA ports stay up",
    why="A link that goes down for a second ends every job that uses it, and looks well to whoever comes to see.",
    how="link_downed of the training ports, now and in an earlier run at least ten minutes ago, within one boot: not "
    "once. Five times within a day, as far as earlier runs are recorded, are told as a link that comes and goes.",
    remedy="dmesg -T | grep -i 'link down'; mlxlink -d DEVICE -c   # reseat or replace the cable or the transceiver",
    proof=Proof("ib.counters", _grown("link_downed", 2)),
)
