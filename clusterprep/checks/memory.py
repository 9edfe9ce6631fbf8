"""Main memory: all of it there and without errors, on equal NUMA nodes, and left in place by the kernel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, as_wanted, each, kinds
from clusterprep.facts.memory import Errors, NumaNode, Swap
from clusterprep.model import Node
from clusterprep.model.units import format_size, parse_size

# Firmware and kernel keep another part on every machine. One of 32 modules is 3.1 %; node health checks of clusters
# use 3 to 5 %.
TOLERANCE = 0.03
SWAPOFF = "swapoff -a   # and take its line out of /etc/fstab"
OFF, UNUSED = "off", "unused"


def size(context: CheckContext) -> Iterable[Outcome]:
    """At least what is declared; where nothing is, as much as most machines of the kind have."""
    for part in kinds(context):
        sizes: dict[str, int] = part.values("mem.total")
        declared = [node for node in part.nodes if part.wanted(node) is not None]
        yield from (_declared(node, sizes[node.name], str(part.wanted(node))) for node in declared)
        others = [node for node in part.nodes if part.wanted(node) is None]
        if others:
            yield from _compared(part, others, sizes)


def _declared(node: Node, seen: int, wanted: str) -> Outcome:
    """Within the tolerance, for nobody declares what the kernel keeps."""
    if seen >= parse_memory(wanted) * (1 - TOLERANCE):
        return Outcome(
            "pass", (node.name,), "there is as much memory as required", _rough(seen), wanted
        )
    return Outcome(
        "fail", (node.name,), "there is less memory than required", format_size(seen), wanted
    )


def _compared(part: CheckContext, nodes: list[Node], sizes: dict[str, int]) -> Iterable[Outcome]:
    names = tuple(node.name for node in nodes)
    if len(part.inventory.nodes) < 2:
        seen = _rough(sizes[names[0]])
        yield Outcome(
            "skip",
            names,
            "there is no node to compare the memory with",
            seen,
            reason="not_applicable",
        )
    elif len(sizes) < 2:
        reason = "fewer than two nodes have a value to compare"
        yield Outcome(
            "unknown", names, "the memory could not be compared", "", "as the others", reason=reason
        )
    else:
        middle = statistics.median(sizes.values())
        wanted = f"{_rough(middle)} ± {TOLERANCE:.0%}"
        usual = _usual(sizes.values())
        if good := tuple(name for name in names if sizes[name] in usual):
            yield Outcome("pass", good, "there is as much memory as in the others", wanted, wanted)
        for name in (name for name in names if sizes[name] not in usual):
            message = (
                f"there is {'less' if sizes[name] <= middle else 'more'} memory than in the others"
            )
            yield Outcome("fail", (name,), message, format_size(sizes[name]), wanted)


def _usual(sizes: Iterable[int]) -> set[int]:
    """The sizes to which more than half of all are near."""
    ordered = sorted(sizes)
    usual, low, high = set(), 0, 0
    for size in ordered:
        while not _near(ordered[low], size):
            low += 1
        while high < len(ordered) and (ordered[high] <= size or _near(ordered[high], size)):
            high += 1
        if 2 * (high - low) > len(ordered):
            usual.add(size)
    return usual


def _near(one: int, other: int) -> bool:
    return abs(one - other) <= TOLERANCE * max(one, other)


def _rough(size: float) -> str:
    """Without the megabytes by which machines always differ, so that equal ones read the same."""
    power = max(0, round(size).bit_length() - 7)
    return format_size(round(size / 2**power) * 2**power)


def parse_memory(text: str) -> float:
    """Bytes of what `require: mem.size` asks for."""
    least = parse_size(text)
    if math.isinf(least) or least <= 0:
        raise ValueError(f"expected a size such as 2T or 512GiB; seen '{text}'")
    return least


def errors(context: CheckContext, node: Node, seen: Errors) -> Outcome:
    """Uncorrected ones fail; corrected ones are what ECC is for, and are told."""
    text = f"{seen.uncorrected} uncorrected" + (
        f", {seen.corrected} corrected" if seen.corrected else ""
    )
    if not seen.uncorrected:
        return Outcome(
            "pass", (node.name,), "no memory error that ECC could not mend", text, "0 uncorrected"
        )
    place = f" in {', '.join(seen.dimms)}" if seen.dimms else ""
    message = f"memory has lost data since boot{place}"
    return Outcome("fail", (node.name,), message, text, "0 uncorrected")


def swap(context: CheckContext, node: Node, areas: tuple[Swap, ...]) -> Outcome:
    wanted = context.wanted(node) or UNUSED
    text = "no swap" if wanted == OFF else "no swap in use"
    if used := [area for area in areas if area.used]:
        amount = format_size(sum(area.used for area in used))
        seen = f"{amount} in use on {', '.join(area.name for area in used)}"
        return Outcome("fail", (node.name,), "memory has been moved to swap", seen, text)
    if areas and wanted == OFF:
        names = ", ".join(area.name for area in areas)
        return Outcome("fail", (node.name,), "there is swap", f"{names}, unused", text)
    return Outcome(
        "pass", (node.name,), "no memory is in swap", "swap is unused" if areas else "no swap", text
    )


def parse_swap(text: str) -> str:
    if text not in {OFF, UNUSED}:
        raise ValueError(f"expected {OFF} or {UNUSED}; seen '{text}'")
    return text


def layout(context: CheckContext) -> Iterable[Outcome]:
    for part in kinds(context):
        seen = {name: _drawn(nodes) for name, nodes in part.values("numa.nodes").items()}
        yield from as_wanted(part, seen, _counts, "the NUMA layout")


def _drawn(nodes: tuple[NumaNode, ...]) -> str:
    """«2 NUMA nodes: 0-55,112-167 | 56-111,168-223»."""
    drawn = " | ".join(
        (node.cpus or "no CPU") + ("" if node.memory else " without memory") for node in nodes
    )
    return f"{len(nodes)} NUMA node{'s' if len(nodes) != 1 else ''}: {drawn}"


def _counts(seen: str, wanted: str) -> bool:
    return int(seen.split(maxsplit=1)[0]) == parse_count(wanted)


def parse_count(text: str) -> int:
    """How many NUMA nodes `require: numa.nodes` asks for."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"expected a number of NUMA nodes; seen '{text}'")
    return int(text)


