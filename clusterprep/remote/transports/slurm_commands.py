"""Ask Slurm's commands on this machine about nodes, our allocation and waiting jobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from msgspec import Struct

from clusterprep.errors import Unreached
from clusterprep.model.nodeset import expand, fold
from clusterprep.remedies import sentence, shell_line
from clusterprep.remote.transports.slurm_nodes import SlurmNode, parse_nodes

SLURMD_PORT = 6818  # Slurm's default, where it does not say
LONGEST = 100_000  # characters of node names; more do not fit into an argument
ERROR_SHOWN = 300  # characters of a command's own text in a message
PING = shell_line("scontrol ping   # is slurmctld up?")
# Of the user's environment, what finds Slurm and authenticates the user; and srun's own variables
# for a job of its own (srun(1), input environment variables). All others would change how the step
# runs.
_KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "KRB5CCNAME"),
    *("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"),
)
_OWN_JOB = (
    *("SLURM_PARTITION", "SLURM_ACCOUNT", "SLURM_QOS", "SLURM_RESERVATION", "SLURM_TIMELIMIT"),
    *("SLURM_CONSTRAINT", "SLURM_GRES", "SLURM_MEM_PER_NODE"),
)


class Allocation(Struct, frozen=True):
    """The job that this command runs in."""

    number: str
    hosts: frozenset[str]


def environment(*, own_job: bool = False) -> dict[str, str]:
    """Return the environment of Slurm's commands.

    With `own_job` it has the variables by which srun chooses an allocation.
    """
    names = _KEPT + (_OWN_JOB if own_job else ())
    variables = {name: os.environ[name] for name in names if name in os.environ}
    variables["LC_ALL"] = "C"
    return variables


def has(tool: str) -> bool:
    """Return whether a command of Slurm's is on this machine."""
    return shutil.which(tool) is not None


def allocation(variables: Mapping[str, str], limit: float) -> Allocation | None:
    """Return the allocation of SLURM_JOB_ID as Slurm has it now, None outside of one.

    `variables` are those of this process. Raises Unreached.
    """
    number = variables.get("SLURM_JOB_ID", "")
    if not number.isdecimal():
        return None
    argv = ("squeue", "--noheader", f"--jobs={number}", "--format=%N")
    hosts = _ask(argv, limit).strip()
    if not hosts:
        message = f"Slurm has no running job {number}"
        raise Unreached(
            "refused", message, sentence("get an allocation (salloc), or unset SLURM_JOB_ID")
        )
    return Allocation(number, frozenset(expand(hosts)))


def nodes(names: Sequence[str], limit: float) -> tuple[SlurmNode, ...]:
    """Return the nodes with these names, or all nodes if Slurm does not know one of the names.

    Raises Unreached.
    """
    show = ("scontrol", "--all", "--oneliner", "show")
    folded = fold(names)
    if len(folded) < LONGEST:
        output = _ask((*show, "node", folded), limit, accepted=(1,))
        listed = parse_nodes(output)
        if {node.name for node in listed} >= set(names):
            return listed
    return parse_nodes(_ask((*show, "nodes"), limit))


def slurmd_port(limit: float) -> int:
    """Return SlurmdPort of slurm.conf. Raises Unreached."""
    output = _ask(("scontrol", "show", "config"), limit)
    for line in output.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "SlurmdPort" and value.strip().isdecimal():
            return int(value)
    return SLURMD_PORT


def waits_for(job_name: str, limit: float) -> str:
    """Return the state of a job: "PENDING (Resources)". "" if it is not known."""
    argv = ("squeue", "--noheader", f"--name={job_name}", "--format=%T (%r)")
    try:
        return _ask(argv, limit).strip()
    except Unreached:
        return ""


def hosts_of_tasks(job_name: str, within: str | None, limit: float) -> tuple[str, ...]:
    """Return the node of each task of a running step, in the order of the tasks' numbers.

    The step has this name, `within` a job or as a job of its own, and one task per node. Raises
    Unreached.
    """
    chosen = f"--name={job_name}" if within is None else f"--jobs={within}"
    argv = ("squeue", "--steps", "--noheader", chosen, "--format=%j %N")
    for line in _ask(argv, limit).splitlines():
        name, _, hosts = line.strip().partition(" ")
        if name == job_name:
            return tuple(expand(hosts.strip()))
    raise Unreached("refused", "Slurm does not say on which nodes the step runs", PING)


def cancel(job_name: str, within: str | None, limit: float) -> None:
    """Have Slurm end the job of this name, or the step of this name `within` a job.

    Never raises.
    """
    with contextlib.suppress(Unreached):
        if within is None:
            _ask(("scancel", "--quiet", f"--name={job_name}"), limit)
            return
        argv = ("squeue", "--steps", "--noheader", f"--jobs={within}", "--format=%i %j")
        for line in _ask(argv, limit).splitlines():
            number, _, name = line.strip().partition(" ")
            if name == job_name:
                _ask(("scancel", "--quiet", number), limit)


def _ask(argv: tuple[str, ...], limit: float, accepted: tuple[int, ...] = ()) -> str:
    """Return the output of a command within a limit. Raises Unreached.

    An exit code in `accepted` is no failure if there is output.
    """
    tool = argv[0]
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
        raise missing(tool) from None
    except subprocess.TimeoutExpired:
        message = f"Slurm gave no answer to `{tool}` in {limit:.3g} s"
        raise Unreached("timed_out", message, PING) from None
    output = done.stdout.decode("utf-8", "replace")
    errors = done.stderr.decode("utf-8", "replace")
    if done.returncode == 0 or (done.returncode in accepted and output.strip()):
        return output
    reason = " ".join((errors or output).split())[-ERROR_SHOWN:]
    if not reason:
        reason = f"it left with {done.returncode}"
    raise Unreached("refused", f"`{tool}` failed: {reason}", PING)


def missing(tool: str) -> Unreached:
    """Return the error for a machine without Slurm's commands."""
    message = f"there is no {tool} on this machine, which `transport: slurm` needs"
    remedy = sentence(
        "run clusterprep where Slurm's commands are (slurm-client), or use `transport: ssh`"
    )
    return Unreached("missing_tool", message, remedy)
