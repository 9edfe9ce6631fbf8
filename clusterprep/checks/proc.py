"""Judges what runs before the job does: stuck tasks, zombies, and load of other programs."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, unknown
from clusterprep.facts.tasks import Load, StuckTask, Tasks, Zombie
from clusterprep.model import Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.units import format_duration, pluralize
from clusterprep.remedies import Remedy, sentence, shell_line

# Of the cores; what runs beside the job takes its data loaders' and NCCL's proxy threads' turns.
FOREIGN = 0.2
FEW = 2.0  # load that any node may have: a busy core of a small machine is no foreign job
# Where a parent waits that has vforked: D, never scheduled, and healthy.
VFORK = ("vfork", "kernel_clone", "do_fork")
LONG = 300.0  # seconds that a task may wait in the kernel, and a zombie for its parent
OUTSIDE = 0  # the parent that /proc shows where it is in another namespace of process ids
UNDATED = "no /proc/PID/sched, or its CPU is not one of ours"
NAMED = 5  # tasks in one finding
NAMED_IN_REMEDY = 3


def dstate(context: CheckContext, node: Node, tasks: Tasks) -> Outcome:
    """Judge tasks of users that hang.

    Threads of drivers may sleep so by design; the kernel's log tells of those that hang.
    """
    wanted = f"none for more than {LONG:g} s"
    stuck: list[StuckTask] = []
    unclear: list[StuckTask] = []
    undated: list[StuckTask] = []
    others = 0  # threads of the kernel, and tasks that have not waited long
    for task in tasks.stuck:
        if task.kernel or _is_short(task):
            others += 1
        elif _may_wait_for_child(task):
            unclear.append(task)
        elif not _waits_for_child(task):
            (undated if task.waited is None else stuck).append(task)
    if stuck:
        return failed(
            node,
            f"tasks have hung in the kernel for more than {LONG:g} s, in D without being scheduled",
            _join_tasks(stuck),
            wanted,
            _remedy(stuck),
        )
    if undated:
        message = (
            f"tasks are in D and were not scheduled for {tasks.seconds:g} s; it is not shown since "
            "when"
        )
        return unknown(
            node,
            message,
            UNDATED,
            _join_tasks(undated),
            wanted,
            _remedy(undated),
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
            wanted,
            sentence("run with `become: true`"),
        )
    seen = f"{others} threads of the kernel, or not for long" if tasks.stuck else "none"
    return passed(node, "no task of a user hangs in the kernel", seen, wanted)


def _is_short(task: StuckTask | Zombie) -> bool:
    """Return whether a task has certainly not waited long."""
    waited = task.age if task.waited is None else task.waited
    return waited <= LONG


def _waits_for_child(task: StuckTask) -> bool:
    return task.children > 0 and any(name in task.wchan for name in VFORK)


def _may_wait_for_child(task: StuckTask) -> bool:
    return task.children > 0 and not task.wchan


def _describe_task(task: StuckTask) -> str:
    text = f"{task.comm} ({task.pid})"
    if task.wchan:
        text = f"{text} in {task.wchan}"
    if task.waited is not None:
        text = f"{text} for {format_duration(task.waited)}"
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


def zombie(context: CheckContext, node: Node, tasks: Tasks) -> Outcome:
    """Judge processes that have ended and that their parents do not collect."""
    wanted = f"none for more than {LONG:g} s"
    left = [task for task in tasks.zombies if not _is_short(task)]
    old = [task for task in left if task.waited is not None]
    if old:
        return failed(
            node,
            f"processes ended more than {LONG:g} s ago, and their parents do not collect them",
            _join_zombies(old, tasks.more_zombies),
            wanted,
            _parents_remedy(old),
        )
    if left:
        return unknown(
            node,
            "zombies of processes that were started long ago; it is not shown when they ended",
            UNDATED,
            _join_zombies(left, tasks.more_zombies),
            wanted,
            _parents_remedy(left),
        )
    seen = f"{len(tasks.zombies)} that ended just now" if tasks.zombies else "none"
    return passed(node, "no process that has ended is left over", seen, wanted)


def _join_zombies(zombies: list[Zombie], more: int) -> str:
    parts = []
    for task in zombies[:NAMED]:
        text = f"{task.comm} ({task.pid}) of {_parent_of(task)}"
        if task.waited is not None:
            text = f"{text} for {format_duration(task.waited)}"
        parts.append(text)
    more += len(zombies[NAMED:])
    if more > 0:
        parts.append(f"{more} more")
    return ", ".join(parts)


def _parent_of(task: Zombie) -> str:
    if task.parent == OUTSIDE:
        return "a parent outside this container"
    return f"{task.parent_comm or 'parent'} ({task.parent})"


def _parents_remedy(zombies: Iterable[Zombie]) -> Remedy:
    parents = list(dict.fromkeys(task.parent for task in zombies if task.parent != OUTSIDE))
    if not parents:
        return sentence(
            "what started them from outside, the container's engine or nsenter, has to collect"
            " them: restart the container, or end that program on its host"
        )
    return shell_line(
        "ps -o pid,ppid,user,stat,etime,args -p {parents}"
        "   # the parents: end or restart the job they belong to; a zombie itself cannot be killed",
        parents=parents[:NAMED],
    )


def parse_part(text: str) -> float:
    """Return 0.2 for «20%». Raises ValueError for other text."""
    match = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)\s*%", text.strip())
    if match is None:
        raise ValueError(f"expected a part of the cores such as 20%; seen '{text}'")
    return float(match[1]) / 100


def _last_minute(average: Load) -> Hashable:
    return average.one, average.running


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
    follows=("fs.mount",),
    title="Tasks that hang in the kernel",
    why="A task in uninterruptible sleep waits for a driver or a file server that does not come "
    "back. It cannot be killed, may hold a GPU, and the next job hangs in the same place.",
    how="/proc/*/stat of every process's first thread; where one is in D, two more looks within a "
    "second: one that is still in D and was never scheduled hangs if it last ran more than 300 s "
    "ago (/proc/PID/sched and the clock of its CPU; where either is not to be had, younger tasks "
    "pass and others are unknown). A parent that waits for its vfork child does not count, and "
    "threads of the kernel do not: log.kernel tells of those that hang for two minutes.",
    remedy=shell_line("cat /proc/PID/stack   # mend what it waits for, or reboot"),
    proof=Proof(
        "proc.tasks",
        lambda tasks: replace(
            tasks,
            stuck=(StuckTask(4711, "python3", "rpc_wait_bit_killable", age=9000.0, waited=4000.0),),
        ),
    ),
)
ZOMBIE = Check(
    "proc.zombie",
    facts=("proc.tasks",),
    judge=each(zombie, "proc.tasks"),
    severity="warning",
    title="Processes that ended and are left over",
    why="A rank that ended and is not collected is the trace of a job that was not cleaned up: its "
    "parent hangs or has forgotten it, and may hold GPUs, ports and shared memory.",
    how="/proc/*/stat of every process: in Z, with no other thread, and last run more than 300 s "
    "ago (/proc/PID/sched and the clock of its CPU; where either is not to be had, processes that "
    "were started within 300 s pass and others are unknown).",
    remedy=shell_line("ps -eo pid,ppid,user,stat,etime,comm | grep -w Z"),
    proof=Proof(
        "proc.tasks",
        lambda tasks: replace(
            tasks,
            zombies=(Zombie(4712, "python3", 4711, "torchrun", age=9000.0, waited=4000.0),),
        ),
    ),
)
LOAD = Check(
    "proc.load",
    facts=("proc.load", "proc.cores"),
    before_job=True,
    judge=each(load, "proc.load", "proc.cores", parts=(Part("proc.load", _last_minute),)),
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
