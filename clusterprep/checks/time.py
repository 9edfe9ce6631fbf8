"""Judges clocks: how far apart they are, what keeps them right, and how fast they are to read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    as_wanted,
    each,
    failed,
    kinds,
    passed,
    unknown,
)
from clusterprep.facts.clock import ClockSource, Daemon, Offset
from clusterprep.model import Node, Severity
from clusterprep.model.fact_columns import equal_values
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.model.units import format_duration, parse_duration
from clusterprep.remedies import shell_line

GRAVE = 1.0  # seconds: log order, leases and TLS break
LIMIT = 0.050  # seconds: what a synchronised node never exceeds
# Read through the chipset or counted by ticks: microseconds for each call, where tsc and the clocks
# of hypervisors take some ten nanoseconds without entering the kernel (Linux,
# Documentation/virt/kvm/x86/timekeeping.rst).
SLOW = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")
SET = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
UNSTABLE = shell_line(
    "dmesg | grep -i -e clocksource -e tsc   "
    "# why is tsc unstable? firmware update, or tsc=reliable at boot"
)
# As the playbook `clock-sync`.
CHRONY = fix_of(
    wanted_state("package", name="chrony"),
    wanted_state("service", name="chrony", enabled=True, running=True),
    wanted_state("clock"),
)
STEP = shell_line("chronyc makestep   # where chronyd is missing: apt-get install chrony")


class Reference(Struct, frozen=True):
    """The time that clocks are compared with, in seconds from the controller's, and its name."""

    name: str
    seconds: float


def offset(context: CheckContext) -> Iterable[Outcome]:
    """Compare every clock with the median of the nodes, or with the controller if they are few."""
    offsets: dict[str, Offset] = context.values("clock.offset")
    reference = _reference(offsets.values())

    def apart(node: Node) -> str:
        """Return the name of a node whose own figures are told, else ""."""
        limit = _limit(context.wanted(node))
        return "" if _is_within(offsets[node.name], reference, limit) else node.name

    for nodes in context.alike_by(apart):
        clock = offsets[nodes[0].name]
        if _is_usable(clock):
            outcome = _judge_offset(nodes[0], clock, reference, context.wanted(nodes[0]))
        else:
            outcome = unknown(nodes[0], "the time stamps are no numbers", "garbled")
        yield from about_all(nodes, [outcome])


def _limit(required: str | None) -> float:
    return LIMIT if required is None else parse_duration(required)


def _is_within(clock: Offset, reference: Reference, limit: float) -> bool:
    """Return whether a clock certainly agrees with the reference; one of no numbers does not."""
    return abs(clock.seconds - reference.seconds) + abs(clock.bound) <= limit


def _is_usable(clock: Offset) -> bool:
    return math.isfinite(clock.seconds + clock.bound)


def _reference(clocks: Iterable[Offset]) -> Reference:
    """Return the median of at least three clocks, else the controller's clock."""
    usable = [clock.seconds for clock in clocks if _is_usable(clock)]
    if len(usable) < 3:
        return Reference("the controller", 0.0)
    return Reference("the median of the nodes", statistics.median(usable))


def _judge_offset(node: Node, clock: Offset, reference: Reference, required: str | None) -> Outcome:
    """Judge one clock; the answer is unknown if its error bound straddles the limit."""
    limit = _limit(required)
    limit_text = format_duration(limit)
    wanted = f"≤ {limit_text}"
    difference = clock.seconds - reference.seconds
    distance = abs(difference)
    least = distance - clock.bound
    most = distance + clock.bound
    milliseconds = max(clock.bound * 1000, 0.1)
    seen = f"{_format_difference(difference)} ± {milliseconds:.1f} ms"
    if least > limit:
        relation = "ahead of" if difference > 0 else "behind"
        message = f"the clock is {relation} {reference.name}"
        return failed(
            node,
            message,
            seen,
            wanted,
            severity=_severity(least, required),
        )
    if most > limit:
        problem = "the measurement is too coarse to tell"
        message = f"{problem} whether the clock agrees with {reference.name}"
        reason = "the error bound straddles the limit"
        return unknown(
            node,
            message,
            reason,
            seen,
            wanted,
            severity=_severity(most, required),
        )
    message = f"the clock agrees with {reference.name}"
    return passed(node, message, f"within {limit_text}", wanted)


def _severity(seconds: float, required: str | None) -> Severity:
    if required is not None or seconds > GRAVE:
        return "error"
    return "warning"


