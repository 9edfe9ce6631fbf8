"""Plants every fault and prints the table.

`--write` also writes docs/why/faults.md, `--only TEXT` takes some of them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

from tests.faults import STAGES, row, seen, table
from tests.support import real_nccl
from tests.support.lab import Lab

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "why" / "faults.md"


def main() -> int:
    """0 when every fault was found and nobody else was blamed."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--write", action="store_true")
    words.add_argument("--only", default="")
    given = words.parse_args()
    found: list[seen.Seen] = []
    wrong: list[str] = []
    with (
        Lab(row.HOSTS, real_nccl.kept(), chrony=True) as lab,
        contextlib.closing(seen.Theatre(lab)) as theatre,
    ):
        lab.wait_time_sync()
        for stage in STAGES:
            if reason := stage.missing():
                wrong.append(f"{stage.name}: {reason}")
            elif wanted := [run for run in row.runs(stage) if _wanted(stage, run, given.only)]:
                _play(theatre, stage, wanted, found, wrong)
    print("\n".join([*table.lines(found), *wrong]))
    if given.write and not wrong:
        DOCUMENT.write_text(table.markdown(found, STAGES))
    return 1 if wrong else 0


def _wanted(stage: row.Stage, run: row.Run, only: str) -> bool:
    return any(only in text for text in (stage.name, *(f"{p.row.check} {p.row.name}" for p in run)))


def _play(
    theatre: seen.Theatre,
    stage: row.Stage,
    wanted: list[row.Run],
    found: list[seen.Seen],
    wrong: list[str],
) -> None:
    theatre.set(stage)
    for run in wanted:
        start = time.monotonic()
        answer = seen.asked(theatre.lab, stage, run)
        amiss = seen.unlike(answer, stage, run)
        wrong += [f"{stage.name}: {text}" for text in amiss]
        found += [seen.found(stage, placed, answer) for placed in run]
        names = ", ".join(f"{p.host} {p.row.name}" for p in run) or "healthy"
        print(
            f"{stage.name} {time.monotonic() - start:.1f} s: {names}",
            *amiss,
            sep="\n  ",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
