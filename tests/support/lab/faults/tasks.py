"""Limits of sessions, and processes that are where they should not be."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.lab import processes
from tests.support.lab.faults.fault import Fault
from tests.support.lab.faults.files import written
from tests.support.lab.rooms import Host

# The parent of a vfork waits in uninterruptible sleep until its child has called exec, as shells
# and make do.
_VFORK = r"""
#include <unistd.h>
#include <sys/prctl.h>
int main(void) {
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, 9);
        for (;;) pause();
    }
    return 0;
}
"""


def limit(host: Host, item: str, value: str, user: str = "root") -> Fault:
    """A limit of new sessions of a user, soft and hard, as limits.conf words it."""
    return written(host, f"/etc/security/limits.d/90-lab-{item}.conf", f"{user} - {item} {value}\n")


def soft_limit(host: Host, item: str, value: str, user: str = "root") -> Fault:
    """The same, but the user may raise it."""
    return written(
        host, f"/etc/security/limits.d/90-lab-{item}.conf", f"{user} soft {item} {value}\n"
    )


def vfork_parent(host: Host) -> Fault:
    """A process that waits for its child, which looks like a stuck one and is none."""
    program = "/var/tmp/vforking"
    host.run(["sh", "-c", 'cc -x c -o "$0" -', program], input=_VFORK)
    process = host.popen([program], stdin=subprocess.DEVNULL)
    host.run(["sh", "-c", "until grep -q '^State:.D' /proc/[0-9]*/status; do sleep 0.01; done"])

    def undo() -> None:
        processes.kill_group(process)
        process.communicate()
        host.run(["rm", "-f", program])

    return Fault(undo)


def compiled(host: Host, path: str, source: str) -> Fault:
    """A shared library made from C, at this path of the host."""
    host.run(["mkdir", "-p", str(Path(path).parent)])
    host.run(["sh", "-c", 'cc -x c -shared -fPIC -o "$0" -', path], input=source)
    return Fault(lambda: host.run(["rm", "-f", path]))
