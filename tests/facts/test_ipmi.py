"""What ipmitool prints of chassis, event log and sensors."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.ipmi import EventLog, Sensor, parse_sensors
from tests.support.fleet import learned

# An Asus server whose owner showed it in an article; the last line is its fault.
ASUS = """\
System Power         : off
Power Overload       : false
Power Interlock      : inactive
Main Power Fault     : false
Power Control Fault  : false
Power Restore Policy : always-off
Last Power Event     : ac-failed
Chassis Intrusion    : inactive
Front-Panel Lockout  : inactive
Drive Fault          : false
Cooling/Fan Fault    : true
"""
# OpenStack's guide for Airship shows this of a sound machine, with buttons behind it.
SOUND = ASUS.replace("Fault    : true", "Fault    : false") + (
    "Sleep Button Disable : not allowed\nDiag Button Disable  : allowed\n"
    "Power Button Disabled: false\n"
)
# vaporio/ipmi-simulator, as its README shows it.
SIMULATED = ASUS.replace("Overload       : false", "Overload       : true").replace(
    "Main Power Fault     : false", "Main Power Fault     : true"
)
# RackHD's own comment about the output that it parses.
SEL = """\
SEL Information
Version          : 1.5 (v1.5, v2 compliant)
Entries          : 187
Free Space       : 13008 bytes
Percent Used     : 18%
Last Add Time    : 01/01/1970 01:56:22
Last Del Time    : Not Available
Overflow         : false
Supported Cmds   : 'Delete' 'Reserve'
"""
# Composed after ipmitool's format of `sdr list full`.
SDR = """\
CPU1 Temp        | 41 degrees C      | ok
FAN1             | 5880 RPM          | ok
FAN7             | 0 RPM             | cr
PSU2 Vin         | no reading        | ns
PSU2 Pin         | disabled          | ns
Inlet Temp       | 44 degrees C      | nc
"""
NO_DEVICE = (
    "Could not open device at /dev/ipmi0 or /dev/ipmi/0 or /dev/ipmidev/0: "
    "No such file or directory\n"
)


def printed(out: str, code: int = 0, err: str = "") -> Any:
    return ["ok", {"code": code, "out": out, "err": err}]


@pytest.mark.parametrize(
    ("out", "faults"),
    [
        (SOUND, ()),
        (ASUS, ("Cooling/Fan Fault",)),
        (SIMULATED, ("Power Overload", "Main Power Fault", "Cooling/Fan Fault")),
    ],
)
def test_faults_of_the_chassis(out: str, faults: tuple[str, ...]) -> None:
    assert learned("ipmi.chassis", printed(out)) == faults


@pytest.mark.parametrize(
    ("out", "log"),
    [
        (SEL, EventLog(187, 18, overflow=False)),
        (SEL.replace("18%", "100%").replace("false", "true"), EventLog(187, 100, overflow=True)),
        (SEL.replace("18%", "unknown"), EventLog(187, None, overflow=False)),
    ],
)
def test_the_event_log(out: str, log: EventLog) -> None:
    assert learned("ipmi.log", printed(out)) == log


def test_sensors_that_are_not_in_order() -> None:
    answer = {"code": 0, "out": SDR, "err": ""}
    assert parse_sensors(answer) == (
        Sensor("FAN7", "0 RPM", "cr"),
        Sensor("Inlet Temp", "44 degrees C", "nc"),
    )
    with pytest.raises(ValueError, match="no sensor"):
        parse_sensors({"code": 0, "out": "what?\n", "err": ""})


@pytest.mark.parametrize("fact", ["ipmi.chassis", "ipmi.log"])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (["no", "missing_tool", "ipmitool is not there"], "not_applicable"),
        (["no", "hung", "no answer within 5 s"], "hung"),
        (printed("", 1, NO_DEVICE), "not_applicable"),
        (
            printed("", 1, NO_DEVICE.replace("No such file or directory", "Permission denied")),
            "denied",
        ),
        (printed("", 1, "Unable to establish a session\n"), "garbled"),
        (printed("Get Device ID command failed\n"), "garbled"),
    ],
)
def test_why_nothing_is_known(fact: str, answer: Any, reason: str) -> None:
    assert learned(fact, answer).reason == reason


def test_sensors_are_asked_only_where_they_are_required() -> None:
    assert parse_sensors().reason == "not_applicable"
