"""Bisect on real hosts: nodes and pairs at fault are found within the runs that were stated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Answer, clusterprep
from tests.support.lab import Lab

pytestmark = pytest.mark.hosts
PROGRAM = str(Path(__file__).with_name("programs") / "meets.py")


def bisect(lab: Lab, *words: str) -> Answer:
    """Run a bisect of the program; nothing of it is left on any host."""
    inventory = lab.inventory(nproc_per_node=1)
    found = clusterprep(lab, "bisect", "--direct", *words, inventory=inventory, timeout=600)
    assert all(host.processes("bisect/programs") == [] for host in lab.hosts)
    return found


def culprits(found: Answer) -> list[tuple[str, list[str]]]:
    return [(row["kind"], row["nodes"]) for row in found.report["bisect"]["culprits"]]


def stated(found: Answer) -> dict[str, int]:
    """The numbers of runs that were stated before the first one."""
    numbers = re.search(r"at most (\d+) runs if one .* at fault, (\d+) for two", found.stderr)
    assert numbers is not None
    return {"one": int(numbers[1]), "two": int(numbers[2])}


def runs(found: Answer) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = found.report["bisect"]["runs"]
    return rows


def test_a_node_that_fails_is_found(lab4: Lab) -> None:
    found = bisect(lab4, "--", PROGRAM, "0", "fails=n3")
    assert (found.code, culprits(found)) == (1, [("node", ["n3"])]), found.stderr
    assert len(runs(found)) <= stated(found)["one"]
    assert "n3 does not like n3" in runs(found)[0]["cause"] or runs(found)[0]["cause"]
