"""Processors: what they are, and who sets their clocks."""

from __future__ import annotations

from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Absent, Read
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Cpus:
    """The processors of a machine; `sockets`, `cores` and `cpus` (hardware threads) count those that are online."""

    model: str
    sockets: int
    cores: int
    cpus: int

    def __str__(self) -> str:
        """«2 × AMD EPYC 9654 96-Core Processor, 192 cores, 384 CPUs»."""
        cores = "core" if self.cores == 1 else "cores"
        return f"{self.sockets} × {self.model}, {self.cores} {cores}, {self.cpus} CPU{'s' if self.cpus != 1 else ''}"


@dataclass(frozen=True)
class Governor:
    """One way in which clocks are governed, with how many frequency policies follow it, and the first of them.

    `preference` is what the processor itself is told (energy_performance_preference), where it chooses its clock.
    """

    driver: str
    name: str
    preference: str | None
    count: int = 1
    first: str = "policy0"


def cpuinfo(text: str) -> dict[str, str]:
    """The fields of one processor of /proc/cpuinfo."""
    rows = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in rows}


def virtual(fields: dict[str, str]) -> bool:
    """Whether an x86 processor says that a hypervisor runs it; other processors do not tell."""
    return "hypervisor" in fields.get("flags", "").split()


def parse_cpus(answer: dict[str, Any]) -> Cpus:
    cpus = Cpus(
        _model(cpuinfo(answer["cpuinfo"])), answer["sockets"], answer["cores"], answer["cpus"]
    )
    if not 1 <= cpus.sockets <= cpus.cores <= cpus.cpus:
        raise ValueError(f"no such processors: {cpus}")
    return cpus


def _model(fields: dict[str, str]) -> str:
    if model := " ".join(fields.get("model name", "").split()):
        return model
    # ARM has numbers of the designer and of the core instead: 0x41 and 0xd4f is Neoverse V2, as in Grace.
    return f"CPU implementer {fields['CPU implementer']} part {fields['CPU part']}"


def parse_governors(rows: list[list[Any]]) -> tuple[Governor, ...] | Absent:
    """Absent where nothing may set clocks: in a virtual machine, or where the firmware keeps that to itself."""
    if not rows:
        return Absent(
            "not_applicable", "the system does not set this machine's clocks: it has no cpufreq"
        )
    governors = tuple(Governor(*row) for row in rows)
    for governor in governors:
        if not (governor.name and governor.driver and governor.count > 0):
            raise ValueError("a frequency policy without driver or governor")
    return governors


CPUS = Fact("cpu.processors", lambda node, inventory: (Read("cpus"),), parse_cpus)
GOVERNORS = Fact("cpu.governors", lambda node, inventory: (Read("governors"),), parse_governors)
