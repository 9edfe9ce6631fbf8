"""The tasks of a node: a user's threads, tasks in uninterruptible sleep, and zombies."""

import os
import time

from clusterprep.remote.agent.readers import NoAnswer, offer

LOOKS = 3  # at tasks that were in uninterruptible sleep, the first included
GAP = 0.5  # seconds between two looks
KERNEL = 0x00200000  # PF_KTHREAD of include/linux/sched.h
NAMED = 50  # stuck tasks that are returned, and as many zombies
_agent = None  # pid of the agent


def read_tasks(user):
    """Return how many threads a user has, the tasks stuck in the kernel, and zombies.

    `user` None is the user of this process. A task is stuck if it is in D at every look and was not
    scheduled in between. The second look is only taken if the first has found a task in D. A zombie
    of which it is not shown when it ended is looked at twice as well.
    """
    uid = _uid(user)
    threads = 0
    suspects = {}  # name -> (row, its switches)
    zombies = {}  # name -> row
    parent_of = {}
    children = {}  # pid -> number of its children
    for name, row in _all_tasks():
        parent = row["parent"]
        parent_of[int(name)] = parent
        children[parent] = children.get(parent, 0) + 1
        if row["state"] == "D":
            suspects[name] = (row, _switches(name))
        # With more threads than one the first has ended and the process goes on.
        if row["state"] == "Z" and row["threads"] <= 1:
            zombies[name] = row
        if not row["kernel"] and _owner(name) == uid:
            threads += row["threads"]
    if _stat("1") is None:
        raise NoAnswer("denied", "/proc does not show the tasks of others here (hidepid)")
    # Before the wait: what the agent has just started is often in D while its files are read.
    suspects = dict(_of_others(suspects.items(), parent_of))
    seconds = GAP * (LOOKS - 1) if suspects else 0
    clocks = _Clocks()
    stuck = []
    for name, row in _still(suspects):
        stuck.append(_described(name, row, children, clocks))
    ended = []
    for name, row in _left(_of_others(sorted(zombies.items()), parent_of), clocks):
        ended.append(_described_zombie(name, row, clocks))
    return {
        "uid": uid,
        "threads": None if uid is None else threads,
        "tasks": len(parent_of),
        "stuck": stuck[:NAMED],
        "more": len(stuck[NAMED:]),
        "seconds": seconds,
        "zombies": ended[:NAMED],
        "more_zombies": len(ended[NAMED:]),
    }


def _all_tasks():
    """Yield the name and the row of every task that /proc shows."""
    for name in os.listdir("/proc"):
        row = _stat(name) if name.isdigit() else None
        if row is not None:
            yield name, row


def _of_others(named_rows, parent_of):
    """Return the (name, row) of tasks that are not the agent's own."""
    return [(name, row) for name, row in named_rows if not _is_ours(int(name), parent_of)]


class _Clocks(object):
    """Tells how long ago tasks were started, and how long ago they last ran."""

    def __init__(self):
        words = _text("", "uptime").split()
        self._uptime = float(words[0]) if words else None
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._now = {}  # CPU -> what its clock shows

    def age(self, row):
        """Return the seconds since a task was started; None where the time since boot is hidden."""
        if self._uptime is None:
            return None
        return max(0.0, self._uptime - int(row["start"]) / float(self._ticks))

    def waited(self, name, row):
        """Return the seconds since a task last ran; None where that is not shown.

        Each CPU has a clock of its own, which leaves out interrupts and time that a hypervisor
        took (update_rq_clock_task of kernel/sched/core.c). They differ by seconds after hours and
        by days after months, so the clock of the CPU on which the task ran is asked.
        """
        ran = _last_ran(name)
        cpu = row["cpu"]
        if ran is None or cpu is None:
            return None
        if cpu not in self._now:
            self._now[cpu] = _clock_of(cpu)
        now = self._now[cpu]
        return None if now is None else max(0.0, now - ran)


