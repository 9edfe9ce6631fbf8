"""The offset of the node's clock from the controller's, and what keeps the clock right."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Node, Read

_SOURCES = "/sys/devices/system/clocksource/clocksource0"
# Leap status of a chronyd that follows a source.
FOLLOWING = ("Normal", "Insert second", "Delete second")
# Reference ids of chronyd without a source: its local clock, and none at all.
_NO_REFERENCE = ("7F7F0101", "00000000")
_CHRONYC = ("chronyc", "-n", "-c", "tracking")
# Not asked where chronyd answers: it starts a service of systemd's on the node.
_TIMEDATECTL = ("timedatectl", "show", "-p", "NTP", "-p", "NTPSynchronized")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Offset(Struct, frozen=True):
    """Node clock minus controller clock in seconds, and the most by which this can be wrong."""

    seconds: float
    bound: float


class Daemon(Struct, frozen=True):
    """The daemon that synchronises the clock.

    `synchronised` is None where it does not report it.
    """

    name: str | None
    synchronised: bool | None
    source: str = ""


class ClockSource(Struct, frozen=True):
    """What the kernel reads the time from, and what else it could use.

    A source it found unstable is not among them.
    """

    current: str
    available: tuple[str, ...] = ()


def parse_daemon(chronyc: Any, timedatectl: Any) -> Daemon | Absent:
    """Return what chrony reports, else what systemd reports; Absent where neither tool answers.

    `timedatectl` is None where chrony answered.
    """
    if isinstance(chronyc, dict) and chronyc["code"] == 0:
        return _chrony(chronyc["out"])
    if isinstance(timedatectl, dict) and timedatectl["code"] == 0:
        return _systemd(timedatectl["out"])
    for answer in (chronyc, timedatectl):
        if isinstance(answer, Absent) and answer.reason != "missing_tool":
            return answer
    if isinstance(chronyc, dict):  # chronyc is installed and finds no chronyd
        return Daemon(None, False, _error_text(chronyc))
    if isinstance(timedatectl, dict):
        # timedatectl needs systemd as process 1, and knows nothing of other daemons that keep time.
        message = f"no chronyc, and timedatectl says: {_error_text(timedatectl)}"
        return Absent("missing_tool", message)
    return Absent("missing_tool", "neither chronyc nor timedatectl is there")


def parse_source(current: str | None, available: str | None) -> ClockSource | Absent:
    """Parse both files of the kernel's list of clock sources."""
    if current is None:
        return Absent(
            "the kernel does not say which clock source it uses", "no clocksource0 in /sys"
        )
    name = current.strip()
    if not re.fullmatch(r"[\w-]+", name, re.ASCII):
        raise ValueError(f"'{name}' names no clock source")
    others = (available or "").split()
    return ClockSource(name, tuple(others))


def _error_text(answer: dict[str, Any]) -> str:
    """Return the words of a tool without colours, which old releases of systemd always print."""
    output = _COLOUR.sub("", str(answer["err"] or answer["out"]))
    return " ".join(output.split())[:120]


def _chrony(text: str) -> Daemon:
    """Parse `chronyc -c tracking`: reference id, name, stratum, …, and the leap status last."""
    fields = text.strip().split(",")
    reference, name = fields[:2]
    stratum = int(fields[2])
    leap_status = fields[-1]
    has_reference = reference not in _NO_REFERENCE
    synchronised = leap_status in FOLLOWING and 0 < stratum < 16 and has_reference
    return Daemon("chronyd", synchronised, name)


def _systemd(text: str) -> Daemon:
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    name = None
    if values["NTP"] == "yes":
        name = "systemd-timesyncd"
    return Daemon(name, values["NTPSynchronized"] == "yes")


def _source_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    current = Read("file", (f"{_SOURCES}/current_clocksource",))
    available = Read("file", (f"{_SOURCES}/available_clocksource",))
    return (current, available)


OFFSET = Fact("clock.offset", stage="clock", moves=True)
DAEMON = Fact(
    "clock.daemon",
    lambda node, inventory: (
        Read("command", _CHRONYC, limit=4.0),
        Read("otherwise", (_CHRONYC, _TIMEDATECTL), limit=4.0),
    ),
    parse_daemon,
    lenient=True,
    costly=("command", "otherwise"),
)
SOURCE = Fact("clock.source", _source_reads, parse_source)
