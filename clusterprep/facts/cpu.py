"""Processors: what they are, and who sets their clocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Absent, Read


class Cpus(Struct, frozen=True):
    """The processors of a machine.

    `sockets`, `cores` and `cpus` (hardware threads) count those that are online.
    """

    model: str
    sockets: int
    cores: int
    cpus: int

    def __str__(self) -> str:
        """Return «2 × AMD EPYC 9654 96-Core Processor, 192 cores, 384 CPUs»."""
        sockets = f"{self.sockets} × {self.model}"
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        cpus = "1 CPU" if self.cpus == 1 else f"{self.cpus} CPUs"
        return f"{sockets}, {cores}, {cpus}"


class Governor(Struct, frozen=True):
    """A frequency governor; `count` frequency policies use it, the first of which is `first`.

    `preference` is the hint that a processor gets which chooses its clock itself
    (energy_performance_preference).
    """

    driver: str
    name: str
    preference: str | None
    count: int = 1
    first: str = "policy0"


def cpuinfo(text: str) -> dict[str, str]:
    """Return the fields of one processor of /proc/cpuinfo."""
    fields = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields[key.strip()] = value.strip()
    return fields


def virtual(answer: Mapping[str, Any]) -> bool:
    """Return whether this is a virtual machine.

    An x86 processor reports the hypervisor; of others the name that the firmware gives the machine
    decides.
    """
    fields = cpuinfo(answer["cpuinfo"])
    if "flags" in fields:
        return "hypervisor" in fields["flags"].split()
    return answer.get("guest") is True


def parse_cpus(answer: dict[str, Any]) -> Cpus:
    model = _model(cpuinfo(answer["cpuinfo"]))
    cpus = Cpus(model, answer["sockets"], answer["cores"], answer["cpus"])
    if not 1 <= cpus.sockets <= cpus.cores <= cpus.cpus:
        raise ValueError(f"no such processors: {cpus}")
    return cpus


def _model(fields: dict[str, str]) -> str:
    model = " ".join(fields.get("model name", "").split())
    if model:
        return model
    # ARM has numbers of the designer and of the core instead: 0x41 and 0xd4f is Neoverse V2, as in
    # Grace.
    return f"CPU implementer {fields['CPU implementer']} part {fields['CPU part']}"


def parse_governors(rows: list[list[Any]]) -> tuple[Governor, ...] | Absent:
    """Return the governors.

    Absent where only the host of a virtual machine or the firmware may set clocks.
    """
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
