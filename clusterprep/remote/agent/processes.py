"""Looks at the processes of a trial: their state, their descendants, and their end."""

import errno
import os
import signal

_open_descriptor = getattr(os, "pidfd_open", None)
_signal_descriptor = getattr(signal, "pidfd_send_signal", None)
MARK = "CLUSTERPREP_TRIAL"  # in the environment of everything that descends from a rank


def process_stat(pid):
    """Return state letter and session of a process; ("X", 0) if there is no such process."""
    letter, session, _ = _stat(pid)
    return letter, session


def processor_ticks(pid):
    """Return the processor time that a process has used, in ticks of a hundredth of a second."""
    fields = _stat_fields(pid)
    if not fields:
        return 0
    return int(fields[11]) + int(fields[12])


def identified(pid):
    """Return (pid, moment of its start): no later process with the same number has both."""
    _, _, started = _stat(pid)
    return pid, started


def _stat_fields(pid):
    """Return the fields of /proc/PID/stat from the state on; none if there is no such process."""
    # The name of the program is in brackets and may hold blanks and brackets itself.
    return read_process(pid, "stat").rpartition(b")")[2].split()


def _stat(pid):
    """Return state letter, session and start of a process in ticks since boot."""
    fields = _stat_fields(pid)
    if not fields:
        return "X", 0, 0
    return fields[0].decode("ascii"), int(fields[3]), int(fields[19])


def is_alive(process):
    """Return whether a process, as `identified` gave it, has not ended."""
    pid, started = process
    letter, _, started_now = _stat(pid)
    return letter not in "ZX" and started_now == started


def exit_code(child):
    """Return how a child of Popen ended, as its `poll` does; None while it runs.

    It is not reaped by that, so that its number stays its own, and that of its group and session.
    A process in a container is no child of the agent's: its end is told.
    """
    if getattr(child, "is_inside", False):
        return child.returncode
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        ended = os.waitid(os.P_PID, child.pid, options)
    except ChildProcessError:  # reaped already
        return child.returncode
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def read_process(pid, name):
    """Return the content of a file of a process; empty if it is gone or not readable."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as source:
            return source.read()
    except OSError:
        return b""


def descendants(mark, sessions):
    """Return the ranks' processes, each as `identified` gives it.

    First those that have the mark in their environment, also outside of the ranks' sessions, then
    the others of these sessions. The leaders of the sessions must not be reaped yet.
    """
    entry = ("%s=%s" % (MARK, mark)).encode("ascii")
    marked = []
    others = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        # The start is read before all else: what is read later may be of another process.
        _, session, started = _stat(pid)
        variables = read_process(pid, "environ").split(b"\0")
        if entry in variables:
            marked.append((pid, started))
        elif session in sessions:
            others.append((pid, started))
    return marked + others


def send_signal(process, number=signal.SIGKILL):
    """Signal a process that `identified` gave, unless another one has its number by now.

    A process that is gone or not ours is no error.
    """
    pid, started = process
    descriptor = _process_descriptor(pid)  # from here on no other process can be meant
    try:
        if identified(pid)[1] != started:
            return
        if descriptor is None:
            os.kill(pid, number)
        else:
            _signal_descriptor(descriptor, number)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _process_descriptor(pid):
    """Return a descriptor of a process; None before Python 3.9 and Linux 5.3, and if it is gone."""
    if _open_descriptor is None or _signal_descriptor is None:
        return None
    try:
        return _open_descriptor(pid)
    except OSError:
        return None


def kill_group(leader):
    """Kill the process group of a child that is not reaped yet; one that is gone is no error."""
    try:
        os.killpg(leader, signal.SIGKILL)
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
