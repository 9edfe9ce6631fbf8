"""Tests of `clusterprep launch`, and what other tests want of its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.command import Answer

PROGRAMS = Path(__file__).with_name("programs")
TABLE = str(PROGRAMS / "table.py")


def tables(found: Answer) -> list[dict[str, Any]]:
    """What each rank said of itself, by rank, from the log of that rank."""
    folder = Path(found.report["launch"]["logs"])
    logs = [
        (folder / f"rank-{row['rank']}.log").read_text() for row in found.report["launch"]["ranks"]
    ]
    return [
        json.loads(line.partition("table ")[2])
        for log in logs
        for line in log.splitlines()
        if "table {" in line
    ]
