"""What Slurm's commands on this machine say: of nodes, of our allocation, of a job that waits."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from clusterprep.errors import Unreached
from clusterprep.model.nodeset import expand, fold
from clusterprep.remote.transports.slurm_nodes import SlurmNode, parse_nodes
from clusterprep.runtime.lazy_dataclass import dataclass

SLURMD_PORT = 6818  # Slurm's default, where it does not say
LONGEST = 100_000  # characters of node names; more do not fit into an argument
# Of the user's environment, what finds Slurm and proves who we are; and srun's own variables for a job of its own
# (srun(1), input environment variables). All others would change how the step runs.
_KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "KRB5CCNAME"),
    *("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"),
)
_OWN_JOB = (
    *("SLURM_PARTITION", "SLURM_ACCOUNT", "SLURM_QOS", "SLURM_RESERVATION", "SLURM_TIMELIMIT"),
    *("SLURM_CONSTRAINT", "SLURM_GRES", "SLURM_MEM_PER_NODE"),
)


@dataclass(frozen=True)
class Allocation:
    """The job that this command runs in."""

    number: str
    hosts: frozenset[str]


def environment(*, own_job: bool = False) -> dict[str, str]:
    """What Slurm's commands are given of our environment; `own_job`: with what srun asks an allocation for."""
    names = _KEPT + (_OWN_JOB if own_job else ())
    return {name: os.environ[name] for name in names if name in os.environ} | {"LC_ALL": "C"}


def has(tool: str) -> bool:
    """Whether a command of Slurm's is on this machine."""
    return shutil.which(tool) is not None


def allocation(given: Mapping[str, str], limit: float) -> Allocation | None:
    """That of SLURM_JOB_ID, as Slurm has it now; None outside of one. Raises Unreached."""
    number = given.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        return None
    said = _ask(("squeue", "--noheader", f"--jobs={number}", "--format=%N"), limit).strip()
    if not said:
        raise Unreached(
            "refused", f"Slurm has no running job {number}", "salloc …, or unset SLURM_JOB_ID"
        )
    return Allocation(number, frozenset(expand(said)))


def nodes(names: Sequence[str], limit: float) -> tuple[SlurmNode, ...]:
    """Those of these names, or all where a name is none of Slurm's. Raises Unreached."""
    folded = fold(names)
    if len(folded) < LONGEST:
        found = parse_nodes(
            _ask(("scontrol", "--all", "--oneliner", "show", "node", folded), limit, bad=(1,))
        )
        if {node.name for node in found} >= set(names):
            return found
    return parse_nodes(_ask(("scontrol", "--all", "--oneliner", "show", "nodes"), limit))


def slurmd_port(limit: float) -> int:
    """SlurmdPort of slurm.conf. Raises Unreached."""
    for line in _ask(("scontrol", "show", "config"), limit).splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "SlurmdPort" and value.strip().isdecimal():
            return int(value)
    return SLURMD_PORT


def waits_for(job_name: str, limit: float) -> str:
    """«PENDING (Resources)» of a job that has not begun; empty where nothing is known."""
    try:
        return _ask(
            ("squeue", "--noheader", f"--name={job_name}", "--format=%T (%r)"), limit
        ).strip()
    except Unreached:
        return ""


def cancel(job_name: str, within: str | None, limit: float) -> None:
    """Have Slurm end the job of this name, or the step of this name `within` a job; never raises."""
    with contextlib.suppress(Unreached):
        if within is None:
            _ask(("scancel", "--quiet", f"--name={job_name}"), limit)
            return
        listed = _ask(
            ("squeue", "--steps", "--noheader", f"--jobs={within}", "--format=%i %j"), limit
        )
        for number, _, name in (line.strip().partition(" ") for line in listed.splitlines()):
            if name == job_name:
                _ask(("scancel", "--quiet", number), limit)


def _ask(argv: tuple[str, ...], limit: float, bad: tuple[int, ...] = ()) -> str:
    """What a command says within a limit; exit codes in `bad` are of no interest where it says something."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            timeout=limit,
            check=False,
            env=environment(),
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise missing(argv[0]) from None
    except subprocess.TimeoutExpired:
        raise Unreached(
            "timed_out",
            f"Slurm gave no answer to `{argv[0]}` in {limit:.3g} s",
            "is slurmctld up? scontrol ping",
        ) from None
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    if done.returncode and not (done.returncode in bad and out.strip()):
        words = " ".join((err or out).split())[-300:] or f"it left with {done.returncode}"
        raise Unreached("refused", f"`{argv[0]}` failed: {words}", "is slurmctld up? scontrol ping")
    return out


def missing(tool: str) -> Unreached:
    """For a machine without Slurm's commands."""
    cure = "run clusterprep where Slurm's commands are (slurm-client), or use `transport: ssh`"
    return Unreached(
        "missing_tool", f"there is no {tool} on this machine, which `transport: slurm` needs", cure
    )
