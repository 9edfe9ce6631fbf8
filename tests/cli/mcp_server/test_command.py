"""The command that starts the server: what it says where it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_SDK = """
import sys
sys.modules["mcp"] = None
from clusterprep.__main__ import main
main()
"""


@pytest.mark.parametrize("words", [("mcp",), ("mcp", "none.yaml"), ("mcp", "--logs", "none")])
def test_without_the_sdk_or_a_file_the_message_says_what_helps(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SDK, *words],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = "no such f" if len(words) > 1 else "pip install 'clusterprep[mcp]'"
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
