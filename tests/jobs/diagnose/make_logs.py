"""Records logs of real failures for the examination of `diagnose`: torch on the lab's hosts.

    python -m tests.jobs.diagnose.make_logs            # all plays: about twenty minutes, as root
    python -m tests.jobs.diagnose.make_logs NAME …     # only these

Each play of plays.py starts a job, spoils something, and leaves recorded/NAME.HOST.log as the job
printed it, without the paths of this machine and noise that repeats. What is wanted of `diagnose`
is in recorded/cases.json, which people write: a new recording may show other lines than the last
one, so read it, and label what it shows.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path

from tests.jobs.diagnose.plays import PLAYS, Play
from tests.jobs.diagnose.stage import Stage
from tests.support.lab import Lab
from tests.support.real_nccl import kept

RECORDED = Path(__file__).with_name("recorded")


def record(lab: Lab, play: Play) -> None:
    """Run one play, and replace the files of its last recording."""
    stage = Stage(lab, play.job)
    with contextlib.ExitStack() as undo:
        try:
            play.act(stage, undo)
        finally:
            stage.end()
        if play.after:
            play.after(stage)
    for old in RECORDED.glob(f"{play.name}.*log"):
        old.unlink()
    files = stage.files()
    shutil.rmtree(stage.folder)
    for name, text in files.items():
        target = f"{play.name}.log" if len(files) == 1 else f"{play.name}.{name}.log"
        (RECORDED / target).write_text(text)


def main(names: list[str]) -> None:
    chosen = [play for play in PLAYS if not names or play.name in names]
    with Lab(3, keep=kept()) as lab:
        for play in chosen:
            begun = time.monotonic()
            try:
                record(lab, play)
            except (TimeoutError, LookupError) as error:
                print(f"{play.name}: {error}", file=sys.stderr)
            print(f"{play.name}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
