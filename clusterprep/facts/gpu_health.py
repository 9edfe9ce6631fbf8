"""How each GPU is: its memory's errors, its temperature, what holds its clocks down, how fast it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact
from clusterprep.facts.gpu import number, nvml_read, per_gpu, refused
from clusterprep.model import Absent
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class EccMode:
    on: bool
    pending: bool  # after the next reset
    default: bool | None = (
        None  # what the factory sets: off on workstation cards; None where not told
    )


@dataclass(frozen=True)
class EccErrors:
    """Uncorrected errors; `exceeded`: the SRAM's are over the maker's threshold, None where the driver does not say."""

    since_load: int
    ever: int | None
    exceeded: bool | None


@dataclass(frozen=True)
class Remap:
    """Rows of memory replaced by spare ones; `spent`: banks without a spare row left, None where not told."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool
    spent: int | None


@dataclass(frozen=True)
class Temperatures:
    """°C: of the chip and its memory, and what is left to the point where the hardware slows the chip down."""

    chip: int
    memory: int | None
    left: int | None


def flag(value: object) -> bool:
    """0 or 1. Raises ValueError for anything else."""
    if number(value) not in (0, 1):
        raise ValueError(f"expected 0 or 1, seen {value!r}")
    return bool(value)


def parse_ecc(since_load: Any) -> int:
    """A count of errors."""
    if number(since_load) < 0:
        raise ValueError("a negative count of errors")
    return number(since_load)


def _known(value: Any) -> Any:
    return None if refused(value) else value


def parse_remap(remap: Any) -> tuple[int, int, bool, bool]:
    """[corrected, uncorrected, pending, failed]."""
    corrected, uncorrected, pending, failed = remap
    return number(corrected), number(uncorrected), flag(pending), flag(failed)


def parse_throttle(samples: Any) -> tuple[int, ...]:
    """Bits of the clocks event reasons, once for each sample."""
    if not samples:
        raise ValueError("no sample")
    return tuple(number(bits) for bits in samples)


def parse_seconds(seconds: object) -> float:
    """Seconds that one trivial query took."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds < 0:
        raise ValueError(f"expected seconds, seen {seconds!r}")
    return float(seconds)


def _ecc_mode(row: Mapping[str, Any]) -> EccMode:
    now, pending = row["ecc"]
    default = _known(row["ecc_default"])
    return EccMode(flag(now), flag(pending), None if default is None else flag(default))


def _errors(row: Mapping[str, Any]) -> EccErrors:
    sram = _known(row["sram"])
    ever = _known(row["ecc_aggregate"])
    exceeded = None if sram is None else flag(sram[0])
    return EccErrors(
        parse_ecc(row["ecc_volatile"]), None if ever is None else parse_ecc(ever), exceeded
    )


def _remap(row: Mapping[str, Any]) -> Remap:
    banks = _known(row["remap_banks"])  # banks with all, many, some, few and no spare rows
    return Remap(*parse_remap(row["remap"]), None if banks is None else number(banks[4]))


def _heat(row: Mapping[str, Any]) -> Temperatures:
    chip, memory = number(row["temperature"]), _known(row["memory_temperature"])
    margin, slowdown = _known(row["margin"]), _known(row["slowdown"])
    left = None
    if margin is not None:  # Ada and later, drivers from 555 on
        left = number(margin[0])
    elif slowdown is not None:
        left = number(slowdown) - chip
    return Temperatures(chip, None if memory is None else number(memory), left)


ECC_MODE = per_gpu("gpu.ecc_mode", _ecc_mode, "ecc", besides=("ecc_default",))
ECC = per_gpu("gpu.ecc", _errors, "ecc_volatile", besides=("sram", "ecc_aggregate"))
REMAP = per_gpu("gpu.remap", _remap, "remap", besides=("remap_banks",))
HEAT = per_gpu(
    "gpu.heat", _heat, "temperature", besides=("memory_temperature", "margin", "slowdown")
)
THROTTLE = per_gpu("gpu.throttle", parse_throttle, "throttle")
_seconds = per_gpu("gpu.latency", parse_seconds, "seconds").parse


def parse_latency(answer: Any) -> Any:
    """Seconds for each GPU; None when the driver did not answer at all, which is an answer to this question."""
    return None if isinstance(answer, Absent) and answer.reason == "hung" else _seconds(answer)


LATENCY = Fact("gpu.latency", nvml_read, parse_latency, lenient=True)
