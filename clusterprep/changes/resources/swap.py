"""No swap: the areas in use are switched off, and /etc/fstab brings none at the next boot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.facts.memory import FREE, FreeMemory, parse_swaps
from clusterprep.model import Inventory, Read
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write
from clusterprep.model.units import format_size

FSTAB = "/etc/fstab"
OFF = b"# switched off by clusterprep apply: "
LIMIT = 900.0  # seconds; what was moved to a disk is read back page by page
SPARE = 1 << 30  # bytes that stay free when all of it is back in memory
# A line with a file system of type swap, fstab(5).
_LINE = re.compile(rb"\s*[^#\s]\S*\s+\S+\s+swap(\s|$)")


class SwapArea(Struct, frozen=True):
    """One area; `used` in bytes, `priority` as swapon(8) takes it, below 0 the kernel's own."""

    path: str
    used: int
    priority: int


def parse_areas(text: str | None) -> tuple[SwapArea, ...]:
    """Return the areas of /proc/swaps."""
    areas = []
    rows = [] if text is None else [row for row in text.splitlines()[1:] if row.strip()]
    for swap, row in zip(parse_swaps(text), rows, strict=True):
        areas.append(SwapArea(swap.name, swap.used, int(row.split()[-1])))
    return tuple(areas)


AREAS = Fact(
    "swap:areas",
    lambda node, inventory: (Read("file", ("/proc/swaps",)),),
    parse_areas,
)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (AREAS, FREE)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (FSTAB,)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("swap", ""),)


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    areas: tuple[SwapArea, ...] = context.facts[AREAS.name]
    _refuse(areas, context.facts[FREE.name])
    operations: list[Operation] = [_switch_off(area) for area in areas]
    changes = [f"{area.path} off" for area in areas]
    content = context.files[FSTAB].content or b""
    kept = without_swap(content)
    if kept != content:
        operations.append(Write(FSTAB, content, kept))
        changes.append(f"none in {FSTAB}")
    node = context.node.name
    yield StepAction(
        node,
        "swap",
        "swap",
        "update",
        tuple(operations),
        ", ".join(changes),
    )


def _refuse(areas: Sequence[SwapArea], free: FreeMemory) -> None:
    """Raise NoPlan where the areas cannot go, or would be back after the next boot."""
    used = sum(area.used for area in areas)
    if used and used + SPARE > free.available:
        raise NoPlan(
            "cannot",
            f"{format_size(used)} are in swap, and {format_size(free.available)} of memory are "
            "left: end what uses the memory first",
        )
    for area in areas:
        if area.path.endswith(" (deleted)"):
            raise NoPlan("cannot", f"{area.path}: the file is gone, so only a reboot ends its use")
        if area.path.startswith("/dev/zram"):
            message = f"{area.path} is made again at every boot by what set up zram: remove that"
            raise NoPlan("cannot", message)


def _switch_off(area: SwapArea) -> RunCommand:
    priority = ("-p", str(area.priority)) if area.priority >= 0 else ()
    undo = RunCommand(("swapon", *priority, "--", area.path), LIMIT)
    run = RunCommand(("swapoff", "--", area.path), LIMIT, halfway=False)
    return replace(run, undo=(undo,))


def without_swap(content: bytes) -> bytes:
    """Return fstab with its lines of swap as comments. Every other byte stays."""
    lines = []
    for line in content.splitlines(keepends=True):
        lines.append(OFF + line if _LINE.match(line) else line)
    return b"".join(lines)


RESOURCE = StepResource("swap", plan, facts=facts, paths=paths, parts=parts, texts=True)
