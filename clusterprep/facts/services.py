"""The systemd units that the inventory requires, and their states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Node, Read

CHECK = "svc.required"
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.@-]*")
# What systemctl prints where systemd is not process 1.
_NO_SYSTEMD = ("not been booted with systemd", "Failed to connect to bus")
_TYPES = (
    ".service",
    ".socket",
    ".timer",
    ".target",
    ".mount",
    ".automount",
    ".path",
    ".slice",
    ".scope",
    ".swap",
)


def parse_units(text: str) -> tuple[str, ...]:
    """Parse names of units such as «sshd, chronyd.service».

    A name without a type is that of a service. Raises ValueError for what is no name.
    """
    units: dict[str, None] = {}
    for name in text.split(","):
        unit = name.strip()
        if _UNIT.fullmatch(unit) is None:
            raise ValueError(
                f"expected names of systemd units such as sshd, chronyd; seen '{text}'"
            )
        units[unit] = None
    return tuple(unit if unit.endswith(_TYPES) else f"{unit}.service" for unit in units)


def parse_states(answer: Mapping[str, Any] | None = None) -> tuple[tuple[str, str], ...] | Absent:
    """Return name and state of each unit, in the order asked.

    States are those of systemd, active, inactive, failed, …, and not-found and masked.
    """
    if answer is None:
        return Absent("not_applicable", "no services are required here")
    errors = answer["err"]
    for message in _NO_SYSTEMD:
        if message in errors:
            return Absent("systemd is not running", errors.strip().splitlines()[0])
    output = answer["out"]
    if answer["code"] != 0 or not output.endswith("\n"):
        raise ValueError(f"systemctl ended with {answer['code']}: {errors.strip()}")
    blocks = output.strip().split("\n\n")
    return tuple(_state(block) for block in blocks)


def _state(block: str) -> tuple[str, str]:
    """Return name and state of the unit that one block of `systemctl show` describes."""
    values = dict(line.split("=", 1) for line in block.splitlines())
    unit = values["Id"]
    loaded = values["LoadState"]
    active = values["ActiveState"]
    if not (loaded and active and unit):
        raise ValueError(f"no state of a unit: {block!r}")
    # A unit that was masked while it ran still runs.
    if loaded in ("not-found", "masked") and active == "inactive":
        return unit, loaded
    return unit, active


def _state_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    required = node.require.get(CHECK)
    if required is None:
        return ()
    units = parse_units(required)
    return (Read("command", ("systemctl", "show", "-p", "Id,LoadState,ActiveState", *units)),)


STATES = Fact("svc.states", _state_reads, parse_states)
