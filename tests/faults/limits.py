"""Limits of sessions, and what runs on a host before a job does."""

from __future__ import annotations

import contextlib
import os

from tests.faults.row import Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

KMSG = "/dev/kmsg"
# A log as the kernel writes it: facility and level, number, microseconds; whole since boot, and
# with nothing in it.
QUIET = """\
5,0,0,-;Linux version 6.8.0-45-generic (buildd@lcy02-amd64-115)
6,1,1200345,-;ACPI: PM-Timer IO Port: 0x408
6,2,5300120,-;systemd[1]: Detected architecture x86-64.
"""
LOAD = "0.21 0.18 0.12 2/140 4711\n"


def _says(*lines: str) -> str:
    """The quiet log, and the kernel's complaints after it."""
    said = [
        f"{level},{number},{900000000 + number},-;{text}"
        for number, (level, text) in enumerate(_levels(lines), 3)
    ]
    return QUIET + "".join(f"{line}\n" for line in said)


def _levels(lines: tuple[str, ...]) -> list[tuple[int, str]]:
    return [(3, line) for line in lines]


def _kernel_says(host: Host, *lines: str) -> Fault:
    return faults.file_over(host, KMSG, _says(*lines))


def _quiet_after_a_program(host: Host, lab: Lab) -> Fault:
    """A process wrote into the kernel's log (facility 1): any process may write there."""
    line = "12,3,900000001,-;tester: watchdog: BUG: soft lockup - CPU#3 stuck for 22s!\n"
    return faults.file_over(host, KMSG, QUIET + line)


def _stuck_for_long(host: Host, lab: Lab) -> Fault:
    """A process hangs; that it does so for an hour is laid over."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(faults.stuck_task(host))
        stack.enter_context(faults.waiting(host, "D", 3600))
        return Fault(stack.pop_all().close)


def _left_over(host: Host, lab: Lab) -> Fault:
    """A rank that ended and is not collected; that it ended an hour ago is laid over."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(faults.zombie(host))
        stack.enter_context(faults.waiting(host, "Z", 3600))
        return Fault(stack.pop_all().close)


def _systemd_file(host: Host, path: str, text: str) -> Fault:
    """A file of systemd on a host that systemd has started."""
    return faults.together(
        faults.written(host, "/run/systemd/system/.there", ""),
        faults.written(host, f"/etc/systemd/{path}", text),
    )


def _many_cpus() -> str:
    """Four times as many CPUs as this machine has."""
    return f"0-{4 * (os.cpu_count() or 1) - 1}\n"


def _tasks_of_slurm(host: Host, conf: str, *prlimit: str) -> Fault:
    return faults.together(
        faults.written(host, "/etc/slurm/slurm.conf", conf),
        faults.daemon(host, "slurmd", *prlimit),
    )


_LOCKUP = "watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [kworker/12:1:4187]"
_OOM = (
    "Out of memory: Killed process 18123 (python3) total-vm:981234kB, anon-rss:733120kB, "
    "file-rss:0kB"
)
_DISK = "I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2"