def _clock_of(cpu):
    """Return what the scheduler's clock of a CPU shows; None for a CPU that we may not run on."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        return None
    try:
        return _last_ran("self")  # this task runs there now
    finally:
        os.sched_setaffinity(0, allowed)


def _last_ran(name):
    """Return when a task last ran, in seconds of the scheduler's clock of its CPU.

    None where the kernel is built without CONFIG_SCHED_DEBUG. The line of /proc/PID/sched is
    «se.exec_start : 60283131.153873», in milliseconds (print of kernel/sched/debug.c).
    """
    for line in _text(name, "sched").split("\n"):
        label, _, value = line.partition(":")
        if label.strip() == "se.exec_start":
            try:
                return float(value) / 1000
            except ValueError:
                return None
    return None


def _is_ours(pid, parent_of):
    """Return whether the agent started a task: on a crowded node its forks wait for memory."""
    visited = set()
    while pid and pid not in visited:
        if pid == _agent:
            return True
        visited.add(pid)
        pid = parent_of.get(pid)
    return False


def _still(suspects):
    """Look again; return (name, row) of the tasks that were not scheduled meanwhile."""
    for _ in range(LOOKS - 1):
        if not suspects:
            break
        time.sleep(GAP)
        remaining = {}
        for name, before in suspects.items():
            if before == (_stat(name), _switches(name)):
                remaining[name] = before
        suspects = remaining
    rows = []
    for name, (row, switches) in sorted(suspects.items()):
        if switches is not None:
            rows.append((name, row))
    return rows


def _left(zombies, clocks):
    """Return those (name, row) of zombies that are left over, as they are now.

    Where it is not shown when one ended, it may have ended this moment, and its parent
    collects it in the next: these are looked at again. One whose parent has ended meanwhile has
    another parent, and is the same zombie.
    """
    undated = set()
    for name, row in zombies:
        if clocks.waited(name, row) is None:
            undated.add(name)
    if undated:
        time.sleep(GAP)
    left = []
    for name, row in zombies:
        now = _stat(name) if name in undated else row
        if now is not None and now["start"] == row["start"]:
            left.append((name, now))
    return left


def _described(name, row, children, clocks):
    return {
        "pid": int(name),
        "comm": row["comm"],
        "kernel": row["kernel"],
        "wchan": _text(name, "wchan").strip(),  # «0» if it may not be read
        "children": children.get(int(name), 0),
        "age": clocks.age(row),
        "waited": clocks.waited(name, row),
    }


def _described_zombie(name, row, clocks):
    parent = _stat(str(row["parent"]))
    return {
        "pid": int(name),
        "comm": row["comm"],
        "parent": row["parent"],
        "parent_comm": parent["comm"] if parent else "",
        "age": clocks.age(row),
        "waited": clocks.waited(name, row),
    }


def _uid(user):
    """Return the id of a user, by default of this process; None if there is no such user."""
    import pwd

    try:
        return os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _owner(name):
    try:
        return os.stat("/proc/" + name).st_uid
    except OSError:
        return None


def _stat(name):
    """Return state, parent, flags, threads, start and last CPU of a task.

    None if it is gone or unreadable.
    """
    text = _text(name, "stat")
    # The name of the program may hold blanks and brackets itself.
    comm_start = text.find("(") + 1
    comm_end = text.rfind(")")
    comm = text[comm_start:comm_end]
    fields = text[comm_end + 1 :].split()
    if len(fields) < 20:
        return None
    return {
        "comm": comm,
        "state": fields[0],
        "parent": int(fields[1]),
        "kernel": bool(int(fields[6]) & KERNEL),
        "threads": int(fields[17]),
        "start": fields[19],
        "cpu": int(fields[36]) if len(fields) > 36 else None,
    }


def _switches(name):
    """Return the lines with the counts of context switches; None if they are not readable."""
    lines = [line for line in _text(name, "status").split("\n") if "ctxt_switches" in line]
    return lines or None


def _text(name, what):
    """Return a file of a process in /proc, "" if it cannot be read."""
    try:
        fd = os.open(os.path.join("/proc", name, what), os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(fd, 8192).decode("utf-8", "replace")
    except OSError:  # it ended meanwhile
        return ""
    finally:
        os.close(fd)


def install(agent):
    """Register the readers of this part."""
    global _agent
    _agent = os.getpid()
    offer({"tasks": read_tasks}, lane="devices")
