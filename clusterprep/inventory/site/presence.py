"""Tells quickly whether a site adds anything. Most do not, and load nothing of this package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = "checks.d"  # beside the inventory
GROUP = "clusterprep.checks"  # of entry points


def is_extended(inventory: str | None, folders: Sequence[Path]) -> bool:
    """Return whether there is something to load for this inventory file, or without one."""
    if folders or has_entry_points():
        return True
    return inventory is not None and (Path(inventory).parent / FOLDER).is_dir()


def has_entry_points() -> bool:
    """Return whether an installed package offers checks.

    Nearly none does, and importlib.metadata takes longer than the look into these small files.
    """
    wanted = f"[{GROUP}]".encode()
    for folder in dict.fromkeys(sys.path):
        for path in Path(folder or ".").glob("*-info/entry_points.txt"):
            try:
                if wanted in path.read_bytes():
                    return True
            except OSError:
                continue
    return False
