"""Tasks: how many there are and may be, which are stuck in the kernel, and the load they make."""

from __future__ import annotations

from typing import Any

from clusterprep.facts import Fact, Needs, file
from clusterprep.model import Inventory, Node, Read
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class StuckTask:
    """A task in uninterruptible sleep that was not scheduled while we looked; wchan is empty where it is not shown."""

    pid: int
    comm: str
    wchan: str = ""
    children: int = 0
    kernel: bool = False  # a thread of the kernel itself


@dataclass(frozen=True)
class Tasks:
    """The user's id and threads (None: no such user), and what is stuck; `seconds` is how long we looked."""

    uid: int | None
    threads: int | None
    stuck: tuple[StuckTask, ...] = ()
    more: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Ids:
    """Threads on the whole node, and how many the kernel allows."""

    threads: int
    pid_max: int
    threads_max: int


@dataclass(frozen=True)
class Load:
    """Averages over one, five and fifteen minutes; `running` of `threads` threads right now, ours among them."""

    one: float
    five: float
    fifteen: float
    running: int
    threads: int


def parse_tasks(answer: Any) -> Tasks:
    stuck = tuple(
        StuckTask(
            int(row["pid"]),
            str(row["comm"]),
            _channel(row["wchan"]),
            int(row["children"]),
            bool(row["kernel"]),
        )
        for row in answer["stuck"]
    )
    if answer["tasks"] < 1:
        raise ValueError("/proc shows no task at all")
    threads, uid = answer["threads"], answer["uid"]
    if threads is not None and threads < 0:
        raise ValueError(f"{threads} threads")
    return Tasks(uid, threads, stuck, int(answer["more"]), float(answer["seconds"]))


def _channel(wchan: str) -> str:
    """The kernel says «0» both for a running task and to those who may not know."""
    return "" if wchan in ("", "0") else wchan


def parse_load(text: str | None) -> Load:
    """«0.26 0.31 0.19 1/90 15082»."""
    if text is None:
        raise ValueError("there is no /proc/loadavg")
    one, five, fifteen, tasks, _ = text.split()
    running, threads = tasks.split("/")
    load = Load(float(one), float(five), float(fifteen), int(running), int(threads))
    if not (0 <= load.one < float("inf")) or load.threads < 1:
        raise ValueError(f"no load: {text!r}")
    return load


def parse_ids(pid_max: str | None, threads_max: str | None, loadavg: str | None) -> Ids:
    if pid_max is None or threads_max is None:
        raise ValueError("the kernel's limits of threads are not there")
    ids = Ids(parse_load(loadavg).threads, int(pid_max), int(threads_max))
    if ids.pid_max < 1 or ids.threads_max < 1:
        raise ValueError(f"{ids.pid_max} process ids, {ids.threads_max} threads")
    return ids


def parse_cores(text: str | None) -> int:
    """«0-63,128-191»: the CPUs that are online."""
    if text is None:
        raise ValueError("there is no list of CPUs")
    total = 0
    for piece in text.strip().split(","):
        first, dash, last = piece.partition("-")
        count = int(last if dash else first) - int(first) + 1
        if count < 1:
            raise ValueError(f"no list of CPUs: {text!r}")
        total += count
    return total


def _tasks(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("tasks", (node.job_user or node.ssh.user,), limit=10.0),)


def _ids(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    paths = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max", "/proc/loadavg")
    return tuple(Read("file", (path,)) for path in paths)


NEEDS = Needs("root", "in which call a task of others waits is shown to root alone", partly=True)
TASKS = Fact("proc.tasks", _tasks, parse_tasks, needs=NEEDS)
IDS = Fact("proc.ids", _ids, parse_ids)
LOAD = Fact("proc.load", file("/proc/loadavg"), parse_load)
CORES = Fact("proc.cores", file("/sys/devices/system/cpu/online"), parse_cores)
