"""How each GPU is set, and what uses it: clocks, power limit, modes, processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterprep.facts.gpu import number, per_gpu, refused, rows
from clusterprep.facts.gpu_health import flag
from clusterprep.runtime.lazy_dataclass import dataclass

NO_SIZE = 0xFFFF_FFFF_FFFF_FFFF  # NVML_VALUE_NOT_AVAILABLE
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


@dataclass(frozen=True)
class Clocks:
    """MHz, graphics and memory: the highest, those that applications get, and what that is by default.

    The last two are None where the GPU has no such setting (from Blackwell on, and in some virtual machines).
    """

    highest: tuple[int, int]
    application: tuple[int, int] | None
    default: tuple[int, int] | None


@dataclass(frozen=True)
class Power:
    """W: the limit in force (BMC and driver together), and that of the factory."""

    limit: float
    default: float


@dataclass(frozen=True)
class GpuProcess:
    """Something that computes on a GPU; `used` in bytes, None where the driver does not say, `name` likewise."""

    pid: int
    used: int | None
    name: str | None


@dataclass(frozen=True)
class Use:
    """Who uses a GPU, and its memory in bytes; `apart`: the driver's own share is not part of `used`."""

    processes: tuple[GpuProcess, ...]
    used: int
    apart: bool


@dataclass(frozen=True)
class Persistence:
    """Whether the driver stays with the GPU when nobody uses it; `virtual`: in a virtual machine with the whole GPU."""

    on: bool
    virtual: bool


def _pair(row: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    graphics, memory = row[f"{key}_graphics"], row[f"{key}_memory"]
    if refused(graphics) or refused(memory):
        return None
    return number(graphics), number(memory)


def _clocks(row: Mapping[str, Any]) -> Clocks:
    highest = (number(row["clock_max_graphics"]), number(row["clock_max_memory"]))
    return Clocks(highest, _pair(row, "clock_application"), _pair(row, "clock_default"))


def parse_power(enforced: Any, default: Any) -> Power:
    """mW, as NVML gives them."""
    if number(enforced) <= 0 or number(default) <= 0:
        raise ValueError("a power limit of nothing")
    return Power(enforced / 1000, default / 1000)


def _use(row: Mapping[str, Any]) -> Use:
    _, reserved, used = row["memory"]
    processes = tuple(
        GpuProcess(number(pid), None if size == NO_SIZE else number(size), name)
        for pid, size, name in rows(row["processes"])
    )
    return Use(processes, number(used), reserved is not None)


def _persistence(row: Mapping[str, Any]) -> Persistence:
    mode = row["virtualization"]
    return Persistence(flag(row["persistence"]), mode in (1, 2))  # passed through, or a vGPU


def parse_mig(mig: Any) -> tuple[bool, bool]:
    """On now, and after the next reset."""
    return flag(mig[0]), flag(mig[1])


def parse_compute_mode(mode: object) -> str:
    """The mode's name. Raises KeyError for a number that nvml.h does not know."""
    return COMPUTE_MODES[number(mode)]


_SET = tuple(
    f"clock_{by}_{what}" for by in ("application", "default") for what in ("graphics", "memory")
)
CLOCKS = per_gpu("gpu.clocks", _clocks, "clock_max_graphics", "clock_max_memory", besides=_SET)
POWER = per_gpu("gpu.power", parse_power, "power_enforced", "power_default")
USE = per_gpu("gpu.use", _use, "processes", "memory", besides=())
PERSISTENCE = per_gpu("gpu.persistence", _persistence, "persistence", besides=("virtualization",))
MIG = per_gpu("gpu.mig", parse_mig, "mig")
COMPUTE_MODE = per_gpu("gpu.compute_mode", parse_compute_mode, "compute_mode")
