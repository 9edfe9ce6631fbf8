"""NVIDIA's own NCCL of several releases, from torch's wheels, for tests of what it really does.

Nothing but libnccl.so.2 is kept of a wheel, in `nccl/RELEASE` of the virtual environment or of
CLUSTERPREP_NCCL_DIR.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# From releases of torch of 2024, 2025 and 2026: each reads its files in another way. .ci/lock names
# their packages.
RELEASES = ("2.21.5", "2.27.5", "2.32.3")
LOCKED = Path(__file__).parents[2] / "requirements"
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
LIMIT = 100  # seconds for one wheel, which has 200 to 300 MB


def folder() -> Path:
    """Where the releases are kept."""
    return Path(os.environ.get("CLUSTERPREP_NCCL_DIR") or Path(sys.prefix, "nccl"))


def kept() -> tuple[Path, ...]:
    """What hosts of a lab have to see of it: the folder, which is there from now on."""
    folder().mkdir(parents=True, exist_ok=True)
    return (folder(),)


def library(release: str) -> Path:
    """The library of a release, fetched once.

    Raises LookupError where the package index has none.
    """
    path = folder() / release / LIBRARY
    if path.exists():
        return path
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _fetch(release, path)
    return path


def _fetch(release: str, path: Path) -> None:
    wanted = f"NCCL {release}"
    words = [
        "--quiet",
        "--require-hashes",
        "--no-deps",
        "--no-compile",
        "--no-cache-dir",
        "--only-binary=:all:",
        "--retries=1",
        "--timeout=10",
    ]
    with tempfile.TemporaryDirectory(dir=folder()) as place:
        locked = str(LOCKED / f"nccl-{release}.txt")
        argv = [sys.executable, "-m", "pip", "install", *words, "--target", place, "-r", locked]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise LookupError(f"{wanted} did not come within {LIMIT} s") from None
        if done.returncode != 0 or not Path(place, LIBRARY).exists():
            last = (done.stderr.strip() or "no such library in it").splitlines()[-1]
            raise LookupError(f"{wanted} cannot be had from the package index: {last}")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(place, LIBRARY), path)
