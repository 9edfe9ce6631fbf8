"""What runs before the job does: tasks stuck in the kernel, and load of others."""

from __future__ import annotations

import re
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.facts.tasks import Load, StuckTask, Tasks
from clusterprep.model import Node

FOREIGN = 0.2  # of the cores; what runs beside the job takes its data loaders' and NCCL's proxy threads' turns
FEW = 2.0  # load that any node may have: a busy core of a small machine is no foreign job
# Where a parent waits that has vforked: D, never scheduled, and healthy.
VFORK = ("vfork", "kernel_clone", "do_fork")


def dstate(context: CheckContext, node: Node, tasks: Tasks) -> Outcome:
    """Tasks of users that hang. Threads of drivers may sleep so by design; the kernel tells of those that hang."""
    users = [task for task in tasks.stuck if not task.kernel]
    stuck = [task for task in users if not _waits_for_child(task) and not _may_wait(task)]
    unclear = [task for task in users if _may_wait(task)]
    if stuck:
        named = ", ".join(_named(task) for task in stuck[:5]) + (
            f" and {len(stuck) - 5} more" if stuck[5:] else ""
        )
        message = f"tasks hang in the kernel: in D for {tasks.seconds:g} s without being scheduled"
        cure = "; ".join(f"cat /proc/{task.pid}/stack" for task in stuck[:3])
        cure += "   # as root; kill does not reach them: mend what they wait for, or reboot"
        return Outcome("fail", (node.name,), message, named, "none", cure)
    if unclear:
        named = ", ".join(_named(task) for task in unclear[:5])
        message = "parents that wait for a child look the same, and what they wait in is shown to root only"
        return Outcome(
            "unknown",
            (node.name,),
            message,
            named,
            "none",
            "run with `become: true`",
            reason="denied",
        )
    seen = f"{len(tasks.stuck) - len(users)} threads of the kernel" if tasks.stuck else "none"
    return Outcome("pass", (node.name,), "no task of a user hangs in the kernel", seen, "none")


def _waits_for_child(task: StuckTask) -> bool:
    return task.children > 0 and any(word in task.wchan for word in VFORK)


def _may_wait(task: StuckTask) -> bool:
    return task.children > 0 and not task.wchan


def _named(task: StuckTask) -> str:
    return f"{task.comm} ({task.pid})" + (f" in {task.wchan}" if task.wchan else "")


def parse_part(text: str) -> float:
    """«20%» as 0.2. Raises ValueError for anything else."""
    match = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)\s*%", text.strip())
    if match is None:
        raise ValueError(f"expected a part of the cores such as 20%; seen '{text}'")
    return float(match[1]) / 100


def load(context: CheckContext, node: Node, average: Load, cores: int) -> Outcome:
    """The average counts tasks in uninterruptible sleep too, so what runs now is said beside it."""
    wanted = context.wanted(node)
    most = max(FOREIGN * cores, FEW) if wanted is None else parse_part(wanted) * cores
    text = f"at most {most:g}" + (
        f" ({wanted} of {cores} cores)" if wanted else f" on {cores} cores"
    )
    seen = f"{average.one:.2f} over a minute, {average.running} running now"
    if average.one <= most:
        return Outcome("pass", (node.name,), "nothing else keeps the node busy", seen, text)
    message = "something else keeps the node busy"
    if average.running <= max(1.0, most):
        message += (
            ", or did a minute ago, or tasks wait in the kernel: the average counts these too"
        )
    return Outcome("fail", (node.name,), message, seen, text)


DSTATE = Check(
    "proc.dstate",
    facts=("proc.tasks",),
    judge=each(dstate, "proc.tasks"),
    severity="warning",
    title="Tasks that hang in the kernel",
    why="A task in uninterruptible sleep waits for a driver or a file server that does not come back. It cannot be "
    "killed, may hold a GPU, and the next job hangs in the same place.",
    how="/proc/*/stat of every process's first thread; where one is in D, two more looks within a second: one that is "
    "still in D and was never scheduled hangs. A parent that waits for its vfork child does not count, and threads of "
    "the kernel do not: log.kernel tells of those that hang for two minutes.",
    remedy="cat /proc/PID/stack; reboot",
    proof=Proof(
        "proc.tasks",
        lambda tasks: replace(tasks, stuck=(StuckTask(4711, "python3", "rpc_wait_bit_killable"),)),
    ),
)
LOAD = Check(
    "proc.load",
    facts=("proc.load", "proc.cores"),
    judge=each(load, "proc.load", "proc.cores"),
    severity="warning",
    title="Load before the job",
    why="What another user or a forgotten job runs takes cores from data loaders and from NCCL's proxy threads, and "
    "the slowest rank sets the pace of all.",
    how="The load average over one minute: at most a fifth of the cores, and never less than 2, or as "
    "`require: {proc.load: 20%}` says. It counts tasks in uninterruptible sleep as well.",
    remedy="ps -eo pid,user,stat,pcpu,etime,comm --sort=-pcpu | head -15",
    wants=parse_part,
    proof=Proof("proc.load", lambda average: replace(average, one=180.0, running=178)),
)
