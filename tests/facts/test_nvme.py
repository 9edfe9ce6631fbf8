"""NVMe disks and their SMART logs as nvme-cli and smartctl print them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterprep.facts.nvme import EMPTY, Health, parse_health
from clusterprep.model import Absent
from tests.support.fleet import learned

# nvme-cli 1.x, `nvme smart-log -o json` of a disk, as its issues show it; numbers of 128 bits are
# floats or texts there.
NVME_1 = (
    '{"critical_warning":0,"temperature":310,"avail_spare":100,"spare_thresh":10,'
    '"percent_used":1,"data_units_read":31277462,"data_units_written":66190213,'
    '"power_cycles":47,"power_on_hours":5128,"unsafe_shutdowns":22,"media_errors":0,'
    '"num_err_log_entries":8,"warning_temp_time":0,"critical_comp_time":0}'
)
# nvme-cli 2.x: the warning is an object in the verbose form.
NVME_2 = (
    '{"critical_warning":{"value":4,"available_spare":0,"temp_threshold":0,'
    '"reliability_degraded":1,"ro":0,"vmbu_failed":0,"pmr_ro":0},"temperature":312,'
    '"avail_spare":97,"spare_thresh":10,"percent_used":83,"media_errors":"129"}'
)
# smartctl 7.4 --json: the object that several projects parse.
SMARTCTL = """\
{"smartctl": {"exit_status": 0}, "smart_status": {"passed": true},
 "nvme_smart_health_information_log": {"critical_warning": 0, "temperature": 35,
  "available_spare": 100, "available_spare_threshold": 99, "percentage_used": 2,
  "media_errors": 0, "num_err_log_entries": 0, "unsafe_shutdowns": 35,
  "data_units_read": 180246471, "data_units_written": 85848679}}
"""


@pytest.mark.parametrize(
    ("text", "health"),
    [(NVME_1, Health(0, 1, 0)), (NVME_2, Health(4, 83, 129)), (SMARTCTL, Health(0, 2, 0))],
)
def test_the_health_of_a_disk(text: str, health: Health) -> None:
    assert parse_health(json.loads(text)) == health


@pytest.mark.parametrize(
    "log", [{}, {"critical_warning": 0}, {"critical_warning": True, "percent_used": 0}]
)
def test_a_log_without_numbers_is_refused(log: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_health(log)


def answer(tool: str | None, health: Any = None, transport: str | None = "pcie") -> Any:
    texts = {
        "model": "SAMSUNG MZQL23T8HCLS-00A07",
        "serial": "S64HNE0T000001",
        "firmware_rev": "GDC5902Q",
        "state": "live",
        "transport": transport,
    }
    told = {} if health is None else {"nvme0": health}
    return ["ok", {"disks": {"nvme0": texts}, "tool": tool, "health": told}]


DENIED = "Permission denied\n"  # what nvme prints for another user than root


@pytest.mark.parametrize(
    ("given", "health"),
    [
        (answer("nvme", ["ok", {"code": 0, "out": NVME_1, "err": ""}]), Health(0, 1, 0)),
        (answer(None), Absent("missing_tool", "neither nvme nor smartctl is installed")),
        (
            answer("nvme", ["ok", {"code": 1, "out": "", "err": DENIED}]),
            Absent("denied", "nvme may not ask the disk"),
        ),
        (
            answer("nvme", ["ok", {"code": 1, "out": "", "err": "identify failed\n"}]),
            Absent("garbled", "nvme ended with 1: identify failed"),
        ),
        (answer("nvme", ["no", "denied", "x"]), Absent("denied", "x")),
    ],
)
def test_why_the_health_is_not_known(given: Any, health: Any) -> None:
    (disk,) = learned("disk.nvme", given)
    assert disk.health == health
    assert (disk.name, disk.state) == ("nvme0", "live")


@pytest.mark.parametrize(
    "log",
    [
        {"critical_warning": 0, "temperature": 0, "percent_used": 0, "media_errors": 0},
        {
            "nvme_smart_health_information_log": {
                "critical_warning": 0,
                "temperature": -273,
                "percentage_used": 0,
                "media_errors": 0,
            }
        },
    ],
    ids=["kelvin", "celsius"],
)
def test_a_log_that_was_never_filled_in_says_nothing(log: Any) -> None:
    assert parse_health(log) == EMPTY


def test_a_disk_behind_a_network_is_none_of_the_node() -> None:
    assert learned("disk.nvme", answer("nvme", transport="tcp")) == ()


def test_a_name_that_is_none_is_garbled() -> None:
    given = answer(None)
    given[1]["disks"] = {"nvme0; reboot": given[1]["disks"]["nvme0"]}
    assert learned("disk.nvme", given).reason == "garbled"
