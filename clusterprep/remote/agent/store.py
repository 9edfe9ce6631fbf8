"""Keeps the findings of `check --deep --store` on the node, in one piece; sent for nothing else."""

import fcntl
import os

from clusterprep.remote.agent.disk import Stop, guarded, make_folder, refuse_shared, replace_file
from clusterprep.remote.agent.light import dumps, readable
from clusterprep.remote.agent.results import moment


@guarded
def store(agent, request):
    """Operation store: {"path", "root", "results"} → {"before": whether there were results}.

    The node adds the moment by its own clocks. A reader gets the old results or the new ones, also
    after a loss of power.
    """
    path = request["path"]
    folder = os.path.dirname(path)
    text = dumps(readable(dict(request["results"], **moment())))
    refuse_shared(path, request["root"])
    make_folder(folder)
    locked = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(locked)
        raise Stop("locked", "another run is storing its results in %s" % folder)
    try:
        before = os.path.lexists(path)
        data = text.encode("ascii") + b"\n"
        replace_file(
            path,
            data,
            0o644,
            os.geteuid(),
            os.getegid(),
        )
    finally:
        os.close(locked)
    return {"before": before}


def install(agent):
    """Register the operation of this part."""
    agent.ops["store"] = store
