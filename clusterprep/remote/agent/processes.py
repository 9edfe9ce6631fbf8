"""Processes of a trial as the kernel shows them: their state, what descends from them, and their end."""

import errno
import os
import signal

MARK = "CLUSTERPREP_TRIAL"  # in the environment of everything that descends from a rank


def process_stat(pid):
    """State letter and session of a process; ("X", 0) when there is none."""
    fields = read_process(pid, "stat").rpartition(b")")[2].split()
    return (fields[0].decode("ascii"), int(fields[3])) if fields else ("X", 0)


def read_process(pid, name):
    """A file of a process, empty when the process is gone or not ours to look at."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as source:
            return source.read()
    except OSError:
        return b""


def descendants(mark, sessions):
    """Processes of the ranks' sessions, and those that left them but still carry the mark in their environment."""
    entry = ("%s=%s" % (MARK, mark)).encode("ascii")
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    marked = [pid for pid in pids if entry in read_process(pid, "environ").split(b"\0")]
    return marked + [pid for pid in pids if pid not in marked and process_stat(pid)[1] in sessions]


def send_signal(kill, target):
    try:
        kill(target, signal.SIGKILL)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise


def drain(fd, hear):
    """What a pipe still holds of a process that ended; a descendant of it may hold it open and go on writing."""
    try:
        for _ in range(64):
            hear(os.read(fd, 1 << 16))
    except OSError:
        pass


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number
