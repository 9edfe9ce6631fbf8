"""Main memory: its size, NUMA nodes and errors, and what the kernel does with it on its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, file
from clusterprep.facts.cpu import virtual
from clusterprep.model import Absent, Read

EDAC = "/sys/devices/system/edac/mc"
NODES = "/sys/devices/system/node"
MOST_NODES = 1024  # NUMA nodes: NODES_SHIFT is 10 at most (Linux, arch/*/Kconfig)

_HUGE_ORDER = 9  # 2 ** 9 pages

_CPU_LIST = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)?")
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Errors(Struct, frozen=True):
    """Memory errors since boot, as the memory controllers count them.

    `dimms` are those with uncorrected errors.
    """

    uncorrected: int
    corrected: int
    dimms: tuple[str, ...] = ()


class Swap(Struct, frozen=True):
    """One swap area; `size` and `used` in bytes."""

    name: str
    size: int
    used: int


class FreeMemory(Struct, frozen=True):
    """Memory in bytes: all that the kernel has, and what programs may still take."""

    total: int
    available: int


class NumaNode(Struct, frozen=True):
    """One NUMA node; `cpus` as the kernel lists them, «0-55,112-167»."""

    number: int
    cpus: str
    memory: bool


def parse_total(text: str | None) -> int:
    """Return MemTotal of /proc/meminfo in bytes: memory less what firmware and kernel keep."""
    match = _TOTAL.search(text or "")
    if match is None:
        raise ValueError("no MemTotal in /proc/meminfo")
    return int(match[1]) << 10  # from KiB


def parse_free(text: str | None) -> FreeMemory:
    """Return what /proc/meminfo says of free memory.

    MemAvailable counts what the kernel can take back from its caches without swapping.
    """
    available = _AVAILABLE.search(text or "")
    if available is None:
        raise ValueError("no MemAvailable in /proc/meminfo")
    return FreeMemory(parse_total(text), int(available[1]) << 10)  # from KiB


def parse_buddies(text: str | None) -> float | Absent:
    """Return the part of free memory in blocks of 512 pages or more, 0 to 1.

    /proc/buddyinfo counts free blocks of 1, 2, 4, … pages for each zone. 512 pages are a huge page
    of 2 MiB where a page has 4 KiB: such blocks are there or not, however much memory is free in
    small ones.
    """
    if text is None:
        return Absent("not_applicable", "this kernel shows no free blocks")
    total = 0
    large = 0
    for line in text.splitlines():
        counts = [int(word) for word in line.partition("zone")[2].split()[1:]]
        if not counts:
            raise ValueError("no numbers of free blocks")
        for order, count in enumerate(counts):
            total += count << order
            if order >= _HUGE_ORDER:
                large += count << order
    if total == 0:
        raise ValueError("no free block at all")
    return large / total


def parse_errors(files: Mapping[str, str] | Absent, cpus: Any) -> Errors | Absent:
    """Return the errors of all memory controllers.

    Without a memory controller in EDAC, errors cannot be seen in a virtual machine, and are unknown
    on any other.
    """
    if isinstance(files, Absent):
        return files
    counts = {path: int(text) for path, text in files.items() if path.endswith("_count")}
    controllers = set()
    for path in counts:
        folders = path.split("/")[:7]  # /sys/devices/system/edac/mc/mc0
        controllers.add("/".join(folders))
    if not controllers:
        return _no_controller(cpus)
    uncorrected = 0
    corrected = 0
    for controller in controllers:
        uncorrected += counts[f"{controller}/ue_count"]
        corrected += counts[f"{controller}/ce_count"]
    dimms = []
    for path, count in counts.items():
        if count and path.endswith("/dimm_ue_count"):
            dimms.append(_label(files, path))
    return Errors(uncorrected, corrected, tuple(dimms))


def _no_controller(cpus: Any) -> Absent:
    if isinstance(cpus, Mapping) and virtual(cpus):
        return Absent(
            "not_applicable", "a virtual machine does not see the errors of its host's memory"
        )
    return Absent("missing_tool", "no EDAC driver watches the memory")


def _label(files: Mapping[str, str], path: str) -> str:
    """Return the board's label «CPU_SrcID#0_MC#1_Chan#0_DIMM#0», or «mc1 dimm0» without one."""
    folder = path.rsplit("/", 1)[0]
    label = files.get(f"{folder}/dimm_label")
    if label:
        return label
    controller, dimm = folder.split("/")[-2:]
    return f"{controller} {dimm}"


