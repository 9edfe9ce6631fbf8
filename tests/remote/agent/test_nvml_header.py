"""The numbers that the reader and the facts use, against those of NVIDIA's header.

Recorded from nvml.h of nvidia-nvml-dev-cu12 12.9.79 and nvidia-nvml-dev 13.5.37: both have the same
value, unless a comment says otherwise. The sizes of structures are held by nvml.c of the stand-in.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks import gpu_health, gpu_recovery
from clusterprep.checks import nvlink as nvlink_checks
from clusterprep.facts import gpu_state, nvlink
from clusterprep.remote.agent import nvml

RETURNS = {
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    26: "DEPRECATED",
}
FIELDS = {
    "RETIRED_SBE": 29,
    "RETIRED_DBE": 30,
    "RETIRED_PENDING": 31,
    "PERF_POLICY_POWER": 74,
    "PERF_POLICY_THERMAL": 75,
    "PERF_POLICY_BOARD_LIMIT": 77,
    "PERF_POLICY_RELIABILITY": 79,
    "MEMORY_TEMP": 82,
    "NVLINK_ERROR_DL_REPLAY": 161,
    "NVLINK_ERROR_DL_RECOVERY": 162,
    "NVLINK_ERROR_DL_CRC": 163,
    "NVLINK_GET_SPEED": 164,
    "NVLINK_COUNT_MALFORMED_PACKET_ERRORS": 206,
    "NVLINK_COUNT_BUFFER_OVERRUN_ERRORS": 207,
    "NVLINK_COUNT_RCV_ERRORS": 208,
    "NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS": 211,
    "NVLINK_COUNT_XMIT_DISCARDS": 212,
    "NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS": 213,
    "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": 214,
    "NVLINK_COUNT_EFFECTIVE_ERRORS": 219,
    "NVLINK_COUNT_SYMBOL_ERRORS": 221,
    "GET_GPU_RECOVERY_ACTION": 230,
}
# Fields whose number has changed, although the header promises that none does: 251 to 253 in 12.9,
# 269 to 271 in 13.5 (pynvml: 12.575.51 and 13.580.65 have the old ones, 13.580.82 the new ones). In
# 12.570.86 the old numbers were others of power smoothing.
UNSTABLE = {
    "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": (251, 269),
    "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": (252, 270),
    "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": (253, 271),
}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (nvml.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        (nvml.NOT_SUPPORTED, "NOT_SUPPORTED"),
        (nvml.INSUFFICIENT_SIZE, "INSUFFICIENT_SIZE"),
        (nvml.FUNCTION_NOT_FOUND, "FUNCTION_NOT_FOUND"),
        (gpu_state.DEPRECATED[1], "DEPRECATED"),
    ],
)
def test_codes(code: int, name: str) -> None:
    assert RETURNS[code] == name


def test_reasons_of_codes() -> None:
    assert {RETURNS[code]: reason for code, reason in nvml.REASONS.items()} == {
        "NOT_SUPPORTED": "not_applicable",
        "NO_PERMISSION": "denied",
        "INSUFFICIENT_POWER": "power_cables",
        "DRIVER_NOT_LOADED": "no_driver",
        "IRQ_ISSUE": "interrupts",
        "LIBRARY_NOT_FOUND": "missing_tool",
        "FUNCTION_NOT_FOUND": "missing_tool",
        "CORRUPTED_INFOROM": "corrupted_inforom",
        "GPU_IS_LOST": "gpu_lost",
        "RESET_REQUIRED": "reset_required",
        "OPERATING_SYSTEM": "denied",
        "LIB_RM_VERSION_MISMATCH": "driver_library_mismatch",
    }


def field(name: str) -> int:
    return FIELDS[name]


def test_fields() -> None:
    assert {
        "memory_temperature": field("MEMORY_TEMP"),
        "retired_single": field("RETIRED_SBE"),
        "retired_double": field("RETIRED_DBE"),
        "retired_pending": field("RETIRED_PENDING"),
        "recovery": field("GET_GPU_RECOVERY_ACTION"),
    } == nvml.FIELDS
    assert field("NVLINK_GET_SPEED") == nvml.LINK_SPEED
    assert {
        "power": field("PERF_POLICY_POWER"),
        "thermal": field("PERF_POLICY_THERMAL"),
        "board_limit": field("PERF_POLICY_BOARD_LIMIT"),
        "reliability": field("PERF_POLICY_RELIABILITY"),
    } == nvml.VIOLATIONS
    assert {
        "replay": field("NVLINK_ERROR_DL_REPLAY"),
        "recovery": field("NVLINK_ERROR_DL_RECOVERY"),
        "crc": field("NVLINK_ERROR_DL_CRC"),
        "malformed": field("NVLINK_COUNT_MALFORMED_PACKET_ERRORS"),
        "overrun": field("NVLINK_COUNT_BUFFER_OVERRUN_ERRORS"),
        "received": field("NVLINK_COUNT_RCV_ERRORS"),
        "integrity": field("NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS"),
        "discarded": field("NVLINK_COUNT_XMIT_DISCARDS"),
        "recovered": field("NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS"),
        "not_recovered": field("NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"),
        "effective": field("NVLINK_COUNT_EFFECTIVE_ERRORS"),
        "symbol": field("NVLINK_COUNT_SYMBOL_ERRORS"),
    } == nvml.LINK_ERRORS


def test_no_field_is_asked_whose_number_has_changed() -> None:
    asked = {nvml.LINK_SPEED}
    for table in (nvml.FIELDS, nvml.VIOLATIONS, nvml.LINK_ERRORS):
        asked |= set(table.values())
    for numbers in UNSTABLE.values():
        assert asked.isdisjoint(numbers)


@pytest.mark.parametrize(
    ("ours", "header"),
    [
        pytest.param(nvml.MAX_LINKS, 36, id="NVML_NVLINK_MAX_LINKS"),  # 18 in 12.9
        pytest.param(nvml.OVER_NVLINK, 2, id="NVML_P2P_CAPS_INDEX_NVLINK"),
        pytest.param(nvml.CORRECTED, 0, id="NVML_MEMORY_ERROR_TYPE_CORRECTED"),
        pytest.param(nvml.UNCORRECTED, 1, id="NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
        pytest.param(nvml.NO_GPUS, 1, id="NVML_INIT_FLAG_NO_GPUS"),
        pytest.param(nvlink.GPU, 0, id="NVML_NVLINK_DEVICE_TYPE_GPU"),
        pytest.param(nvlink.SWITCH, 2, id="NVML_NVLINK_DEVICE_TYPE_SWITCH"),
        pytest.param(nvlink.COMPLETED, 3, id="NVML_GPU_FABRIC_STATE_COMPLETED"),
        pytest.param(gpu_health.POWER_CAP, 0x4, id="nvmlClocksEventReasonSwPowerCap"),
        pytest.param(gpu_health.HARDWARE, 0x8, id="nvmlClocksThrottleReasonHwSlowdown"),
        pytest.param(
            gpu_health.SOFTWARE_THERMAL, 0x20, id="nvmlClocksEventReasonSwThermalSlowdown"
        ),
        pytest.param(gpu_health.THERMAL, 0x40, id="nvmlClocksThrottleReasonHwThermalSlowdown"),
        pytest.param(gpu_health.BRAKE, 0x80, id="nvmlClocksThrottleReasonHwPowerBrakeSlowdown"),
        pytest.param(
            nvml.OLDER_LINK_ERRORS,
            {"replay": (0,), "recovery": (1,), "crc": (2, 3)},
            id="nvmlNvLinkErrorCounter_t",
        ),
        pytest.param(
            gpu_state.COMPUTE_MODES,
            {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"},
            id="nvmlComputeMode_t",
        ),
        pytest.param(
            nvlink.STATES,
            {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"},
            id="NVML_GPU_FABRIC_STATE",
        ),
        # 5, 6 and 7 are in 13.5 alone.
        pytest.param(sorted(gpu_recovery.ACTIONS), [1, 2, 3, 4, 5, 6, 7], id="recovery-actions"),
        pytest.param(sorted(nvlink_checks.P2P), [1, 2, 3, 4, 5, 6], id="nvmlGpuP2PStatus_t"),
    ],
)
def test_numbers(ours: Any, header: Any) -> None:
    assert ours == header


@pytest.mark.parametrize(
    ("kind", "bits", "value"),
    [
        (1, 0xFFFF_FFFF_0000_0007, 7),  # UNSIGNED_INT; the rest of the union is not written
        (2, 1 << 40, 1 << 40),  # UNSIGNED_LONG
        (3, 1 << 63, 1 << 63),  # UNSIGNED_LONG_LONG
        (4, (1 << 64) - 3, -3),  # SIGNED_LONG_LONG
        (5, 0xFFFF_FFFE, -2),  # SIGNED_INT
        (6, 0x1_0003, 3),  # UNSIGNED_SHORT
        (0, 0x3FF0 << 48, None),  # DOUBLE
    ],
)
def test_values_of_each_type(kind: int, bits: int, value: int | None) -> None:
    """The kinds are those of nvmlValueType_t; UNSIGNED_SHORT is in 13.5 and 12.9."""
    assert nvml.field_value(kind, bits) == value
