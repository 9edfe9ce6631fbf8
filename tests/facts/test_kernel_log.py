"""The kernel's log as the agent brings it, and the Xids in it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.kernel_log import KernelLog, KernelRecord, parse_log
from clusterprep.model import Absent
from tests.support.fleet import learned

FALLEN = (
    "NVRM: Xid (PCI:0000:1B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
GPU = [{"pci": "0000:1b:00.0", "class": "0x030200"}]
SWITCH = [{"pci": "0000:07:00.0", "class": "0x068000"}]
WHY = "journalctl is not there"
NONE = ["no", "missing_tool", WHY]


def answer(*texts: str, **fields: Any) -> list[Any]:
    records = [[100 + n, 50.0 + n, 3, 1, 50.0 + n, text] for n, text in enumerate(texts)]
    return ["ok", {"now": 9000.0, "first": [0, 0.0], "records": records, "cut": {}, **fields}]


def test_a_log_knows_how_far_it_goes_back() -> None:
    whole = learned("log.records", answer("a line"), NONE)
    assert whole == KernelLog(
        9000.0, 0, 0.0, (KernelRecord(100, 50.0, 3, 1, 50.0, "a line"),), no_journal=WHY
    )
    assert (whole.whole, whole.window, whole.age(whole.records[0])) == (True, 9000.0, 8950.0)
    wrapped = learned("log.records", answer(first=[7000, 8000.0]), NONE)
    assert (wrapped.whole, wrapped.window) == (False, 1000.0)


def test_a_record_is_never_from_the_future() -> None:
    log = KernelLog(100.0, 0, 0.0, (KernelRecord(1, 100.4, 3, 1, 100.4, "x"),))
    assert log.age(log.records[0]) == 0.0


def test_no_log_at_all_is_not_silence() -> None:
    assert isinstance(parse_log(None, None), Absent)
    assert learned("log.records", ["no", "missing", ""], NONE).reason == "denied"
    refused = ["no", "denied", "/dev/kmsg: Operation not permitted"]
    assert learned("log.records", refused, NONE).reason == "denied"


@pytest.mark.parametrize(
    "fields",
    [
        {"first": None},
        {"first": [0]},
        {"now": 0},
        {"now": "x"},
        {"records": None},
        {"records": [[1, 2]]},
        {"cut": None},
        {"first": [-1, 0.0]},
        {"first": [0, float("nan")]},
    ],
)
def test_what_is_no_log_is_garbled(fields: dict[str, Any]) -> None:
    assert learned("log.records", answer(**fields), NONE).reason == "garbled"
    assert learned("gpu.xids", answer(**fields), NONE, ["ok", GPU]).reason == "garbled"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(FALLEN, ("0000:1b:00", 79), id="fallen-off"),
        pytest.param(
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=12, name=python3, Ch 00000008",
            ("0000:3b:00", 31),
            id="fault",
        ),
        pytest.param(
            "NVRM: Xid (0000:03:00): 14, Channel 00000001", ("0000:03:00", 14), id="old-drivers"
        ),
        pytest.param(
            "NVRM: Xid (PCI:00000009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0",
            ("00000009:01:00", 149),
            id="gb200",
        ),
        pytest.param("NVRM: Xid (PCI:0000:3b:00): ", ("", 0), id="cut"),
        pytest.param("NVRM: Xid in words of a driver to come", ("", 0), id="other-words"),
    ],
)
def test_an_xid_names_its_gpu(text: str, expected: tuple[str, int]) -> None:
    (event,) = learned("gpu.xids", answer("another line", text), NONE, ["ok", GPU]).events
    assert (event.pci, event.code) == expected


@pytest.mark.parametrize(
    ("log", "pci", "reason"),
    [
        pytest.param(answer(), ["ok", []], "not_applicable", id="no-gpu"),
        pytest.param(answer(), ["ok", SWITCH], "not_applicable", id="an-nvswitch-is-no-gpu"),
        pytest.param(["no", "denied", "x"], ["ok", []], "not_applicable", id="no-gpu-and-no-log"),
        pytest.param(["no", "denied", "x"], ["ok", GPU], "denied", id="no-log"),
        pytest.param(["no", "missing", ""], ["ok", GPU], "denied", id="no-kmsg"),
        pytest.param(["no", "hung", "x"], ["no", "hung", "x"], "hung", id="nothing-answers"),
    ],
)
def test_why_nothing_is_known_of_xids(log: Any, pci: Any, reason: str) -> None:
    assert learned("gpu.xids", log, NONE, pci).reason == reason


def test_a_gpu_that_left_the_bus_is_still_heard_of() -> None:
    assert learned("gpu.xids", answer(FALLEN), NONE, ["ok", []]).events[0].code == 79


def test_a_bus_that_was_not_read_is_not_empty() -> None:
    assert learned("gpu.xids", answer(), NONE, ["no", "denied", ""]).events == ()


def test_a_journal_that_is_not_kept_is_named() -> None:
    assert learned("log.records", answer(), ["no", "missing", ""]).no_journal == (
        "no journal is kept here"
    )
    assert learned("log.records", answer(), ["no", "hung", ""]).no_journal == "hung"


SXID = "nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"


@pytest.mark.parametrize(
    ("log", "pci", "reason"),
    [
        pytest.param(answer(), ["ok", GPU], "not_applicable", id="gpus-without-a-switch"),
        pytest.param(["no", "denied", "x"], ["ok", GPU], "not_applicable", id="and-no-log"),
        pytest.param(["no", "denied", "x"], ["ok", SWITCH], "denied", id="no-log"),
        pytest.param(["no", "denied", "x"], ["no", "hung", "x"], "denied", id="nothing-answers"),
    ],
)
def test_why_nothing_is_known_of_sxids(log: Any, pci: Any, reason: str) -> None:
    assert learned("gpu.sxids", log, NONE, pci).reason == reason


def test_a_switch_that_left_the_bus_is_still_heard_of() -> None:
    (event,) = learned("gpu.sxids", answer(SXID), NONE, ["ok", GPU]).events
    assert (event.pci, event.code, event.severity, event.link) == (
        "0000:07:00.0",
        20034,
        "Fatal",
        "30",
    )
