"""The node's clock against the controller's, and what keeps it right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Absent, Read

_SOURCES = "/sys/devices/system/clocksource/clocksource0"
FOLLOWING = (
    "Normal",
    "Insert second",
    "Delete second",
)  # leap status of a chronyd that follows a source


@dataclass(frozen=True, slots=True)
class Offset:
    """Node clock minus controller clock in seconds, and the most by which this can be wrong."""

    seconds: float
    bound: float


@dataclass(frozen=True)
class Daemon:
    """What synchronises the clock: `synchronised` is None where a daemon runs but does not say."""

    name: str | None
    synchronised: bool | None
    source: str = ""


@dataclass(frozen=True)
class ClockSource:
    """What the kernel reads the time from, and what else it could use; a source it found unstable is not among them."""

    current: str
    available: tuple[str, ...] = ()


def parse_daemon(chronyc: Any, timedatectl: Any) -> Daemon | Absent:
    """chrony's own word first, then systemd's; neither tool answering is not knowing."""
    if isinstance(chronyc, dict) and chronyc["code"] == 0:
        return _chrony(chronyc["out"])
    if isinstance(timedatectl, dict) and timedatectl["code"] == 0:
        return _systemd(timedatectl["out"])
    for answer in (chronyc, timedatectl):
        if isinstance(answer, Absent) and answer.reason != "missing_tool":
            return answer
    if isinstance(chronyc, dict):  # it is installed and finds no chronyd
        return Daemon(None, False, _words(chronyc))
    if isinstance(
        timedatectl, dict
    ):  # it needs systemd as process 1, and says nothing about others that keep time
        return Absent("missing_tool", f"no chronyc, and timedatectl says: {_words(timedatectl)}")
    return Absent("missing_tool", "neither chronyc nor timedatectl is there")


def parse_source(current: str | None, available: str | None) -> ClockSource | Absent:
    """Both files of the kernel's list of clock sources."""
    if current is None:
        return Absent(
            "the kernel does not say which clock source it uses", "no clocksource0 in /sys"
        )
    if not re.fullmatch(r"[\w-]+", current.strip(), re.ASCII):
        raise ValueError(f"'{current.strip()}' names no clock source")
    return ClockSource(current.strip(), tuple((available or "").split()))


def _words(answer: dict[str, Any]) -> str:
    return " ".join(str(answer["err"] or answer["out"]).split())[:120]


def _chrony(text: str) -> Daemon:
    # chronyc -c tracking: reference id, name, stratum, …, leap status last. A local clock has id 7F7F0101.
    fields = text.strip().split(",")
    reference, name, stratum, leap = fields[0], fields[1], int(fields[2]), fields[-1]
    synchronised = (
        leap in FOLLOWING and 0 < stratum < 16 and reference not in ("7F7F0101", "00000000")
    )
    return Daemon("chronyd", synchronised, name)


def _systemd(text: str) -> Daemon:
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    active = values["NTP"] == "yes"
    return Daemon("systemd-timesyncd" if active else None, values["NTPSynchronized"] == "yes")


OFFSET = Fact("clock.offset", stage="clock")
DAEMON = Fact(
    "clock.daemon",
    lambda node, inventory: (
        Read("command", ("chronyc", "-n", "-c", "tracking"), limit=4.0),
        Read("command", ("timedatectl", "show", "-p", "NTP", "-p", "NTPSynchronized"), limit=4.0),
    ),
    parse_daemon,
    lenient=True,
)
SOURCE = Fact(
    "clock.source",
    lambda node, inventory: tuple(
        Read("file", (f"{_SOURCES}/{name}_clocksource",)) for name in ("current", "available")
    ),
    parse_source,
)