def balancing(context: CheckContext, node: Node, setting: int) -> Outcome:
    wanted = context.wanted(node) or "0"
    seen = f"kernel.numa_balancing = {setting}"
    if setting == int(wanted):
        return Outcome("pass", (node.name,), "memory stays or moves as it should", seen, wanted)
    message = (
        "the kernel moves memory between NUMA nodes on its own"
        if setting
        else "NUMA balancing is off"
    )
    return Outcome(
        "fail", (node.name,), message, seen, wanted, f"sysctl -w kernel.numa_balancing={wanted}"
    )


def parse_switch(text: str) -> int:
    """0 or 1, and the tiers 2 and 3 of newer kernels."""
    if text not in {"0", "1", "2", "3"}:
        raise ValueError(f"expected 0 or 1; seen '{text}'")
    return int(text)


SIZE = Check(
    "mem.size",
    facts=("mem.total",),
    judge=size,
    severity="warning",
    title="The size of main memory",
    why="A module that failed at boot takes its channel's bandwidth with it; the job that fits the other nodes is "
    "killed for memory on this one.",
    how="MemTotal of /proc/meminfo: within 3 % of most machines of its kind, or at least what "
    "`require: {mem.size: 2T}` says, less 3 % that firmware and kernel keep.",
    remedy="dmidecode -t memory | grep -e Size -e Locator   # which module is missing? reseat or replace it",
    wants=parse_memory,
    proof=Proof("mem.total", lambda total: total - (64 << 30)),
)
ERRORS = Check(
    "mem.errors",
    facts=("mem.errors",),
    judge=each(errors, "mem.errors"),
    severity="warning",
    title="Errors of main memory",
    why="An error that ECC could not mend has killed a process or will: the module is failing, and its node will take "
    "the whole job down.",
    how="ue_count of every memory controller in /sys/devices/system/edac since boot: 0. Corrected errors are told and "
    "are no fault. Without an EDAC driver it is not known.",
    remedy="journalctl -k | grep -i -e EDAC -e 'Hardware Error'   # drain the node and replace the module",
    proof=Proof("mem.errors", lambda seen: replace(seen, uncorrected=1)),
)
SWAP = Check(
    "mem.swap",
    facts=("mem.swaps",),
    judge=each(swap, "mem.swaps"),
    severity="warning",
    title="No memory in swap",
    why="A rank whose pages lie in swap waits for the disk in the middle of a step, and all others wait with it.",
    how='/proc/swaps: nothing is used, or with `require: {mem.swap: "off"}` there is no swap at all.',
    remedy=SWAPOFF,
    wants=parse_swap,
    proof=Proof("mem.swaps", lambda _: (Swap("/swap.img", 8 << 30, 512 << 20),)),
)
LAYOUT = Check(
    "numa.nodes",
    facts=("numa.nodes",),
    judge=layout,
    severity="warning",
    title="The NUMA layout",
    why="Another setting of the firmware (NPS, SNC) or a socket without memory gives ranks of this node other "
    "distances to GPUs and NICs, and NCCL another topology.",
    how="CPUs of every NUMA node in /sys/devices/system/node and which have memory: equal in machines of a kind, or as "
    "many nodes as `require: {numa.nodes: 2}` says.",
    remedy="numactl -H; lscpu   # firmware set-up: NPS (AMD) or SNC (Intel) as on the other nodes",
    wants=parse_count,
    proof=Proof("numa.nodes", lambda nodes: (nodes[0], replace(nodes[1], memory=False))),
)
BALANCING = Check(
    "numa.balancing",
    facts=("numa.balancing",),
    judge=each(balancing, "numa.balancing"),
    severity="warning",
    title="The kernel does not move memory on its own",
    why="Automatic NUMA balancing unmaps pages to see who uses them, pinned and GPU-shared ones too: pauses at random, "
    "on another rank each time.",
    how="/proc/sys/kernel/numa_balancing: 0, or what `require: {numa.balancing: 1}` says. Does not apply to one NUMA "
    "node.",
    remedy="sysctl -w kernel.numa_balancing=0",
    wants=parse_switch,
    proof=Proof("numa.balancing", lambda _: 1),
)
