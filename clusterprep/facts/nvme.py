"""Local NVMe disks: which there are, and what they say of their health."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, Needs
from clusterprep.model import Absent, Read
from clusterprep.remote.untrusted import require_device_name

ABSOLUTE_ZERO = -273  # °C, as smartctl prints it; nvme-cli prints Kelvin
EMPTY = Absent("its SMART log is empty", "the disk says that it is at absolute zero")


class Health(Struct, frozen=True):
    """What a disk's SMART log says (NVM Express base specification, log page 02h).

    `warning` is the critical warning, a bit mask; `used` is the percentage of its life that is
    used, which may pass 100.
    """

    warning: int
    used: int
    media_errors: int


class Disk(Struct, frozen=True):
    """A controller of the local bus.

    `state` is live on one that works. `health` is Absent with the reason where it is not known.
    """

    name: str
    model: str
    serial: str
    state: str | None
    health: Health | Absent


def parse_disks(answer: Mapping[str, Any]) -> tuple[Disk, ...]:
    """Return the disks of the node in the order of their names, without those behind a network."""
    disks = []
    tool = answer["tool"]
    for name, texts in sorted(answer["disks"].items()):
        if texts["transport"] not in (None, "pcie"):
            continue
        disk = Disk(
            require_device_name(name),
            texts["model"] or "",
            texts["serial"] or "",
            texts["state"],
            _health(tool, answer["health"].get(name)),
        )
        disks.append(disk)
    return tuple(disks)


def _health(tool: str | None, answer: Any) -> Health | Absent:
    if tool is None or answer is None:
        return Absent("missing_tool", "neither nvme nor smartctl is installed")
    if answer[0] != "ok":
        return Absent(answer[1], answer[2])
    result = answer[1]
    if "ermission denied" in result["err"] + result["out"]:
        return Absent("denied", f"{tool} may not ask the disk")
    try:
        log = json.loads(result["out"])
        return parse_health(log)
    except (ValueError, KeyError, TypeError):
        why = result["err"].strip() or result["out"].strip()
        return Absent("garbled", f"{tool} ended with {result['code']}: {why:.80}")


def parse_health(log: Mapping[str, Any]) -> Health | Absent:
    """Return the health that `nvme smart-log -o json` or `smartctl -j -A` prints.

    A log with the temperature of absolute zero was never filled in, as by some emulated disks: it
    is Absent.

    nvme-cli calls the life used percent_used, newer releases write the warning as an object with
    its value; smartctl has its own object, with percentage_used.
    """
    own = log.get("nvme_smart_health_information_log")
    if own is not None:
        if own.get("temperature") == ABSOLUTE_ZERO:
            return EMPTY
        return Health(
            _number(own["critical_warning"]),
            _number(own["percentage_used"]),
            _number(own["media_errors"]),
        )
    if log.get("temperature") == 0:
        return EMPTY
    warning = log["critical_warning"]
    if isinstance(warning, Mapping):
        warning = warning["value"]
    used = log["percent_used"] if "percent_used" in log else log["percentage_used"]
    return Health(_number(warning), _number(used), _number(log["media_errors"]))


def _number(value: Any) -> int:
    """Return a count. Counters of 128 bits come as text from some releases."""
    if isinstance(value, bool):
        raise TypeError("a truth value is no number")
    number = int(value)
    if number < 0:
        raise ValueError(f"{number} is no count")
    return number


DISKS = Fact(
    "disk.nvme",
    lambda node, inventory: (Read("nvme", limit=10.0),),
    parse_disks,
    needs=Needs("root", "only root may ask a disk for its health", partly=True),
)
