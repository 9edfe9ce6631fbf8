"""Judges whether the interrupts of busy cards are spread over CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.interrupts import InterruptDevice, Interrupts
from clusterprep.model import Node
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.nccl.interfaces import Choice, choose
from clusterprep.remedies import Remedy, shell_line

# Interrupts per second below which a device is at rest: a CPU takes a hundred times as many.
BUSY = 1000.0
SHARE = 0.80  # of a busy device's interrupts that one CPU may take
# Share of a device's interrupts that make a line count; idle queues and command lines stay below.
PART = 0.05
# One stream of TCP arrives in one queue, receiving and sending lines of a pair on one CPU, and
# nothing could spread it; so it takes three lines that count on the same CPU to be a fault.
LINES = 3
ONE_QUEUE = "it has one queue, so its interrupts cannot be spread"
ONE_STREAM = "one queue brings nearly all, as a single stream does"


class Verdict(Struct, frozen=True):
    """The verdict on one device, or on all GPUs together.

    Either it is at rest (`resting`), or `single` says why its interrupts cannot be spread, or
    `fault` what is wrong, with `irqs` the lines to move. Otherwise its interrupts are `spread` over
    CPUs.
    """

    name: str
    fault: str = ""
    resting: bool = False
    single: str = ""
    spread: bool = False
    irqs: tuple[str, ...] = ()


def balance(context: CheckContext) -> Iterable[Outcome]:
    """Judge the NCCL interface (for a bond: its cards) and the GPUs of each node."""
    judged = partial(_judged, context, choose(context.fleet))
    for nodes in context.alike_by(judged):
        interface, verdicts = judged(nodes[0])
        if interface is None:
            message = "no interface is chosen, so there are no interrupts to judge"
            outcome = unknown(nodes[0], message, "eth.iface_choice")
            yield from about_all(nodes, [outcome])
            continue
        wanted = f"at most {_limit(context, nodes[0]):.0%} on one CPU"
        faulty = [verdict for verdict in verdicts if verdict.fault]
        if faulty:
            # The remedy has the name of the node.
            yield from [_failure(node, faulty, wanted) for node in nodes]
        else:
            yield from about_all(nodes, [_sound(nodes[0], interface, verdicts, wanted)])


def _limit(context: CheckContext, node: Node) -> float:
    """Return the share of a device's interrupts that one CPU may take."""
    required = context.wanted(node)
    return SHARE if required is None else parse_share(required)


def _judged(
    context: CheckContext, choice: Choice, node: Node
) -> tuple[str | None, tuple[Verdict, ...]]:
    """Return the interface that is chosen on a node, and the verdicts on its cards and the GPUs."""
    interface = choice.name_on(node)
    if interface is None:
        return None, ()
    interrupts: Interrupts = context.value(node, "irq.counts")
    limit = _limit(context, node)
    verdicts = []
    for device in interrupts.under(interface):
        verdict = _judge_devices(device.name, (device,), interrupts.seconds, limit)
        verdicts.append(verdict)
    gpus = interrupts.gpus
    if gpus:
        verdict = _judge_devices("the GPUs", gpus, interrupts.seconds, limit)
        verdicts.append(verdict)
    return interface, tuple(verdicts)


def _judge_devices(
    name: str, devices: tuple[InterruptDevice, ...], seconds: float, limit: float
) -> Verdict:
    """Judge the interrupts that `devices` raised together within `seconds`."""
    lines: dict[str, Mapping[str, int]] = {}
    for device in devices:
        lines.update(device.lines)
    by_cpu: dict[str, int] = {}
    for counts in lines.values():
        for cpu, number in counts.items():
            by_cpu[cpu] = by_cpu.get(cpu, 0) + number
    total = sum(by_cpu.values())
    if total / seconds < BUSY:
        return Verdict(name, resting=True)
    queues = sum(device.queues for device in devices)
    vectors = sum(len(device.irqs) for device in devices)
    if queues < 2 or vectors < 2:
        return Verdict(name, single=ONE_QUEUE)
    cpu, count = max(by_cpu.items(), key=itemgetter(1))
    if count <= limit * total:
        return Verdict(name, spread=True)
    least = PART * total
    crowded = [irq for irq, counts in lines.items() if counts.get(cpu, 0) >= least]
    if len(crowded) < LINES:
        return Verdict(name, single=ONE_STREAM)
    fault = f"{cpu} takes {count / total:.0%} of {total / seconds:.0f}/s of {name}"
    return Verdict(name, fault, irqs=tuple(crowded))


