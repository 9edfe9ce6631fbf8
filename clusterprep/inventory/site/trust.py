"""Decides whose files are used: those that only root or this user can change.

What another user could write would run with the rights of the user who runs clusterprep, and as
root on every node.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

MOST_LINKS = 40  # as many as the kernel follows
_ACCESS_LIST = "system.posix_acl_access"


class Distrusted(Exception):
    """A file that others may change; the text says which place, whose it is and what to do."""


def trusted_file(path: Path) -> None:
    """Raise Distrusted if another user could change this file, or if it is no regular one.

    Raises OSError if it is not there.
    """
    trusted_path(path.parent)
    trusted_path(path)
    if not stat.S_ISREG(path.stat().st_mode):  # the opening of a pipe may wait for ever
        raise Distrusted(f"{path} is no regular file")


def trusted_path(path: Path) -> None:
    """Raise Distrusted if another user could change this file or a folder on the way to it.

    Links are followed as the kernel follows them. Raises OSError if the path is not there.
    """
    folder = Path("/")
    parts = _parts(str(path.absolute()))
    links = 0
    _refuse(folder, os.lstat(folder), is_way=True)
    while parts:
        name = parts.pop(0)
        if name == "..":
            folder = folder.parent
            continue
        here = folder / name
        state = os.lstat(here)
        _refuse(here, state, is_way=bool(parts))
        if not stat.S_ISLNK(state.st_mode):
            folder = here
            continue
        links += 1
        if links > MOST_LINKS:
            raise Distrusted(f"{here} leads through more than {MOST_LINKS} links")
        target = str(here.readlink())
        if target.startswith("/"):
            folder = Path("/")
        parts = _parts(target) + parts


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _refuse(place: Path, state: os.stat_result, *, is_way: bool) -> None:
    """Raise Distrusted if others own a place, or may write to it.

    A folder on the way may be one like /tmp, where no user can rename what belongs to another.
    """
    own = os.geteuid()
    if state.st_uid not in (0, own):
        raise Distrusted(
            f"{place} belongs to user {state.st_uid}, neither to root nor to user {own} who runs "
            "this; chown it, or copy it to a folder of your own"
        )
    if stat.S_ISLNK(state.st_mode):
        return  # the mode of a link says nothing
    if is_way and state.st_mode & stat.S_ISVTX:
        return
    if state.st_mode & stat.S_IWOTH:
        raise Distrusted(f"every user may write to {place}; chmod o-w {place}")
    if state.st_mode & stat.S_IWGRP and not _is_own_group(place, state.st_gid):
        raise Distrusted(f"group {state.st_gid} may write to {place}; chmod g-w {place}")


def _has_access_list(place: Path) -> bool:
    """Return whether a place has an access list of Linux, whose mask is what the group's bits are.

    Other systems keep access lists apart from these bits.
    """
    list_attributes = getattr(os, "listxattr", None)
    if list_attributes is None:
        return False
    try:
        return _ACCESS_LIST in list_attributes(place)
    except OSError:  # a file system without any
        return False


def _is_own_group(place: Path, gid: int) -> bool:
    """Return whether the bits of a place's group are for root or this user alone.

    Distributions make a group of its own for each user, with the user's name. With an access list
    the bits are those of all that it names.
    """
    if _has_access_list(place):
        return False
    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and not set(group.gr_mem) - {user}
