"""Hosts that hang, go away, or come back."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.lab.faults.fault import Fault
from tests.support.lab.layout import POWER
from tests.support.lab.rooms import Host, state_of


def freeze(host: Host) -> Fault:
    """Stop every process of the host: the kernel still answers, and nothing else does."""
    stopped = machine_pids(host)
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    def undo() -> None:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return Fault(undo)


def machine_pids(host: Host) -> list[int]:
    """The host's processes, as the machine counts: process 1 heeds SIGSTOP only from outside."""
    wanted = Path(f"/proc/{host.pid}/ns/pid").stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and (entry / "ns/pid").stat().st_ino == wanted:
                found.append(int(entry.name))
    return found


def power_off(host: Host) -> None:
    """End the host at once, as by its switch; it stays down until `power_on`."""
    watched = os.pidfd_open(host.pid)
    with contextlib.closing(os.fdopen(watched)):
        signal.pidfd_send_signal(watched, signal.SIGKILL)
    _wait_until(lambda: not host.alive(), f"{host.name} to end")


def power_on(host: Host, timeout: float = 60) -> None:
    """Start a host that is down, and all others that are: its files are those that it had."""
    os.kill(state_of(host.layout).supervisor, POWER)
    _wait_until(host.alive, f"{host.name} to start", timeout)


def reboot(host: Host, timeout: float = 60) -> None:
    """Restart the host: files stay, /run, /tmp and /dev/shm are empty, the boot id is new."""
    before = host.pid
    call = "import ctypes; ctypes.CDLL(None).reboot(0x01234567)"
    host.run([sys.executable, "-c", call], check=False)
    _wait_until(lambda: host.alive() and host.pid != before, f"{host.name} to come back", timeout)


def _wait_until(holds: Callable[[], bool], what: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            message = f"waited {timeout:g} s for {what}"
            raise TimeoutError(message)
        time.sleep(0.01)
