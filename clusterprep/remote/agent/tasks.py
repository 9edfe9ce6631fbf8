"""The tasks of a node: how many threads a user has, and which tasks stay in uninterruptible sleep."""

import os
import time

from clusterprep.remote.agent.readers import NoAnswer, offer

LOOKS = 3  # at tasks that were in uninterruptible sleep, the first included
GAP = 0.5  # seconds between two looks
KERNEL = 0x00200000  # PF_KTHREAD of include/linux/sched.h
NAMED = 50  # stuck tasks that travel home
_agent = None


def read_tasks(user):
    """The threads of `user` (None: whoever runs this), and the tasks stuck in the kernel.

    A task is stuck when it is in D at every look and was not scheduled in between. The second look is only taken
    when the first has found a task in D.
    """
    uid = _uid(user)
    threads, tasks, suspects, parents, above = 0, 0, {}, {}, {}
    for name in os.listdir("/proc"):
        row = _stat(name) if name.isdigit() else None
        if row is None:
            continue
        tasks += 1
        parents[row["parent"]] = parents.get(row["parent"], 0) + 1
        above[int(name)] = row["parent"]
        if row["state"] == "D":
            suspects[name] = (row, _switches(name))
        if not row["kernel"] and _owner(name) == uid:
            threads += row["threads"]
    if _stat("1") is None:
        raise NoAnswer("denied", "/proc does not show the tasks of others here (hidepid)")
    stuck = [
        _described(name, row, parents)
        for name, row in _still(suspects)
        if not _is_ours(int(name), above)
    ]
    return {
        "uid": uid,
        "threads": None if uid is None else threads,
        "tasks": tasks,
        "stuck": stuck[:NAMED],
        "more": len(stuck[NAMED:]),
        "seconds": GAP * (LOOKS - 1) if suspects else 0,
    }


def _is_ours(pid, above):
    """Whether a task is one of this agent's: on a crowded node its forks wait for each other's memory."""
    seen = set()
    while pid and pid not in seen:
        if pid == _agent:
            return True
        seen.add(pid)
        pid = above.get(pid)
    return False


def _still(suspects):
    for _ in range(LOOKS - 1):
        if not suspects:
            break
        time.sleep(GAP)
        suspects = dict(
            (name, before)
            for name, before in suspects.items()
            if before == (_stat(name), _switches(name))
        )
    return [
        (name, row) for name, (row, switches) in sorted(suspects.items()) if switches is not None
    ]


def _described(name, row, parents):
    return {
        "pid": int(name),
        "comm": row["comm"],
        "kernel": row["kernel"],
        "wchan": _text(name, "wchan").strip(),  # «0» where we may not know
        "children": parents.get(int(name), 0),
    }


def _uid(user):
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
    """State, parent, flags, threads and start of a task; None when it has ended or may not be seen."""
    text = _text(name, "stat")
    comm = text[text.find("(") + 1 : text.rfind(")")]  # may hold spaces and brackets itself
    fields = text[text.rfind(")") + 1 :].split()
    if len(fields) < 20:
        return None
    return {
        "comm": comm,
        "state": fields[0],
        "parent": int(fields[1]),
        "kernel": bool(int(fields[6]) & KERNEL),
        "threads": int(fields[17]),
        "start": fields[19],
    }


def _switches(name):
    lines = [line for line in _text(name, "status").split("\n") if "ctxt_switches" in line]
    return lines or None


def _text(name, what):
    try:
        fd = os.open("/proc/%s/%s" % (name, what), os.O_RDONLY)
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
    offer({"tasks": read_tasks})
