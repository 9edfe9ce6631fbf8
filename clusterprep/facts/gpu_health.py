"""The health of each GPU: memory errors, temperature, throttling, and how fast it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.facts.gpu import (
    IN_PIECES,
    absence,
    columns,
    is_older_driver,
    nvml_read,
    per_gpu,
    refusal,
    require_number,
)
from clusterprep.model import Absent


class EccMode(Struct, frozen=True):
    """Whether ECC is on, and after the next reset.

    `default` is the factory's setting, None where not reported: off on workstation cards.
    """

    on: bool
    pending: bool
    default: bool | None = None


class EccErrors(Struct, frozen=True):
    """Uncorrected errors.

    `exceeded`: those of the SRAM are over the maker's threshold, None where not reported.
    """

    since_load: int
    ever: int | None
    exceeded: bool | None


class Remap(Struct, frozen=True):
    """Rows of memory replaced by spare ones.

    `spent`: banks without a spare row, None where not reported.
    """

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool
    spent: int | None


class CorrectedErrors(Struct, frozen=True, gc=False):
    """Errors of memory that ECC corrected, since the driver was loaded and over the board's life.

    `ever` is None where not reported.
    """

    uuid: str
    since_load: int
    ever: int | None


class RetiredPages(Struct, frozen=True):
    """Pages of memory that are no longer used, for single-bit and double-bit errors.

    `pending`: some are still in use until the next reset. GPUs before Ampere have this.
    """

    single: int
    double: int
    pending: bool


class Temperatures(Struct, frozen=True):
    """Temperatures of the chip and of its memory in °C.

    `left` is the distance to the temperature at which the hardware slows the chip down.
    """

    chip: int
    memory: int | None
    left: int | None


def require_flag(value: object) -> bool:
    """Parse 0 or 1. Raises ValueError for anything else."""
    if require_number(value) not in (0, 1):
        raise ValueError(f"expected 0 or 1, seen {value!r}")
    return bool(value)


def parse_ecc(since_load: Any) -> int:
    """Parse a count of errors."""
    count = require_number(since_load)
    if count < 0:
        raise ValueError("a negative count of errors")
    return count


def parse_remap(remap: Any) -> tuple[int, int, bool, bool]:
    """Parse [corrected, uncorrected, pending, failed]."""
    corrected, uncorrected, pending, failed = remap
    return (
        require_number(corrected),
        require_number(uncorrected),
        require_flag(pending),
        require_flag(failed),
    )


def parse_throttle(samples: Any) -> tuple[int, ...]:
    """Parse the bits of the clocks event reasons, once for each sample."""
    if not samples:
        raise ValueError("no sample")
    return tuple(require_number(bits) for bits in samples)


def parse_seconds(seconds: object) -> float:
    """Parse the seconds that one trivial query took."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds < 0:
        raise ValueError(f"expected seconds, seen {seconds!r}")
    return float(seconds)


def _is_known(value: object) -> bool:
    return value is not None and not refusal(value)


def _ecc_mode(row: Mapping[str, Any]) -> EccMode:
    on, pending = row["ecc"]
    default = None
    if _is_known(row["ecc_default"]):
        default = require_flag(row["ecc_default"])
    return EccMode(require_flag(on), require_flag(pending), default)


def _ecc_errors(row: Mapping[str, Any]) -> EccErrors:
    """Return the errors of one GPU; what NVML refuses, except those since load, is None."""
    since_load = parse_ecc(row["ecc_volatile"])
    ever = None
    if _is_known(row["ecc_aggregate"]):
        ever = parse_ecc(row["ecc_aggregate"])
    exceeded = None
    if _is_known(row["sram"]):
        exceeded = require_flag(row["sram"][0])
    return EccErrors(since_load, ever, exceeded)


def _corrected(row: Mapping[str, Any]) -> CorrectedErrors:
    ever = parse_ecc(row["ecc_corrected_ever"]) if _is_known(row["ecc_corrected_ever"]) else None
    return CorrectedErrors(str(row["uuid"]), parse_ecc(row["ecc_corrected"]), ever)


