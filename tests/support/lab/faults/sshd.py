"""What a host's sshd can do wrong, and what its sessions can be given."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.support.lab.faults.fault import Fault
from tests.support.lab.faults.files import file_over
from tests.support.lab.faults.power import machine_pids
from tests.support.lab.rooms import Host

_EXTRA = "/etc/ssh/lab.conf"
_SSHD = "/usr/sbin/sshd"
_HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"


def session_environment(host: Host, variables: Mapping[str, str | None]) -> Fault:
    """Give new ssh sessions these variables besides earlier ones; None takes one away."""
    before = _session_variables(host)
    _set_session_variables(host, before | dict(variables))
    return Fault(lambda: _set_session_variables(host, before))


def _session_variables(host: Host) -> dict[str, str | None]:
    words = shlex.split(host.run(["cat", _EXTRA], check=False).stdout)
    pairs = (word.partition("=") for word in words if "=" in word)
    return {name: value for name, _, value in pairs}


def _set_session_variables(host: Host, variables: Mapping[str, str | None]) -> None:
    # sshd honours the first SetEnv only, so there is one for all.
    words = [f'"{name}={value}"' for name, value in variables.items() if value is not None]
    host.write(_EXTRA, f"SetEnv {' '.join(words)}\n" if words else "")
    reload_sshd(host)


def old_kernel(host: Host) -> Fault:
    """New ssh sessions see kernel 2.6.x in uname(2) and /proc/sys/kernel/osrelease."""
    real = f"{_SSHD}.real"
    release = host.run(["setarch", "--uname-2.6", "uname", "-r"]).stdout
    # sshd executes itself for each connection; only these copies get the personality, the listener
    # stays as it is.
    wrapper = (
        "#!/bin/bash\n"
        f'[[ " $* " == *" -R "* ]] && exec setarch --uname-2.6 {real} "$@"\n'
        f'exec -a {_SSHD} {real} "$@"\n'
    )
    host.run(["cp", "--preserve", _SSHD, real])
    host.write(f"{_SSHD}.new", wrapper, 0o755)
    host.run(["mv", f"{_SSHD}.new", _SSHD])
    shown = file_over(host, "/proc/sys/kernel/osrelease", release)

    def undo() -> None:
        host.run(["mv", real, _SSHD])
        shown.undo()

    return Fault(undo)


def reload_sshd(host: Host) -> None:
    """Let sshd read its configuration and keys again; running sessions stay."""
    wait = "rm -f /run/sshd.pid; kill -HUP 1; until [ -e /run/sshd.pid ]; do sleep 0.01; done"
    host.run(["sh", "-c", wait])


def new_host_key(host: Host) -> Fault:
    """Another host key than the controller knows."""
    host.run(["sh", "-c", f"for f in {_HOST_KEY} {_HOST_KEY}.pub; do mv $f $f.old; done"])
    host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", _HOST_KEY])
    reload_sshd(host)

    def undo() -> None:
        host.run(["sh", "-c", f"for f in {_HOST_KEY} {_HOST_KEY}.pub; do mv $f.old $f; done"])
        reload_sshd(host)

    return Fault(undo)


def stop_sshd(host: Host) -> Fault:
    """Freeze sshd with all its sessions: TCP still connects, and nothing answers."""
    _signal_sshd(host, signal.SIGSTOP)
    return Fault(lambda: cont_sshd(host))


def cont_sshd(host: Host) -> None:
    """Let a frozen sshd go on."""
    _signal_sshd(host, signal.SIGCONT)


def _signal_sshd(host: Host, number: signal.Signals) -> None:
    for pid in machine_pids(host):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "sshd":
                os.kill(pid, number)
