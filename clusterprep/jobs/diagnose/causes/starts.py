"""The cause of processes that a launcher, a scheduler or a container runtime could not start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.launchers import HOSTS
from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, Sign, Weight
from clusterprep.remedies import sentence

NAME = "processes_not_started"
# Kubernetes tries these again, and lists the failed tries of pods that run long since.
_TRIED_AGAIN = (
    "failedscheduling",
    "failed to pull image",
    "failedmount",
    "failedcreatepodsandbox",
)
# Seen in issues of kubernetes 1.10 to 1.31; `kubectl describe` puts type, reason, age and the
# component before the message.
_EVENT = re.compile(
    r"\bFailedScheduling\b.*?(?P<unplaced>\d+/\d+ nodes are available: .+)"
    r"|Failed to pull image \"?(?P<image>[^\s\"]+)"
    r"|\b(?:FailedMount|FailedCreatePodSandBox)\b\s.*?(?P<other>(?:MountVolume|Unable to (?:attach"
    r"|mount)|Failed to create pod sandbox)\b.+)"
)
# What Kubernetes says once such a try has worked.
_ASSIGNED = "successfully assigned"
_PULLED = "successfully pulled image"
_STARTED = "started container"
_LONGEST = 160  # characters of a message that are told


def detect_events(log: LogFile) -> Iterator[Evidence]:
    """Yield events of Kubernetes that kept a pod from its start, up to the end of the log."""
    placed_at = _last(log, _ASSIGNED, _STARTED)
    pulled_at = _last(log, _PULLED, _STARTED)
    started_at = _last(log, _STARTED)
    for line in log.lines_with(*_TRIED_AGAIN):
        match = _EVENT.search(line.message)
        if match is None:
            continue
        weight = Weight.LIKELY
        if unplaced := match["unplaced"]:
            note = f"Kubernetes found no node for a pod: {_cut(unplaced)}"
            worked_at = placed_at
        elif image := match["image"]:
            note = f"Kubernetes could not pull the image {_cut(image)}"
            worked_at = pulled_at
            weight = Weight.PLAIN
        else:
            note = f"Kubernetes could not prepare a pod: {_cut(match['other'])}"
            worked_at = started_at
        if line.order > worked_at:
            yield Evidence(NAME, line, weight, note=note)


def _last(log: LogFile, *needles: str) -> int:
    """Return the order of the last line that has one of the needles, -1 if none does."""
    lines = log.lines_with(*needles)
    return lines[-1].order if lines else -1


def _cut(text: str) -> str:
    """Return a message without its full stop, and without what is too long to tell."""
    text = text.strip().rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


NOT_STARTED = Cause(
    NAME,
    "fatal",
    title="Processes were not started",
    message=(
        "The launcher, the scheduler or the container runtime could not start all processes of "
        "the job."
    ),
    doubt=(
        "The launcher, the scheduler or the container runtime may not have started all processes "
        "of the job."
    ),
    looks=(
        "«Unable to create step for job», «Job prolog failed», «Batch job submission failed», "
        "«FailedScheduling», «ImagePullBackOff», «was not reachable via ssh», «ORTE was unable to "
        "reliably start one or more daemons»."
    ),
    unlike=(
        "A program that was started and ended is program. One that was started and did not come "
        "to the others in time is rendezvous_incomplete."
    ),
    remedy=sentence(
        "Try that step alone as the user of the job: ssh NODE true, srun -w NODE true, kubectl "
        "describe pod POD, docker run IMAGE true; then start the job again"
    ),
    check=None,
    # A name that does not resolve and a port that is filtered say why ssh did not get there.
    yields_to=frozenset({"hostname_unresolvable", "firewall_blocked_port"}),
    detect=detect_events,
    needles=(*_TRIED_AGAIN, _ASSIGNED, _PULLED, _STARTED),
    signs=(
        # ---- ssh, as DeepSpeed, pdsh and mpirun use it
        Sign(
            "reachable via ssh",
            r"host=(?P<node>[\w.-]+) was not reachable via ssh",
            "RuntimeError: Using hostfile at hostfile but host=n1 was not reachable via ssh.",
            culprit="host {node}",
            note="DeepSpeed could not log in to {node}",
        ),
        Sign(
            "ssh: connect to host",
            r"ssh: connect to host (?P<node>[\w.-]+) port (?P<port>\d+): Connection refused",
            "ssh: connect to host n1 port 22: Connection refused",
            Weight.LIKELY,
            "host {node}",
            note="no SSH server answers on port {port} of {node}",
        ),
        Sign(
            "permission denied (",
            r"^(?:[\w.-]+@)?(?P<node>[\w.-]+): Permission denied \((?:publickey|password|gssapi"
            r"|keyboard)",
            "root@n1: Permission denied (publickey,password).",
            Weight.LIKELY,
            "host {node}",
            note="the launcher could not log in to {node}",
        ),
        Sign(
            "permission denied (",
            # OpenSSH before 7.7 names neither user nor host; pdsh puts the host before it.
            r"^Permission denied \((?:publickey|password|gssapi|keyboard)",
            "Permission denied (publickey,password).",
            Weight.LIKELY,
            "host {host}",
            note="the launcher could not log in to a host",
        ),
        Sign(
            "host key verification failed",
            r"^Host key verification failed",
            "Host key verification failed.",
            Weight.LIKELY,
            "host {host}",
            note="the launcher could not log in to a host, whose key ssh does not know",
        ),
        # ---- Open MPI, orte/mca/plm/base of 1.10 to 4.1, and PRRTE since 5.0
        Sign(
            "unable to reliably start one or more daemons",
            r"(?:ORTE|PRTE) was unable to reliably start one or more daemons",
            "ORTE was unable to reliably start one or more daemons.",
            Weight.LIKELY,
            note="mpirun could not start its daemons on all hosts",
        ),
        Sign(
            "command not found",
            r"(?P<what>orted|prted|pdsh|pdcp): command not found",
            "bash: orted: command not found",
            Weight.LIKELY,
            note="the shell of a host does not find {what}, which starts the processes there",
        ),
        # ---- Slurm 22.05 to 26.05, src/api/step_launch.c, src/srun/launch.c, src/sbatch/sbatch.c
        Sign(
            "task launch for ",
            rf"Task launch for \S+ failed on node (?P<node>{HOSTS}): (?P<why>\S.{{0,160}})",
            "srun: error: Task launch for StepId=4711.0 failed on node n1: Job prolog failed",
            culprit="host {node}",
            note="Slurm started no task on {node}: {why}",
        ),
        Sign(
            "application launch failed",
            r"Application launch failed: (?P<why>\S.{0,160})",
            "srun: error: Application launch failed: Job prolog failed",
            Weight.LIKELY,
            note="Slurm says: {why}",
        ),
        Sign(
            "unable to create step for job",
            # A step that is created as its job ends is refused too, which follows from the end.
            r"Unable to create step for job \S+: (?!Job/step already)(?P<why>\S.{0,160})",
            "srun: error: Unable to create step for job 4711: Memory required by task is not "
            "available",
            note="Slurm created no step: {why}",
        ),
        Sign(
            "batch job submission failed",
            r"Batch job submission failed: (?P<why>\S.{0,160})",
            "sbatch: error: Batch job submission failed: Invalid account or account/partition "
            "combination specified",
            note="Slurm did not take the job: {why}",
        ),
        Sign(
            "unable to allocate resources",
            r"Unable to allocate resources: (?P<why>\S.{0,160})",
            "srun: error: Unable to allocate resources: Requested node configuration is not "
            "available",
            note="Slurm gave no nodes: {why}",
        ),
        Sign(
            "set by two different environment variables",
            r"srun: fatal: (?P<what>[\w-]+) set by two different environment variables (?P<how>.+)",
            "srun: fatal: cpus-per-task set by two different environment variables "
            "SLURM_CPUS_PER_TASK=13 != SLURM_TRES_PER_TASK=cpu=8",
            Weight.LIKELY,
            note="srun refuses two values of {what}: {how}; give it as an option of srun",
        ),
        Sign(
            "establish a configuration source",
            r"Could not establish a configuration source",
            "sbatch: fatal: Could not establish a configuration source",
            note="Slurm's command finds no slurm.conf on this host, neither in a file nor by DNS",
        ),
        # ---- pyxis 0.4 to 0.24, pyxis_slurmstepd.c
        Sign(
            "import docker image",
            r"pyxis: failed to import docker image",
            "slurmstepd: error: pyxis: failed to import docker image",
            culprit="host {host}",
            note="pyxis could not fetch the image of the container",
        ),
        Sign(
            "start container",
            r"pyxis: (?:couldn't|failed to) start container",
            "slurmstepd: error: pyxis: couldn't start container",
            Weight.LIKELY,
            culprit="host {host}",
            note="pyxis could not start the container",
        ),
        # ---- Docker 20 to 28, and kubelet 1.20 to 1.36
        Sign(
            "error response from daemon: ",
            r"docker: Error response from daemon: (?P<why>.{1,160})",
            'docker: Error response from daemon: could not select device driver "" with '
            "capabilities: [[gpu]].",
            note="Docker did not start the container: {why}",
        ),
        Sign(
            "imagepull",
            r"\b(?:ErrImagePull|ImagePullBackOff)\b",
            "      Reason:       ImagePullBackOff",
            Weight.LIKELY,
            note="Kubernetes could not pull the image of a container",
        ),
        Sign(
            "createcontainer",
            r"\b(?P<why>CreateContainerConfigError|CreateContainerError)\b",
            "      Reason:       CreateContainerConfigError",
            note="Kubernetes could not create a container: {why}",
        ),
    ),
)
