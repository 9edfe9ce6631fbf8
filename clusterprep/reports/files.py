"""Check the files of `--output` before anything runs, and write each completely or not at all.

A file is moved into place when it is whole, because a collector must not read half of one. It is
checked before the command runs, because an error about a missing folder after an hour is of no use.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clusterprep.errors import InputError, Problem
from clusterprep.runtime import files

OPTION = "--output"


def check(fmt: str, names: Sequence[str]) -> None:
    """Raise InputError for an unknown format and for a file that cannot be written."""
    from clusterprep.reports import check_format, select_format

    check_format(fmt)
    for name in names:
        check_format(select_format(name))
    check_places(names)


def check_places(names: Sequence[str], key: str = OPTION) -> None:
    """Raise InputError with every file that cannot be written now, or that is given twice.

    `key` is the option that names them.
    """
    problems = []
    for name in dict.fromkeys(names):
        obstacle = _obstacle(name)
        if obstacle:
            problems.append(Problem(obstacle, file=name, key=key))
    repeated = _first_repeated(names)
    if repeated is not None:
        problems.append(Problem("two reports cannot be one file", file=repeated, key=key))
    if problems:
        raise InputError(tuple(problems))


def write(name: str, text: Iterable[str]) -> str:
    """Write the parts to a file. Return "", or why it failed; the file is unchanged then."""
    try:
        place = files.destination(name)
        path = Path(os.path.realpath(place.parent)) / place.name
        if _is_special(path) or not os.access(path.parent, os.W_OK):
            with open(files.open_in_place(path), "w", encoding="utf-8") as sink:
                sink.writelines(text)
        else:
            files.replace(path, text)
    except OSError as error:
        return f"{name}: cannot be written: {error.strerror}"
    return ""


def check_folder(name: str, key: str) -> None:
    """Raise InputError if no files can be written into this folder. It may be one to be made."""
    place = Path(os.path.realpath(name)) if name else Path()
    while name and not place.exists():
        place = place.parent
    if not name:
        obstacle = "an empty value names no folder"
    elif not place.is_dir():
        obstacle = "is no folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        obstacle = "cannot be written: permission denied"
    else:
        return
    raise InputError.of(obstacle, file=name or None, key=key)


def write_folder(name: str, texts: Mapping[str, str]) -> str:
    """Write files into a folder, each completely or not at all, in their order.

    `texts` has the content by the name of the file. The folder is made if there is none. Returns
    "", or why one of them failed; those after it are not written then.
    """
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{name}: cannot be made: {error.strerror}"
    for file, text in texts.items():
        problem = write(str(folder / file), [text])
        if problem:
            return problem
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
    try:
        files.destination(name)
    except OSError as error:
        return str(error.strerror)
    if not path.parent.is_dir():
        return f"there is no folder '{path.parent}'"
    written = path
    if not path.exists():
        written = path.parent
    if not os.access(written, os.W_OK):
        return "cannot be written: permission denied"
    return ""


def _is_special(path: Path) -> bool:
    """Return True for a pipe, a terminal or /dev/null, which cannot be replaced."""
    return path.exists() and not stat.S_ISREG(path.stat().st_mode)
