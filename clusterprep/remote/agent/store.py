"""Keeps the findings of `check --deep --store` on the node, in one piece; this part is sent for nothing else."""

import fcntl
import os

from clusterprep.remote.agent.disk import Stop, guarded, make_folder, refuse_shared, replace_file
from clusterprep.remote.agent.light import dumps
from clusterprep.remote.agent.results import moment


@guarded
def store(agent, request):
    """Operation store: {"path", "root", "results": what to keep} → {"before": whether there were some}.

    The node adds the moment by its own clocks. Who reads sees the old results or the new ones, and a node that loses
    its power has the old ones or the new ones.
    """
    path, text = request["path"], dumps(dict(request["results"], **moment()))
    folder = os.path.dirname(path)
    refuse_shared(path, request["root"])
    make_folder(folder)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise Stop("locked", "another run is storing its results in %s" % folder)
    try:
        before = os.path.lexists(path)
        replace_file(path, text.encode("ascii") + b"\n", 0o644, os.geteuid(), os.getegid())
    finally:
        os.close(held)
    return {"before": before}


def install(agent):
    """Register the operation of this part."""
    agent.ops["store"] = store
