"""The files of `--output`: looked at before anything runs, and written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from clusterprep.errors import InputError, Problem

OPTION = "--output"


def check(fmt: str, names: Sequence[str]) -> None:
    """InputError for a format that cannot be rendered, and for a file that cannot be written."""
    from clusterprep.reports import check_format, format_of

    check_format(fmt)
    for name in names:
        check_format(format_of(name))
    check_places(names)


def check_places(names: Sequence[str]) -> None:
    """InputError with every name that could not be written as things are now, or that is given twice."""
    problems = [
        Problem(why, file=name, key=OPTION)
        for name in dict.fromkeys(names)
        if (why := _in_the_way(name))
    ]
    places = [os.path.realpath(name) for name in names]
    twice = dict.fromkeys(
        name for name, place in zip(names, places, strict=True) if places.count(place) > 1
    )
    problems += [
        Problem("two reports cannot be one file", file=name, key=OPTION) for name in list(twice)[:1]
    ]
    if problems:
        raise InputError(tuple(problems))


def write(name: str, text: Iterable[str]) -> str:
    """Write the parts to a file, and say why not where that fails: then the file is as it was."""
    path = Path(os.path.realpath(name))
    if why := _led_away(name):
        return f"{name}: {why}"
    try:
        if _is_special(path) or not os.access(path.parent, os.W_OK):
            with path.open("w", encoding="utf-8") as sink:
                sink.writelines(text)
        else:
            _replace(path, text)
    except OSError as error:
        return f"{name}: cannot be written: {error.strerror}"
    return ""


def _in_the_way(name: str) -> str:
    path = Path(os.path.realpath(name))
    if path.is_dir():
        return "is a folder"
    if why := _led_away(name):
        return why
    if not path.parent.is_dir():
        return f"there is no folder '{path.parent}'"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return "cannot be written: permission denied"
    return ""


def _led_away(name: str) -> str:
    """Why a link is not followed: in /tmp anybody may lay one where a report is expected, to a file of ours."""
    place = Path(name).absolute()
    for _ in range(40):  # as many as the kernel follows
        if not place.is_symlink():
            return ""
        owner = place.lstat().st_uid
        if owner not in (0, os.geteuid()):
            return f"{place} is a link that user {owner} has laid; it is not followed"
        place = place.parent / place.readlink()
    return "is a link to itself"


def _is_special(path: Path) -> bool:
    """A pipe, a terminal, /dev/null: there is nothing to replace."""
    return path.exists() and not stat.S_ISREG(path.stat().st_mode)


def _replace(path: Path, text: Iterable[str]) -> None:
    """Beside it first, under a name that no collector reads and nobody can foresee, with the mode that the file has."""
    draft = path.parent / f".{path.name[:200]}.{os.urandom(8).hex()}.tmp"
    try:
        with draft.open("x", encoding="utf-8") as sink:
            if path.exists():
                draft.chmod(stat.S_IMODE(path.stat().st_mode))
            sink.writelines(text)
            sink.flush()
            os.fsync(sink.fileno())
        draft.replace(path)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
