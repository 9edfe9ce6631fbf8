"""Limits of sessions, and processes that are where they should not be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.lab import processes
from tests.support.lab.faults.fault import Fault, together
from tests.support.lab.faults.files import file_over, written
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


def daemon(host: Host, name: str, *prlimit: str) -> Fault:
    """A process of root with a daemon's name, a child of the first one, with these limits.

    `prlimit` are options of prlimit(1), such as «--memlock=65536».
    """
    program = f"/var/tmp/{name}"
    host.run(["cp", "/bin/sleep", program])
    start = '"$@" >/dev/null 2>&1 </dev/null & echo $!'
    words = ["prlimit", *prlimit, "setsid", program, "infinity"]
    pid = host.run(["sh", "-c", start, "sh", *words]).stdout.strip()
    host.run(["sh", "-c", f"until grep -q {name} /proc/{pid}/comm; do sleep 0.01; done"])

    def undo() -> None:
        host.run(["kill", "-9", pid])
        host.run(["rm", "-f", program])

    return Fault(undo)


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


# Its child has ended, and it does not ask how.
_PARENT = """
import os, time
pid = os.fork()
if pid == 0:
    os._exit(1)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(flush=True)
time.sleep(1e6)
"""


def zombie(host: Host) -> Fault:
    """A process that has ended and whose parent does not collect it."""
    parent = host.popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    parent.stdout.readline()

    def undo() -> None:
        processes.kill_group(parent)
        parent.communicate()

    return Fault(undo)


def waiting(host: Host, state: str, seconds: float) -> Fault:
    """The host's tasks in this state last ran so long ago, as the scheduler shows it."""
    label = "se.exec_start"
    now = next(
        float(line.partition(":")[2])
        for line in host.read("/proc/self/sched").splitlines()
        if line.startswith(label)
    )
    text = f"{label} : {now - seconds * 1000:.6f}\n"
    find = f"grep -l '^State:.{state}' /proc/[0-9]*/status"
    found = host.run(["sh", "-c", find], check=False).stdout.split()
    return together(*(file_over(host, path.replace("status", "sched"), text) for path in found))


def compiled(host: Host, path: str, source: str) -> Fault:
    """A shared library made from C, at this path of the host."""
    host.run(["mkdir", "-p", str(Path(path).parent)])
    host.run(["sh", "-c", 'cc -x c -shared -fPIC -o "$0" -', path], input=source)
    return Fault(lambda: host.run(["rm", "-f", path]))
