"""Reads which hosts a launcher says ended by themselves."""

from __future__ import annotations

import re

from clusterprep.jobs.diagnose.model import Culprits, LogFile

NEEDLES = ("exited with exit code",)
_SRUN = re.compile(
    r"(?:srun|slurmstepd): (?:error: )?(?P<host>[\w.-]+): tasks? [\d,-]+: Exited with exit code",
    re.IGNORECASE,
)


def host_that_exited(log: LogFile) -> Culprits:
    """Return the host of the tasks that srun says ended by themselves, if they are of one host.

    srun ends tasks of other hosts after the first, and says «Terminated» or «Killed» of them.
    """
    hosts: set[str] = set()
    for line in log.lines_with(*NEEDLES):
        match = _SRUN.search(line.text)
        if match:
            hosts.add(match["host"])
    return (("host", hosts.pop()),) if len(hosts) == 1 else ()
