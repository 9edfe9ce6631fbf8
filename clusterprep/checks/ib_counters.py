"""Judges errors of RDMA ports by how fast they grow.

Totals count from the load of the driver, so alone they say nothing about today.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    passed,
    skipped,
    unknown,
)
from clusterprep.checks.ib import NONE_IN_USE, training_not_known
from clusterprep.facts.counters import Counters, Earlier, Sample
from clusterprep.model import Absent, Node
from clusterprep.model.units import format_duration
from clusterprep.nccl.rails import HARDWARE, TrainingSet, training_sets
from clusterprep.remedies import Remedy, shell_line

FACTS = ("rdma.devices", "pci.tree", "ib.counters")
# The earlier sample is looked up by boot id and uptime.
PAST = ("counters.earlier", "host.boot_id", "host.uptime")
FIRST = "the counters are noted now; a run in ten minutes or later can tell how fast they grow"
FLAPPING = 5  # times a day
NOT_COUNTED: Mapping[str, int] = {}  # of a port

# Growth that is too much: times, and seconds in which it may happen so often. 0: every one is too
# many.
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

SampleJudge = Callable[[Node, Counters, Earlier, tuple[str, ...]], Outcome]
"""Judges a node by its counters now, its earlier samples, and the names of its training ports."""


def of_samples(judge: SampleJudge) -> Callable[[CheckContext], Iterable[Outcome]]:
    """Return a judge of a whole context that calls `judge` for nodes with an earlier sample.

    Nodes without training ports or without an earlier sample get their outcome here.
    """

    def judge_all(context: CheckContext) -> Iterable[Outcome]:
        ports_by_node = _ports(context)
        seen = partial(
            _seen,
            ports_by_node,
            context.values("ib.counters"),
            context.values("counters.earlier"),
        )
        for nodes in context.alike_by(seen):
            node = nodes[0]
            ports = ports_by_node[node.name]
            earlier = context.value(node, "counters.earlier")
            if isinstance(ports, Absent):
                outcome = training_not_known(node, ports)
            elif not ports:
                outcome = skipped(node, NONE_IN_USE)
            elif not isinstance(earlier, Earlier):
                outcome = skipped(node, FIRST, reason="first_sample")
            else:
                now: Counters = context.value(node, "ib.counters")
                missing = _judge_missing(node, now, earlier, ports)
                outcome = missing or judge(node, now, earlier, ports)
            yield from about_all(nodes, [outcome])

    return judge_all


Ports = tuple[str, ...] | Absent
"""The names of the training ports of a node, or why they are not known."""


def _ports(context: CheckContext) -> dict[str, Ports]:
    """Return the training ports of each node."""
    sets = training_sets(context.fleet)
    ports: dict[str, Ports] = {}
    for nodes in context.alike("rdma.devices", "pci.tree", parts=[HARDWARE]):
        training = sets[nodes[0].name]
        known = training if isinstance(training, Absent) else _port_names(training)
        ports.update(dict.fromkeys(names_of(nodes), known))
    return ports


def _port_names(training: TrainingSet) -> tuple[str, ...]:
    return tuple(f"{rail.device.name}:{rail.port.number}" for rail in training.rails)


def _seen(
    ports_by_node: Mapping[str, Ports],
    counters: Mapping[str, Counters],
    earlier_by_node: Mapping[str, object],
    node: Node,
) -> Hashable:
    """Return what tells the outcomes of nodes apart: of a node on which a counter moved its name.

    Of the others, whose counters stand where they stood in both samples, it is enough whether the
    ports count errors at all.
    """
    ports = ports_by_node[node.name]
    if isinstance(ports, Absent) or not ports:
        return ports
    earlier = earlier_by_node[node.name]
    if not isinstance(earlier, Earlier):
        return FIRST
    now = counters[node.name]
    if now != earlier.recent.ib or now != earlier.long.ib:
        return node.name
    return any(LIMITS.keys() & now.get(port, NOT_COUNTED).keys() for port in ports)


def _judge_missing(
    node: Node, now: Counters, earlier: Earlier, ports: tuple[str, ...]
) -> Outcome | None:
    """Return unknown if a counter of the earlier run is missing now: its growth is not known."""
    before = earlier.recent.ib
    for port in ports:
        counted_before = before.get(port, NOT_COUNTED)
        counted_now = now.get(port, NOT_COUNTED)
        if counted_before.keys() <= counted_now.keys():
            continue
        for name in counted_before:
            if name not in counted_now:
                message = f"{port} {name} was counted before and is not now"
                return unknown(node, message, "garbled")
    return None


def errors(node: Node, now: Counters, earlier: Earlier, ports: tuple[str, ...]) -> Outcome:
    """Compare the growth of every counter of every training port with its limit."""
    sample = earlier.recent
    excesses: list[str] = []
    judged = 0
    total_growth = 0
    for port in ports:
        current = now.get(port, NOT_COUNTED)
        if current == sample.ib.get(port, NOT_COUNTED):
            # As on nearly all ports: nothing grew.
            judged += len(LIMITS.keys() & current.keys())
            continue
        for name, growth in _growth(now, sample, port).items():
            if name not in LIMITS:
                continue
            judged += 1
            total_growth += growth
            excess = _describe_excess(name, growth, sample.seconds)
            if excess:
                excesses.append(f"{port} {excess}")
    if not judged:
        return skipped(node, "the ports do not count errors, or did not in the earlier run")
    wanted = "growth below the limits of `clusterprep explain ib.counters`"
    if not excesses:
        seen = "growth below the limits" if total_growth else "no growth"
        message = "the error counters of the training ports do not grow faster than is usual"
        return passed(node, message, seen, wanted)
    first_port = excesses[0].partition(" ")[0]
    device, _, number = first_port.partition(":")
    advice = "error rates of the link; then clean or replace the cable"
    cure = shell_line(
        "mlxlink -d {device} -p {number} -c   # {advice}",
        device=device,
        number=number,
        advice=advice,
    )
    return failed(
        node,
        "errors on a training port grow",
        "; ".join(excesses),
        wanted,
        cure,
    )


def _growth(now: Counters, then: Sample, port: str) -> dict[str, int]:
    """Return the growth of the counters of a port that both samples have."""
    before = then.ib.get(port, NOT_COUNTED)
    current = now.get(port, NOT_COUNTED)
    return {name: value - before[name] for name, value in current.items() if name in before}


def _describe_excess(name: str, growth: int, seconds: float) -> str:
    """Return the growth of a counter as text if it is over its limit, else an empty text."""
    times, window, unit = LIMITS[name]
    rate = growth * window / seconds
    if rate <= times:
        return ""
    span = format_duration(round(seconds))
    text = f"{name} +{growth} in {span}"
    if not unit:
        return text
    return f"{text}, {rate:.3g} {unit} where {times} are the limit"


def downed(node: Node, now: Counters, earlier: Earlier, ports: tuple[str, ...]) -> Outcome:
    """Judge links that went down since the last sample, or often within a day."""
    recently = _link_losses(now, earlier.recent, ports)
    long_term = _link_losses(now, earlier.long, ports)
    flapping = {port: losses for port, losses in long_term.items() if losses >= FLAPPING}
    wanted = "none"
    if flapping:
        seen = _describe_losses(flapping, earlier.long)
        message = "the link of a training port comes and goes"
        return failed(node, message, seen, wanted, _look_at(flapping))
    if recently:
        seen = _describe_losses(recently, earlier.recent)
        message = "a training port lost its link meanwhile"
        return failed(node, message, seen, wanted, _look_at(recently))
    return passed(node, "no training port lost its link since the earlier run", "none", wanted)


def _look_at(ports: Iterable[str]) -> Remedy:
    device, _, number = next(iter(ports)).partition(":")
    return shell_line(
        "dmesg -T | grep -i 'link down'; mlxlink -d {device} -p {number} -c"
        "   # reseat or replace the cable or the transceiver",
        device=device,
        number=number,
    )


def _link_losses(now: Counters, then: Sample, ports: tuple[str, ...]) -> dict[str, int]:
    """Return how often each port lost its link since a sample; ports that did not are left out."""
    losses = {}
    for port in ports:
        before = then.ib.get(port, NOT_COUNTED).get("link_downed")
        current = now.get(port, NOT_COUNTED).get("link_downed")
        if before is not None and current is not None and before != current:
            losses[port] = current - before
    return losses


def _describe_losses(losses: Mapping[str, int], since: Sample) -> str:
    span = format_duration(round(since.seconds))
    parts = []
    for port, number in losses.items():
        times = "once" if number == 1 else f"{number} times"
        parts.append(f"{port} {times} in {span}")
    return ", ".join(parts)


def _with_growth(name: str, by: int) -> Callable[[Any], Any]:
    """Return a function for proofs that raises one counter of one training port."""

    def turn(counters: Counters) -> Counters:
        port = "mlx5_0:1"
        before = counters[port].get(name, 0)
        changed = {
            **counters[port],
            name: before + by,
        }
        return {
            **counters,
            port: changed,
        }

    return turn


COUNTERS = Check(
    "ib.counters",
    facts=FACTS,
    uses=PAST,
    judge=of_samples(errors),
    severity="warning",
    title="Errors of RDMA ports do not grow",
    why="A dirty connector or a bad cable lets a link pass every test of its state and sends "
    "everything twice. The whole job then waits for one port.",
    how="counters and hw_counters of the training ports in /sys/class/infiniband, now and in an "
    "earlier run at least ten minutes ago, within one boot. Too much is: symbol_error over 120 per "
    "hour, link_error_recovery over 5 per minute, port_rcv_errors over 10, port_xmit_discards over "
    "100, local_ack_timeout_err over 1, roce_slow_restart over 10 per second; any "
    "local_link_integrity_errors, excessive_buffer_overrun_errors or rnr_nak_retry_err.",
    remedy=shell_line(
        "mlxlink -d DEVICE -c   # error rates of the link; then clean or replace the cable"
    ),
    proof=Proof("ib.counters", _with_growth("symbol_error", 100_000)),
)
DOWNED = Check(
    "ib.downed",
    facts=FACTS,
    uses=PAST,
    judge=of_samples(downed),
    severity="warning",
    title="Links of RDMA ports stay up",
    why="A link that goes down for a second ends every job that uses it, and looks healthy "
    "afterwards.",
    how="link_downed of the training ports, now and in an earlier run at least ten minutes ago, "
    "within one boot: not once. Five times within a day, as far as earlier runs are recorded, are "
    "told as a link that comes and goes.",
    remedy=shell_line(
        "dmesg -T | grep -i 'link down'; mlxlink -d DEVICE -c   # reseat or replace the cable "
        "or the transceiver"
    ),
    proof=Proof("ib.counters", _with_growth("link_downed", 2)),
)
