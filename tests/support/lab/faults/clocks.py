"""Clocks that are wrong, or that follow nothing."""

from __future__ import annotations

import platform
import sys

from tests.support.lab.faults.fault import Fault
from tests.support.lab.faults.sshd import session_environment
from tests.support.lab.rooms import Host
from tests.support.lab.timekeeper import HOST_CONFIG

_FAKETIME = f"/usr/lib/{platform.machine()}-linux-gnu/faketime/libfaketime.so.1"
_STATE = "/lab_clock"
_ALONE = "/etc/chrony/lab-alone.conf"


def clock(host: Host, seconds: float) -> Fault:
    """Clock of new ssh sessions ahead by ``seconds``; 0 takes an earlier offset back."""
    if seconds:
        _share_faketime_state(host)
        session_environment(host, clock_environment(seconds))
    else:
        session_environment(host, dict.fromkeys(clock_environment(1)))
        host.run(["rm", "-f", f"/dev/shm{_STATE}", f"/dev/shm/sem.{_STATE[1:]}"])
    return Fault(lambda: seconds and clock(host, 0))


def clock_environment(seconds: float) -> dict[str, str | None]:
    """Variables that move a process's wall clock, and nothing else about time."""
    return {
        "LD_PRELOAD": _FAKETIME,
        "FAKETIME": f"{seconds:+.6f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        "FAKETIME_SHARED": f"{_STATE} {_STATE}",
    }


def _share_faketime_state(host: Host) -> None:
    """Make one semaphore and one segment for all, or each process leaves two in /dev/shm."""
    semaphore = "import ctypes, os, sys; "
    semaphore += "ctypes.CDLL(None).sem_open(sys.argv[1].encode(), os.O_CREAT, 0o666, 1)"
    host.run([sys.executable, "-c", semaphore, _STATE])
    name = _STATE.removeprefix("/")
    host.run(
        ["sh", "-c", f"cd /dev/shm && truncate --size 4096 {name} && chmod 666 {name} sem.{name}"]
    )


def unsynchronised(host: Host) -> Fault:
    """The host's chronyd has no source; for a lab with chrony."""
    host.write(_ALONE, "cmdport 323\n")
    _restart_chronyd(host, _ALONE)
    return Fault(lambda: _restart_chronyd(host, HOST_CONFIG))


def without_chronyd(host: Host) -> Fault:
    """No chronyd runs on the host; for a lab with chrony."""
    _end_chronyd(host)
    return Fault(lambda: _restart_chronyd(host, HOST_CONFIG))


def _restart_chronyd(host: Host, config: str) -> None:
    _end_chronyd(host)
    host.run(["chronyd", "-x", "-f", config])


def _end_chronyd(host: Host) -> None:
    host.run(
        ["sh", "-c", "pkill -x chronyd; while pgrep -x chronyd >/dev/null; do sleep 0.02; done"]
    )
