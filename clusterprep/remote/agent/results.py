"""The findings that an earlier `check --deep --store` left on this node, and what tells how old they are."""

import errno
import os
import stat
import time

from clusterprep.remote.agent.readers import MAX_TEXT, NoAnswer, offer, read_file


def read_results(path):
    """{"text": the file, "boot": id of this boot, "uptime": seconds since it, "now": seconds since 1970}.

    What others than root and this user could have written is not read: it decides whether jobs run here.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NoAnswer("not_a_file", "%s is a link, a pipe or a device; it is not read" % path)
        raise
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise NoAnswer("not_a_file", "%s is no regular file; it is not read" % path)
        # Who may write the folder could bring back an older file of root's.
        folder = os.path.dirname(path)
        for place, owned in (path, state), (folder, os.stat(folder)):
            if owned.st_uid not in (0, os.geteuid()) or owned.st_mode & 0o022:
                raise NoAnswer(
                    "denied",
                    "%s can be written by others than root; %s is not read" % (place, path),
                )
        with os.fdopen(os.dup(fd), "rb") as source:
            data = source.read(MAX_TEXT + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_TEXT:
        raise NoAnswer("truncated", "%s is larger than %d bytes" % (path, MAX_TEXT))
    return dict(moment(), text=data.decode("utf-8", "replace"))


def moment():
    """Which boot it is, how long it has lasted, which no change of the clock alters, and the clock."""
    boot = read_file("/proc/sys/kernel/random/boot_id").strip()
    return {"boot": boot, "uptime": float(read_file("/proc/uptime").split()[0]), "now": time.time()}


def install(agent):
    """Offer the read."""
    offer({"results": read_results}, lane="files")
