"""Makes things go wrong on hosts and with a command, as `schedule` says, and takes it back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.soak.schedule import BY_NAME, WITHOUT_NODE, Harm
from tests.support.lab import Host, Lab, faults, processes

STATE = "/var/lib/clusterprep"
FULL = "/etc/profile.d"
LOOK = 0.02  # seconds between two looks for an agent


def _powered_off(host: Host) -> faults.Fault:
    faults.power_off(host)
    return faults.Fault(lambda: faults.power_on(host))


def _lock(host: Host) -> faults.Fault:
    """What a run's agent does: an flock on the file, held by a process."""
    host.run(["mkdir", "-p", STATE])
    holder = host.popen(["flock", "--no-fork", f"{STATE}/lock", "sleep", "3600"])

    def undo() -> None:
        processes.kill_group(holder)
        holder.wait()

    return faults.Fault(undo)


PLANTED: dict[str, Callable[[Host], faults.Fault]] = {
    "powered-off": _powered_off,
    "cable-out": faults.cable_out,
    "frozen": faults.freeze,
    "sshd-frozen": faults.stop_sshd,
    "host-key": faults.new_host_key,
    "no-python": faults.hide_python,
    "clock": lambda host: faults.clock(host, 5.0 if host.index % 2 else -5.0),
    "mtu": lambda host: faults.mtu(host, 1400),
    "disk-full": lambda host: faults.full(host, FULL),
    "lock": _lock,
}


def planted(lab: Lab, harms: Sequence[Harm]) -> faults.Fault:
    """All that is to be wrong from before the command until after it."""
    whole = [harm for harm in harms if BY_NAME[harm.kind].whole]
    return faults.together(*(PLANTED[harm.kind](lab.host(harm.node)) for harm in whole))


def agents(host: Host) -> list[int]:
    """The agents that run on a host, as the machine counts."""
    found = []
    for pid in faults.machine_pids(host):
        with contextlib.suppress(OSError):
            if b"-ISB" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


class Passing(threading.Thread):
    """What comes and goes while a command runs: one harm, from `usual * at` seconds on.

    `struck` says whether the command still ran when it came, `trouble` why it could not be done or
    taken back.
    """

    def __init__(
        self, lab: Lab, harm: Harm, pid: int, ended: threading.Event, usual: float
    ) -> None:
        super().__init__(daemon=True, name=f"{harm.kind} {harm.node}")
        self.harm, self.struck, self.trouble = harm, False, ""
        self._host = lab.host(harm.node) if harm.node != WITHOUT_NODE else None
        self._pid, self._ended, self._at = pid, ended, usual * harm.at

    def run(self) -> None:
        try:
            if not self._ended.wait(self._at):
                self._strike()
        except Exception as error:  # noqa: BLE001 - told at the end of the round
            self.trouble = f"{self.name}: {error!r}"

    def _strike(self) -> None:
        if self._host is None:
            self._strike_command()
        elif self.harm.kind.startswith("agent-"):
            self._strike_agent(self._host)
        else:
            self.struck = True
            {
                "sshd-restart": faults.reload_sshd,
                "sessions-killed": _kill_sessions,
                "link-flap": self._flap,
                "reboot": lambda host: faults.reboot(host, 30),
            }[self.harm.kind](self._host)

    def _strike_command(self) -> None:
        while self.harm.kind == "interrupted" and not _heeds(self._pid, signal.SIGTERM):
            if self._ended.wait(
                LOOK
            ):  # before that it is Python that starts, and ends as Python does
                return
        self.struck = True
        with contextlib.suppress(ProcessLookupError):
            if self.harm.kind == "controller-stopped":
                os.kill(self._pid, signal.SIGSTOP)
                time.sleep(self.harm.lasts)
                os.kill(self._pid, signal.SIGCONT)
            else:
                os.kill(
                    self._pid,
                    signal.SIGKILL if self.harm.kind == "controller-killed" else signal.SIGINT,
                )

    def _strike_agent(self, host: Host) -> None:
        while not (found := agents(host)):
            if self._ended.wait(LOOK):
                return
        self.struck = True
        stops = self.harm.kind == "agent-stopped"
        _send(found, signal.SIGSTOP if stops else signal.SIGKILL)
        if stops:
            time.sleep(self.harm.lasts)
            _send(found, signal.SIGCONT)

    def _flap(self, host: Host) -> None:
        with faults.cable_out(host):
            time.sleep(self.harm.lasts)


def _heeds(pid: int, signum: signal.Signals) -> bool:
    """Whether a process has a handler for a signal of its own."""
    with contextlib.suppress(FileNotFoundError):
        rows = dict(
            row.split(":", 1) for row in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        return bool(int(rows["SigCgt"], 16) >> (signum - 1) & 1)
    return False


def _kill_sessions(host: Host) -> None:
    for pid in faults.machine_pids(host):
        with contextlib.suppress(OSError):
            if pid != host.pid and Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                os.kill(pid, signal.SIGKILL)


def _send(pids: Sequence[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
