"""Runs the pure tests on every supported Python with its dependencies at both ends of their bounds.

`make test-bounds` starts it. Each run has a virtual environment of its own in .venv-bounds, and a
log beside it. A run that fails ends none of the others: one table at the end shows all of them.

Every Python runs with the newest releases, which is what users install. The lowest releases run on
the oldest and the newest Python alone: what an old release lacks for a Python in between, it lacks
for the newest one too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.support.totals import OUTCOMES, VARIABLE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".venv-bounds"
PYTHONS = "3.10 3.11 3.12 3.13"
LOWEST, NEWEST = "lowest", "newest"
CONSTRAINTS = "lowest.txt"
PASSED = "passed"
COLUMNS = ("Python", "bounds", *OUTCOMES, "seconds", "result")
SHOWN = 20  # failed tests per run; the log has all of them
# Says which Python it is, if it can make virtual environments. A shim of pyenv may be on PATH and
# run nothing.
PROBE = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"


@dataclass(frozen=True)
class Run:
    """One Python with one end of the bounds, and how it ended."""

    python: str
    end: str
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    result: str = ""

    @property
    def name(self) -> str:
        return f"{self.python}-{self.end}"

    def row(self) -> tuple[str, ...]:
        counts = (str(self.counts.get(outcome, "-")) for outcome in OUTCOMES)
        return (self.python, self.end, *counts, f"{self.seconds:.0f}", self.result)


def main(words: Sequence[str]) -> int:
    """Run the tests with these arguments of pytest.

    Return 0 if all runs passed, 1 if not, 2 if a Python is missing.
    """
    versions = (os.environ.get("PYTHONS") or PYTHONS).split()
    found = {version: find(version, candidates(version, Path.home())) for version in versions}
    missing = [version for version, program in found.items() if program is None]
    if missing:
        print(
            f"Not found on PATH or in ~/.pyenv/versions: Python {', '.join(missing)}.\n"
            "Install it with its venv module, or say which ones to test on: "
            "make test-bounds PYTHONS='3.10 3.11'",
            file=sys.stderr,
        )
        return 2
    PLACE.mkdir(exist_ok=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (PLACE / CONSTRAINTS).write_text(
        "".join(f"{line}\n" for line in lowest(project)), encoding="utf-8"
    )
    done = []
    for run in runs(versions):
        print(f"{run.name}: {PLACE / run.name}.log", flush=True)
        done.append(finished(run, str(found[run.python]), words, PLACE))
        for line in failures(
            (PLACE / f"{run.name}.log").read_text(encoding="utf-8", errors="replace")
        ):
            print(f"  {line}", flush=True)
    print(table(done), flush=True)
    return int(any(run.result != PASSED for run in done))


def runs(versions: Iterable[str]) -> list[Run]:
    """Return the runs in the order in which they start."""
    ordered = sorted(versions, key=lambda version: tuple(map(int, version.split("."))))
    ends = {ordered[0], ordered[-1]}
    return [
        Run(version, end)
        for version in ordered
        for end in (LOWEST, NEWEST)
        if end == NEWEST or version in ends
    ]


def lowest(project: Mapping[str, Any]) -> list[str]:
    """Return the lower bounds of what users and tests install, as a constraints file of pip."""
    texts = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["dev"],
    ]
    return [line for line in map(_lowest, map(Requirement, texts)) if line]


def _lowest(wanted: Requirement) -> str:
    """Return the lower bound of one requirement; empty where it is exact already."""
    bounds = [bound.version for bound in wanted.specifier if bound.operator == ">="]
    marker = f" ; {wanted.marker}" if wanted.marker else ""
    return f"{wanted.name}=={bounds[0]}{marker}" if bounds else ""


# ---------------------------------------------------------------- Pythons


def candidates(version: str, home: Path) -> list[str]:
    """Return the programs that may be this Python.

    The one on PATH, then pyenv's, the newest first.
    """
    of_pyenv = home.glob(f".pyenv/versions/{version}.*/bin/python{version}")
    return [f"python{version}", *sorted(map(str, of_pyenv), key=_numbers, reverse=True)]


def _numbers(path: str) -> list[int]:
    release = Path(path).parts[-3]
    return [int(part) for part in release.split(".") if part.isdecimal()]


def find(version: str, programs: Iterable[str]) -> str | None:
    """Return the first program that runs, is this version and can make virtual environments."""
    return next((program for program in programs if _version(program) == version), None)


def _version(program: str) -> str:
    try:
        return subprocess.run(
            [program, "-c", PROBE], capture_output=True, text=True, check=False
        ).stdout.strip()
    except OSError:
        return ""


# ---------------------------------------------------------------- runs


def finished(run: Run, program: str, words: Sequence[str], place: Path) -> Run:
    """Return the run with its outcome.

    The environment made anew, the tests run in it, the log written.
    """
    started = time.monotonic()
    totals = place / f"{run.name}.totals"
    totals.unlink(missing_ok=True)
    environment = {**os.environ, VARIABLE: str(totals)}
    result = PASSED
    with (place / f"{run.name}.log").open("wb") as log:
        for step, command in steps(run, program, words, place):
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False
            ).returncode
            if code:
                result = f"{step}: exit code {code}"
                break
    counts = json.loads(totals.read_text(encoding="utf-8")) if totals.exists() else {}
    return Run(run.python, run.end, counts, time.monotonic() - started, result)


def steps(run: Run, program: str, words: Sequence[str], place: Path) -> list[tuple[str, list[str]]]:
    """Return the commands of a run in order, each with its name."""
    folder = place / run.name
    python = str(folder / "bin" / "python")
    bounds = ["--constraint", str(place / CONSTRAINTS)] if run.end == LOWEST else []
    return [
        ("venv", [program, "-m", "venv", "--clear", str(folder)]),
        ("pip", [python, "-m", "pip", "install", "--quiet", *bounds, "--editable", ".[dev]"]),
        ("pytest", [python, "-m", "pytest", "-p", "no:cacheprovider", *words]),
    ]


def failures(log: str) -> list[str]:
    """Return what pytest's summary says of tests that failed, cut where they are many."""
    failed = [line for line in log.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    more = [f"… and {len(failed) - SHOWN} more"] if len(failed) > SHOWN else []
    return [*failed[:SHOWN], *more]


def table(done: Sequence[Run]) -> str:
    """Return one line per run below the names of the columns."""
    rows = [COLUMNS, *(run.row() for run in done)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
