"""Faults of the chassis, a log that is nearly full, and sensors that the inventory asks for."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.ipmi import EventLog, Sensor
from tests.support.fleet import absent, findings, fleet, told

LOG = EventLog(187, 18, overflow=False)
FAN = Sensor("FAN7", "0 RPM", "cr")


def node(faults: Any = (), log: Any = LOG, sensors: Any = ()) -> dict[str, Any]:
    return {"ipmi.chassis": faults, "ipmi.log": log, "ipmi.sensors": sensors}


@pytest.mark.parametrize(
    ("facts", "required", "expected"),
    [
        pytest.param(node(), None, "pass", id="sound"),
        pytest.param(node(("Cooling/Fan Fault",)), None, "fail warning", id="a-fan"),
        pytest.param(node(log=EventLog(1, 39, overflow=False)), None, "pass", id="39-percent"),
        pytest.param(
            node(log=EventLog(1, 40, overflow=False)), None, "fail warning", id="40-percent"
        ),
        pytest.param(
            node(log=EventLog(1, None, overflow=True)), None, "fail warning", id="overflow"
        ),
        pytest.param(node(log=EventLog(1, None, overflow=False)), None, "pass", id="no-size"),
        pytest.param(node(sensors=(FAN,)), None, "pass", id="sensors-are-not-asked-for"),
        pytest.param(node(sensors=(FAN,)), "ok", "fail error", id="a-sensor"),
        pytest.param(node(), "ok", "pass", id="all-sensors-are-well"),
        pytest.param(
            node(sensors=absent("timed_out")), "ok", "unknown error timed_out", id="slow-sensors"
        ),
        pytest.param(
            node(absent("not_applicable"), absent("not_applicable")),
            None,
            "skip not_applicable",
            id="no-controller",
        ),
        pytest.param(
            node(absent("denied"), absent("denied")), None, "unknown warning denied", id="denied"
        ),
    ],
)
def test_the_management_controller(
    facts: dict[str, Any], required: str | None, expected: str
) -> None:
    each = {"require": {"ipmi.sensors": required}} if required else {}
    assert told(fleet(each=each, n1=facts), "ipmi.sensors") == {"n1": expected}


def test_the_first_sensors_are_named_and_the_others_counted() -> None:
    many = tuple(Sensor(f"FAN{number}", "0 RPM", "cr") for number in range(10))
    seen = fleet(each={"require": {"ipmi.sensors": "ok"}}, n1=node(sensors=many))
    (finding,) = findings(seen, "ipmi.sensors")
    assert finding.seen.startswith("FAN0 0 RPM (cr), FAN1 0 RPM (cr)")
    assert finding.seen.endswith("FAN7 0 RPM (cr), and 2 more")
