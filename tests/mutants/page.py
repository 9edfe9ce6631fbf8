"""docs/mutants.md, as a run of mutants came out."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.mutants.drawing import Place


@dataclass(frozen=True)
class Result:
    """A mutant that was tried: the lines that it takes away and adds, each with its sign, and how it ended."""

    place: Place
    change: str
    outcome: str


def change(before: str, after: str) -> str:
    """The lines that differ, as a diff has them."""
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "\n".join(row[0] + " " + row[1:].strip() for row in list(rows)[2:] if row[0] in "+-")


def table(results: Sequence[Result], there: Mapping[str, int]) -> str:
    lines = []
    for path in there:
        ends = Counter(result.outcome for result in results if result.place.path == path)
        lines.append(row(f"`{path}`", there[path], ends))
    return "\n".join(lines + [row("together", sum(there.values()), Counter(r.outcome for r in results))])


def row(name: str, there: int, ends: Counter[str]) -> str:
    dead = ends["killed"] + ends["timed out"]
    return f"| {name} | {there} | {ends.total()} | {ends['killed']} | {ends['timed out']} | {ends['alive']} | {dead / max(1, ends.total()):.0%} |"


def write(*_: object) -> None: ...
