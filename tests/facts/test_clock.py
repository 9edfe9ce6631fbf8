"""What chronyc and timedatectl print: in sync, out of sync, with a local clock, not running."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.clock import Daemon
from clusterprep.model import Absent
from tests.support.fleet import learned

SYNCED = (
    "0A0000FE,10.0.0.254,3,1795256351.560059984,-0.000012291,-0.000008410,0.000021512,"
    "-14.292,-0.001,0.031,0.000412330,0.000184213,64.2,Normal\n"
)
LEAP = SYNCED.replace("Normal", "Insert second")
PTP = (
    "50484330,PHC0,1,1795256351.560059984,0.000000101,0.000000088,0.000000230,"
    "2.001,0.000,0.003,0.000000001,0.000010210,8.0,Normal\n"
)
LOCAL = (
    "7F7F0101,,10,1795256351.560059984,0.000000000,0.000000000,0.000000000,"
    "0.000,0.000,0.000,0.000000000,0.000000000,0.0,Normal\n"
)
UNSYNCED = (
    "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,"
    "0.000,0.000,0.000,1.000000000,1.000000000,0.0,Not synchronised\n"
)
LOST = SYNCED.replace("Normal", "Not synchronised")
BEFORE = SYNCED.replace(",3,", ",0,")
TOO_FAR = SYNCED.replace(",3,", ",16,")
NO_CHRONYD = "506 Cannot talk to daemon\n"
NO_SYSTEMD = (
    "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
    "Failed to connect to bus: Host is down\n"
)
MISSING = ["no", "missing_tool", "could not be run"]


def said(out: str, code: int = 0, err: str = "") -> list[Any]:
    return ["ok", {"code": code, "out": out, "err": err}]


def systemd(ntp: str, synchronised: str) -> list[Any]:
    return said(f"NTP={ntp}\nNTPSynchronized={synchronised}\n")


@pytest.mark.parametrize(
    ("chronyc", "timedatectl", "expected"),
    [
        pytest.param(
            said(SYNCED), MISSING, Daemon("chronyd", True, "10.0.0.254"), id="chrony-in-sync"
        ),
        pytest.param(
            said(PTP), MISSING, Daemon("chronyd", True, "PHC0"), id="chrony-on-a-hardware-clock"
        ),
        pytest.param(
            said(LOCAL), MISSING, Daemon("chronyd", False, ""), id="chrony-follows-itself"
        ),
        pytest.param(
            said(UNSYNCED), MISSING, Daemon("chronyd", False, ""), id="chrony-without-a-source"
        ),
        pytest.param(
            said(TOO_FAR), MISSING, Daemon("chronyd", False, "10.0.0.254"), id="stratum-16"
        ),
        pytest.param(
            said(LOST), MISSING, Daemon("chronyd", False, "10.0.0.254"), id="chrony-lost-its-source"
        ),
        pytest.param(said(BEFORE), MISSING, Daemon("chronyd", False, ""), id="stratum-0"),
        pytest.param(
            said(UNSYNCED),
            systemd("yes", "yes"),
            Daemon("chronyd", False, ""),
            id="chrony-knows-better",
        ),
        pytest.param(
            MISSING, systemd("yes", "yes"), Daemon("systemd-timesyncd", True), id="timesyncd"
        ),
        pytest.param(
            MISSING,
            systemd("yes", "no"),
            Daemon("systemd-timesyncd", False),
            id="timesyncd-out-of-sync",
        ),
        pytest.param(
            MISSING, systemd("no", "yes"), Daemon(None, True), id="kept-by-something-else"
        ),
        pytest.param(MISSING, systemd("no", "no"), Daemon(None, False), id="kept-by-nothing"),
        pytest.param(
            said(NO_CHRONYD, 1),
            systemd("yes", "yes"),
            Daemon("systemd-timesyncd", True),
            id="no-chronyd",
        ),
        pytest.param(
            said(NO_CHRONYD, 1), MISSING, Daemon(None, False), id="no-chronyd-and-no-systemd"
        ),
        pytest.param(
            said(NO_CHRONYD, 1),
            said("", 1, NO_SYSTEMD),
            Daemon(None, False),
            id="a-container-with-chronyc",
        ),
        pytest.param(
            ["no", "hung"],
            systemd("no", "yes"),
            Daemon(None, True),
            id="chronyc-hung-and-systemd-knows",
        ),
    ],
)
def test_chrony_first_then_systemd(
    chronyc: list[Any], timedatectl: list[Any], expected: Daemon
) -> None:
    found = learned("clock.daemon", chronyc, timedatectl)
    assert (found.name, found.synchronised) == (expected.name, expected.synchronised)
    assert found.source == expected.source or not found.synchronised


@pytest.mark.parametrize(
    ("chronyc", "timedatectl", "reason"),
    [
        pytest.param(MISSING, MISSING, "missing_tool", id="neither-is-there"),
        pytest.param(["no", "hung"], MISSING, "hung", id="chronyc-hung"),
        pytest.param(MISSING, ["no", "timed_out"], "timed_out", id="timedatectl-timed-out"),
        pytest.param(["no", "denied"], MISSING, "denied", id="chronyc-denied"),
        pytest.param(said(NO_CHRONYD, 1), ["no", "hung"], "hung", id="no-chronyd-and-systemd-hung"),
        pytest.param(
            MISSING, said("", 1, NO_SYSTEMD), "missing_tool", id="a-container-without-systemd"
        ),
        pytest.param(
            MISSING, said("", 1, "Unknown operation show.\n"), "missing_tool", id="centos-7"
        ),
        pytest.param(
            said("Reference ID    : 0A0000FE (10.0.0.254)\n"),
            MISSING,
            "garbled",
            id="without-commas",
        ),
        pytest.param(said(""), MISSING, "garbled", id="chronyc-says-nothing"),
        pytest.param(said("a,b,c,d"), MISSING, "garbled", id="no-stratum"),
        pytest.param(MISSING, said("Local time: Sat\n"), "garbled", id="timedatectl-status"),
        pytest.param(MISSING, said("NTP=yes\n"), "garbled", id="half-of-systemds-answer"),
        pytest.param(["ok", {"code": 0}], MISSING, "garbled", id="no-output-in-the-answer"),
    ],
)
def test_no_usable_word_is_not_known_with_its_reason(
    chronyc: list[Any], timedatectl: list[Any], reason: str
) -> None:
    found = learned("clock.daemon", chronyc, timedatectl)
    assert isinstance(found, Absent)
    assert found.reason == reason


def test_a_leap_second_to_come_is_no_lost_source() -> None:
    assert learned("clock.daemon", said(LEAP), MISSING).synchronised


@pytest.mark.parametrize(
    ("current", "available", "expected"),
    [
        pytest.param(
            "tsc \n", "tsc hpet acpi_pm \n", ("tsc", ("tsc", "hpet", "acpi_pm")), id="metal"
        ),
        pytest.param(
            "kvm-clock\n",
            "kvm-clock tsc acpi_pm \n",
            ("kvm-clock", ("kvm-clock", "tsc", "acpi_pm")),
            id="kvm",
        ),
        pytest.param(
            "arch_sys_counter\n",
            "arch_sys_counter \n",
            ("arch_sys_counter", ("arch_sys_counter",)),
            id="arm",
        ),
        pytest.param("tsc\n", None, ("tsc", ()), id="without-the-list"),
    ],
)
def test_a_clock_source_is_one_word(
    current: str, available: str | None, expected: tuple[str, tuple[str, ...]]
) -> None:
    found = learned(
        "clock.source",
        ["ok", current],
        ["ok", available] if available else ["no", "missing", "no file"],
    )
    assert (found.current, found.available) == expected


@pytest.mark.parametrize(
    ("current", "reason"),
    [
        pytest.param(["ok", ""], "garbled", id="empty"),
        pytest.param(["ok", "two words"], "garbled", id="two-words"),
        pytest.param(["ok", "\x7fELF\x02\x01"], "garbled", id="binary"),
        pytest.param(["ok", 5], "garbled", id="another-type"),
        pytest.param(["no", "denied", ""], "denied", id="denied"),
        pytest.param(
            ["no", "missing", ""],
            "the kernel does not say which clock source it uses",
            id="no-sysfs",
        ),
    ],
)
def test_a_source_that_is_not_named_is_not_known(current: list[Any], reason: str) -> None:
    found = learned("clock.source", current, ["ok", "tsc hpet"])
    assert isinstance(found, Absent)
    assert found.reason == reason
