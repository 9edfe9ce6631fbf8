"""Reads the files that a command may rewrite, and refuses those that none of ours may touch before anybody plans."""

import os
import stat

from clusterprep.remote.agent.places import opened, refusal
from clusterprep.remote.agent.readers import NoAnswer, encoded, offer

MAX_TARGET = 1 << 20  # bytes of a configuration file that we may rewrite
VALUES = "/proc/sys/"  # the kernel keeps these folders, and a value is set in its place


def read_target(path, root="/"):
    """A file that we may rewrite: bytes, mode, owner; links, devices and folders of others are named, never followed.

    A file that is not there, in a folder where it may be made, is missing.
    """
    why = None if path.startswith(VALUES) else refusal(path, root)
    if why:
        raise NoAnswer("not_ours", "%s is not touched: %s" % (path, why))
    try:
        fd, state = opened(path)
    except ValueError as error:
        raise NoAnswer("not_a_file", "%s; it is not touched" % error)
    with os.fdopen(fd, "rb") as source:
        if state.st_size > MAX_TARGET:
            raise NoAnswer("truncated", "%s has %d bytes" % (path, state.st_size))
        data = source.read(MAX_TARGET)
    return {
        "data": encoded(data),
        "mode": stat.S_IMODE(state.st_mode),
        "uid": state.st_uid,
        "gid": state.st_gid,
    }


def install(agent):
    """Offer the read."""
    offer({"target": read_target}, lane="files")
