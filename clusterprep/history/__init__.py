"""What this machine remembers of earlier runs.

Their reports, what nodes were given, how fast trials were.
"""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return $XDG_STATE_HOME/clusterprep, by default ~/.local/state/clusterprep."""
    states = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(states) / "clusterprep"
