"""What the board's management controller says: faults of chassis, fans and power, and its log."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, Needs, command
from clusterprep.model import Absent, Inventory, Node, Read

# Lines of `ipmitool chassis status` that say true where something is wrong.
FAULTS = (
    "Power Overload",
    "Main Power Fault",
    "Power Control Fault",
    "Drive Fault",
    "Cooling/Fan Fault",
)
_PERCENT = re.compile(r"(\d+) ?%")
CHECK = "ipmi.sensors"
SENSOR_LIMIT = 60.0  # seconds: hundreds of sensors over a controller that answers in 0.1 s
# States of `ipmitool sdr list full` that are no fault: in order, not read, no reading.
_SOUND = ("ok", "ns", "na", "")
NEEDS = Needs("root", "/dev/ipmi0 is root's")


class EventLog(Struct, frozen=True):
    """The controller's log; `used` in percent, None where the controller does not say it."""

    entries: int
    used: int | None
    overflow: bool


class Sensor(Struct, frozen=True):
    """A sensor that is not in order: `state` is cr, nc or nr (critical, not, not recoverable)."""

    name: str
    reading: str
    state: str


def _refused(answer: Any) -> Absent | None:
    """Return why ipmitool could not ask the controller, None where it did."""
    if isinstance(answer, Absent):
        if answer.reason == "missing_tool":
            return Absent("not_applicable", "ipmitool is not installed")
        return answer
    text = answer["err"]
    if answer["code"] == 0:
        return None
    if "Permission denied" in text or "Operation not permitted" in text:
        return Absent("denied", text.strip().splitlines()[0])
    if "Could not open device" in text:
        return Absent("not_applicable", "there is no management controller that can be asked")
    return Absent("garbled", f"ipmitool ended with {answer['code']}: {text.strip():.80}")


def _rows(text: str) -> dict[str, str]:
    """Return what stands behind the first colon of each line, by what stands before it."""
    rows = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in rows if colon}


def parse_chassis(answer: Any) -> tuple[str, ...] | Absent:
    """Return the faults of the chassis, none where it is sound."""
    refused = _refused(answer)
    if refused is not None:
        return refused
    rows = _rows(answer["out"])
    values = {name: rows[name] for name in FAULTS}
    if not set(values.values()) <= {"true", "false"}:
        raise ValueError("this is no status of a chassis")
    return tuple(name for name, value in values.items() if value == "true")


def parse_log(answer: Any) -> EventLog | Absent:
    """Return the state of the event log, from `ipmitool sel info`.

    «Percent Used» is «18%», or «unknown» where the controller does not say how large its log is.
    """
    refused = _refused(answer)
    if refused is not None:
        return refused
    rows = _rows(answer["out"])
    percent = _PERCENT.match(rows.get("Percent Used", ""))
    used = int(percent[1]) if percent else None
    return EventLog(int(rows["Entries"]), used, rows.get("Overflow", "false") == "true")


def parse_sensors(answer: Any = None) -> tuple[Sensor, ...] | Absent:
    """Return the sensors that are not in order, from `ipmitool sdr list full`.

    «FAN1 | 5880 RPM | ok» is one in order. Absent where the inventory does not ask for sensors.
    """
    if answer is None:
        return Absent("not_applicable", "the inventory does not ask for sensors")
    refused = _refused(answer)
    if refused is not None:
        return refused
    sensors = []
    for line in answer["out"].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 3:
            raise ValueError(f"this is no sensor: {line!r:.80}")
        name, reading, state = cells[:3]
        if state not in _SOUND:
            sensors.append(Sensor(name, reading, state))
    return tuple(sensors)


def _sensor_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return the read of all sensors, which takes seconds, where the inventory asks for it."""
    if node.require.get(CHECK) is None:
        return ()
    return (Read("alone", ("ipmitool", "sdr", "list", "full"), SENSOR_LIMIT),)


CHASSIS = Fact(
    "ipmi.chassis",
    command("ipmitool", "chassis", "status"),
    parse_chassis,
    lenient=True,
    needs=NEEDS,
    costly=("command",),
)
EVENT_LOG = Fact(
    "ipmi.log",
    command("ipmitool", "sel", "info"),
    parse_log,
    lenient=True,
    needs=NEEDS,
    moves=True,
    costly=("command",),
)
SENSORS = Fact(
    "ipmi.sensors",
    _sensor_reads,
    parse_sensors,
    lenient=True,
    needs=NEEDS,
    moves=True,
    costly=("alone",),
)
