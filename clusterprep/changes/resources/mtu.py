"""The MTU of a network interface, until the network is configured anew."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.model import Inventory, Read
from clusterprep.model.operations import RunCommand, StepAction

LIMIT = 30.0  # seconds
SMALLEST, LARGEST = 68, 65535  # bytes; IPv4 takes no smaller one, and no packet is longer
# The kernel takes more characters, but these are what tools write (dev_valid_name in net/core).
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,14}", re.ASCII)


def parse_mtu(text: str | None) -> int | None:
    """Return the MTU of an interface, None where there is no such interface."""
    return None if text is None else int(text)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    interface = str(params["interface"])
    reads = (Read("file", (f"/sys/class/net/{interface}/mtu",)),)
    return (Fact(f"mtu:{interface}", lambda node, _: reads, parse_mtu),)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((f"MTU of {params['interface']}", ""),)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    if not _INTERFACE.fullmatch(str(params["interface"])):
        yield "interface", "expected the name of a network interface, such as eth0"
    if _size(params["size"]) is None:
        yield "size", f"expected an MTU from {SMALLEST} to {LARGEST}; seen '{params['size']}'"


def _size(value: Any) -> int | None:
    text = str(value)
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST))):
        return None
    return int(text) if SMALLEST <= int(text) <= LARGEST else None


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    interface = str(params["interface"])
    wanted = int(params["size"])
    present: int | None = context.facts[f"mtu:{interface}"]
    if present is None:
        raise NoPlan("cannot", f"this node has no interface {interface}")
    operations: tuple[RunCommand, ...] = ()
    diff = ""
    if present != wanted:
        run = _set(interface, wanted)
        operations = (replace(run, undo=(_set(interface, present),)),)
        diff = f"{present} → {wanted}, until the network is configured anew"
    yield StepAction(
        context.node.name,
        "mtu",
        interface,
        "update",
        operations,
        diff,
    )


def _set(interface: str, size: int) -> RunCommand:
    argv = ("ip", "link", "set", "dev", interface, "mtu", str(size))
    return RunCommand(argv, LIMIT, halfway=False)


RESOURCE = StepResource("mtu", plan, facts=facts, parts=parts, wrong=wrong, texts=True)
