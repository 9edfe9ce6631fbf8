"""Whether a file lies where only root, or who runs this, decides what is there: a folder of others is never worked in.

Who may write to a folder can put a link where a file was just seen, and root would write to the end of it. So every
folder on the way is looked at from / on, each once those above it are known to be kept: what was seen of it can then
be changed by nobody else, and no name has to be held open.
"""

import errno
import os
import stat

MOST_LINKS = 40  # as many as the kernel follows
LIVE = ("/proc", "/sys", "/dev")  # what is there is no file


def refusal(place, root="/"):
    """Why nothing may be written at a path below `root`, in words; None where it may be, or its folder be made.

    Links are followed as the kernel follows them: those that root or this user has laid, and that stay below `root`.
    """
    base, why = _walked("/", _parts(root))
    folder = os.path.dirname(place)
    if why or base is None:
        return why or _dangling(folder)
    inside = os.path.relpath(os.path.normpath(folder), os.path.normpath(root))
    found, why = _walked(base, _parts(inside), base)
    return why or (_dangling(folder) if found is None else None)


def _walked(at, parts, base="/"):
    """The folder to which the parts lead from a folder, None where a part is missing; why that is refused."""
    links = 0
    while parts:
        why = _shared(at, last=False)
        if why:
            return None, why
        name = parts.pop(0)
        if name == "..":
            at = os.path.dirname(at)
            continue
        path = os.path.join(at, name)
        try:
            state = os.lstat(path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return None, _live(at) or _outside(at, base) or _shared(at, last=True)
        if stat.S_ISLNK(state.st_mode):
            links += 1
            if links > MOST_LINKS:
                return None, "%s is one of more than %d links on the way" % (path, MOST_LINKS)
            if not _trusted(state.st_uid):
                return None, "%s is a link of user %d, who could lead it elsewhere" % (
                    path,
                    state.st_uid,
                )
            to = os.readlink(path)
            at, parts = "/" if to.startswith("/") else at, _parts(to) + parts
        elif not stat.S_ISDIR(state.st_mode):
            return None, "%s is no folder" % path
        else:
            at = path
    return at, _live(at) or _outside(at, base) or _shared(at, last=True)


def _parts(path):
    return [part for part in path.split("/") if part not in ("", ".")]


def _trusted(uid):
    return uid in (0, os.geteuid())


def _shared(folder, last):
    """Why others could change what a folder holds. One above the `last` may be sticky: there root's stays root's."""
    state = os.lstat(folder)
    if not _trusted(state.st_uid):
        return "%s belongs to user %d, who could change what is there meanwhile" % (
            folder,
            state.st_uid,
        )
    group = state.st_mode & stat.S_IWGRP and (
        state.st_gid not in (0, os.getegid()) or _has_list(folder)
    )
    if not (group or state.st_mode & stat.S_IWOTH) or (state.st_mode & stat.S_ISVTX and not last):
        return None
    who = "everybody" if state.st_mode & stat.S_IWOTH else "group %d" % state.st_gid
    return "%s (mode %04o) can be written by %s; chmod go-w takes that off" % (
        folder,
        stat.S_IMODE(state.st_mode),
        who,
    )


def _has_list(folder):
    """Whether an access list stands behind the bits of the group."""
    try:
        return "system.posix_acl_access" in os.listxattr(folder)
    except OSError:  # a file system without any
        return False


def _live(folder):
    if any(folder == top or folder.startswith(top + "/") for top in LIVE):
        return "%s holds no files: it is what the running system shows" % folder
    return None


def _outside(folder, base):
    if base not in ("/", folder) and not folder.startswith(base + "/"):
        return "a link leads out of %s, to %s" % (base, folder)
    return None


def _dangling(folder):
    """Why a folder that is not there cannot be made: a link on the way leads nowhere."""
    while folder != "/" and not os.path.isdir(folder):
        if os.path.islink(folder):
            return "%s is a link that leads nowhere" % folder
        folder = os.path.dirname(folder)
    return None


def opened(path):
    """A descriptor of a regular file with one name, to read from, and its state; OSError where there is none.

    ValueError, with what it is instead, for all else. A device is never opened: that may already do something.
    """
    state = os.lstat(path)
    why = _no_file(path, state)
    if why:
        raise ValueError(why)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    state = os.fstat(fd)
    why = _no_file(path, state)
    if why:
        os.close(fd)
        raise ValueError(why)
    return fd, state


def _no_file(path, state):
    if stat.S_ISLNK(state.st_mode):
        return "%s is a symbolic link; it is not followed" % path
    if not stat.S_ISREG(state.st_mode):
        return "%s is not a regular file" % path
    if state.st_nlink > 1:
        return "%s has %d names (hard links), and the others would keep the old bytes" % (
            path,
            state.st_nlink,
        )
    return None


def owned_text(path):
    """The bytes of a file of root's or this user's, that nobody else could have written; ValueError for another."""
    fd, state = opened(path)
    with os.fdopen(fd, "rb") as source:
        if not _trusted(state.st_uid) or state.st_mode & 0o022:
            raise ValueError("%s belongs to user %d, mode %04o: others could have written it" % (
                path, state.st_uid, stat.S_IMODE(state.st_mode)))  # fmt: skip
        return source.read()
