"""Xids by code: fatal, contained, a program's own, not known, and how long each counts."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.kernel_log import XID, KernelLog, KernelRecord, Xids, parse_xids
from clusterprep.model import Absent
from tests.support.fleet import absent, findings, fleet, told

NOW = 30 * 86400.0
GPU = [{"pci": "0000:1b:00.0", "class": "0x030200"}]


def line(code: int, rest: str = "pid='<unknown>', name=<unknown>", pci: str = "0000:1b:00") -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, {rest}"


def xids(*texts: str, age: float = 600.0, first: Any = (0, 0.0), cut: int = 0) -> dict[str, Any]:
    records = [[n, NOW - age - n, 3, 1, NOW - age - n, text] for n, text in enumerate(texts)]
    answer = {
        "now": NOW,
        "first": list(first),
        "records": records,
        "cut": {XID: cut} if cut else {},
    }
    return {"gpu.xids": parse_xids(answer, GPU)}


FATAL = (
    46,
    48,
    54,
    62,
    64,
    74,
    79,
    95,
    109,
    110,
    119,
    120,
    136,
    140,
    143,
    144,
    150,
    151,
    155,
    156,
    158,
)
WARNED = (8, 63, 78, 92, 94, 121, 137, 157, 0, 1, 44, 66, 160, 171, 999)
OF_PROGRAMS = (11, 13, 25, 31, 32, 43, 45, 69, 80, 106, 107)
RECOVERY = "GPU recovery action changed from 0x0 (None) to "


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("age", [60.0, 20 * 86400.0])
def test_fatal_ones_are_errors_until_the_next_boot(code: int, age: float) -> None:
    assert told(fleet(n1=xids(line(code), age=age)), "gpu.xid") == {"n1": "fail error"}


@pytest.mark.parametrize("code", WARNED)
def test_contained_and_unknown_ones_are_warnings_for_a_day(code: int) -> None:
    assert told(fleet(n1=xids(line(code), age=86000.0)), "gpu.xid") == {"n1": "fail warning"}
    assert told(fleet(n1=xids(line(code), age=86401.0)), "gpu.xid") == {"n1": "pass"}


@pytest.mark.parametrize("code", OF_PROGRAMS)
def test_xids_of_programs_pass_and_are_said(code: int) -> None:
    seen = fleet(n1=xids(line(code, "pid=4711, name=python3")))
    assert told(seen, "gpu.xid") == {"n1": "pass"}
    assert findings(seen, "gpu.xid")[0].seen.startswith(f"Xid {code}: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            line(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6)"),
            "fail error",
            id="fatal",
        ),
        pytest.param(
            line(149, "NETIR_LINK_EVT  Nonfatal XC0 i0 Link 08 (0x004505c6)"),
            "fail warning",
            id="nonfatal",
        ),
        pytest.param(
            line(145, "RLW_REMAP  Non-fatal XC0 i0 Link 02"), "fail warning", id="non-fatal"
        ),
        pytest.param(
            line(154, RECOVERY + "0x1 (GPU Reset Required)"), "fail error", id="reset-required"
        ),
        pytest.param(
            line(154, RECOVERY + "0x2 (Node Reboot Required)"), "fail error", id="reboot-required"
        ),
        pytest.param(line(154, RECOVERY + "0x3 (Drain P2P)"), "fail warning", id="drain"),
        pytest.param(
            line(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
            "pass",
            id="cured",
        ),
        pytest.param("NVRM: Xid (PCI:0000:1b:00): ", "fail warning", id="cut"),
    ],
)
def test_some_say_in_their_text_how_grave_they_are(text: str, expected: str) -> None:
    assert told(fleet(n1=xids(text)), "gpu.xid") == {"n1": expected}


def test_a_fatal_one_outweighs_what_programs_did_meanwhile() -> None:
    seen = fleet(n1=xids(line(13), line(79), line(45), line(94)))
    assert told(seen, "gpu.xid") == {"n1": "fail error + fail warning"}


def test_one_finding_for_each_code_names_all_its_gpus() -> None:
    seen = fleet(n1=xids(line(48), line(48, pci="0000:43:00"), line(48, pci="0000:43:00")))
    (bad,) = findings(seen, "gpu.xid")
    assert bad.seen == "Xid 48 on 0000:1b:00, 0000:43:00: 3 times, last 10 min ago"
    assert bad.remedy.startswith("nvidia-smi --gpu-reset -i 0000:1b:00.0")


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        (79, "reboot"),
        (74, "nvidia-smi nvlink"),
        (95, "--gpu-reset"),
        (54, "power cables of 0000:1b:00.0"),
    ],
)
def test_each_has_its_cure(code: int, cure: str) -> None:
    assert cure in findings(fleet(n1=xids(line(code))), "gpu.xid")[0].remedy


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(xids(), "pass", id="none"),
        pytest.param(xids(first=(7000, NOW - 7200)), "pass", id="a-ring-of-two-hours"),
        pytest.param(
            xids(first=(7000, NOW - 600)), "unknown error truncated", id="a-ring-of-minutes"
        ),
        pytest.param(
            xids(line(13), first=(7000, NOW - 600)),
            "unknown error truncated",
            id="which-holds-a-programs",
        ),
        pytest.param(
            xids(line(79), first=(7000, NOW - 600)), "fail error", id="which-holds-a-fatal-one"
        ),
        pytest.param(
            xids(line(13), cut=900), "unknown error truncated", id="too-many-to-bring-home"
        ),
        pytest.param(xids(line(79), cut=900), "fail error", id="too-many-and-one-fatal"),
        pytest.param({"gpu.xids": absent("denied")}, "unknown error denied", id="denied"),
        pytest.param({"gpu.xids": absent("hung")}, "unknown error hung", id="hung"),
        pytest.param({"gpu.xids": absent("garbled")}, "unknown error garbled", id="garbled"),
        pytest.param(
            {"gpu.xids": Absent("not_applicable", "no NVIDIA GPU here")},
            "skip not_applicable",
            id="no-gpu",
        ),
    ],
)
def test_what_the_log_does_not_hold(facts: dict[str, Any], expected: str) -> None:
    assert told(fleet(n1=facts), "gpu.xid") == {"n1": expected}


def test_the_log_of_a_node_with_xids_is_the_logs_own_check_too() -> None:
    log = KernelLog(NOW, 0, 0.0, (KernelRecord(1, NOW - 5, 3, 1, NOW - 5, line(79)),))
    assert told(fleet(n1={"log.records": log, "gpu.xids": Xids(log)}), "log.kernel") == {
        "n1": "pass"
    }
