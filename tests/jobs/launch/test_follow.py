"""A job that prints without end fills neither the controller's memory nor its disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from clusterprep.jobs.launch.last_lines import KEPT_CHARACTERS
from tests.support.flooding import QUOTA

MOST = 64  # MiB more than before: what waits, and what is on its way


def test_output_without_end_takes_bounded_memory_and_disk(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.support.flooding", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=True)
    seen = json.loads(done.stdout)
    assert seen["ending"] == "done"
    assert seen["peak"] - seen["before"] < MOST
    assert seen["logs"] < QUOTA + KEPT_CHARACTERS + 1000
    assert "at the limit of 4 MiB: rank-0.log" in seen["trouble"]
    assert "did not arrive here: they came faster than they were taken" in seen["missing"][0]
