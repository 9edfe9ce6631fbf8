"""What this machine remembers of earlier runs, in one SQLite file.

That is their reports, the environment that nodes were given, and how fast verifies were. Imports
`nccl` and what stands before it. Begin with `runs.Runs`.

A report is compared with an earlier one and written to the history once the command is through and
out of reach of its deadline; a failure there is a notice.
"""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return $XDG_STATE_HOME/clusterprep, by default ~/.local/state/clusterprep."""
    states = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(states) / "clusterprep"
