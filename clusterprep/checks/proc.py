"""Judges what runs before the job does: tasks stuck in the kernel, and load of other programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, unknown
from clusterprep.facts.tasks import Load, StuckTask, Tasks
from clusterprep.model import Node
from clusterprep.model.units import pluralize
from clusterprep.remedies import Remedy, sentence, shell_line

# Of the cores; what runs beside the job takes its data loaders' and NCCL's proxy threads' turns.
FOREIGN = 0.2
FEW = 2.0  # load that any node may have: a busy core of a small machine is no foreign job
# Where a parent waits that has vforked: D, never scheduled, and healthy.
VFORK = ("vfork", "kernel_clone", "do_fork")
NAMED = 5  # tasks in one finding
NAMED_IN_REMEDY = 3


def dstate(context: CheckContext, node: Node, tasks: Tasks) -> Outcome:
    """Judge tasks of users that hang.

    Threads of drivers may sleep so by design; the kernel's log tells of those that hang.
    """
    stuck: list[StuckTask] = []
    unclear: list[StuckTask] = []
    kernel_threads = 0
    for task in tasks.stuck:
        if task.kernel:
            kernel_threads += 1
        elif _may_wait_for_child(task):
            unclear.append(task)
        elif not _waits_for_child(task):
            stuck.append(task)
    if stuck:
        window = f"{tasks.seconds:g} s"
        message = f"tasks hang in the kernel: in D for {window} without being scheduled"
        return failed(
            node,
            message,
            _join_tasks(stuck),
            "none",
            _remedy(stuck),
        )
    if unclear:
        problem = "what they wait in is shown to root only"
        message = f"parents that wait for a child look the same, and {problem}"
        seen = ", ".join(_describe_task(task) for task in unclear[:NAMED])
        return unknown(
            node,
            message,
            "denied",
            seen,
            "none",
            sentence("run with `become: true`"),
        )
    seen = f"{kernel_threads} threads of the kernel" if tasks.stuck else "none"
    return passed(node, "no task of a user hangs in the kernel", seen, "none")


def _waits_for_child(task: StuckTask) -> bool:
    return task.children > 0 and any(name in task.wchan for name in VFORK)


def _may_wait_for_child(task: StuckTask) -> bool:
    return task.children > 0 and not task.wchan


def _describe_task(task: StuckTask) -> str:
    text = f"{task.comm} ({task.pid})"
    if task.wchan:
        text = f"{text} in {task.wchan}"
    return text


def _join_tasks(tasks: list[StuckTask]) -> str:
    text = ", ".join(_describe_task(task) for task in tasks[:NAMED])
    more = len(tasks) - NAMED
    if more > 0:
        text = f"{text} and {more} more"
    return text


def _remedy(tasks: Iterable[StuckTask]) -> Remedy:
    files = [f"/proc/{task.pid}/stack" for task in tasks]
    return shell_line(
        "head -n 50 {files}"
        "   # as root; kill does not reach them: mend what they wait for, or reboot",
        files=files[:NAMED_IN_REMEDY],
    )


def parse_part(text: str) -> float:
    """Return 0.2 for «20%». Raises ValueError for other text."""
    match = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)\s*%", text.strip())
    if match is None:
        raise ValueError(f"expected a part of the cores such as 20%; seen '{text}'")
    return float(match[1]) / 100


def load(context: CheckContext, node: Node, average: Load, cores: int) -> Outcome:
    """Compare the load average with what is allowed.

    The average counts tasks in uninterruptible sleep too, so the tasks running now are shown as
    well.
    """
    required = context.wanted(node)
    if required is None:
        limit = max(FOREIGN * cores, FEW)
        wanted = f"at most {limit:g} on {pluralize(cores, 'core')}"
    else:
        limit = parse_part(required) * cores
        wanted = f"at most {limit:g} ({required} of {pluralize(cores, 'core')})"
    seen = f"{average.one:.2f} over a minute, {average.running} running now"
    if average.one <= limit:
        return passed(node, "nothing else keeps the node busy", seen, wanted)
    message = "something else keeps the node busy"
    if average.running <= max(1.0, limit):
        waiting = "tasks wait in the kernel: the average counts these too"
        message = f"{message}, or did a minute ago, or {waiting}"
    return failed(node, message, seen, wanted)


DSTATE = Check(
    "proc.dstate",
    facts=("proc.tasks",),
    judge=each(dstate, "proc.tasks"),
    severity="warning",
    title="Tasks that hang in the kernel",
    why="A task in uninterruptible sleep waits for a driver or a file server that does not come "
    "back. It cannot be killed, may hold a GPU, and the next job hangs in the same place.",
    how="/proc/*/stat of every process's first thread; where one is in D, two more looks within a "
    "second: one that is still in D and was never scheduled hangs. A parent that waits for its "
    "vfork child does not count, and threads of the kernel do not: log.kernel tells of those that "
    "hang for two minutes.",
    remedy=shell_line("cat /proc/PID/stack   # mend what it waits for, or reboot"),
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
    why="What another user or a forgotten job runs takes cores from data loaders and from NCCL's "
    "proxy threads, and the slowest rank sets the pace of all.",
    how="The load average over one minute: at most a fifth of the cores, and never less than 2, or "
    "as `require: {proc.load: 20%}` says. It counts tasks in uninterruptible sleep as well.",
    remedy=shell_line("ps -eo pid,user,stat,pcpu,etime,comm --sort=-pcpu | head -15"),
    wants=parse_part,
    proof=Proof("proc.load", lambda average: replace(average, one=180.0, running=178)),
)
