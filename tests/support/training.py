"""Frameworks that train, from the package index, so that tests launch unchanged code.

They have a virtual environment of their own, made when a test first needs it, in `training` of the
virtual environment. It sees the torch of that one, so that no framework brings another.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

LOCKED = (
    Path(__file__).parents[2] / "requirements/training.txt"
)  # of training.txt beside this, without torch
LIMIT = 300  # seconds


def folder() -> Path:
    return Path(sys.prefix, "training")


def python() -> str:
    """Its interpreter. Raises LookupError where the frameworks cannot be had."""
    path, done = folder() / "bin/python", folder() / "done"
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != LOCKED.read_text():
            _make(path)
            done.write_text(LOCKED.read_text())
    return str(path)


def _make(path: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder())])
    own = Path(
        sysconfig.get_path("purelib", vars={"base": str(folder()), "platbase": str(folder())})
    )
    (own / "torch_of_the_tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    # Compiled now, for the hosts of a lab may not write here: each rank would compile all that it
    # imports.
    words = ["--quiet", "--compile", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    _run([str(path), "-m", "pip", "install", *words, "-r", str(LOCKED)])


def _run(argv: list[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise LookupError(f"the frameworks did not come within {LIMIT} s") from None
    if done.returncode != 0:
        raise LookupError(
            f"the frameworks cannot be had: {(done.stderr.strip() or 'no word').splitlines()[-1]}"
        )


def required() -> str:
    """Return the interpreter for a test, which is skipped without it, or fails in CI."""
    try:
        return python()
    except LookupError as reason:
        if os.environ.get("CI"):
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))
