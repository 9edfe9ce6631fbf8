"""Judges main memory.

It should be complete, without errors, on equal NUMA nodes, and not moved by the kernel.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import (
    NO_PEER,
    Check,
    CheckContext,
    Outcome,
    Proof,
    as_wanted,
    each,
    failed,
    kinds,
    parse_count,
    passed,
)
from clusterprep.facts.memory import Errors, NumaNode, Swap
from clusterprep.model import Node
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.model.units import format_size, parse_size
from clusterprep.remedies import shell_line

# Firmware and kernel keep another part on every machine. One of 32 modules is 3.1 %; node health
# checks of clusters use 3 to 5 %.
TOLERANCE = 0.03
SWAPOFF = shell_line("swapoff -a   # and take its line out of /etc/fstab")
OFF = "off"
UNUSED = "unused"


def size(context: CheckContext) -> Iterable[Outcome]:
    """Compare the size with the declared one; where none is declared, machines of a kind."""
    for part in kinds(context):
        sizes: dict[str, int] = part.values("mem.total")
        undeclared = []
        for node in part.nodes:
            wanted = part.wanted(node)
            if wanted is None:
                undeclared.append(node.name)
            else:
                yield _judge_declared(node, sizes[node.name], wanted)
        if undeclared:
            yield from _compare_sizes(part, tuple(undeclared), sizes)


def _judge_declared(node: Node, size: int, wanted: str) -> Outcome:
    """Judge with the tolerance: a declared size does not count what firmware and kernel keep."""
    least = parse_memory(wanted) * (1 - TOLERANCE)
    if size >= least:
        return passed(node, "there is as much memory as required", _format_rounded(size), wanted)
    return failed(node, "there is less memory than required", format_size(size), wanted)


def _compare_sizes(
    part: CheckContext, names: tuple[str, ...], sizes: dict[str, int]
) -> Iterable[Outcome]:
    """Compare the nodes of these names with all `sizes` of their kind."""
    if len(part.inventory.nodes) < 2:
        message = "there is no node to compare the memory with"
        seen = _format_rounded(sizes[names[0]])
        yield Outcome(
            "skip",
            names,
            message,
            seen,
            reason="not_applicable",
        )
        return
    if len(sizes) < 2:
        message = "the memory could not be compared"
        reason = NO_PEER
        yield Outcome(
            "unknown",
            names,
            message,
            wanted="as the others",
            reason=reason,
        )
        return
    median = statistics.median(sizes.values())
    wanted = f"{_format_rounded(median)} ± {TOLERANCE:.0%}"
    usual = _usual_sizes(sizes.values())
    usual_names = tuple(name for name in names if sizes[name] in usual)
    if usual_names:
        message = "there is as much memory as in the others"
        yield Outcome(
            "pass",
            usual_names,
            message,
            wanted,
            wanted,
        )
    for name in names:
        size = sizes[name]
        if size in usual:
            continue
        difference = "less" if size <= median else "more"
        message = f"there is {difference} memory than in the others"
        yield Outcome(
            "fail",
            (name,),
            message,
            format_size(size),
            wanted,
        )


def _usual_sizes(sizes: Iterable[int]) -> set[int]:
    """Return the sizes that are near to more than half of all sizes."""
    ordered = sorted(sizes)
    usual = set()
    # A window over the sorted sizes: ordered[low:high] are those near to `size`.
    low = 0
    high = 0
    for size in ordered:
        while not _are_near(ordered[low], size):
            low += 1
        while high < len(ordered):
            above = ordered[high]
            if above > size and not _are_near(above, size):
                break
            high += 1
        if 2 * (high - low) > len(ordered):
            usual.add(size)
    return usual


def _are_near(one: int, other: int) -> bool:
    return abs(one - other) <= TOLERANCE * max(one, other)


def _format_rounded(size: float) -> str:
    """Return the size to seven binary digits.

    Machines always differ by some megabytes; rounded, equal ones read the same.
    """
    power = max(0, round(size).bit_length() - 7)
    unit = 2**power
    return format_size(round(size / unit) * unit)


def parse_memory(text: str) -> float:
    """Return the bytes in `require: mem.size`. Raises ValueError for other text."""
    least = parse_size(text)
    if math.isinf(least) or least <= 0:
        raise ValueError(f"expected a size such as 2T or 512GiB; seen '{text}'")
    return least


def errors(context: CheckContext, node: Node, counted: Errors) -> Outcome:
    """Judge uncorrected errors; corrected ones are shown only, they are what ECC is for."""
    wanted = "0 uncorrected"
    seen = f"{counted.uncorrected} uncorrected"
    if counted.corrected:
        seen = f"{seen}, {counted.corrected} corrected"
    if not counted.uncorrected:
        return passed(node, "no memory error that ECC could not mend", seen, wanted)
    message = "memory has lost data since boot"
    if counted.dimms:
        message = f"{message} in {', '.join(counted.dimms)}"
    return failed(node, message, seen, wanted)


def swap(context: CheckContext, node: Node, areas: tuple[Swap, ...]) -> Outcome:
    """Judge whether swap is in use, or with `require: {mem.swap: "off"}` whether it exists."""
    must_be_off = context.wanted(node) == OFF
    wanted = "no swap" if must_be_off else "no swap in use"
    used = [area for area in areas if area.used]
    if used:
        amount = format_size(sum(area.used for area in used))
        seen = f"{amount} in use on {_join_names(used)}"
        return failed(node, "memory has been moved to swap", seen, wanted)
    if areas and must_be_off:
        return failed(node, "there is swap", f"{_join_names(areas)}, unused", wanted)
    seen = "swap is unused" if areas else "no swap"
    return passed(node, "no memory is in swap", seen, wanted)


def _join_names(areas: Iterable[Swap]) -> str:
    return ", ".join(area.name for area in areas)


def parse_swap(text: str) -> str:
    """Return «off» or «unused». Raises ValueError for other text."""
    if text not in {OFF, UNUSED}:
        raise ValueError(f"expected {OFF} or {UNUSED}; seen '{text}'")
    return text


def layout(context: CheckContext) -> Iterable[Outcome]:
    """Compare the NUMA layout with the declared number of nodes, or with machines of its kind."""
    for part in kinds(context):
        layouts = {}
        for name, numa_nodes in part.values("numa.nodes").items():
            layouts[name] = _describe_layout(numa_nodes)
        yield from as_wanted(part, layouts, _has_node_count, "the NUMA layout")


def _describe_layout(numa_nodes: tuple[NumaNode, ...]) -> str:
    """Return a text such as «2 NUMA nodes: 0-55,112-167 | 56-111,168-223»."""
    parts = []
    for numa_node in numa_nodes:
        cpus = numa_node.cpus or "no CPU"
        parts.append(cpus if numa_node.memory else f"{cpus} without memory")
    number = len(numa_nodes)
    noun = "NUMA node" if number == 1 else "NUMA nodes"
    return f"{number} {noun}: {' | '.join(parts)}"


def _has_node_count(layout: str, wanted: str) -> bool:
    count, _ = layout.split(maxsplit=1)
    return int(count) == parse_node_count(wanted)


def parse_node_count(text: str) -> int:
    """Return the number in `require: numa.nodes`. Raises ValueError for other text."""
    return parse_count(text, "a number of NUMA nodes", minimum=1)


def balancing(context: CheckContext, node: Node, setting: int) -> Outcome:
    """Judge kernel.numa_balancing, which should be 0 unless the inventory says otherwise."""
    wanted = context.wanted(node) or "0"
    seen = f"kernel.numa_balancing = {setting}"
    if setting == int(wanted):
        return passed(node, "memory stays or moves as it should", seen, wanted)
    message = "NUMA balancing is off"
    if setting:
        message = "the kernel moves memory between NUMA nodes on its own"
    cure = shell_line("sysctl -w kernel.numa_balancing={wanted}", wanted=wanted)
    return failed(
        node,
        message,
        seen,
        wanted,
        cure,
        fix=fix_of(wanted_state("sysctl", **{"kernel.numa_balancing": wanted})),
    )


def parse_switch(text: str) -> int:
    """Return 0 or 1, or 2 and 3, the tiers of newer kernels. Raises ValueError for other text."""
    if text not in {"0", "1", "2", "3"}:
        raise ValueError(f"expected 0 or 1; seen '{text}'")
    return int(text)


SIZE = Check(
    "mem.size",
    facts=("mem.total",),
    judge=size,
    severity="warning",
    title="The size of main memory",
    why="A module that failed at boot takes its channel's bandwidth with it; the job that fits the "
    "other nodes is killed for memory on this one.",
    how="MemTotal of /proc/meminfo: within 3 % of most machines of its kind, or at least what "
    "`require: {mem.size: 2T}` says, less 3 % that firmware and kernel keep.",
    remedy=shell_line(
        "dmidecode -t memory | grep -e Size -e Locator   # which module is missing? reseat or "
        "replace it"
    ),
    wants=parse_memory,
    # A fleet without Slurm, whose files would no longer fit the machine either.
    proof=Proof(
        "mem.total",
        lambda total: total - (64 << 30),
        fleet="hgx-h100-roce",
    ),
)
ERRORS = Check(
    "mem.errors",
    facts=("mem.errors",),
    judge=each(errors, "mem.errors"),
    severity="warning",
    title="Errors of main memory",
    why="An error that ECC could not mend has killed a process or will: the module is failing, and "
    "its node will take the whole job down.",
    how="ue_count of every memory controller in /sys/devices/system/edac since boot: 0. Corrected "
    "errors are told and are no fault. Without an EDAC driver it is not known.",
    remedy=shell_line(
        "journalctl -k | grep -i -e EDAC -e 'Hardware Error'   # drain the node and replace the "
        "module"
    ),
    proof=Proof("mem.errors", lambda seen: replace(seen, uncorrected=1)),
)
SWAP = Check(
    "mem.swap",
    facts=("mem.swaps",),
    judge=each(swap, "mem.swaps"),
    severity="warning",
    title="No memory in swap",
    why="A rank whose pages lie in swap waits for the disk in the middle of a step, and all others "
    "wait with it.",
    how='/proc/swaps: nothing is used, or with `require: {mem.swap: "off"}` there is no swap at '
    "all.",
    remedy=SWAPOFF,
    fix=fix_of(wanted_state("swap", state=OFF)),
    wants=parse_swap,
    proof=Proof("mem.swaps", lambda _: (Swap("/swap.img", 8 << 30, 512 << 20),)),
)
LAYOUT = Check(
    "numa.nodes",
    facts=("numa.nodes",),
    judge=layout,
    severity="warning",
    title="The NUMA layout",
    why="Another setting of the firmware (NPS, SNC) or a socket without memory gives ranks of this "
    "node other distances to GPUs and NICs, and NCCL another topology.",
    how="CPUs of every NUMA node in /sys/devices/system/node and which have memory: equal in "
    "machines of a kind, or as many nodes as `require: {numa.nodes: 2}` says.",
    remedy=shell_line(
        "numactl -H; lscpu   # firmware set-up: NPS (AMD) or SNC (Intel) as on the other nodes"
    ),
    wants=parse_node_count,
    proof=Proof("numa.nodes", lambda nodes: (nodes[0], replace(nodes[1], memory=False))),
)
BALANCING = Check(
    "numa.balancing",
    facts=("numa.balancing",),
    judge=each(balancing, "numa.balancing"),
    severity="warning",
    title="The kernel does not move memory on its own",
    why="Automatic NUMA balancing unmaps pages to see who uses them, pinned and GPU-shared ones "
    "too: pauses at random, on another rank each time.",
    how="/proc/sys/kernel/numa_balancing: 0, or what `require: {numa.balancing: 1}` says. Does not "
    "apply to one NUMA node.",
    remedy=shell_line("sysctl -w kernel.numa_balancing=0"),
    wants=parse_switch,
    proof=Proof("numa.balancing", lambda _: 1),
)