def _format_difference(seconds: float) -> str:
    if abs(seconds) >= 1:
        return f"{seconds:+.3f} s"
    return f"{seconds * 1000:+.1f} ms"


def daemon(context: CheckContext, node: Node, daemon: Daemon) -> Outcome:
    """Judge whether a daemon, or the host of a virtual machine, synchronises the clock."""
    wanted = "synchronised"
    if daemon.synchronised:
        source = daemon.name or "the host"
        return passed(node, "the clock is kept right", f"{source} is synchronised", wanted)
    if daemon.name is None:
        return failed(
            node,
            "nothing synchronises the clock",
            "no daemon answers",
            wanted,
            fix=CHRONY,
        )
    seen = f"{daemon.name} runs and is not synchronised"
    cure = shell_line("chronyc sources -v   # which source answers?")
    return failed(
        node,
        "the clock will drift",
        seen,
        wanted,
        cure,
    )


def clocksource(context: CheckContext) -> Iterable[Outcome]:
    """Judge clock sources that are slow to read, and compare the others within a kind."""
    for part in kinds(context):
        names: dict[str, str] = {}
        compared: list[Node] = []
        for node in part.nodes:
            source: ClockSource = part.value(node, "clock.source")
            names[node.name] = source.current
            declared = part.wanted(node) is not None
            if source.current in SLOW and not declared:
                yield _slow_source(node, source)
            elif len(part.inventory.nodes) < 2 and not declared:
                message = "the kernel's clock is quick to read"
                yield passed(node, message, source.current, "none that is slow to read")
            else:
                compared.append(node)
        if compared:
            remaining = replace(part, nodes=tuple(compared))
            yield from as_wanted(remaining, names, str.__eq__, "the clock source")


def _slow_source(node: Node, source: ClockSource) -> Outcome:
    """Return the failure of a slow clock source, with a quick one if the node has any."""
    wanted = "tsc, or the hypervisor's clock"
    cure = UNSTABLE
    for name in source.available:
        if name not in SLOW:
            wanted = name
            cure = shell_line(
                "echo {source} > {file}   # on {node}", source=name, file=SET, node=node.name
            )
            break
    return failed(
        node,
        "the kernel's clock is slow to read",
        source.current,
        wanted,
        cure,
    )


OFFSET = Check(
    "time.offset",
    facts=("clock.offset",),
    judge=offset,
    severity="error",
    follows=("time.daemon",),
    grade="an error over 1 s, else a warning",
    title="Clocks agree",
    why="Nodes seconds apart break rendezvous leases, TLS and the order of log lines; finding who "
    "failed first is then guesswork.",
    how="Four time stamps over the open channel, the best of five exchanges in one round trip, and "
    "of three more round trips where that is coarser than 10 ms; half of what it took beyond the "
    "node's own share is the error bound. Compared with the median of the nodes (with one or two "
    "nodes: the controller). More than 1 s is an error, more than 50 ms a warning; `require: "
    "clock_skew` sets its own.",
    remedy=STEP,
    wants=parse_duration,
    proof=Proof("clock.offset", lambda seen: Offset(seen.seconds + 5.0, seen.bound)),
)
DAEMON = Check(
    "time.daemon",
    facts=("clock.daemon",),
    judge=each(daemon, "clock.daemon", parts=(equal_values("clock.daemon"),)),
    severity="warning",
    title="Something keeps the clock right",
    why="A clock that is right today and that nothing keeps right will be seconds off in a month.",
    how="chronyc's tracking report, else systemd's own word: synchronised, with a source that is "
    "not the clock itself.",
    remedy=shell_line("apt-get install chrony && systemctl enable --now chrony"),
    proof=Proof("clock.daemon", lambda seen: replace(seen, synchronised=False)),
)
SOURCE = Check(
    "time.clocksource",
    facts=("clock.source",),
    judge=clocksource,
    severity="warning",
    title="The clock that the kernel reads",
    why="NCCL's proxy threads and PyTorch read the time millions of times a second; through hpet "
    "or acpi_pm each takes microseconds and a trip into the kernel, and one such node slows all "
    "others.",
    how="current_clocksource in /sys: not hpet, acpi_pm or jiffies, and the same in machines of a "
    "kind. tsc on the metal; kvm-clock, hyperv_clocksource_tsc_page or xen in virtual machines.",
    remedy=UNSTABLE,
    proof=Proof("clock.source", lambda _: ClockSource("hpet", ("hpet", "acpi_pm"))),
)