def parse_swaps(text: str | None) -> tuple[Swap, ...]:
    """Parse /proc/swaps, whose sizes are in KiB; a kernel without swap has no such file."""
    if text is None:
        return ()
    header, *rows = text.splitlines()
    if header.split()[:4] != ["Filename", "Type", "Size", "Used"]:
        raise ValueError("this is not /proc/swaps")
    return tuple(_swap(row) for row in rows if row.strip())


def _swap(row: str) -> Swap:
    path, _type, size_text, used_text, priority = row.split()[:5]
    int(priority)  # a row that was cut has no priority
    name = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)
    size = int(size_text) << 10
    used = int(used_text) << 10
    return Swap(name, size, used)


def parse_numa(files: Mapping[str, str]) -> tuple[NumaNode, ...] | Absent:
    """Return the NUMA nodes in order.

    Nodes without CPUs are memory of devices, as on Grace Hopper.
    """
    cpu_lists = {}
    for path, text in files.items():
        if not path.endswith("/cpulist"):
            continue
        if not _CPU_LIST.fullmatch(text):
            raise ValueError("no list of CPUs")
        node_name = path.split("/")[-2]
        cpu_lists[int(node_name.removeprefix("node"))] = text
    if not cpu_lists:
        return Absent("not_applicable", "this kernel knows no NUMA nodes")
    with_memory = _numbers(files[f"{NODES}/has_memory"])
    nodes = []
    for number, cpus in sorted(cpu_lists.items()):
        nodes.append(NumaNode(number, cpus, number in with_memory))
    return tuple(nodes)


def _numbers(text: str) -> set[int]:
    """Return the numbers of «0-1,3».

    Raises ValueError for a number that no kernel has, before all numbers up to it take memory.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = int(first)
        high = int(last) if dash else low
        if not (0 <= low < MOST_NODES and 0 <= high < MOST_NODES):
            raise ValueError(f"a NUMA node beyond {MOST_NODES}")
        numbers.update(range(low, high + 1))
    return numbers


def parse_balancing(setting: str | None, online: str | None) -> int | Absent:
    """Parse sysctl kernel.numa_balancing: 0 off, 1 on, 2 for tiers of memory, 3 for both."""
    if setting is None:
        return Absent("not_applicable", "this kernel has no NUMA balancing")
    if online is not None and _numbers(online.strip()) == {0}:
        return Absent("not_applicable", "there is one NUMA node, so nothing is moved between nodes")
    return int(setting)


_ERROR_FILES = (
    f"{EDAC}/*/ue_count",
    f"{EDAC}/*/ce_count",
    f"{EDAC}/*/*/dimm_ue_count",
    f"{EDAC}/*/*/dimm_label",
)

TOTAL = Fact("mem.total", file("/proc/meminfo"), parse_total)
FREE = Fact("mem.free_memory", file("/proc/meminfo"), parse_free, moves=True)
BUDDIES = Fact("mem.buddies", file("/proc/buddyinfo"), parse_buddies, moves=True)
ERRORS = Fact(
    "mem.errors",
    lambda node, inventory: (Read("files", _ERROR_FILES), Read("cpus")),
    parse_errors,
    lenient=True,
)
SWAPS = Fact("mem.swaps", file("/proc/swaps"), parse_swaps, moves=True)
NUMA = Fact(
    "numa.nodes",
    lambda node, inventory: (Read("files", (f"{NODES}/*/cpulist", f"{NODES}/has_memory")),),
    parse_numa,
)
BALANCING = Fact(
    "numa.balancing",
    lambda node, inventory: (
        Read("file", ("/proc/sys/kernel/numa_balancing",)),
        Read("file", (f"{NODES}/online",)),
    ),
    parse_balancing,
)
