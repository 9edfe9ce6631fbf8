"""Answers of the readers of the kernel's log, made by their own code from lines without a ring."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clusterprep.facts.kernel_log import (
    LOG,
    PHRASES,
    parse_log,
    parse_sxids,
    parse_xids,
)
from clusterprep.model import Absent, Inventory, Node
from clusterprep.remote.agent.kernel_log import Kinds, first_in

NO_JOURNAL = Absent("missing_tool", "journalctl is not there")
GPU = [{"pci": "0000:1b:00.0", "class": "0x030200"}]
SWITCH = [{"pci": "0000:07:00.0", "class": "0x068000"}]
NODE = Node("n1", "10.0.0.1", 0)
RULES = LOG.reads(NODE, Inventory("test", (NODE,)))[0].args[1]
UP = 30 * 86400.0


def kinds_of(lines: Iterable[tuple[float, str]]) -> Kinds:
    """What the agent keeps of lines, each with its seconds."""
    kinds = Kinds(PHRASES, RULES)
    for number, (seconds, text) in enumerate(lines, 1):
        word = first_in(text, PHRASES)
        if word is not None:
            kinds.add(word, number, seconds, 4, text)
    return kinds


def ring_answer(
    *texts: str, age: float = 600.0, up: float = UP, first: Any = (0, 0.0)
) -> dict[str, Any]:
    """The answer of a ring with these lines, a second apart, the newest `age` seconds old."""
    newest = up - age
    lines = [(newest - len(texts) + number, text) for number, text in enumerate(texts, 1)]
    kinds = kinds_of(lines)
    return {"now": up, "first": list(first), "records": kinds.records(), "cut": kinds.cut}


def journal_answer(
    *of_this_boot: tuple[float, str],
    earlier: Iterable[tuple[float, str]] = (),
    up: float = UP,
    reach: float = 7 * 86400.0,
    lines: int = 5000,
) -> dict[str, Any]:
    """The answer of a journal that reaches back `reach` seconds; lines come with their age."""
    clock = 1_800_000_000.0
    records: list[list[Any]] = []
    for mine, found in ((True, of_this_boot), (False, tuple(earlier))):
        kinds = kinds_of((clock - age, text) for age, text in sorted(found, reverse=True))
        for _, seconds, level, count, since, text in kinds.records():
            uptime = up - (clock - seconds) if mine else 100.0
            records.append([mine, seconds, uptime, level, count, since, text])
    return {
        "now": clock,
        "up": up,
        "from": up - reach,
        "lines": lines,
        "records": records,
        "cut": {},
    }


def facts_of(ring: Any, journal: Any = NO_JOURNAL, pci: Any = (*GPU, *SWITCH)) -> dict[str, Any]:
    """The facts that are made of both answers, on a node with GPUs and NVSwitches."""
    rows = list(pci)
    return {
        "log.records": parse_log(ring, journal),
        "gpu.xids": parse_xids(ring, journal, rows),
        "gpu.sxids": parse_sxids(ring, journal, rows),
        "pcie.mlx_cards": ("0000:5c:00.0",),
    }
