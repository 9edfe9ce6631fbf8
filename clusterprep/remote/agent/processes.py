"""Looks at the processes of a trial: their state, their descendants, and their end."""

import errno
import os
import signal

MARK = "CLUSTERPREP_TRIAL"  # in the environment of everything that descends from a rank


def process_stat(pid):
    """Return state letter and session of a process; ("X", 0) if there is no such process."""
    # The name of the program is in brackets and may hold blanks and brackets itself.
    fields = read_process(pid, "stat").rpartition(b")")[2].split()
    if not fields:
        return "X", 0
    return fields[0].decode("ascii"), int(fields[3])


def read_process(pid, name):
    """Return the content of a file of a process; empty if it is gone or not readable."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as source:
            return source.read()
    except OSError:
        return b""


def descendants(mark, sessions):
    """Return the pids of the ranks' processes.

    First those that have the mark in their environment, also outside of the ranks' sessions, then
    the others of these sessions.
    """
    entry = ("%s=%s" % (MARK, mark)).encode("ascii")
    marked = []
    others = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        variables = read_process(pid, "environ").split(b"\0")
        if entry in variables:
            marked.append(pid)
        elif process_stat(pid)[1] in sessions:
            others.append(pid)
    return marked + others


def send_signal(kill, target):
    """Send SIGKILL by os.kill or os.killpg; a target that is gone or not ours is no error."""
    try:
        kill(target, signal.SIGKILL)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise


def drain(fd, hear):
    """Pass on what a pipe still holds after its process has ended.

    Bounded, because a descendant of the process may hold the pipe open and go on writing.
    """
    try:
        for _ in range(64):
            hear(os.read(fd, 1 << 16))
    except OSError:
        pass


def signal_name(number):
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number
