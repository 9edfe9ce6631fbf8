"""Builds sdist and wheel into dist/: `make dist`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from release.source_date import build_environment

ROOT = Path(__file__).resolve().parents[1]


def build(root: Path, target: Path, *kinds: str) -> None:
    """Build what lies in `root`: «sdist» and «wheel», or the kind named.

    Hatchling sets owners, modes and times by itself, the latter from SOURCE_DATE_EPOCH.
    """
    wanted = [f"--target={kind}" for kind in kinds]
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target), *wanted]
    subprocess.run(command, cwd=root, env=build_environment(root), check=True)


if __name__ == "__main__":
    build(ROOT, ROOT / "dist")
