"""Check the files of `--output` before anything runs, and write each completely or not at all.

A file is moved into place when it is whole, because a collector must not read half of one. It is
checked before the command runs, because an error about a missing folder after an hour is of no use.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from clusterprep.errors import InputError, Problem

OPTION = "--output"
LINKS = 40  # symbolic links in a row, as many as the kernel follows


def check(fmt: str, names: Sequence[str]) -> None:
    """Raise InputError for an unknown format and for a file that cannot be written."""
    from clusterprep.reports import check_format, select_format

    check_format(fmt)
    for name in names:
        check_format(select_format(name))
    check_places(names)


def check_places(names: Sequence[str]) -> None:
    """Raise InputError with every file that cannot be written now, or that is given twice."""
    problems = []
    for name in dict.fromkeys(names):
        obstacle = _obstacle(name)
        if obstacle:
            problems.append(Problem(obstacle, file=name, key=OPTION))
    repeated = _first_repeated(names)
    if repeated is not None:
        problems.append(Problem("two reports cannot be one file", file=repeated, key=OPTION))
    if problems:
        raise InputError(tuple(problems))


def write(name: str, text: Iterable[str]) -> str:
    """Write the parts to a file. Return "", or why it failed; the file is unchanged then."""
    path = Path(os.path.realpath(name))
    obstacle = _foreign_link(name)
    if obstacle:
        return f"{name}: {obstacle}"
    try:
        if _is_special(path) or not os.access(path.parent, os.W_OK):
            with path.open("w", encoding="utf-8") as sink:
                sink.writelines(text)
        else:
            _replace(path, text)
    except OSError as error:
        return f"{name}: cannot be written: {error.strerror}"
    return ""


def _first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name whose file is named more than once, through links too."""
    places = [os.path.realpath(name) for name in names]
    for name, place in zip(names, places, strict=True):
        if places.count(place) > 1:
            return name
    return None


def _obstacle(name: str) -> str:
    """Return why the file cannot be written, or ""."""
    path = Path(os.path.realpath(name))
    if path.is_dir():
        return "is a folder"
    obstacle = _foreign_link(name)
    if obstacle:
        return obstacle
    if not path.parent.is_dir():
        return f"there is no folder '{path.parent}'"
    written = path
    if not path.exists():
        written = path.parent
    if not os.access(written, os.W_OK):
        return "cannot be written: permission denied"
    return ""


def _foreign_link(name: str) -> str:
    """Return why a link is not followed, or "".

    In /tmp every user may put a link to one of our files where a report is expected.
    """
    place = Path(name).absolute()
    for _ in range(LINKS):
        if not place.is_symlink():
            return ""
        owner = place.lstat().st_uid
        if owner not in (0, os.geteuid()):
            return f"{place} is a link that user {owner} has laid; it is not followed"
        place = place.parent / place.readlink()
    return "is a link to itself"


def _is_special(path: Path) -> bool:
    """Return True for a pipe, a terminal or /dev/null, which cannot be replaced."""
    return path.exists() and not stat.S_ISREG(path.stat().st_mode)


def _replace(path: Path, text: Iterable[str]) -> None:
    """Write a draft beside the file, with the file's mode, and rename it.

    The draft's name ends in .tmp, which no collector reads, and has a random part, so that no other
    user can put a link there first.
    """
    draft = path.parent / f".{path.name[:200]}.{os.urandom(8).hex()}.tmp"
    try:
        with draft.open("x", encoding="utf-8") as sink:
            if path.exists():
                mode = path.stat().st_mode
                draft.chmod(stat.S_IMODE(mode))
            sink.writelines(text)
            sink.flush()
            os.fsync(sink.fileno())
        draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
