"""Inputs that are read from files: the place they have during a test, and how to judge them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from clusterprep.errors import InputError

TEXT = 20_000  # characters of one problem, whatever was written
HERE = Path(__file__).parents[1]


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="clusterprep-fuzz-")


def written(name: str, data: bytes) -> Path:
    path = Path(folder().name) / name
    path.write_bytes(data)
    return path


def well_said(error: InputError, path: Path) -> None:
    """Every problem says where it is, in words that a terminal shows as they are."""
    assert error.problems
    for problem in error.problems:
        assert problem.file
        assert problem.message
        assert len(str(problem)) < TEXT
        said = str(problem).replace(str(path), "")
        assert said.isprintable(), ascii(said)[:300]


def texts_of(*patterns: str) -> Iterator[bytes]:
    """The files below tests that match, as seeds."""
    for pattern in patterns:
        for path in sorted(HERE.glob(pattern)):
            yield path.read_bytes()


def placed(error: InputError, file: str) -> None:
    """Every problem is one of this file."""
    assert {problem.file for problem in error.problems} == {file}
