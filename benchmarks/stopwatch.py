"""Run one command and print what it cost, with the CPU time of everything that it started."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
FAREWELL = 5.0  # seconds that a leftover gets to end by itself after SIGTERM


def measure(argv: Sequence[str]) -> dict[str, float]:
    """Wall time until the command ends.

    CPU time of all its descendants, also of those that detached themselves.

    Times are seconds, memory is KiB: the most that one of them had.
    """
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
    busy, started = machine_busy(), time.monotonic()
    process = subprocess.Popen(argv)
    _, status = os.waitpid(process.pid, 0)
    wall, busy = time.monotonic() - started, machine_busy() - busy
    _end_leftovers()  # OpenSSH masters that Ansible leaves for its next run
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = os.waitstatus_to_exitcode(status)
    cost = {
        "user": used.ru_utime,
        "system": used.ru_stime,
        "machine": busy,
        "memory": used.ru_maxrss,
    }
    return {"code": code, "wall": wall, **cost}


def machine_busy() -> float:
    """Return the seconds that all processors together have worked since boot, for all processes."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split()[1:11]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _end_leftovers() -> None:
    until = time.monotonic() + FAREWELL
    number = signal.SIGTERM
    while children := list(_children()):
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        number = signal.SIGTERM if time.monotonic() < until else signal.SIGKILL
        time.sleep(0.01)


def _children() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                    yield int(entry.name)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(measure(sys.argv[2:])))
