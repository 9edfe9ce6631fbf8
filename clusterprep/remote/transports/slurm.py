"""Nodes reached through Slurm: one job step for the whole command, one task per node, no SSH."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence

from clusterprep.errors import Unreached
from clusterprep.model import Inventory, Node
from clusterprep.model.nodeset import fold
from clusterprep.remote import bootstrap as boot
from clusterprep.remote.transports import Channel, slurm_says
from clusterprep.remote.transports.slurm_nodes import SlurmNode, matching
from clusterprep.remote.transports.slurm_says import Allocation
from clusterprep.remote.transports.slurm_step import JobStep
from clusterprep.remote.transports.tcp import dial
from clusterprep.runtime.clock import running_seconds

DIALERS = 64  # nodes whose slurmd is dialled at once
LINGER = 1.5  # seconds that other tasks may begin after the first
DIAL_LIMIT = 3.0  # seconds
ATTEMPTS = 3  # steps, each without the nodes that spoiled the one before
SQUEUE_LIMIT = CANCEL_LIMIT = 2.0  # seconds
SALLOC = "salloc -N … --exclusive, and run clusterprep in it"
# One task per node, whatever its neighbours do, beside what runs in the allocation, with nothing of our environment,
# limits or folder; --label says which task wrote what. Never --unbuffered, which breaks lines.
_FLAGS = (
    *(
        "--quiet",
        "--ntasks-per-node=1",
        "--input=all",
        "--overlap",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
    ),
    *("--export=NONE", "--propagate=NONE", "--cpu-bind=none", "--mpi=none", "--label", "--chdir=/"),
)


class SlurmTransport:
    """See clusterprep.transports.Transport. The first `open` starts the step, for all nodes of the inventory."""

    def __init__(self, inventory: Inventory) -> None:
        self._nodes = tuple(node for node in inventory.nodes if node.transport == "slurm")
        self._limit = max((node.ssh.connect_timeout for node in self._nodes), default=10.0)
        self._lock = threading.Lock()
        self._begun = self._closed = False
        self._step: JobStep | None = None
        self._home: Allocation | None = None  # the job that this runs in
        self._found: dict[str, SlurmNode] = {}  # node -> what Slurm says of it
        self._troubles: dict[str, Unreached] = {}  # node -> why it takes no part

    def open(self, node: Node, command: str) -> Channel:
        """Start command in the node's task. Raises Unreached."""
        with self._lock:
            if not self._begun:
                self._begin()
                self._begun = True
        if node.name in self._troubles:
            raise self._troubles[node.name]
        step, host = self._step, self._found[node.name].name
        if step is None or step.ended is not None or host in step.failed:
            words = "the command ended" if step is None else step.ended or step.failed[host]
            raise Unreached("hung", words)
        return step.open(host, command)

    def unheard(self) -> tuple[str, ...]:
        """Nobody: all wait for the same step."""
        return ()

    def close(self) -> None:
        """End the step, and all that its tasks started."""
        self._closed = True
        step, self._step = self._step, None
        if step is not None and not step.close():
            self._give_up(step)

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes that srun was given and that it gave so far."""
        return (self._step.taken, self._step.given) if self._step else (0, 0)

    # ------------------------------------------------------------ the start

    def _begin(self) -> None:
        """Start the step, or note for every node why not."""
        try:
            if not slurm_says.has("srun"):
                raise slurm_says.missing("srun")
            self._home = slurm_says.allocation(os.environ, self._limit)
            self._choose(self._home)
            self._run(self._home)
        except Unreached as trouble:
            for node in self._nodes:
                self._troubles.setdefault(node.name, trouble)

    def _choose(self, home: Allocation | None) -> None:
        """Find every node in Slurm, and set aside those on which it would start nothing."""
        listed = slurm_says.nodes([node.name for node in self._nodes], self._limit)
        for node in self._nodes:
            there = matching(listed, node.name, node.address)
            trouble = _trouble(node, there, home)
            if trouble is not None:
                self._troubles[node.name] = trouble
            elif there is not None:
                self._found[node.name] = there

    def _run(self, home: Allocation | None) -> None:
        """A node that does not start its task makes Slurm end the whole step after a while: go on without it."""
        for _ in range(ATTEMPTS):
            hosts = [
                there.name for name, there in self._found.items() if name not in self._troubles
            ]
            if not hosts or self._closed:
                break
            nonce = os.urandom(8).hex()
            step = self._step = _start(hosts, home, nonce)
            deadline = time.monotonic() + self._limit
            step.wait(deadline, LINGER)
            if step.started and self._cannot_start(step):
                self._abandon(step)
                continue
            step.wait(deadline)
            if not step.started:
                why = (
                    None
                    if self._cannot_start(step, nonce)
                    else self._why_nothing_started(step, nonce)
                )
                self._abandon(step)
                if why is not None:
                    raise why
                continue
            self._note(step)
            if not step.missing and step.ended is None:
                return
            self._abandon(step)
        if self._step is None:
            raise Unreached(
                "refused",
                "Slurm started no step of ours",
                "squeue; sinfo -R; and the log of slurmctld",
            )

    def _abandon(self, step: JobStep) -> None:
        """End a step that is of no use."""
        self._step = None
        if not step.terminate():
            self._give_up(step)

    def _give_up(self, step: JobStep) -> None:
        """srun waits for a node that is lost, and Slurm for srun: tell Slurm that nobody needs the step any more."""
        slurm_says.cancel(
            job_name(step.nonce), self._home.number if self._home else None, CANCEL_LIMIT
        )
        step.kill()

    def _cannot_start(self, step: JobStep, nonce: str = "") -> bool:
        """Whether nodes that did not start their task have no slurmd; they are noted then.

        Nobody is dialled without need, since slurmd logs every connection that says nothing.
        """
        if step.ended is not None or (
            nonce and slurm_says.waits_for(job_name(nonce), SQUEUE_LIMIT).startswith("PENDING")
        ):
            return False
        missing = {name: there for name, there in self._found.items() if there.name in step.missing}
        troubles = _dial_all(missing, min(DIAL_LIMIT, self._limit)) if missing else {}
        self._troubles.update(
            (name, trouble) for name, trouble in troubles.items() if name not in self._troubles
        )
        return bool(troubles)

    def _why_nothing_started(self, step: JobStep, nonce: str) -> Unreached:
        if step.ended is not None:
            return Unreached("refused", f"srun was refused: {step.words or step.ended}", SALLOC)
        waiting = slurm_says.waits_for(job_name(nonce), SQUEUE_LIMIT)
        if waiting.startswith("PENDING"):
            message = f"srun waits for resources: after {self._limit:.3g} s its job is {waiting}"
            return Unreached("timed_out", message, f"{SALLOC}; or a longer `connect_timeout:`")
        message = (
            f"srun started no task in {self._limit:.3g} s{f': {step.words}' if step.words else ''}"
        )
        return Unreached(
            "timed_out", message, "a Prolog may take long: a longer `connect_timeout:`"
        )

    def _note(self, step: JobStep) -> None:
        """Why nodes are not ready in a step. srun gives its stdin to nobody before all tasks have begun."""
        innocent = frozenset(step.started) - frozenset(step.failed) if step.missing else frozenset()
        for name, there in self._found.items():
            if (
                name not in self._troubles
                and there.name not in step.ready
                and there.name not in innocent
            ):
                self._troubles[name] = _not_ready(step, there.name, self._limit)


def _not_ready(step: JobStep, host: str, limit: float) -> Unreached:
    if step.started.get(host) in step.no_python:
        return Unreached(
            "no_python", "no python3 was found on the node", "apt-get install python3-minimal"
        )
    if host in step.failed:
        reason = "no_python" if host in step.started else "refused"
        return Unreached(
            reason, step.failed[host] + (f": {step.words}" if host in step.started else "")
        )
    if host in step.started:
        return Unreached("hung", f"its task said nothing in {limit:.3g} s {step.words}".strip())
    return Unreached(
        "timed_out",
        f"Slurm did not start the task of {host} in {limit:.3g} s",
        f"systemctl status slurmd   # on {host}",
    )


def _trouble(node: Node, there: SlurmNode | None, home: Allocation | None) -> Unreached | None:
    """Why Slurm would start nothing on a node."""
    if there is None:
        words = " or ".join(dict.fromkeys((node.name, node.address)))
        message = f"Slurm knows no node {words}"
        return Unreached(
            "name_unknown", message, "sinfo -N; `name:` or `address:` has to be its NodeName"
        )
    if home is not None and there.name not in home.hosts:
        has = f"job {home.number} has {fold(sorted(home.hosts))}"
        message = f"{there.name} is not part of the allocation that this runs in: {has}"
        return Unreached(
            "refused", message, "salloc with these nodes, or --limit to those of the job"
        )
    if why := there.why_no_step(home is not None):
        return Unreached(
            "refused",
            f"no task can be started on {there.name}: {why}",
            f"scontrol show node {there.name}",
        )
    if home is None and "ALLOCATED" in there.words:
        message = f"all of {there.name} belongs to jobs, so that Slurm starts nothing of ours there"
        return Unreached(
            "busy", message, f"squeue -w {there.name}; {SALLOC}, or use `transport: ssh`"
        )
    return None


def _dial_all(found: Mapping[str, SlurmNode], limit: float) -> dict[str, Unreached]:
    """Whose slurmd cannot be reached."""
    port = slurm_says.slurmd_port(limit)
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Unreached | None]] = queue.SimpleQueue()
    for name in found:
        todo.put(name)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                name = todo.get_nowait()
                done.put((name, _dial(found[name], port, limit)))

    for _ in range(min(DIALERS, len(found))):
        threading.Thread(target=work, daemon=True).start()
    answers = [done.get() for _ in found]
    return {name: trouble for name, trouble in answers if trouble is not None}


def _dial(node: SlurmNode, port: int, limit: float) -> Unreached | None:
    try:
        connection, _ = dial(node.address, node.port or port, running_seconds() + limit)
    except Unreached as trouble:
        return Unreached(
            trouble.reason,
            f"slurmd of {node.name}: {trouble}",
            f"systemctl status slurmd   # on {node.name}",
        )
    connection.close()
    return None


def job_name(nonce: str) -> str:
    """The name of our step, and of the job where it has one of its own."""
    return f"clusterprep-{nonce}"


def _start(hosts: Sequence[str], home: Allocation | None, nonce: str) -> JobStep:
    count, listed = len(hosts), ",".join(hosts)
    listed = listed if len(listed) < slurm_says.LONGEST else fold(hosts)
    where = (
        f"--nodes={count}",
        f"--ntasks={count}",
        f"--nodelist={listed}",
        f"--job-name={job_name(nonce)}",
    )
    inside = (f"--jobid={home.number}", "--mem=0") if home else ()
    argv = ("srun", *_FLAGS, *where, *inside, "/bin/sh", "-c", boot.relay_command(nonce))
    try:
        return JobStep(argv, slurm_says.environment(own_job=home is None), hosts, nonce)
    except OSError as error:
        raise Unreached("missing_tool", f"srun cannot be started: {error.strerror}") from error
