"""Reads what NCCL's RAS says of ranks that are behind. Pure.

The text is that of src/ras/client_support.cc, NCCL 2.24 and later. Ranks are numbered within a
communicator there, so the process and the address of its node tell who is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

_GROUP = re.compile(r"^  (\d+) ranks? have (?:launched|not launched|status)", re.IGNORECASE)
_RANK = re.compile(r"^  Rank \d+ .*managed by process (\d+) on node (\S+)")
_DEAD = re.compile(r"^  Process (\d+) on node (\S+) managing")
_SAID = ("has launched", "has not launched", "has status")


class Outlier(Struct, frozen=True):
    """A process that differs from most, and the line that says so."""

    pid: int
    address: str
    text: str


def outliers(answer: str) -> Iterator[Outlier]:
    """Yield the processes that NCCL lists one by one: those that differ, are dead or silent."""
    group = ""
    for line in answer.splitlines():
        if _GROUP.match(line):
            group = line.strip()
            continue
        match = _RANK.match(line) or _DEAD.match(line)
        if match is None:
            if line.strip() and not line.startswith("  Rank"):
                group = ""
            continue
        text = line.strip()
        if group and not any(words in text for words in _SAID):
            text = f"{text}; {group}"
        yield Outlier(int(match[1]), match[2].partition("<")[0], text)
