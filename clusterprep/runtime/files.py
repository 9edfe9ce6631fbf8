"""Open files of this machine for writing: never through a link that another user has laid.

In /tmp, and in every folder that others may write to, a user can lay a link to one of our files
where a report or a log is expected, or a pipe at whose opening we would wait. Links that root or
the user of this process has laid are followed: people link their known_hosts and their reports.

Every file that the controller writes is opened here. All functions raise OSError, whose `strerror`
says why.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LINKS = 40  # symbolic links in a row, as many as the kernel follows
PRIVATE = 0o600  # mode of a file that only its owner may read
SHARED = 0o666  # mode of other files, before the user's umask


def destination(name: str | Path) -> Path:
    """Return where a path leads through links of this user and of root.

    Only the last part of each path is looked at: the folder is the one that the user named.
    """
    place = Path(name).absolute()
    for _ in range(LINKS):
        if not place.is_symlink():
            return place
        owner = place.lstat().st_uid
        if owner not in (0, os.geteuid()):
            message = f"{place} is a link that user {owner} has laid; it is not followed"
            raise OSError(errno.ELOOP, message, str(name))
        place = place.parent / place.readlink()
    raise OSError(errno.ELOOP, "is a link to itself", str(name))


def open_regular(name: str | Path, flags: int = os.O_WRONLY, mode: int = PRIVATE) -> int:
    """Return the descriptor of a regular file, which is made if there is none.

    Nothing is emptied. A device and a pipe are refused.
    """
    return _regular(destination(name), flags, mode)


def _regular(place: Path, flags: int, mode: int) -> int:
    """Return the descriptor of a regular file at this very place, also if it is made now."""
    # With O_NONBLOCK the opening of a pipe without a reader fails instead of waiting for one.
    safe = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(place, flags | safe | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        descriptor = os.open(place, flags | safe)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{place} is no regular file", str(place))
    return descriptor


def open_emptied(name: str | Path, mode: int = PRIVATE) -> int:
    """Return the descriptor of a new file, or of one of this user's, which is emptied.

    Refused are links of any user, files of others, and files with further names, because another
    user may have given this name to a file of ours. It is for names that we choose.
    """
    place = Path(name).absolute()
    if place.is_symlink():
        raise OSError(errno.ELOOP, f"{place} is a link; it is not followed", str(name))
    descriptor = _regular(place, os.O_WRONLY, mode)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{place} belongs to user {found.st_uid}", str(name))
        if found.st_nlink > 1:
            raise OSError(errno.EMLINK, f"{place} has further names; remove it", str(name))
        os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def draft_beside(path: Path) -> Path:
    """Return a new name in the folder of `path`.

    It has a random part, so that another user cannot put a link there first, and ends in .tmp,
    which no collector reads.
    """
    return path.parent / f".{path.name[:200]}.{os.urandom(8).hex()}.tmp"


def write_new(path: Path, text: Iterable[str], mode: int | None = None) -> None:
    """Write a file that does not exist yet, wholly and to the disk. If that fails, none is left.

    `mode` is the file's mode, by default what the umask leaves of SHARED.
    """
    descriptor = open_exclusively(path, SHARED if mode is None else PRIVATE)
    try:
        with open(descriptor, "w", encoding="utf-8") as sink:
            if mode is not None:
                os.fchmod(sink.fileno(), mode)
            sink.writelines(text)
            sink.flush()
            os.fsync(sink.fileno())
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def open_exclusively(path: Path, mode: int = SHARED) -> int:
    """Return the descriptor of a file that is made now. Whatever has this name is refused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode)


def open_in_place(path: Path) -> int:
    """Return the descriptor of an emptied file, pipe or device that is there. No link is followed.

    It is for what cannot be replaced: a device, or a file in a folder where none can be made.
    """
    return os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)


def replace(path: Path, text: Iterable[str]) -> None:
    """Write a file beside `path`, with the mode of `path`, and rename it: all of it or nothing."""
    mode = None
    if path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
    draft = draft_beside(path)
    write_new(draft, text, mode)
    try:
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