def _failure(node: Node, faulty: list[Verdict], wanted: str) -> Outcome:
    """Return the failure of a node with devices at fault."""
    message = "one CPU takes the interrupts of a busy device"
    seen = "; ".join(verdict.fault for verdict in faulty)
    return failed(
        node,
        message,
        seen,
        wanted,
        _remedy(node, faulty),
    )


def _sound(node: Node, interface: str, verdicts: Iterable[Verdict], wanted: str) -> Outcome:
    """Return what is known of the devices of a node, none of which is at fault."""
    single: list[str] = []
    resting: list[str] = []
    spread = False
    for verdict in verdicts:
        if verdict.single:
            single.append(f"{verdict.name}: {verdict.single}")
        elif verdict.spread:
            spread = True
        else:
            resting.append(verdict.name)
    if spread:
        return passed(node, "interrupts are spread over CPUs", "spread over CPUs", wanted)
    if single:
        return skipped(node, "; ".join(single))
    if not resting:
        return skipped(node, f"{interface} raises no interrupts of its own, and no GPU does")
    message = f"fewer than {BUSY:.0f} interrupts per second of {', '.join(resting)}"
    return skipped(node, message, reason="at_rest")


def _remedy(node: Node, faulty: list[Verdict]) -> Remedy:
    irqs: list[str] = []
    for verdict in faulty:
        irqs.extend(verdict.irqs)
    return shell_line(
        "systemctl enable --now irqbalance"
        "   # on {node}; by hand: /proc/irq/N/smp_affinity_list of {irqs}",
        node=node.name,
        irqs=", ".join(irqs),
    )


def parse_share(text: str) -> float:
    """Return 0.6 for «60%», the share that one CPU may take. Raises ValueError for other text."""
    number = text.strip().removesuffix("%").strip()
    if not (number.isascii() and number.isdigit() and 0 < int(number) <= 100):
        raise ValueError(f"expected a percentage such as 80%; seen '{text}'")
    return int(number) / 100


def _with_one_busy_cpu(interrupts: Interrupts) -> Interrupts:
    """Return the same interrupts, all of them on the first CPU; for the proof."""
    devices = []
    for device in interrupts.devices:
        lines = {irq: {"CPU0": sum(counts.values())} for irq, counts in device.lines.items()}
        crowded = replace(device, lines=lines)
        devices.append(crowded)
    return replace(interrupts, devices=tuple(devices))


BALANCE = Check(
    "irq.balance",
    facts=("irq.counts", "net.interfaces"),
    judge=balance,
    severity="warning",
    follows=("eth.iface_choice",),
    title="Interrupts are spread over CPUs",
    why="A CPU that takes all interrupts of a busy card is full long before the card is: sockets "
    "get a fraction of the link, and the ranks on that CPU are late.",
    how="/proc/interrupts twice, 0.3 s apart, for the NCCL interface (for a bond: its cards) and "
    "the GPUs together: no CPU takes more than 80 % or what `require: {irq.balance: 60%}` says. "
    "Below 1000 interrupts a second a device is at rest; one with a single queue, or with a single "
    "stream in it, cannot be judged.",
    remedy=shell_line("systemctl enable --now irqbalance"),
    fix=fix_of(
        wanted_state("package", name="irqbalance"),
        wanted_state("service", name="irqbalance", enabled=True, running=True),
    ),
    wants=parse_share,
    proof=Proof("irq.counts", _with_one_busy_cpu),
)
