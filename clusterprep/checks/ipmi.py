"""Judges what the management controller says of power, fans and its own log."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    passed,
    unknown,
)
from clusterprep.facts.ipmi import EventLog, Sensor
from clusterprep.model import Absent, Node
from clusterprep.remedies import sentence, shell_line

MOST_USED = 40  # percent of the event log: a full one takes no new event
REQUIRED = "ok"
SENSORS = "ipmi.sensors"
SAVE = shell_line("ipmitool sel elist   # keep it, then: ipmitool sel clear")
LOOK = shell_line("ipmitool sdr elist; ipmitool sel elist | tail")


def sensors(
    context: CheckContext, node: Node, faults: tuple[str, ...], log: EventLog
) -> Iterable[Outcome]:
    """Judge the chassis, the event log, and where the inventory asks for them all sensors."""
    is_well = True
    if faults:
        is_well = False
        message = "the management controller reports a fault of the hardware"
        yield failed(node, message, ", ".join(faults), "no fault", LOOK)
    if log.overflow or (log.used is not None and log.used >= MOST_USED):
        is_well = False
        seen = "it overflowed" if log.overflow else f"{log.used} % used"
        message = "the controller's event log is nearly full, and a full one takes no new event"
        wanted = f"less than {MOST_USED} %"
        yield failed(node, message, seen, wanted, SAVE)
    if context.wanted(node) is not None:
        found = context.value(node, SENSORS)
        outcome = _judge_sensors(node, found)
        if outcome is not None:
            is_well = False
            yield outcome
    if is_well:
        yield passed(node, "the management controller reports no fault")


def _judge_sensors(node: Node, found: tuple[Sensor, ...] | Absent) -> Outcome | None:
    if isinstance(found, Absent):
        return unknown(node, "the sensors are not known", found.reason)
    if not found:
        return None
    parts = [f"{sensor.name} {sensor.reading} ({sensor.state})" for sensor in found[:8]]
    if len(found) > len(parts):
        parts.append(f"and {len(found) - len(parts)} more")
    message = "sensors are out of their limits"
    return failed(node, message, ", ".join(parts), "ok", LOOK)


def parse_ok(text: str) -> object:
    """Accept «ok» as what is required. Raises ValueError for anything else."""
    if text != REQUIRED:
        raise ValueError(f"expected ok; seen '{text}'")
    return text


CHECK = Check(
    "ipmi.sensors",
    facts=("ipmi.chassis", "ipmi.log"),
    uses=(SENSORS,),
    judge=each(sensors, "ipmi.chassis", "ipmi.log"),
    severity="warning",
    title="Power, fans and the controller's log",
    why="A dead fan or power supply slows the GPUs down or takes the node with it, and a full "
    "event log hides why.",
    how="`ipmitool chassis status`: no fault of power, drives and cooling; `ipmitool sel info`: "
    "less than 40 % used. `require: {ipmi.sensors: ok}` asks for every sensor too, which takes "
    "seconds. Skipped without ipmitool or a management controller.",
    remedy=sentence("replace what is faulty; `ipmitool sdr elist` names it"),
    wants=parse_ok,
    proof=Proof(
        "ipmi.chassis",
        lambda faults: ("Cooling/Fan Fault",),
        machine={
            "commands": {
                "ipmitool chassis status": "System Power         : on\n"
                "Power Overload       : false\nPower Interlock      : inactive\n"
                "Main Power Fault     : false\nPower Control Fault  : false\n"
                "Power Restore Policy : always-off\nLast Power Event     : command\n"
                "Chassis Intrusion    : inactive\nFront-Panel Lockout  : inactive\n"
                "Drive Fault          : false\nCooling/Fan Fault    : false\n",
                "ipmitool sel info": "SEL Information\n"
                "Version          : 1.5 (v1.5, v2 compliant)\n"
                "Entries          : 187\nFree Space       : 13008 bytes\n"
                "Percent Used     : 18%\nLast Add Time    : 01/01/1970 01:56:22\n"
                "Last Del Time    : Not Available\nOverflow         : false\n"
                "Supported Cmds   : 'Delete' 'Reserve'\n",
            }
        },
    ),
)
