"""Repeats checks, applies and rollbacks over hosts that flap.

Ends with 1 when one violation was seen.

With `--write` the page docs/why/reliability.md is renewed, when there was none.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.soak import table
from tests.soak.play import Soak, Wanted
from tests.support.lab import Lab
from tests.support.lab.lab import why_not

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "why" / "reliability.md"


def main() -> int:
    """0 when nothing was wrong, 1 when something was, 2 when no lab can run here."""
    given = _words()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    wanted = Wanted(given.seed, given.nodes, given.share, given.minutes * 60)
    print(
        f"seed {wanted.seed}, {wanted.nodes} nodes, {wanted.share:.0%} of them wrong at any time",
        flush=True,
    )
    began = time.monotonic()
    with (
        Lab(wanted.nodes) as lab,
        tempfile.TemporaryDirectory(prefix="clusterprep-soak-") as folder,
    ):
        soak = Soak(lab, Path(folder), wanted, say=lambda text: print(text, flush=True))
        soak.play()
        soak.finish()
    tally = soak.tally
    print("\n".join(["", *table.lines(tally), *(f"WRONG {row}" for row in tally.wrong)]))
    print(f"{time.monotonic() - began:.0f} s, seed {wanted.seed}")
    if given.write and not tally.wrong:
        DOCUMENT.write_text(table.markdown(tally, _conditions(wanted)))
    return 1 if tally.wrong else 0


def _words() -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    words.add_argument("--nodes", type=int, default=64)
    words.add_argument("--minutes", type=float, default=10.0)
    words.add_argument(
        "--share", type=float, default=0.1, help="of the nodes that are wrong at any time, 0 to 0.4"
    )
    words.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    words.add_argument("--write", action="store_true", help="renew docs/why/reliability.md")
    return words.parse_args()


def _conditions(wanted: Wanted) -> list[str]:
    """What a reader has to know about the run, without its date and the name of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} cores and {memory:.0f} GiB of memory"
    python = ".".join(platform.python_version_tuple()[:2])
    return [
        f"{wanted.nodes} hosts",
        f"{wanted.share:.0%} of them wrong at any time",
        f"{wanted.seconds / 60:g} minutes",
        f"seed {wanted.seed}",
        f"{machine} for the controller and all hosts together",
        f"Python {python}",
    ]


if __name__ == "__main__":
    sys.exit(main())
