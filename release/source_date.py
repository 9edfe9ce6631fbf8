"""The time that published files carry, so that the same commit gives the same bytes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path

VARIABLE = "SOURCE_DATE_EPOCH"
CHANGELOG = Path("debian/changelog")


def source_date(root: Path, environ: Mapping[str, str]) -> int:
    """Return the seconds since 1970 that the variable says, or git, or debian/changelog.

    A source archive has no commits, and a folder in it may lie in a repository of something else.
    """
    if environ.get(VARIABLE):
        return int(environ[VARIABLE])
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return int(done.stdout)
    return changelog_date((root / CHANGELOG).read_text(encoding="utf-8"))


def changelog_date(text: str) -> int:
    """Return when the newest entry of a Debian changelog was made, in seconds since 1970."""
    for line in text.splitlines():
        # « -- Name <address>  Sun, 29 Nov 2026 08:00:00 +0000»
        if line.startswith(" -- "):
            return int(parsedate_to_datetime(line.rpartition("  ")[2]).timestamp())
    raise ValueError(f"{CHANGELOG} has no entry with a date")


def build_environment(root: Path) -> dict[str, str]:
    """Return the variables for a build of what lies in `root`."""
    return {**os.environ, VARIABLE: str(source_date(root, os.environ))}
