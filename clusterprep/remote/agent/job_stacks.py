"""Python stacks by py-spy, for the ranks whose stack this agent cannot read from memory itself.

py-spy is looked for among the programs of the system, and beside the rank's own interpreter. One
that others than root could have put there runs as the rank's user and never as root. It reads
memory while the rank goes on (`--nonblocking`).
"""

import os
import select
import time

from clusterprep.remote.agent.light import signal
from clusterprep.remote.agent.readers import is_of_root, search_path

MOST_RANKS = 16  # each costs py-spy some tenths of a second of a processor
LEAST = 2.0  # seconds that py-spy has
MOST_TEXT = 32 << 10  # bytes of a stack


def add_from_programs(ranks, seconds):
    """Add `text`, what py-spy prints, to the first look at each rank that has no stack."""
    running = []
    for rank in ranks:
        look = rank["looks"][0]
        if look is None or "stack" in look or len(running) == MOST_RANKS:
            continue
        if look["state"] in "TtD":  # it answers no question now
            continue
        child = _started(rank)
        if child is not None:
            running.append((look, child))
    end = time.monotonic() + max(seconds, LEAST)
    for look, (pid, fd) in running:
        text = _drained(fd, end)
        os.close(fd)
        _end(pid)
        if text:
            look["text"] = text


def _started(rank):
    """Start py-spy for a rank; return its pid and the pipe of its output, None without py-spy."""
    program, is_safe = _program(rank["pid"])
    if program is None:
        return None
    argv = [program, "dump", "--nonblocking", "--pid", str(rank["pid"])]
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0 and not is_safe:
                _become(rank["uid"], rank["gid"])
            os.dup2(os.open("/dev/null", os.O_RDWR), 0)
            os.dup2(write_end, 1)
            os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
            env = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
            os.execve(program, argv, env)  # noqa: S606 - no shell is wanted
        finally:
            os._exit(126)
    os.close(write_end)
    return pid, read_end


def _become(uid, gid):
    """Turn this process into a user without any other group."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _program(pid):
    """Return the path of py-spy and whether root alone could put it there; (None, False)."""
    for folder in search_path():
        path = os.path.join(folder, "py-spy")
        if os.access(path, os.X_OK):
            return path, is_of_root(folder)
    try:
        beside = os.path.dirname(os.readlink("/proc/%d/exe" % pid))
        with open("/proc/%d/cmdline" % pid, "rb") as source:
            first = source.read(4096).split(b"\0")[0].decode("utf-8", "replace")
    except OSError:
        return None, False
    for folder in (os.path.dirname(first), beside):
        path = os.path.join(folder, "py-spy")
        if folder.startswith("/") and os.access(path, os.X_OK):
            return path, is_of_root(folder)
    return None, False


def _drained(fd, end):
    """Return what comes from a pipe until its end, or until the time is over."""
    data = b""
    while len(data) < MOST_TEXT:
        left = end - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return ""
        piece = os.read(fd, 1 << 16)
        if not piece:
            return data.decode("utf-8", "replace")
        data += piece
    return ""


def _end(pid):
    """Kill a child that may run still, and reap it."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
    os.waitpid(pid, 0)
