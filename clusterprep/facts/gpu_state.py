"""The settings of each GPU and what uses it: clocks, power limit, modes, processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts.gpu import (
    absence,
    is_unsupported,
    per_gpu,
    refusal,
    require_number,
    require_rows,
)
from clusterprep.facts.gpu_health import require_flag
from clusterprep.model import Absent

DEPRECATED = ["nvml_error", 26]  # these two settings are deprecated from API 13 on
NO_SIZE = 0xFFFF_FFFF_FFFF_FFFF  # NVML_VALUE_NOT_AVAILABLE
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


class Clocks(Struct, frozen=True):
    """MHz of graphics and memory: the highest, what applications get, and what they get by default.

    The last two are None where the GPU or the driver has no such setting (from Blackwell on, and in
    some virtual machines).
    """

    highest: tuple[int, int]
    application: tuple[int, int] | None
    default: tuple[int, int] | None


class Power(Struct, frozen=True):
    """W: the limit in force (of BMC and driver together), and that of the factory."""

    limit: float
    default: float


class GpuProcess(Struct, frozen=True):
    """A process that computes on a GPU; `used` in bytes.

    `used` and `name` are None where not reported.
    """

    pid: int
    used: int | None
    name: str | None


class Use(Struct, frozen=True):
    """The processes on a GPU and its used memory in bytes.

    One of the two may be None: a GPU without memory of its own, or one that lists no processes.
    `apart`: the driver's own share is not part of `used`.
    """

    processes: tuple[GpuProcess, ...] | None
    used: int | None
    apart: bool


class Persistence(Struct, frozen=True):
    """Whether the driver keeps an unused GPU initialised.

    `virtual`: in a virtual machine that has the whole GPU.
    """

    on: bool
    virtual: bool


def _clocks(row: Mapping[str, Any]) -> Clocks | Absent:
    highest_graphics = require_number(row["clock_max_graphics"])
    highest_memory = require_number(row["clock_max_memory"])
    application = _clock_pair(row, "application")
    if isinstance(application, Absent):
        return application
    default = _clock_pair(row, "default")
    return Clocks(
        highest=(highest_graphics, highest_memory),
        application=application,
        default=None if isinstance(default, Absent) else default,
    )


def _clock_pair(row: Mapping[str, Any], kind: str) -> tuple[int, int] | Absent | None:
    """Return MHz, None where there is no such setting, Absent where it was refused."""
    clocks = []
    for part in ("graphics", "memory"):
        field = f"clock_{kind}_{part}"
        reason = refusal(row[field])
        if is_unsupported(row[field]) or (reason is not None and reason[1:] == DEPRECATED):
            return None
        if reason is not None:
            return absence(field, reason)
        clocks.append(require_number(row[field]))
    graphics, memory = clocks
    return graphics, memory


def parse_power(enforced: Any, default: Any) -> Power:
    """Parse two limits in mW, as NVML gives them."""
    if require_number(enforced) <= 0 or require_number(default) <= 0:
        raise ValueError("a power limit of nothing")
    return Power(enforced / 1000, default / 1000)


def _use(row: Mapping[str, Any]) -> Use | Absent:
    """Return the processes on one GPU, each with its memory in bytes if NVML tells it."""
    reserved, used = None, None
    if not refusal(row["memory"]):
        _, reserved, used = row["memory"]
        require_number(used)
    if refusal(row["processes"]):
        if used is None:
            return Absent("missing_tool", "neither processes nor memory are told")
        return Use(None, used, reserved is not None)
    processes = []
    for pid, size, name in require_rows(row["processes"]):
        process_used = None if size == NO_SIZE else require_number(size)
        processes.append(GpuProcess(require_number(pid), process_used, name))
    return Use(tuple(processes), used, reserved is not None)


def _persistence(row: Mapping[str, Any]) -> Persistence:
    """Return the persistence mode of one GPU, and whether it is seen from a virtual machine."""
    virtual = row["virtualization"] in (1, 2)  # passed through, or a vGPU
    return Persistence(require_flag(row["persistence"]), virtual)


def parse_mig(mig: Any) -> tuple[bool, bool]:
    """Return whether MIG is on now, and after the next reset."""
    now, pending = mig[0], mig[1]
    return require_flag(now), require_flag(pending)


def parse_compute_mode(mode: object) -> str:
    """Return the mode's name. Raises KeyError for a number that nvml.h does not know."""
    return COMPUTE_MODES[require_number(mode)]


_OPTIONAL_CLOCKS = (
    "clock_application_graphics",
    "clock_application_memory",
    "clock_default_graphics",
    "clock_default_memory",
)
CLOCKS = per_gpu(
    "gpu.clocks", _clocks, "clock_max_graphics", "clock_max_memory", besides=_OPTIONAL_CLOCKS
)
POWER = per_gpu("gpu.power", parse_power, "power_enforced", "power_default")
USE = per_gpu(
    "gpu.use",
    _use,
    besides=("processes", "memory"),
    unsupported=("processes", "memory"),
    moves=True,
)
PERSISTENCE = per_gpu("gpu.persistence", _persistence, "persistence", besides=("virtualization",))
BAR = per_gpu("gpu.bar", require_number, "bar")
MIG = per_gpu("gpu.mig", parse_mig, "mig")
COMPUTE_MODE = per_gpu("gpu.compute_mode", parse_compute_mode, "compute_mode")
