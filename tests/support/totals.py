"""Adds the totals of one run of pytest to a file, so that CI can print one line for all runs.

The file is named by CLUSTERPREP_TEST_TOTALS and has one JSON object per run. `python -m
tests.support.totals FILE` prints their sum: «13094 passed, 0 failed, 7 skipped».
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

VARIABLE = "CLUSTERPREP_TEST_TOTALS"
FILE = pytest.StashKey[str]()
OUTCOMES = ("passed", "failed", "skipped")


def pytest_configure(config: pytest.Config) -> None:
    """Take the variable away.

    Neither pytest-xdist's processes nor runs of pytest in tests are a run of their own.
    """
    config.stash[FILE] = os.environ.pop(VARIABLE, "")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Append the totals to the file."""
    path = terminalreporter.config.stash[FILE]
    if not path:
        return
    counts = {name: len(terminalreporter.stats.get(name, ())) for name in OUTCOMES}
    counts["failed"] += len(terminalreporter.stats.get("error", ()))
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(counts) + "\n")


def summed(lines: str) -> str:
    """Return the sum of all runs as one line of text."""
    total: Counter[str] = Counter()
    for line in lines.splitlines():
        total.update(json.loads(line))
    return ", ".join(f"{total[name]} {name}" for name in OUTCOMES)


if __name__ == "__main__":
    print(summed(Path(sys.argv[1]).read_text(encoding="utf-8")))
