"""How busy each GPU is. Some of its values mean something under load alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts.gpu import per_gpu, refusal, require_number

# A GPU that computes for half of the time keeps its link at full speed; one that wakes up for a
# moment may not have raised it yet.
BUSY = 50  # % of the last sample period
HIGHEST = 0  # nvmlPstates_t: NVML_PSTATE_0
IDLE = 0x1  # nvmlClocksEventReasonGpuIdle


class GpuLoad(Struct, frozen=True):
    """The PCI address of a GPU as in /sys, and whether it computes at full clocks."""

    pci: str
    busy: bool
    utilization: int | None = None


def is_busy(
    utilization: int | None,
    state: int | None,
    clock: int | None,
    clock_max: int | None,
    reasons: int | None,
) -> bool:
    """Return whether a GPU surely works: used, in its highest state, with its clocks up.

    What NVML refuses (None) is never taken for work: an idle GPU must not be judged.
    """
    if utilization is None or state is None or not clock or not clock_max:
        return False
    if reasons is not None and reasons & IDLE:
        return False
    return utilization >= BUSY and state == HIGHEST and 2 * clock >= clock_max


def sysfs_address(pci: str) -> str:
    """Return NVML's «00000000:18:00.0» as in /sys: «0000:18:00.0», lower case."""
    domain, _, rest = pci.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _load(row: Mapping[str, Any]) -> GpuLoad:
    """Return the load of one GPU, idle where NVML does not say."""
    numbers = {}
    for field in ("utilization", "state", "clock", "clock_max_graphics"):
        value = row.get(field)
        is_known = value is not None and not refusal(value)
        numbers[field] = require_number(value) if is_known else None
    reasons = None
    samples = row.get("throttle")
    if samples and not refusal(samples[-1]):
        reasons = require_number(samples[-1])
    utilization = numbers["utilization"]
    busy = is_busy(
        utilization,
        numbers["state"],
        numbers["clock"],
        numbers["clock_max_graphics"],
        reasons,
    )
    return GpuLoad(sysfs_address(str(row["pci"])), busy, utilization)


_FIELDS = ("utilization", "state", "clock", "clock_max_graphics", "throttle")
LOAD = per_gpu("gpu.load", _load, "pci", besides=_FIELDS, moves=True)
