"""Main memory: how much, on which NUMA nodes, its errors, and what the kernel does with it on its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact, file
from clusterprep.facts.cpu import cpuinfo, virtual
from clusterprep.model import Absent, Read
from clusterprep.runtime.lazy_dataclass import dataclass

EDAC = "/sys/devices/system/edac/mc"
NODES = "/sys/devices/system/node"
MOST_NODES = 1024  # NUMA nodes: NODES_SHIFT is 10 at most (Linux, arch/*/Kconfig)

_CPU_LIST = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)?")
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Errors:
    """Memory errors since boot, as the memory controllers count them; `dimms` names those with uncorrected ones."""

    uncorrected: int
    corrected: int
    dimms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Swap:
    """One swap area; `size` and `used` in bytes."""

    name: str
    size: int
    used: int


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node: its CPUs as the kernel lists them («0-55,112-167»), and whether it has memory."""

    number: int
    cpus: str
    memory: bool


def parse_total(text: str | None) -> int:
    """MemTotal of /proc/meminfo in bytes: what is installed less what firmware and kernel keep."""
    match = _TOTAL.search(text or "")
    if match is None:
        raise ValueError("no MemTotal in /proc/meminfo")
    return int(match[1]) << 10


def parse_errors(files: Mapping[str, str], cpus: Any) -> Errors | Absent:
    """Without a memory controller in EDAC: nothing to see in a virtual machine, not knowing on any other."""
    counts = {path: int(text) for path, text in files.items() if path.endswith("_count")}
    controllers = {"/".join(path.split("/")[:7]) for path in counts}
    if not controllers:
        if isinstance(cpus, Mapping) and virtual(cpuinfo(cpus["cpuinfo"])):
            return Absent(
                "not_applicable", "a virtual machine does not see the errors of its host's memory"
            )
        return Absent("missing_tool", "no EDAC driver watches the memory")
    return Errors(
        uncorrected=sum(counts[f"{controller}/ue_count"] for controller in controllers),
        corrected=sum(counts[f"{controller}/ce_count"] for controller in controllers),
        dimms=tuple(
            _label(files, path)
            for path, n in counts.items()
            if n and path.endswith("/dimm_ue_count")
        ),
    )


def _label(files: Mapping[str, str], path: str) -> str:
    """«CPU_SrcID#0_MC#1_Chan#0_DIMM#0», or «mc1 dimm0» where the board's labels are not known."""
    folder = path.rsplit("/", 1)[0]
    return files.get(f"{folder}/dimm_label") or " ".join(folder.split("/")[-2:])


def parse_swaps(text: str | None) -> tuple[Swap, ...]:
    """/proc/swaps, sizes in KiB; a kernel without swap has no such file."""
    if text is None:
        return ()
    header, *rows = text.splitlines()
    if header.split()[:4] != ["Filename", "Type", "Size", "Used"]:
        raise ValueError("this is not /proc/swaps")
    return tuple(_swap(row.split()) for row in rows if row.strip())


def _swap(fields: list[str]) -> Swap:
    name = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[0])
    int(fields[4])  # a row that was cut has no priority
    return Swap(name, int(fields[2]) << 10, int(fields[3]) << 10)


def parse_numa(files: Mapping[str, str]) -> tuple[NumaNode, ...] | Absent:
    """NUMA nodes in order; nodes without CPUs are memory of devices, as on Grace Hopper."""
    lists = {path.split("/")[-2]: text for path, text in files.items() if path.endswith("/cpulist")}
    if not lists:
        return Absent("not_applicable", "this kernel knows no NUMA nodes")
    if not all(_CPU_LIST.fullmatch(cpus) for cpus in lists.values()):
        raise ValueError("no list of CPUs")
    filled = _numbers(files[f"{NODES}/has_memory"])
    numbers = {int(name.removeprefix("node")): cpus for name, cpus in lists.items()}
    return tuple(
        NumaNode(number, cpus, number in filled) for number, cpus in sorted(numbers.items())
    )


def _numbers(text: str) -> set[int]:
    """The numbers of «0-1,3»; ValueError where one is larger than any kernel counts, before all up to it are made."""
    ends = [tuple(map(int, part.split("-"))) for part in text.split(",")]
    if any(not 0 <= number < MOST_NODES for end in ends for number in end):
        raise ValueError(f"a NUMA node beyond {MOST_NODES}")
    return {number for end in ends for number in range(end[0], end[-1] + 1)}


def parse_balancing(setting: str | None, online: str | None) -> int | Absent:
    """0 off, 1 on, 2 for tiers of memory (and 3 for both): sysctl kernel.numa_balancing."""
    if setting is None:
        return Absent("not_applicable", "this kernel has no NUMA balancing")
    if online is not None and _numbers(online.strip()) == {0}:
        return Absent("not_applicable", "there is one NUMA node, so nothing is moved between nodes")
    return int(setting)


TOTAL = Fact("mem.total", file("/proc/meminfo"), parse_total)
ERRORS = Fact(
    "mem.errors",
    lambda node, inventory: (
        Read(
            "files",
            (
                f"{EDAC}/*/ue_count",
                f"{EDAC}/*/ce_count",
                f"{EDAC}/*/*/dimm_ue_count",
                f"{EDAC}/*/*/dimm_label",
            ),
        ),
        Read("cpus"),
    ),
    lambda files, cpus: files if isinstance(files, Absent) else parse_errors(files, cpus),
    lenient=True,
)
SWAPS = Fact("mem.swaps", file("/proc/swaps"), parse_swaps)
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
