"""The systemd units that the inventory requires, and in which state they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Absent, Inventory, Node, Read

CHECK = "svc.required"
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.@-]*")
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
    """«sshd, chronyd.service»: names of units, services where no type is said. ValueError for what is no name."""
    units = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for unit in units:
        if _UNIT.fullmatch(unit) is None:
            raise ValueError(
                f"expected names of systemd units such as sshd, chronyd; seen '{text}'"
            )
    return tuple(unit if unit.endswith(_TYPES) else f"{unit}.service" for unit in units)


def parse_states(answer: Mapping[str, Any] | None = None) -> tuple[tuple[str, str], ...] | Absent:
    """Name and state of each unit, in the order asked: active, inactive, failed, …, or not-found and masked."""
    if answer is None:
        return Absent("not_applicable", "no services are required here")
    if (
        "not been booted with systemd" in answer["err"]
        or "Failed to connect to bus" in answer["err"]
    ):
        return Absent("systemd is not running", answer["err"].strip().splitlines()[0])
    if answer["code"] != 0 or not answer["out"].endswith("\n"):
        raise ValueError(f"systemctl ended with {answer['code']}: {answer['err'].strip()}")
    return tuple(_state(block) for block in answer["out"].strip().split("\n\n"))


def _state(block: str) -> tuple[str, str]:
    values = dict(line.split("=", 1) for line in block.splitlines())
    loaded, active = values["LoadState"], values["ActiveState"]
    if not (loaded and active and values["Id"]):
        raise ValueError(f"no state of a unit: {block!r}")
    # A unit that was masked while it ran still runs.
    return values["Id"], loaded if loaded in (
        "not-found",
        "masked",
    ) and active == "inactive" else active


def _show(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    wanted = node.require.get(CHECK)
    if wanted is None:
        return ()
    return (
        Read(
            "command", ("systemctl", "show", "-p", "Id,LoadState,ActiveState", *parse_units(wanted))
        ),
    )


STATES = Fact("svc.states", _show, parse_states)