def _corrected_with_uuid(errors: CorrectedErrors, uuids: Sequence[str]) -> CorrectedErrors:
    return CorrectedErrors(uuids[int(errors.uuid)], errors.since_load, errors.ever)


def _retired(row: Mapping[str, Any]) -> RetiredPages | Absent:
    """Return the retired pages of one GPU; from Ampere on there are remapped rows instead."""
    fields = ("retired_single", "retired_double", "retired_pending")
    for field in fields:
        reason = refusal(row[field])
        if is_older_driver(row[field]):
            return Absent("not_applicable", "this GPU retires no pages")
        if reason is not None:
            return absence(field, reason)
    single, double, pending = (row[field] for field in fields)
    return RetiredPages(parse_ecc(single), parse_ecc(double), require_flag(pending))


def _recovery(row: Mapping[str, Any]) -> int | Absent:
    """Return nvmlDeviceGpuRecoveryAction_t; drivers before 570 do not recommend any."""
    action = row["recovery"]
    if is_older_driver(action):
        return Absent("not_applicable", "this driver recommends no recovery (from 570 on)")
    reason = refusal(action)
    return absence("recovery", reason) if reason is not None else require_number(action)


def _remap(row: Mapping[str, Any]) -> Remap:
    spent = None
    banks = row["remap_banks"]  # banks with all, many, some, few and no spare rows
    if _is_known(banks):
        spent = require_number(banks[4])
    return Remap(*parse_remap(row["remap"]), spent)


def _temperatures(row: Mapping[str, Any]) -> Temperatures:
    """Return the temperatures of one GPU in °C; what NVML refuses, except the chip's, is None."""
    chip = require_number(row["temperature"])
    memory = None
    if _is_known(row["memory_temperature"]):
        memory = require_number(row["memory_temperature"])
    margin, slowdown = row["margin"], row["slowdown"]
    degrees_left = None
    if _is_known(margin):  # Ada and later, drivers from 555 on
        degrees_left = require_number(margin[0])
    elif _is_known(slowdown):
        degrees_left = require_number(slowdown) - chip
    return Temperatures(chip, memory, degrees_left)


ECC_MODE = per_gpu("gpu.ecc_mode", _ecc_mode, "ecc", besides=("ecc_default",))
ECC = per_gpu("gpu.ecc", _ecc_errors, "ecc_volatile", besides=("sram", "ecc_aggregate"))
ECC_CORRECTED = per_gpu(
    "gpu.ecc_corrected",
    _corrected,
    "uuid",
    "ecc_corrected",
    besides=("ecc_corrected_ever",),
    moves=True,
    with_uuid=_corrected_with_uuid,
)
RETIRED = per_gpu(
    "gpu.retired",
    _retired,
    besides=("retired_single", "retired_double", "retired_pending"),
)
RECOVERY = per_gpu("gpu.recovery", _recovery, besides=("recovery",))
REMAP = per_gpu("gpu.remap", _remap, "remap", besides=("remap_banks",))
HEAT = per_gpu(
    "gpu.heat",
    _temperatures,
    "temperature",
    besides=("memory_temperature", "margin", "slowdown"),
    moves=True,
)
THROTTLE = per_gpu("gpu.throttle", parse_throttle, "throttle", moves=True)
_parse_seconds_of_gpus = per_gpu("gpu.latency", parse_seconds, "seconds").parse


def parse_latency(answer: Any) -> Any:
    """Return the seconds for each GPU, None where the driver hung.

    Other facts are absent where the driver hangs; here it is an answer to the question.
    """
    if isinstance(answer, Absent) and answer.reason == "hung":
        return None
    return _parse_seconds_of_gpus(answer)


def _seconds_columns(answer: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {"gpus": columns(answer, "seconds")}


LATENCY = Fact(
    "gpu.latency",
    nvml_read,
    parse_latency,
    lenient=True,
    narrow=_seconds_columns,
    pieces=IN_PIECES,
    moves=True,
)
