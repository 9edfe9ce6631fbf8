"""Nodes reached through Slurm: one job step for the whole command, one task per node, no SSH.

One srun serves the whole command. Its tasks run `remote/agent/relay.py`, which starts the same
shell line as over SSH as a child and carries the child's bytes. So the agent, `Link`, sudo and the
ranks know nothing of Slurm.

A task that does not start holds up the stdin of all tasks and ends the step some ten seconds later,
and srun waits for a dead slurmstepd without a message. So nodes that Slurm calls down are left out
before the step starts, nodes whose task does not start are dialled, and the step starts again
without those that do not answer. After that the agents' heartbeat decides, as over SSH. If srun
does not end, Slurm is told to cancel the step by `scancel`.
"""

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
from clusterprep.remedies import noted, sentence, shell_line
from clusterprep.remote import bootstrap
from clusterprep.remote.transports import slurm_commands
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.transports.slurm_commands import Allocation
from clusterprep.remote.transports.slurm_nodes import SlurmNode, matching
from clusterprep.remote.transports.slurm_step import JobStep
from clusterprep.remote.transports.tcp import dial
from clusterprep.runtime.clock import running_seconds

DIALERS = 64  # nodes whose slurmd is dialled at once
LINGER = 1.5  # seconds that other tasks may start after the first
DIAL_LIMIT = 3.0  # seconds
ATTEMPTS = 3  # steps, each without the nodes that spoiled the one before
SQUEUE_LIMIT = 2.0  # seconds
LAYOUT_LIMIT = 5.0  # seconds for Slurm to say which task runs where
CANCEL_LIMIT = 2.0  # seconds
SALLOC = sentence("get an allocation (salloc -N … --exclusive), and run clusterprep in it")
# One task per node, independent of the others and beside other steps of the allocation. It gets
# nothing of our environment, limits or folder. --label marks which task wrote what, and by blocks
# the tasks are numbered in the order of the step's nodes. Never --unbuffered, which breaks lines.
_FLAGS = (
    *("--quiet", "--ntasks-per-node=1", "--input=all", "--overlap", "--no-kill"),
    *("--kill-on-bad-exit=0", "--wait=0", "--export=NONE", "--propagate=NONE"),
    *("--cpu-bind=none", "--mpi=none", "--label", "--chdir=/", "--distribution=block"),
)


