"""Which job is meant: that of a process on a node, or that of a number of Slurm. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from clusterprep.errors import InputError
from clusterprep.jobs.live.model import Job, Process

KEY = "--job"
SLURM = "slurm"
LONGEST = 10  # digits of a number


class Target(Struct, frozen=True):
    """A process on a node, or the number of a Slurm job."""

    node: str = ""
    pid: int = 0
    slurm: str = ""

    @property
    def words(self) -> str:
        """Return it as it is given on the command line."""
        return f"{SLURM}:{self.slurm}" if self.slurm else f"{self.node}:{self.pid}"

    def is_in(self, job: Job) -> bool:
        """Return whether a rank of the job, or what started it or was started by it, is meant."""
        for rank in job.ranks:
            if self.slurm:
                if dict(rank.process.job).get("SLURM_JOB_ID") == self.slurm:
                    return True
            elif rank.node == self.node and self.pid in _family(rank.process):
                return True
        return False


def target_of(text: str, nodes: Sequence[str]) -> Target:
    """Return what --job names. Raises InputError for what is no process of a node, nor a job."""
    name, _, number = text.rpartition(":")
    if not name or not number.isascii() or not number.isdecimal() or len(number) > LONGEST:
        raise InputError.of(
            f"'{text}' is neither NODE:PID, as n1:4711, nor slurm:ID, as slurm:1234", key=KEY
        )
    if name == SLURM:
        return Target(slurm=str(int(number)))
    if name not in nodes:
        raise InputError.of(
            f"there is no node '{name}' among those that are watched: {', '.join(nodes[:5])}",
            key=KEY,
        )
    return Target(node=name, pid=int(number))


def _family(process: Process) -> tuple[int, ...]:
    return (process.pid, *process.above, *process.below)
