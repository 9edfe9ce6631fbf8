"""One process that runs many commands, as a program that uses clusterprep would.

Each line of its input is JSON: `words` of the command line, and where `out` and `err` go. It
answers with the exit code.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from clusterprep.cli import main as cli
from clusterprep.cli.exit import ending


def once(words: list[str], out: str, err: str) -> int:
    """One command; what it prints goes into these files."""
    with (
        Path(out).open("w") as said,
        Path(err).open("w") as told,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(told),
    ):
        return ending(
            lambda: cli.cli.main(args=words, prog_name="clusterprep", standalone_mode=False),
            words,
            words[0],
        )


if __name__ == "__main__":
    for line in sys.stdin:
        given = json.loads(line)
        print(once(given["words"], given["out"], given["err"]), flush=True)
