"""Interrupts: spread over CPUs where cards are busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.facts.interrupts import InterruptDevice, Interrupts
from clusterprep.model import Node
from clusterprep.nccl.interfaces import choose
from clusterprep.runtime.lazy_dataclass import dataclass

BUSY = 1000.0  # interrupts per second below which a device is at rest: a CPU takes a hundred times as many
SHARE = 0.80  # of a busy device's interrupts that one CPU may take
PART = 0.05  # of a device's interrupts that make a line count; idle queues and command lines stay below
# One stream of TCP arrives in one queue, receiving and sending lines of a pair on one CPU, and nothing could spread
# it; so it takes three lines that count on the same CPU to be a fault.
LINES = 3


@dataclass(frozen=True)
class Verdict:
    """What one device, or the GPUs together, have to say: good, at rest, cannot be spread, or the fault."""

    name: str
    fault: str = ""
    resting: bool = False
    single: str = ""
    share: float = 0.0
    irqs: tuple[str, ...] = ()


def balance(context: CheckContext) -> Iterable[Outcome]:
    choice = choose(context.fleet)
    for node in context.nodes:
        pick = choice.picks.get(node.name)
        if pick is None:
            message = "no interface is chosen, so there are no interrupts to judge"
            yield Outcome("unknown", (node.name,), message, reason="eth.iface_choice")
            continue
        seen: Interrupts = context.value(node, "irq.counts")
        text = context.wanted(node)
        limit = SHARE if text is None else parse_share(text)
        groups: list[tuple[str, tuple[InterruptDevice, ...]]] = [
            (device.name, (device,)) for device in seen.under(pick.name)
        ]
        groups += [("the GPUs", seen.gpus)] if seen.gpus else []
        judged = [_one(name, devices, seen.seconds, limit) for name, devices in groups]
        yield _told(node, pick.name, judged, f"at most {limit:.0%} on one CPU")


def _one(name: str, devices: tuple[InterruptDevice, ...], seconds: float, limit: float) -> Verdict:
    lines = {irq: counts for device in devices for irq, counts in device.lines.items()}
    by_cpu: Counter[str] = Counter()
    for counts in lines.values():
        by_cpu.update(counts)
    total = by_cpu.total()
    if total / seconds < BUSY:
        return Verdict(name, resting=True)
    if (
        sum(device.queues for device in devices) < 2
        or sum(len(device.irqs) for device in devices) < 2
    ):
        return Verdict(name, single="it has one queue, so its interrupts cannot be spread")
    cpu, taken = by_cpu.most_common(1)[0]
    if taken <= limit * total:
        return Verdict(name, share=taken / total)
    there = tuple(irq for irq, counts in lines.items() if counts.get(cpu, 0) >= PART * total)
    if len(there) < LINES:
        return Verdict(name, single="one queue brings nearly all, as a single stream does")
    return Verdict(
        name, f"{cpu} takes {taken / total:.0%} of {total / seconds:.0f}/s of {name}", irqs=there
    )


def _told(node: Node, interface: str, judged: list[Verdict], wanted: str) -> Outcome:
    names = (node.name,)
    if faults := [verdict for verdict in judged if verdict.fault]:
        irqs = ", ".join(irq for verdict in faults for irq in verdict.irqs)
        cure = f"systemctl enable --now irqbalance   # on {node.name}; by hand: /proc/irq/N/smp_affinity_list of {irqs}"
        seen = "; ".join(verdict.fault for verdict in faults)
        return Outcome(
            "fail", names, "one CPU takes the interrupts of a busy device", seen, wanted, cure
        )
    if any(verdict.share for verdict in judged):
        return Outcome("pass", names, "interrupts are spread over CPUs", "spread over CPUs", wanted)
    if not judged:
        message = f"{interface} raises no interrupts of its own, and no GPU does"
        return Outcome("skip", names, message, reason="not_applicable")
    if single := [verdict for verdict in judged if verdict.single]:
        message = "; ".join(f"{verdict.name}: {verdict.single}" for verdict in single)
        return Outcome("skip", names, message, reason="not_applicable")
    resting = ", ".join(verdict.name for verdict in judged)
    return Outcome(
        "skip", names, f"fewer than {BUSY:.0f} interrupts per second of {resting}", reason="at_rest"
    )


def parse_share(text: str) -> float:
    """0.6 of «60%», the most that one CPU may take."""
    number = text.strip().removesuffix("%").strip()
    if not (number.isascii() and number.isdigit() and 0 < int(number) <= 100):
        raise ValueError(f"expected a percentage such as 80%; seen '{text}'")
    return int(number) / 100


def _crowded(seen: Interrupts) -> Interrupts:
    """The same interrupts, all of them on the first CPU."""
    lines = [
        {irq: {"CPU0": sum(counts.values())} for irq, counts in d.lines.items()}
        for d in seen.devices
    ]
    return replace(
        seen,
        devices=tuple(replace(d, lines=own) for d, own in zip(seen.devices, lines, strict=True)),
    )


BALANCE = Check(
    "irq.balance",
    facts=("irq.counts", "net.interfaces"),
    judge=balance,
    severity="warning",
    title="Interrupts are spread over CPUs",
    why="A CPU that takes all interrupts of a busy card is full long before the card is: sockets get a fraction of the "
    "link, and the ranks on that CPU are late.",
    how="/proc/interrupts twice, 0.3 s apart, for the NCCL interface (for a bond: its cards) and the GPUs together: no "
    "CPU takes more than 80 % or what `require: {irq.balance: 60%}` says. Below 1000 interrupts a second a device is "
    "at rest; one with a single queue, or with a single stream in it, cannot be judged.",
    remedy="systemctl enable --now irqbalance",
    wants=parse_share,
    proof=Proof("irq.counts", _crowded),
)
