"""Causes outside a job: a scheduler, a person or the system ended it."""

from __future__ import annotations

from clusterprep.jobs.diagnose.launchers import HOSTS
from clusterprep.jobs.diagnose.model import Cause, Sign, Weight
from clusterprep.remedies import shell_line

TERMINATION = Cause(
    "external_termination",
    "fatal",
    title="Ended from outside",
    message=(
        "The job was ended from outside: a scheduler's limit or preemption, a closed terminal, a "
        "signal by hand."
    ),
    doubt=(
        "The job may have been ended from outside: by a scheduler's limit or preemption, by a "
        "closed terminal, by a signal by hand, or because a node was lost."
    ),
    looks=(
        "«got signal: 15», «CANCELLED … DUE TO TIME LIMIT», «Received 1 death signal», a node "
        "failure that Slurm tells."
    ),
    unlike=(
        "torchrun's «Sending process … closing signal SIGTERM» follows the failure of another "
        "worker and is no cause, and Slurm cancels the other tasks of a step after one has failed. "
        "Signal 9 may come from the kernel's want of memory: host_oom_kill."
    ),
    remedy=shell_line(
        "sacct -j JOB -o State,Reason,Elapsed,Timelimit   # nohup or tmux against SIGHUP; "
        "checkpoints against preemption"
    ),
    check=None,
    # Launchers end the other nodes by a signal after one of these; no signal leads to one of these.
    yields_to=frozenset(
        {"program", "rank_gpu_oom", "host_oom_kill", "invalid_device_ordinal", "port_in_use"}
    ),
    signs=(
        Sign(
            "cancelled",
            r"\*\*\* (?:JOB|STEP) (?P<job>[\w.+]+) (?:ON (?P<node>[\w.\[\],-]+) )?"
            r"CANCELLED AT \S+? DUE TO (?P<why>[A-Za-z ]+?)(?:,.*)?\s?\*\*\*",
            "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2031-03-04T12:00:00 DUE TO TIME "
            "LIMIT ***",
            note="Slurm says: {why}",
        ),
        Sign(
            "first failure: rank",
            r"first failure: rank (?P<number>\d+) on \S+ was killed by (?P<signal>SIG(?:TERM|INT"
            r"|HUP))",
            "clusterprep launch: first failure: rank 2 on n2 was killed by SIGTERM",
            Weight.LIKELY,
            culprit="rank {number}",
            note="it was {signal}",
        ),
        Sign(
            "was lost while the job ran",
            r"first failure: (?P<node>\S+) was lost while the job ran",
            "clusterprep launch: first failure: n2 was lost while the job ran: no sign of life",
            Weight.LIKELY,
            culprit="host {node}",
            note="launch lost the connection to {node}",
        ),
        Sign(
            "cancelled at",
            r"CANCELLED AT",
            "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2031-03-04T12:00:00 ***",
            # Slurm also cancels the remaining tasks of a step after one failed.
            Weight.LIKELY,
        ),
        Sign(
            "cancelled",
            r"\bState: CANCELLED|JobState=CANCELLED"
            r"|^\d[\w.+-]*\s.*\bCANCELLED\+?(?: by \d+)?\s+\d+:\d+",
            "4711         train      gpu   u   64 CANCELLED+      0:15",
            Weight.LIKELY,
        ),
        Sign(
            "scancel: ",
            r"^scancel: Terminating job",
            "scancel: Terminating job 4711",
        ),
        Sign(
            "timeout",
            r"\bState: TIMEOUT|JobState=TIMEOUT|^\d[\w.+-]*\s.*\bTIMEOUT\s+\d+:\d+",
            "State: TIMEOUT (exit code 0)",
            note="Slurm says that the job reached its time limit",
        ),
        Sign(
            "node_fail",
            r"\bState: NODE_FAIL|JobState=NODE_FAIL|^\d[\w.+-]*\s.*\bNODE_FAIL\s+\d+:\d+",
            "JobState=NODE_FAIL Reason=NodeDown Dependency=(null)",
            note="Slurm says that a node failed",
        ),
        Sign(
            "preempted",
            r"\bState: PREEMPTED|JobState=PREEMPTED|^\d[\w.+-]*\s.*\bPREEMPTED\s+\d+:\d+"
            r"|Preempted (?:in order to admit|by (?:a )?pod)",
            "4711         train      gpu   u   64  PREEMPTED      0:0",
            note="a job of higher priority took its place",
        ),
        Sign(
            "sending ctrl-c to",
            r"srun: sending Ctrl-C to",
            "srun: sending Ctrl-C to StepId=4711.0",
            note="it was interrupted at its terminal",
        ),
        Sign(
            "job allocation ",
            r"salloc: Job allocation \d+ has been revoked",
            "salloc: Job allocation 4711 has been revoked.",
        ),
        Sign(
            "pbs: job killed: ",
            r"PBS: job killed: (?P<why>(?:walltime|cput|ncpus|node)\b.*)",
            "=>> PBS: job killed: walltime 3611 exceeded limit 3600",
            note="PBS says: {why}",
        ),
        Sign(
            "term_",
            r"\bTERM_(?P<why>RUNLIMIT|OWNER|FORCE_OWNER|ADMIN|FORCE_ADMIN|PREEMPT|CPULIMIT|DEADLINE"
            r"|BUCKET_KILL|REMOVE_HUNG_JOB|CWD_NOTEXIST|EXTERNAL_SIGNAL|REQUEUE_\w+)\b",
            "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
            note="LSF says {why}",
        ),
        Sign(
            "longer than specified deadline",
            r"active longer than specified deadline",
            "Warning  DeadlineExceeded  5s  job-controller  Job was active longer than specified "
            "deadline",
            note="its limit in Kubernetes is activeDeadlineSeconds",
        ),
        Sign(
            "imminent node shutdown",
            r"in response to imminent node shutdown",
            "Message: Pod was terminated in response to imminent node shutdown.",
            note="the node was shut down",
        ),
        Sign(
            "low on resource",
            r"low on resource: (?P<why>ephemeral-storage|\w*(?:imagefs|nodefs)\S*|inodes|pids?\b)",
            "Message: The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi",
            note="the node had too little of {why}",
        ),
        Sign(
            "got signal",
            r"got signal: (?P<signal>1|2|15)\b",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 2794 got "
            "signal: 15",
            note="it was {signal}",
        ),
        Sign(
            "death signal",
            r"Received (?P<signal>\S+) death signal",
            "[2031-03-04 12:00:00,123] torch.distributed.elastic.agent.server.api: [WARNING] "
            "Received Signals.SIGHUP death signal, shutting down workers",
            note="it was {signal}",
        ),
        Sign(
            "signalexception",
            r"SignalException",
            "multiprocessing.api.SignalException: Process 71 got signal: 15",
        ),
        Sign(
            "node fail",
            rf"Node failure on (?P<node>{HOSTS})|DUE TO NODE FAILURE",
            "srun: error: Node failure on gpu[03-04]",
            culprit="host {node}",
        ),
        Sign(
            # Open MPI 3.0 to 4.1, orte/mca/errmgr/help-errmgr-base.txt
            "remote daemon: [",
            r"Remote daemon: +\[\[\d+,\d+\],\d+\] on node (?P<node>[\w.-]+)",
            "  Remote daemon: [[43015,0],20] on node n1",
            Weight.SYMPTOM,
            culprit="host {node}",
            note="mpirun lost its daemon on {node}, with the host, the pod or the network there",
        ),
        Sign(
            "preempt",
            # Not «if the node was preempted», nor «has failed, got preempted, or crashed».
            r"(?:spot|instance|job|node|pod|task) (?:\S+ ){0,4}?(?:was|were|is|been|being|:) ?"
            r"(?<!if the node was )preempted(?!,? (?:or|had))|DUE TO PREEMPTION",
            "slurmstepd: error: job was terminated: preempted, DUE TO PREEMPTION",
        ),
        Sign(
            "interruption",
            r"(?:spot|instance) .{0,40}interruption",
            "agent: the spot instance got an interruption notice, draining the node",
            Weight.LIKELY,
        ),
        Sign(
            "closing signal sig",
            r"closing signal (?P<signal>SIGHUP|SIGINT)",
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 12 closing "
            "signal SIGHUP",
            Weight.LIKELY,
            note="it was {signal}",
        ),
        Sign(
            "return code = -1",
            r"exits? with return code = -(?:15|1)\b",
            "[INFO] [launch.py:347:main] Process 4711 exits with return code = -15",
            Weight.SYMPTOM,
        ),
        Sign(
            "evict",
            r"\b(?:pod|container|job)\b.{0,60}\bevicted\b|TaintManagerEviction|Reason: +Evicted\b",
            "Warning  Evicted  3m  kubelet  The pod train-0 was evicted by the node's drain",
            Weight.LIKELY,
        ),
        Sign(
            "keyboardinterrupt",
            r"^KeyboardInterrupt",
            "KeyboardInterrupt",
            Weight.LIKELY,
        ),
        Sign(
            "sigterm",
            r"(?:received|caught|got) (?:signal )?SIGTERM(?!.*closing)|Received SIGTERM",
            "[rank0]: received SIGTERM, terminating",
            Weight.LIKELY,
        ),
    ),
)
