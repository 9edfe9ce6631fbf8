"""The findings that an earlier `check --deep --store` left on this node, and how old they are."""

import errno
import os
import stat
import time

from clusterprep.remote.agent.readers import MAX_TEXT, NoAnswer, offer, read_file

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_results(path):
    """Return {"text": the file, "boot": id of this boot, "uptime": seconds, "now": Unix time}.

    A file that users other than root and this one could have written is not read: it decides
    whether jobs run here.
    """
    fd = _open(path)
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise NoAnswer("not_a_file", "%s is no regular file; it is not read" % path)
        _refuse_writable(path, state, path)
        # A user who may write the folder could bring back an older file of root's.
        folder = os.path.dirname(path)
        _refuse_writable(folder, os.stat(folder), path)
        with os.fdopen(os.dup(fd), "rb") as source:
            data = source.read(MAX_TEXT + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_TEXT:
        raise NoAnswer("truncated", "%s is larger than %d bytes" % (path, MAX_TEXT))
    return dict(moment(), text=data.decode("utf-8", "replace"))


def _open(path):
    """Return a descriptor of a file. Raises NoAnswer for a link, a pipe or a device."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NoAnswer("not_a_file", "%s is a link, a pipe or a device; it is not read" % path)
        raise


def _refuse_writable(place, state, path):
    is_trusted = state.st_uid in (0, os.geteuid())
    if not is_trusted or state.st_mode & WRITABLE_BY_OTHERS:
        why = "%s can be written by others than root; %s is not read" % (place, path)
        raise NoAnswer("denied", why)


def moment():
    """Return the boot, the seconds since it, and the time.

    Setting the clock changes only the last.
    """
    boot = read_file("/proc/sys/kernel/random/boot_id").strip()
    uptime = read_file("/proc/uptime").split()[0]
    return {
        "boot": boot,
        "uptime": float(uptime),
        "now": time.time(),
    }


def install(agent):
    """Register the reader of this part."""
    offer({"results": read_results}, lane="files")