class SlurmTransport:
    """Starts commands in a job step. See Transport in clusterprep.remote.transports.protocol.

    The first `open` starts the step, for all nodes of the inventory.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._nodes = tuple(node for node in inventory.nodes if node.transport == "slurm")
        timeouts = [node.ssh.connect_timeout for node in self._nodes]
        self._limit = max(timeouts, default=10.0)
        self._lock = threading.Lock()
        self._has_begun = False
        self._is_closed = False
        self._step: JobStep | None = None
        self._allocation: Allocation | None = None  # the job that this command runs in
        self._slurm_nodes: dict[str, SlurmNode] = {}  # by node of the inventory
        self._troubles: dict[str, Unreached] = {}  # by node of the inventory: why it has no task

    def open(self, node: Node, command: str) -> Channel:
        """Start `command` in the node's task. Raises Unreached."""
        with self._lock:
            if not self._has_begun:
                self._begin()
                self._has_begun = True
        if node.name in self._troubles:
            raise self._troubles[node.name]
        step = self._step
        host = self._slurm_nodes[node.name].name
        if step is None:
            raise Unreached("hung", "the command ended")
        if step.ended is not None:
            raise Unreached("hung", step.ended)
        if host in step.contradictions:
            raise Unreached("garbled", step.contradictions[host])
        if host in step.failed:
            raise Unreached("hung", step.failed[host])
        return step.open(host, command)

    def unheard(self) -> tuple[str, ...]:
        """Return an empty tuple: all nodes wait for the same step."""
        return ()

    def close(self) -> None:
        """End the step, and all that its tasks started."""
        self._is_closed = True
        step = self._step
        self._step = None
        if step is not None and not step.close():
            self._give_up(step)

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes that srun was given and bytes that it gave so far."""
        if self._step is None:
            return (0, 0)
        return (self._step.taken, self._step.given)

    # ------------------------------------------------------------ the start

    def _begin(self) -> None:
        """Start the step, or note for every node why not."""
        try:
            if not slurm_commands.has("srun"):
                raise slurm_commands.missing("srun")
            self._allocation = slurm_commands.allocation(os.environ, self._limit)
            self._choose_nodes()
            self._start_step()
        except Unreached as trouble:
            for node in self._nodes:
                self._troubles.setdefault(node.name, trouble)

    def _choose_nodes(self) -> None:
        """Find every node in Slurm, and set aside those on which it would start no task."""
        names = [node.name for node in self._nodes]
        listed = slurm_commands.nodes(names, self._limit)
        for node in self._nodes:
            slurm_node = matching(listed, node.name, node.address)
            trouble = _trouble(node, slurm_node, self._allocation)
            if trouble is not None:
                self._troubles[node.name] = trouble
            elif slurm_node is not None:
                self._slurm_nodes[node.name] = slurm_node

    def _start_step(self) -> None:
        """Start a step on the nodes without trouble. Raises Unreached.

        A node that does not start its task makes Slurm end the whole step after a while. So the
        step is then started again without it.
        """
        for _ in range(ATTEMPTS):
            hosts = self._hosts()
            if not hosts or self._is_closed:
                break
            step = _srun(hosts, self._allocation, os.urandom(8).hex())
            self._step = step
            if self._settle(step):
                return
            self._abandon(step)
        if self._step is None:
            remedy = sentence("ask squeue, sinfo -R, and the log of slurmctld")
            raise Unreached("refused", "Slurm started no step of ours", remedy)

    def _hosts(self) -> list[str]:
        """Return Slurm's names of the nodes without trouble."""
        hosts = []
        for name, slurm_node in self._slurm_nodes.items():
            if name not in self._troubles:
                hosts.append(slurm_node.name)
        return hosts

    def _settle(self, step: JobStep) -> bool:
        """Wait for the tasks of a step. Returns whether all of them have started.

        Nodes with trouble are noted. Raises Unreached, and abandons the step, if no task has
        started and no node can be blamed.
        """
        deadline = time.monotonic() + self._limit
        # Tasks start within a moment of each other. A node whose task does not is dialled now: if
        # it is dead, waiting until the deadline would gain nothing.
        step.wait(deadline, LINGER)
        if step.started and self._note_dead_nodes(step):
            return False
        step.wait(deadline)
        if step.trouble is not None:
            self._abandon(step)
            raise step.trouble
        if not step.started and not step.contradictions:
            if not self._note_dead_nodes(step, waits_in_queue=True):
                reason = self._why_nothing_started(step)
                self._abandon(step)
                raise reason
            return False
        self._note_not_ready(step)
        return not step.missing and step.ended is None

    def _abandon(self, step: JobStep) -> None:
        """End a step that is of no use."""
        self._step = None
        if not step.terminate():
            self._give_up(step)

    def _give_up(self, step: JobStep) -> None:
        """Have Slurm cancel a step whose srun does not end, and kill srun.

        srun waits for a node that is lost, and Slurm for srun.
        """
        job = self._allocation.number if self._allocation else None
        slurm_commands.cancel(job_name(step.nonce), job, CANCEL_LIMIT)
        step.kill()

    def _note_dead_nodes(self, step: JobStep, *, waits_in_queue: bool = False) -> bool:
        """Note nodes that did not start their task and have no slurmd. Returns whether any has.

        With `waits_in_queue` no node is blamed if the step may still wait for resources. Nodes are
        dialled only if a task is missing, because slurmd logs every connection that sends nothing.
        """
        if step.ended is not None:
            return False
        if waits_in_queue and _queue_state(step).startswith("PENDING"):
            return False
        missing_hosts = set(step.missing)
        missing = {}
        for name, slurm_node in self._slurm_nodes.items():
            if slurm_node.name in missing_hosts:
                missing[name] = slurm_node
        if not missing:
            return False
        troubles = _dial_all(missing, min(DIAL_LIMIT, self._limit))
        for name, trouble in troubles.items():
            self._troubles.setdefault(name, trouble)
        return bool(troubles)

    def _why_nothing_started(self, step: JobStep) -> Unreached:
        """Return the error for all nodes of a step in which no task has started."""
        if step.ended is not None:
            message = f"srun was refused: {step.stderr or step.ended}"
            return Unreached("refused", message, SALLOC)
        state = _queue_state(step)
        if state.startswith("PENDING"):
            message = f"srun waits for resources: after {self._limit:.3g} s its job is {state}"
            return Unreached(
                "timed_out",
                message,
                noted(SALLOC, "or a longer `connect_timeout:`"),
            )
        message = f"srun started no task in {self._limit:.3g} s"
        if step.stderr:
            message += f": {step.stderr}"
        remedy = sentence("a Prolog may take long: a longer `connect_timeout:`")
        return Unreached("timed_out", message, remedy)

    def _note_not_ready(self, step: JobStep) -> None:
        """Note why nodes are not ready in a step.

        srun gives its stdin to no task before all of them have started. So while tasks are missing,
        those that have started cannot be ready and are not blamed.
        """
        innocent: set[str] = set()
        if step.missing:
            innocent = set(step.started) - set(step.failed)
        for name, slurm_node in self._slurm_nodes.items():
            host = slurm_node.name
            if host in step.ready or host in innocent:
                continue
            if name not in self._troubles:
                self._troubles[name] = _not_ready(step, host, self._limit)


def _queue_state(step: JobStep) -> str:
    """Return the state of the job that srun waits for: "PENDING (Resources)", or ""."""
    return slurm_commands.waits_for(job_name(step.nonce), SQUEUE_LIMIT)


