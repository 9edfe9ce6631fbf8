"""Tasks: how many there are and may be, those that are stuck in the kernel, and the load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, Needs, file, user_of_job
from clusterprep.model import Inventory, Node, Read


class StuckTask(Struct, frozen=True):
    """A task in uninterruptible sleep that was not scheduled during the read.

    `wchan` is "" where it is not shown. It was started `age` seconds ago and last ran `waited`
    seconds ago, None where the kernel does not show that.
    """

    pid: int
    comm: str
    wchan: str = ""
    children: int = 0
    kernel: bool = False  # a thread of the kernel itself
    age: float = math.inf
    waited: float | None = None


class Zombie(Struct, frozen=True):
    """A process that has ended and that its parent has not collected.

    It was started `age` seconds ago and ended `waited` seconds ago, None where the kernel does not
    show that.
    """

    pid: int
    comm: str
    parent: int
    parent_comm: str = ""
    age: float = math.inf
    waited: float | None = None


class Tasks(Struct, frozen=True):
    """The job user's id and threads (None: no such user), what is stuck, and zombies.

    The read took `seconds`.
    """

    uid: int | None
    threads: int | None
    stuck: tuple[StuckTask, ...] = ()
    more: int = 0
    seconds: float = 0.0
    zombies: tuple[Zombie, ...] = ()
    more_zombies: int = 0


class Ids(Struct, frozen=True):
    """Threads on the whole node, and how many the kernel allows."""

    threads: int
    pid_max: int
    threads_max: int


class Load(Struct, frozen=True):
    """Load averages over one, five and fifteen minutes.

    Of `threads` threads, `running` are running, ours among them.
    """

    one: float
    five: float
    fifteen: float
    running: int
    threads: int


def parse_tasks(answer: Any) -> Tasks:
    """Return the tasks that wait without end, and the number of the user's threads."""
    stuck = tuple(_stuck_task(row) for row in answer["stuck"])
    if answer["tasks"] < 1:
        raise ValueError("/proc shows no task at all")
    threads = answer["threads"]
    if threads is not None and threads < 0:
        raise ValueError(f"{threads} threads")
    return Tasks(
        uid=answer["uid"],
        threads=threads,
        stuck=stuck,
        more=int(answer["more"]),
        seconds=float(answer["seconds"]),
        zombies=tuple(_zombie(row) for row in answer["zombies"]),
        more_zombies=int(answer["more_zombies"]),
    )


def _stuck_task(row: Mapping[str, Any]) -> StuckTask:
    wchan = row["wchan"]
    if wchan == "0":  # what the kernel shows of a running task, and to users that may not see it
        wchan = ""
    return StuckTask(
        pid=int(row["pid"]),
        comm=str(row["comm"]),
        wchan=wchan,
        children=int(row["children"]),
        kernel=bool(row["kernel"]),
        age=_age(row["age"]),
        waited=_seconds_or_none(row["waited"]),
    )


def _zombie(row: Mapping[str, Any]) -> Zombie:
    return Zombie(
        pid=int(row["pid"]),
        comm=str(row["comm"]),
        parent=int(row["parent"]),
        parent_comm=str(row["parent_comm"]),
        age=_age(row["age"]),
        waited=_seconds_or_none(row["waited"]),
    )


def _age(value: Any) -> float:
    """Return the seconds since a task was started, without end where they are not known."""
    return math.inf if value is None else _seconds(value)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{value} seconds")
    return seconds


def _seconds_or_none(value: Any) -> float | None:
    return None if value is None else _seconds(value)


def parse_load(text: str | None) -> Load:
    """Parse /proc/loadavg, such as «0.26 0.31 0.19 1/90 15082»."""
    if text is None:
        raise ValueError("there is no /proc/loadavg")
    one, five, fifteen, tasks, _last_pid = text.split()
    running, threads = tasks.split("/")
    load = Load(
        float(one),
        float(five),
        float(fifteen),
        int(running),
        int(threads),
    )
    if not 0 <= load.one < math.inf or load.threads < 1:
        raise ValueError(f"no load: {text!r}")
    return load


def parse_ids(pid_max: str | None, threads_max: str | None, loadavg: str | None) -> Ids:
    if pid_max is None or threads_max is None:
        raise ValueError("the kernel's limits of threads are not there")
    load = parse_load(loadavg)
    ids = Ids(load.threads, int(pid_max), int(threads_max))
    if ids.pid_max < 1 or ids.threads_max < 1:
        raise ValueError(f"{ids.pid_max} process ids, {ids.threads_max} threads")
    return ids


def parse_cores(text: str | None) -> int:
    """Return the number of CPUs that are online, from a list such as «0-63,128-191»."""
    if text is None:
        raise ValueError("there is no list of CPUs")
    total = 0
    for piece in text.strip().split(","):
        first, dash, last = piece.partition("-")
        if not dash:
            last = first
        count = int(last) - int(first) + 1
        if count < 1:
            raise ValueError(f"no list of CPUs: {text!r}")
        total += count
    return total


def _task_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("tasks", (user_of_job(node),), limit=10.0),)


def _id_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    paths = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max", "/proc/loadavg")
    return tuple(Read("file", (path,)) for path in paths)


NEEDS = Needs("root", "in which call a task of others waits is shown to root alone", partly=True)
TASKS = Fact("proc.tasks", _task_reads, parse_tasks, needs=NEEDS, moves=True)
IDS = Fact("proc.ids", _id_reads, parse_ids, moves=True)
LOAD = Fact("proc.load", file("/proc/loadavg"), parse_load, moves=True)
CORES = Fact("proc.cores", file("/sys/devices/system/cpu/online"), parse_cores)
