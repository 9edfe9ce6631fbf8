"""Reads the files that a command may rewrite, and refuses others before a plan is made."""

import os
import stat

from clusterprep.remote.agent.places import opened, refusal
from clusterprep.remote.agent.readers import NoAnswer, encoded, offer

MAX_TARGET = 1 << 20  # bytes of a configuration file that may be rewritten
VALUES = "/proc/sys/"  # the kernel keeps these folders, and a value is set in its place


def read_target(path, root="/"):
    """Return bytes, mode and owner of a file that may be rewritten.

    Links, devices and folders of other users are refused. A file that does not exist, in a folder
    where it may be made, is missing.
    """
    why = None if path.startswith(VALUES) else refusal(path, root)
    if why:
        raise NoAnswer("not_ours", "%s is not touched: %s" % (path, why))
    try:
        fd, state = opened(path)
    except ValueError as error:
        raise NoAnswer("not_a_file", "%s; it is not touched" % error)
    with os.fdopen(fd, "rb") as source:
        data = source.read(MAX_TARGET + 1)
    if len(data) > MAX_TARGET:
        raise NoAnswer("truncated", "%s has more than %d bytes" % (path, MAX_TARGET))
    mode = stat.S_IMODE(state.st_mode)
    return {
        "data": encoded(data),
        "mode": mode,
        "uid": state.st_uid,
        "gid": state.st_gid,
    }


def install(agent):
    """Register the reader of this part."""
    offer({"target": read_target}, lane="files")