def _not_ready(step: JobStep, host: str, limit: float) -> Unreached:
    """Return why the relay of a host does not listen."""
    if host in step.contradictions:
        return Unreached("garbled", step.contradictions[host])
    if step.started.get(host) in step.no_python:
        remedy = shell_line("apt-get install python3-minimal")
        return Unreached("no_python", "no python3 was found on the node", remedy)
    if host in step.failed:
        if host in step.started:
            return Unreached("no_python", f"{step.failed[host]}: {step.stderr}")
        return Unreached("refused", step.failed[host])
    if host in step.started:
        message = f"its task said nothing in {limit:.3g} s {step.stderr}"
        return Unreached("hung", message.strip())
    message = f"Slurm did not start the task of {host} in {limit:.3g} s"
    return Unreached(
        "timed_out", message, shell_line("systemctl status slurmd   # on {host}", host=host)
    )


def _trouble(
    node: Node, slurm_node: SlurmNode | None, allocation: Allocation | None
) -> Unreached | None:
    """Return why Slurm would start nothing on a node, None if it would."""
    if slurm_node is None:
        names = " or ".join(dict.fromkeys((node.name, node.address)))
        remedy = shell_line("sinfo -N   # `name:` or `address:` has to be its NodeName")
        return Unreached("name_unknown", f"Slurm knows no node {names}", remedy)
    name = slurm_node.name
    if allocation is not None and name not in allocation.hosts:
        hosts = fold(sorted(allocation.hosts))
        message = (
            f"{name} is not part of the allocation that this runs in: "
            f"job {allocation.number} has {hosts}"
        )
        remedy = sentence(
            "get an allocation with these nodes (salloc), or --limit to those of the job"
        )
        return Unreached("refused", message, remedy)
    reason = slurm_node.why_no_step(allocation is not None)
    if reason:
        message = f"no task can be started on {name}: {reason}"
        return Unreached("refused", message, shell_line("scontrol show node {name}", name=name))
    if allocation is None and "ALLOCATED" in slurm_node.states:
        message = f"all of {name} belongs to jobs, so that Slurm starts nothing of ours there"
        return Unreached(
            "busy",
            message,
            shell_line(
                "squeue -w {name}"
                "   # or salloc -N … --exclusive, and run clusterprep in it; or `transport: ssh`",
                name=name,
            ),
        )
    return None


def _dial_all(nodes: Mapping[str, SlurmNode], limit: float) -> dict[str, Unreached]:
    """Return, by name, why the slurmd of nodes cannot be reached; only nodes where it cannot."""
    port = slurm_commands.slurmd_port(limit)
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Unreached | None]] = queue.SimpleQueue()
    for name in nodes:
        todo.put(name)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                name = todo.get_nowait()
                done.put((name, _dial(nodes[name], port, limit)))

    for _ in range(min(DIALERS, len(nodes))):
        threading.Thread(target=work, daemon=True).start()
    troubles = {}
    for _ in nodes:
        name, trouble = done.get()
        if trouble is not None:
            troubles[name] = trouble
    return troubles


def _dial(node: SlurmNode, port: int, limit: float) -> Unreached | None:
    """Return why the slurmd of a node cannot be reached, None if it can."""
    deadline = running_seconds() + limit
    try:
        connection, _ = dial(node.address, node.port or port, deadline)
    except Unreached as trouble:
        message = f"slurmd of {node.name}: {trouble}"
        return Unreached(
            trouble.reason,
            message,
            shell_line("systemctl status slurmd   # on {name}", name=node.name),
        )
    connection.close()
    return None


def job_name(nonce: str) -> str:
    """Return the name of our step, and of the job if it has one of its own."""
    return f"clusterprep-{nonce}"


def _srun(hosts: Sequence[str], allocation: Allocation | None, nonce: str) -> JobStep:
    """Start srun with one task on each host. Raises Unreached."""
    count = len(hosts)
    listed = ",".join(hosts)
    if len(listed) >= slurm_commands.LONGEST:
        listed = fold(hosts)
    argv = ["srun", *_FLAGS, f"--nodes={count}", f"--ntasks={count}"]
    argv += [f"--nodelist={listed}", f"--job-name={job_name(nonce)}"]
    if allocation:
        argv += [f"--jobid={allocation.number}", "--mem=0"]
    argv += ["/bin/sh", "-c", bootstrap.relay_command(nonce)]
    environment = slurm_commands.environment(own_job=allocation is None)
    job = allocation.number if allocation else None

    def ask_layout() -> tuple[str, ...]:
        return slurm_commands.hosts_of_tasks(job_name(nonce), job, LAYOUT_LIMIT)

    try:
        return JobStep(argv, environment, hosts, nonce, ask_layout)
    except OSError as error:
        raise Unreached("missing_tool", f"srun cannot be started: {error.strerror}") from error
