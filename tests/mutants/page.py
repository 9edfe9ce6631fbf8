"""docs/why/mutants.md, as a run of mutants came out."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.core import Part
from tests.mutants.drawing import Place
from tests.mutants.trying import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "why" / "mutants.md"
OTHER = "Another draw: "  # how the line begins that a run with another seed renews
ENDS = ("killed", "timed out", "alive")

HEAD = """\
# Mutants: whether a fault in the core is found

Written by `make test-mutants`. A mutant is the source with one small fault planted in it: `<`
becomes `<=`, `and` becomes `or`, an argument is left out, a value is None. The tests of that module
are then run, and one of them must fail. A mutant that passes all of them is *alive*: the tests
would not notice such a fault.

* Only modules whose results are trusted without a further check are mutated: a fault there is a
  wrong verdict, a wrong value, a wrong blame or a lost file. They are named below, and with their
  tests in `tests/mutants/core.py`.
* Each mutant is tried only with the tests of its module, without tests that need hosts, torch or
  minutes.
* *Timed out*: the tests did not end within {patience} times the CPU seconds that they need, and
  {patience} more. These mutants count as found.
* *Alive*: all others. Some of them change nothing that can be observed (*equivalent*); no test can
  find these.
* Types, imports, decorators and messages for people are not mutated.
* Mutants that were alive in an earlier draw by this seed got tests if they matter. So another draw
  says more about the mutants that were never drawn.
"""
RUN = """\
`make test-mutants ARGS='--seed 2'` draws others. `.venv/bin/python -m tests.mutants --only
verify/pace --draw 40` tries more of one module and leaves this page as it is. A mutant cannot write
outside its copy of the checkout (Landlock, so Linux 6.2 or newer).
"""


@dataclass(frozen=True)
class Result:
    """A mutant that was tried: the lines that it takes away and adds, and how its tests ended."""

    place: Place
    change: str
    outcome: str


@dataclass(frozen=True)
class Run:
    """All that were drawn by a seed, of how many mutants of each module, made by whose rules."""

    seed: int
    rules: str
    there: Mapping[str, int]
    results: Sequence[Result]


def text(run: Run, parts: Sequence[Part], reasons: Mapping[str, str], other: str) -> str:
    """The page; `other` is what another seed gave."""
    alive = [result for result in run.results if result.outcome == "alive"]
    known = sum(result.change in reasons for result in alive)
    return "\n".join(
        [
            HEAD.format(patience=PATIENCE),
            (
                f"Drawn by seed {run.seed}, made by the rules of {run.rules}: "
                f"{found(run.results)} were found."
            ),
            f"Of the {len(alive)} that are alive {known} are equivalent.",
            other or f"{OTHER}none yet.",
            "",
            RUN,
            table(parts, run.there, run.results),
            "",
            "## Alive",
            "",
            survivors(alive, reasons),
        ]
    )


def change(before: str, after: str) -> str:
    """The lines that differ, as a diff has them."""
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "\n".join(f"{row[0]} {row[1:].strip()}" for row in list(rows)[2:] if row[0] in "+-")


def found(results: Iterable[Result]) -> str:
    """How many were found: «241 of 300 (80 %)», rounded down."""
    ends = Counter(result.outcome for result in results)
    dead = ends.total() - ends["alive"]
    return f"{dead} of {ends.total()} ({100 * dead // max(1, ends.total())} %)"


def table(parts: Sequence[Part], there: Mapping[str, int], results: Sequence[Result]) -> str:
    """A row for each module, one for each part, and one for all together."""
    lines = [
        "| module | mutants | drawn | killed | timed out | alive | found |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for part in parts:
        paths = [module.path for module in part.modules if module.path in there]
        if not paths:
            continue
        lines += [_row(f"`{path}`", [path], there, results) for path in paths]
        lines.append(_row(f"**{part.name}**: {part.wrong}", paths, there, results))
    lines.append(_row("**all together**", [*there], there, results))
    return "\n".join(lines)


def _row(name: str, paths: list[str], there: Mapping[str, int], results: Sequence[Result]) -> str:
    ends = Counter(result.outcome for result in results if result.place.path in paths)
    mutants = sum(there[path] for path in paths)
    dead = ends.total() - ends["alive"]
    share = f"{100 * dead // ends.total()} %" if ends.total() else "–"
    counts = " | ".join(str(ends[end]) for end in ENDS)
    return f"| {name} | {mutants} | {ends.total()} | {counts} | {share} |"


def survivors(alive: Sequence[Result], reasons: Mapping[str, str]) -> str:
    """What is alive: where, which line became which, and why no test finds it if known."""
    blocks = []
    for result in alive:
        why = reasons.get(result.change)
        reason = f": equivalent, {why}" if why else ""
        blocks.append(
            f"`{result.place.path}`, {result.place.function or 'module'}{reason}\n\n"
            f"```diff\n{result.change}\n```\n"
        )
    return "\n".join(blocks)


def other_draw(page: str) -> str:
    """What the page says of another seed; nothing where it says nothing."""
    return next((line for line in page.splitlines() if line.startswith(OTHER)), "")


def with_other_draw(page: str, run: Run) -> str:
    """The page with what this run found in that line."""
    return page.replace(
        other_draw(page), f"{OTHER}by seed {run.seed} {found(run.results)} were found."
    )
