"""The lock of a node: root's alone to take, and seen by everybody while it is held."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterprep.remote.journal import read_journal

NOBODY = 65534
pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # everybody may come in, other than to pytest's own
        path = Path(name)
        path.chmod(0o755)
        yield path


def as_nobody(folder: Path) -> object:
    """What an ordinary user's agent reads there."""
    source, sink = os.pipe()
    if (child := os.fork()) == 0:
        os.setuid(NOBODY)
        os.write(sink, repr(read_journal(str(folder))["holder"]).encode())
        os._exit(0)
    os.close(sink)
    with os.fdopen(source) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


def test_an_ordinary_user_sees_that_a_run_is_under_way_and_cannot_hold_it_up(folder: Path) -> None:
    assert as_nobody(folder) == "None"
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        assert as_nobody(folder) == "None"
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert as_nobody(folder) == "'another run'"
    finally:
        os.close(fd)
    assert as_nobody(folder) == "None"