NO_CONTROLLER = {"slurm.state": "slurm.conf names no controller that could tell it"}
ROWS = (
    Row(
        "64 KiB of locked memory",
        "lim.memlock",
        lambda host, lab: faults.limit(host, "memlock", "64"),
    ),
    Row("1024 open files", "lim.nofile", lambda host, lab: faults.limit(host, "nofile", "1024")),
    Row(
        "unlimited stack",
        "lim.stack",
        lambda host, lab: faults.soft_limit(host, "stack", "unlimited"),
        several=True,
    ),
    Row(
        "1 MiB of stack",
        "lim.stack",
        lambda host, lab: faults.soft_limit(host, "stack", "1024"),
        several=True,
    ),
    Row(
        "100 processes",
        "lim.nproc",
        lambda host, lab: faults.limit(host, "nproc", "100"),
        several=True,
    ),
    Row(
        "nearly all process ids in use",
        "lim.nproc",
        lambda host, lab: faults.own_sysctl(host, "kernel.pid_max", "150"),
        "laid over",
        several=True,
    ),
    Row(
        "slurmd that may lock 64 KiB",
        "lim.memlock",
        lambda host, lab: faults.daemon(host, "slurmd", "--memlock=65536"),
        several=True,
    ),
    Row(
        "containerd with 1024 open files",
        "lim.nofile",
        lambda host, lab: faults.daemon(host, "containerd", "--nofile=1024"),
        several=True,
    ),
    Row(
        "cron whose PAM sets no limits, with 1024 open files",
        "lim.nofile",
        lambda host, lab: faults.together(
            faults.written(host, "/etc/pam.d/cron", "session required pam_env.so\n"),
            faults.daemon(host, "cron", "--nofile=1024"),
        ),
        several=True,
    ),
    Row(
        "64 KiB of locked memory for all services",
        "lim.memlock",
        lambda host, lab: _systemd_file(
            host, "system.conf.d/90-lab.conf", "[Manager]\nDefaultLimitMEMLOCK=64K\n"
        ),
        several=True,
    ),
    Row(
        "unit of a job without a limit of open files",
        "lim.nofile",
        lambda host, lab: _systemd_file(
            host,
            "system/train.service",
            "[Service]\nEnvironment=NCCL_SOCKET_IFNAME=eth0\nLimitMEMLOCK=infinity\n",
        ),
        several=True,
        also={"env.shadow": "the unit sets a variable of NCCL"},
    ),
    Row(
        "unlimited stack of slurmd that is not propagated over",
        "lim.stack",
        lambda host, lab: _tasks_of_slurm(
            host, "PropagateResourceLimits=NONE\n", "--stack=unlimited"
        ),
        several=True,
        also=NO_CONTROLLER,
        apart=tuple(NO_CONTROLLER),
    ),
    Row(
        "unlimited stack of slurmd, and the session's is propagated",
        "lim.stack",
        lambda host, lab: _tasks_of_slurm(host, "ClusterName=lab\n", "--stack=unlimited"),
        verdict="pass",
        several=True,
        also=NO_CONTROLLER,
    ),
    Row(
        "session on a quarter of the CPUs",
        "lim.cpus",
        lambda host, lab: faults.file_over(host, "/sys/devices/system/cpu/online", _many_cpus()),
        "laid over",
        several=True,
    ),
    Row(
        "process stuck in the kernel",
        "proc.dstate",
        _stuck_for_long,
        "laid over",
        also={"fs.mount": "the file system that it waits for does not answer"},
    ),
    Row(
        "rank that ended and is not collected",
        "proc.zombie",
        _left_over,
        "laid over",
        several=True,
    ),
    Row(
        "rank that ended just now",
        "proc.zombie",
        lambda host, lab: faults.zombie(host),
        verdict="pass",
        several=True,
    ),
    Row(
        "parent that waits for its vfork child",
        "proc.dstate",
        lambda host, lab: faults.vfork_parent(host),
        verdict="pass",
        several=True,
    ),
    Row(
        "load of 64",
        "proc.load",
        lambda host, lab: faults.file_over(
            host, "/proc/loadavg", "64.12 60.33 41.90 66/140 4711\n"
        ),
        "laid over",
    ),
    Row(
        "required service stopped",
        "svc.required",
        lambda host, lab: faults.service(host, {"chronyd.service": "inactive"}),
        "laid over",
    ),
    Row(
        "soft lockup in the kernel's log",
        "log.kernel",
        lambda host, lab: _kernel_says(host, _LOCKUP),
        "laid over",
        several=True,
    ),
    Row(
        "out of memory in the kernel's log",
        "log.kernel",
        lambda host, lab: _kernel_says(host, _OOM),
        "laid over",
        several=True,
    ),
    Row(
        "disk errors in the kernel's log",
        "log.kernel",
        lambda host, lab: _kernel_says(host, _DISK),
        "laid over",
    ),
    Row(
        "a program that writes of lockups into the kernel's log",
        "log.kernel",
        _quiet_after_a_program,
        "laid over",
        verdict="pass",
        several=True,
    ),
)
