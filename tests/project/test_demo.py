"""`make demo` where no lab can run: the same job on this machine alone.

The lab's own is what docs/start/try.md shows.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.torch
def test_two_folders_are_two_nodes() -> None:
    source = "from tests.support import demo; demo.on_two_folders('this is a test')"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Where nothing has changed it is one line.
    assert len(re.findall(r"^Verify +PASS  gloo, 2 ranks", done.stdout, re.MULTILINE)) == 2
