"""SXids by the driver's own words; lines of public logs are in tests/checks/driver_lines.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import absent, findings, fleet, told
from tests.support.kernel_lines import UP, facts_of, journal_answer, ring_answer

DAY = 86400.0


def line(code: int, rest: str, switch: int = 0) -> str:
    """A line in the driver's form; what it says is composed."""
    return f"nvidia-nvswitch{switch}: SXid (PCI:0000:{5 + switch:02x}:00.0): {code}, {rest}"


FATAL = line(20034, "Fatal, Link 30 LTSSM Fault Up")
NONFATAL = line(12028, "Non-fatal, Link 32 egress non-posted PRIV error (First)")
HARMLESS = line(22013, "Non-fatal, Link 44 Minion Link DLREQ interrupt")


def seen(*texts: str, journal: Any = None, **ring: Any) -> Any:
    more = {} if journal is None else {"journal": journal}
    return fleet(n1=facts_of(ring_answer(*texts, **ring), **more))


@pytest.mark.parametrize(
    ("texts", "age", "expected"),
    [
        pytest.param((), 60.0, "pass", id="none"),
        pytest.param((FATAL,), 60.0, "fail error", id="fatal"),
        pytest.param((FATAL,), 20 * DAY, "fail error", id="fatal-until-the-next-boot"),
        pytest.param((NONFATAL,), DAY - 60, "fail warning", id="non-fatal"),
        pytest.param((NONFATAL,), DAY + 60, "pass", id="non-fatal-for-a-day"),
        pytest.param((HARMLESS,), 60.0, "pass", id="which-can-be-ignored"),
        pytest.param((FATAL, NONFATAL), 60.0, "fail error + fail warning", id="both"),
        pytest.param((line(20034, "Severity 1 Engine instance 30"),), 60.0, "fail error", id="one"),
        pytest.param(
            (line(20009, "Severity 0 Engine instance 30"),), 60.0, "fail warning", id="nought"
        ),
        pytest.param((line(20034, "Data {0x1}"),), 60.0, "fail warning", id="data-alone"),
        pytest.param((line(22013, "Data {0x1}"),), 60.0, "pass", id="data-of-a-harmless-one"),
    ],
)
def test_each_counts_as_the_driver_says(texts: tuple[str, ...], age: float, expected: str) -> None:
    assert told(seen(*texts, age=age), "gpu.sxid") == {"n1": expected}


def test_links_and_switches_of_a_code_are_one_finding() -> None:
    texts = (FATAL, line(20034, "Fatal, Link 31 LTSSM Fault Up"), FATAL)
    texts += (line(20034, "Fatal, Link 30 LTSSM Fault Up", 1),)
    (bad,) = findings(seen(*texts), "gpu.sxid")
    assert bad.seen.startswith(
        "SXid 20034 on 0000:05:00.0 (link 31), 0000:05:00.0 (link 30), 0000:06:00.0 (link 30): "
        "4 times, last "
    )


def test_harmless_ones_of_all_links_leave_room_for_others() -> None:
    """A booting H100 system in NVIDIA/nvtrust#124 says 22013 of each link of each switch."""
    texts = [
        line(22013, f"{words} {link}", switch)
        for switch in range(4)
        for link in range(64)
        for words in ("Non-fatal, Link", "Severity 0 Engine instance", "Data {0x2c} of")
    ]
    assert told(seen(*texts), "gpu.sxid") == {"n1": "pass"}
    assert told(seen(*texts), "log.kernel") == {"n1": "pass"}
    assert told(seen(FATAL, *texts), "gpu.sxid") == {"n1": "fail error"}


def test_those_of_an_earlier_boot_are_said() -> None:
    (good,) = findings(seen(journal=journal_answer(earlier=((2 * DAY, FATAL),))), "gpu.sxid")
    assert (good.verdict, good.seen) == (
        "pass",
        "before the last boot: SXid 20034 fatal, last 2 d ago",
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(
            facts_of(ring_answer(first=(7000, UP - 7200))),
            "unknown error truncated",
            id="a-ring-of-two-hours",
        ),
        pytest.param({"gpu.sxids": absent("denied")}, "unknown error denied", id="denied"),
    ],
)
def test_what_the_log_does_not_hold(facts: dict[str, Any], expected: str) -> None:
    assert told(fleet(n1=facts), "gpu.sxid") == {"n1": expected}
