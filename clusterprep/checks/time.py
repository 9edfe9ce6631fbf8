"""Clocks: how far apart they are, and what keeps them together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, as_wanted, each, kinds
from clusterprep.facts.clock import ClockSource, Daemon, Offset
from clusterprep.model import Node, Severity
from clusterprep.model.units import format_duration, parse_duration

GRAVE = 1.0  # seconds: log order, leases and TLS break
LIMIT = 0.050  # seconds: what a synchronised node never exceeds
# Read through the chipset or counted by ticks: microseconds for each call, where tsc and the clocks of hypervisors
# take some ten nanoseconds without entering the kernel (Linux, Documentation/virt/kvm/x86/timekeeping.rst).
SLOW = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")
SET = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
UNSTABLE = "dmesg | grep -i -e clocksource -e tsc   # why is tsc unstable? firmware update, or tsc=reliable at boot"
STEP = "chronyc makestep   # where chronyd is missing: apt-get install chrony"


def offset(context: CheckContext) -> Iterable[Outcome]:
    """Against the median of the nodes, or the controller where there are fewer than three."""
    offsets: dict[str, Offset] = context.values("clock.offset")
    against = "the median of the nodes"
    usable = {
        name: clock for name, clock in offsets.items() if math.isfinite(clock.seconds + clock.bound)
    }
    middle = statistics.median(clock.seconds for clock in usable.values()) if usable else 0.0
    if len(usable) < 3:
        against, middle = "the controller", 0.0
    for node in context.nodes:
        if node.name not in usable:
            yield Outcome(
                "unknown", (node.name,), "the time stamps are no numbers", reason="garbled"
            )
            continue
        wanted = context.wanted(node)
        limit = parse_duration(wanted) if wanted is not None else LIMIT
        yield _one(node, offsets[node.name], middle, limit, against, declared=wanted is not None)


def _one(
    node: Node, clock: Offset, middle: float, limit: float, against: str, declared: bool
) -> Outcome:
    away = clock.seconds - middle
    seen = f"{_apart(away)} ± {max(clock.bound * 1000, 0.1):.1f} ms"
    wanted = f"≤ {format_duration(limit)}"
    if abs(away) - clock.bound > limit:
        grave = declared or abs(away) - clock.bound > GRAVE
        message = f"the clock is {'ahead of' if away > 0 else 'behind'} {against}"
        return Outcome(
            "fail", (node.name,), message, seen, wanted, severity="error" if grave else "warning"
        )
    if abs(away) + clock.bound > limit:
        message = f"the measurement is too coarse to tell whether the clock agrees with {against}"
        severity: Severity = "error" if declared or abs(away) + clock.bound > GRAVE else "warning"
        reason = "the error bound straddles the limit"
        return Outcome(
            "unknown", (node.name,), message, seen, wanted, reason=reason, severity=severity
        )
    return Outcome(
        "pass", (node.name,), f"the clock agrees with {against}", f"within {wanted[2:]}", wanted
    )


def _apart(seconds: float) -> str:
    return f"{seconds:+.3f} s" if abs(seconds) >= 1 else f"{seconds * 1000:+.1f} ms"


def daemon(context: CheckContext, node: Node, seen: Daemon) -> Outcome:
    wanted = "synchronised"
    if seen.synchronised:
        source = f"{seen.name or 'the host'} is synchronised"
        return Outcome("pass", (node.name,), "the clock is kept right", source, wanted)
    if seen.name is None:
        return Outcome(
            "fail", (node.name,), "nothing synchronises the clock", "no daemon answers", wanted
        )
    text = f"{seen.name} runs and is not synchronised"
    return Outcome(
        "fail",
        (node.name,),
        "the clock will drift",
        text,
        wanted,
        "chronyc sources -v   # which source answers?",
    )


def clocksource(context: CheckContext) -> Iterable[Outcome]:
    """None that is slow to read, and the same in all machines of a kind."""
    for part in kinds(context):
        sources: dict[str, ClockSource] = part.values("clock.source")
        quick = []
        for node in part.nodes:
            source, wanted = sources[node.name], context.wanted(node)
            if wanted is None and source.current in SLOW:
                yield _slow(node, source)
            elif wanted is None and len(part.inventory.nodes) < 2:
                message = "the kernel's clock is quick to read"
                yield Outcome(
                    "pass", (node.name,), message, source.current, "none that is slow to read"
                )
            else:
                quick.append(node)
        compared = replace(part, nodes=tuple(quick))
        seen = {name: source.current for name, source in sources.items()}
        yield from as_wanted(compared, seen, str.__eq__, "the clock source") if quick else ()


def _slow(node: Node, source: ClockSource) -> Outcome:
    better = next((name for name in source.available if name not in SLOW), None)
    cure = f"echo {better} > {SET}   # on {node.name}" if better else UNSTABLE
    wanted = better or "tsc, or the hypervisor's clock"
    return Outcome(
        "fail", (node.name,), "the kernel's clock is slow to read", source.current, wanted, cure
    )


OFFSET = Check(
    "time.offset",
    facts=("clock.offset",),
    judge=offset,
    severity="error",
    title="Clocks agree",
    why="Nodes seconds apart break rendezvous leases, TLS and the order of log lines; finding who failed first is "
    "then guesswork.",
    how="Four time stamps over the open channel, the best of five exchanges in one round trip, and of three more round "
    "trips where that is coarser than 10 ms; half of what it took beyond the node's own share is the error bound. "
    "Compared with the median of the nodes (with one or two nodes: the controller). More than 1 s is an "
    "error, more than 50 ms a warning; `require: clock_skew` sets its own.",
    remedy=STEP,
    wants=parse_duration,
    proof=Proof("clock.offset", lambda seen: Offset(seen.seconds + 5.0, seen.bound)),
)
DAEMON = Check(
    "time.daemon",
    facts=("clock.daemon",),
    judge=each(daemon, "clock.daemon"),
    severity="warning",
    title="Something keeps the clock right",
    why="A clock that is right today and that nothing keeps right will be seconds off in a month.",
    how="chronyc's tracking report, else systemd's own word: synchronised, with a source that is not the clock itself.",
    remedy="apt-get install chrony && systemctl enable --now chrony",
    proof=Proof("clock.daemon", lambda seen: replace(seen, synchronised=False)),
)
SOURCE = Check(
    "time.clocksource",
    facts=("clock.source",),
    judge=clocksource,
    severity="warning",
    title="The clock that the kernel reads",
    why="NCCL's proxy threads and PyTorch read the time millions of times a second; through hpet or acpi_pm each takes "
    "microseconds and a trip into the kernel, and one such node slows all others.",
    how="current_clocksource in /sys: not hpet, acpi_pm or jiffies, and the same in machines of a kind. tsc on the "
    "metal; kvm-clock, hyperv_clocksource_tsc_page or xen in virtual machines.",
    remedy=UNSTABLE,
    proof=Proof("clock.source", lambda _: ClockSource("hpet", ("hpet", "acpi_pm"))),
)
