"""The open files that this process may have: each connection to a node is one.

Without a free one every library fails in its own way, and most failures look like those of a node:
a key that cannot be read, a host key that is in no file. So what cannot work is refused before any
node is asked, and what fails while there is none left is this machine's fault.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable

from clusterprep.errors import InputError, Unreached
from clusterprep.model import Node
from clusterprep.remedies import shell_line

SPARE = 256  # open files besides the connections, as far as the hard limit allows
# Open files besides the connections without which nothing works: streams, the history, keys and
# known_hosts of the logins that are under way.
LEAST_SPARE = 32
OPEN_MAX = 10240  # the most that macOS takes, although it calls the hard limit infinite
FEW = 4  # free ones with which no login can be done
# Open files of one node: an agent on this machine has three pipes, and one srun carries all nodes.
OF_NODE = {"ssh": 1, "local": 3, "slurm": 0}


def raise_limit(count: int) -> None:
    """Raise the soft limit to `count` and SPARE, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    wanted = count + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    for limit in (wanted, OPEN_MAX):
        if soft < limit <= wanted and _is_accepted(limit, hard):
            return


def _is_accepted(soft: int, hard: int) -> bool:
    """Set the limits of this process, and return whether the kernel takes them."""
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except (OSError, ValueError):
        return False
    return True


def refuse_too_few(nodes: Iterable[Node], most_at_once: int) -> None:
    """Raise InputError if so many connections at once would need more files than may be open."""
    sizes = sorted((OF_NODE[node.transport] for node in nodes), reverse=True)
    needed = sum(sizes[:most_at_once]) + LEAST_SPARE
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    message = (
        f"{min(most_at_once, len(sizes))} connections at once take {needed} open files, and this "
        f"process may have {soft}"
    )
    raise InputError.of(message, hint=f"ulimit -n {needed}, or --limit to fewer nodes")


def own_fault(error: Exception) -> Unreached | None:
    """Return what to say instead of this error if it came because no file could be opened here."""
    if isinstance(error, OSError) and error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    if not isinstance(error, OSError) and not _none_left():
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Unreached(
        "busy",
        f"this machine, which clusterprep runs on, has no open file left: it may have {soft}",
        shell_line(
            "ulimit -n {limit}   # here, before the command; or fewer --forks", limit=2 * soft
        ),
    )


def _none_left() -> bool:
    """Return whether no login could be done, by trying to open as many files as it takes."""
    opened: list[int] = []
    try:
        for _ in range(FEW):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False
