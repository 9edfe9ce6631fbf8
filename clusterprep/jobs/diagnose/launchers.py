"""Reads which hosts a launcher names, and which of them it says ended by themselves."""

from __future__ import annotations

import re

from clusterprep.jobs.diagnose.model import Culprits, LogFile
from clusterprep.model.nodeset import expand

# A host, or a list of hosts as Slurm folds it: «gpu[03-04,07]».
HOSTS = r"[\w.\[\],-]*[\w\]]"
NEEDLES = ("exited with exit code",)
# Hosts of one line that are told one by one. A line of more is about the job, and many such lines
# would fill the memory.
MOST_HOSTS = 64
_TASKS = re.compile(
    rf"(?:srun|slurmstepd): (?:error: )?(?P<hosts>{HOSTS}): tasks? [\d,-]+: ", re.IGNORECASE
)


def unfolded(hosts: str, most: int = MOST_HOSTS) -> list[str]:
    """Return the hosts of «gpu[03-04]», or the text itself if it is no list of at most so many."""
    try:
        return expand(hosts, most)
    except ValueError:
        return [hosts]


def hosts_of_tasks(message: str) -> str:
    """Return the hosts whose tasks Slurm tells of, as it folds them, or an empty text."""
    match = _TASKS.search(message)
    return match["hosts"] if match else ""


def host_that_exited(log: LogFile) -> Culprits:
    """Return the host of the tasks that srun says ended by themselves, if they are of one host.

    srun ends tasks of other hosts after the first, and says «Terminated» or «Killed» of them.
    """
    hosts: set[str] = set()
    for line in log.lines_with(*NEEDLES):
        named = hosts_of_tasks(line.text)
        if named:
            hosts.update(unfolded(named))
    return (("host", hosts.pop()),) if len(hosts) == 1 else ()
