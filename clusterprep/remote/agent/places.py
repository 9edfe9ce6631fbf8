"""Decides whether a path is safe to write: only root, or the user who runs this, may change it.

A user who may write to a folder can put a link where a file was just seen, and root would write to
the end of it. So every folder on the way is looked at from / on, each once those above it are known
to be safe: then no other user can change what was seen, and no descriptor has to be held open.

This is asked before a plan (`targets`) and again before anything is staged, renamed or put back.
"""

import errno
import os
import stat

MOST_LINKS = 40  # as many as the kernel follows
LIVE = ("/proc", "/sys", "/dev")  # what is there is no file
# Where chmod is advised. Elsewhere programs may rely on the mode: of /tmp, of homes, of what is
# shared, and of everything that all users may write on purpose.
STATE = "/var/lib/clusterprep"
SETTINGS = "/etc"
OURS = ".clusterprep-"  # in the names of files that a run keeps beside others


def refusal(place, root="/"):
    """Return why nothing may be written at a path below `root`; None if it may.

    The folder of the path need not exist, if it may be made. Links are followed as the kernel
    follows them: those that root or this user made, and that stay below `root`.
    """
    folder = os.path.dirname(place)
    base, why = _walked("/", _parts(root), "/")
    if why:
        return why
    if base is None:
        return _dangling(folder)
    inside = os.path.relpath(os.path.normpath(folder), os.path.normpath(root))
    reached, why = _walked(base, _parts(inside), base)
    if why:
        return why
    return _dangling(folder) if reached is None else None


def _walked(folder, parts, base):
    """Return the folder to which the parts lead, and why that is refused.

    The folder is None if it is refused or a part is missing.
    """
    links = 0
    while parts:
        why = _shared(folder, base, last=False)
        if why:
            return None, why
        name = parts.pop(0)
        if name == "..":
            folder = os.path.dirname(folder)
            continue
        path = os.path.join(folder, name)
        try:
            state = os.lstat(path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return None, _unfit(folder, base)
        if stat.S_ISLNK(state.st_mode):
            links += 1
            why = _refused_link(path, state, links)
            if why:
                return None, why
            target = os.readlink(path)
            if target.startswith("/"):
                folder = "/"
            parts = _parts(target) + parts
        elif not stat.S_ISDIR(state.st_mode):
            return None, "%s is no folder" % path
        else:
            folder = path
    return folder, _unfit(folder, base)


def _refused_link(path, state, links):
    if links > MOST_LINKS:
        return "%s is one of more than %d links on the way" % (path, MOST_LINKS)
    if not _trusted(state.st_uid):
        return "%s is a link of user %d, who could lead it elsewhere" % (path, state.st_uid)
    return None


def _parts(path):
    return [part for part in path.split("/") if part not in ("", ".")]


def _trusted(uid):
    return uid in (0, os.geteuid())


def _unfit(folder, base):
    """Return why nothing may be made in the last folder of a path."""
    return _live(folder) or _outside(folder, base) or _shared(folder, base, last=True)


def _shared(folder, base, last):
    """Return why other users could change what a folder holds.

    A folder above the `last` may be sticky: there a file of root's stays as it is.
    """
    state = os.lstat(folder)
    mode = state.st_mode
    if not _trusted(state.st_uid):
        why = "%s belongs to user %d, who could change what is there meanwhile"
        return why % (folder, state.st_uid)
    if mode & stat.S_ISVTX and not last:
        return None
    if mode & stat.S_IWOTH:
        writers = "all users"
    elif mode & stat.S_IWGRP and (state.st_gid not in (0, os.getegid()) or _has_acl(folder)):
        writers = "group %d" % state.st_gid
    else:
        return None
    advice = _advice(folder, base, state)
    return "%s (mode %04o) can be written by %s: %s" % (
        folder,
        stat.S_IMODE(mode),
        writers,
        advice,
    )


def _advice(folder, base, state):
    """Return what to do about a folder that others can write."""
    inside = "/" + os.path.relpath(folder, base)
    is_meant = state.st_mode & (stat.S_IWOTH | stat.S_ISVTX) or state.st_uid != 0
    if _is_below(inside, STATE) or (_is_below(inside, SETTINGS) and not is_meant):
        return "chmod go-w %s takes that off" % folder
    return "choose a folder that no other user can write"


def _is_below(folder, top):
    return folder == top or folder.startswith(top + "/")


def _has_acl(folder):
    """Return whether an access control list applies: then the bits of the group are its mask."""
    try:
        return "system.posix_acl_access" in os.listxattr(folder)
    except OSError:  # a file system without any
        return False


def _live(folder):
    if any(_is_below(folder, top) for top in LIVE):
        return "%s holds no files: it is what the running system shows" % folder
    return None


def _outside(folder, base):
    if base not in ("/", folder) and not folder.startswith(base + "/"):
        return "a link leads out of %s, to %s" % (base, folder)
    return None


def _dangling(folder):
    """Return why a missing folder cannot be made: a link on the way leads nowhere."""
    while folder != "/" and not os.path.isdir(folder):
        if os.path.islink(folder):
            return "%s is a link that leads nowhere" % folder
        folder = os.path.dirname(folder)
    return None


def opened(path):
    """Return a descriptor to read from a regular file with one name, and its state.

    Raises OSError if there is none, and ValueError for anything else. A device is never opened:
    that may already do something.
    """
    state = os.lstat(path)
    why = _not_a_file(path, state)
    if why:
        raise ValueError(why)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    state = os.fstat(fd)  # it may be another file by now
    why = _not_a_file(path, state)
    if why:
        os.close(fd)
        raise ValueError(why)
    return fd, state


def _not_a_file(path, state):
    """Return why a path is no file of its own, None if it is one. `state` is that of lstat."""
    if stat.S_ISLNK(state.st_mode):
        return "%s is a symbolic link; it is not followed" % path
    if not stat.S_ISREG(state.st_mode):
        return "%s is not a regular file" % path
    names = state.st_nlink
    if names > 1:
        names -= _names_of_ours(path, state)
    if names > 1:
        why = "%s has %d names (hard links), and the others would keep the old bytes"
        return why % (path, names)
    return None


def _names_of_ours(path, state):
    """Return how many further names in its folder a run gave to a file, which a crash can leave."""
    folder = os.path.dirname(path)
    count = 0
    for name in os.listdir(folder):
        if OURS in name and os.path.samestat(os.lstat(os.path.join(folder, name)), state):
            count += 1
    return count


def foreign_links(path):
    """Return where a path leads, and (link, user) of each link of another user on the way.

    Raises OSError as the kernel does, also for more links than it follows.
    """
    links = []
    count = 0
    place = "/"
    parts = _parts(path)
    while parts:
        name = parts.pop(0)
        if name == "..":
            place = os.path.dirname(place)
            continue
        here = os.path.join(place, name)
        state = os.lstat(here)
        if not stat.S_ISLNK(state.st_mode):
            place = here
            continue
        count += 1
        if count > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if not _trusted(state.st_uid):
            links.append((here, state.st_uid))
        target = os.readlink(here)
        if target.startswith("/"):
            place = "/"
        parts = _parts(target) + parts
    return place, links


def owned_text(path):
    """Return the bytes of a file that only root or this user could have written.

    Raises ValueError for another file.
    """
    fd, state = opened(path)
    with os.fdopen(fd, "rb") as source:
        if not _trusted(state.st_uid) or state.st_mode & 0o022:
            why = "%s belongs to user %d, mode %04o: others could have written it"
            raise ValueError(why % (path, state.st_uid, stat.S_IMODE(state.st_mode)))
        return source.read()
