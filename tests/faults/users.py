"""Users: the one that logs in and may become root, and the one whose job it is."""

from __future__ import annotations

from tests.faults.row import Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

LOGIN, TRAINER, UID = "alice", "trainer", 4711


def _other_uid(host: Host, lab: Lab) -> Fault:
    host.run(["usermod", "--uid", str(UID + 1), TRAINER])
    return Fault(lambda: host.run(["usermod", "--uid", str(UID), TRAINER]))


def _password_asked(host: Host, lab: Lab) -> Fault:
    return faults.changed(host, f"/etc/sudoers.d/{LOGIN}", "NOPASSWD: ", "")


def _closed(host: Host, lab: Lab) -> Fault:
    host.run(["chmod", "600", "/dev/nvidia3"])
    return Fault(lambda: host.run(["chmod", "666", "/dev/nvidia3"]))


def _log_closed(host: Host, lab: Lab) -> Fault:
    """As with kernel.dmesg_restrict=1."""
    host.run(["chmod", "600", "/dev/kmsg"])
    return Fault(lambda: host.run(["chmod", "644", "/dev/kmsg"]))


def _removes_segments(host: Host, lab: Lab) -> Fault:
    """logind and slurmd run, as files say, and logind was told nothing."""
    return faults.together(
        faults.written(host, "/run/systemd/seats/seat0", "IS_SEAT0=1\n"),
        faults.written(host, "/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes\n"),
        faults.written(host, "/run/slurmd.pid", "812\n"),
    )


ROWS = (
    Row(
        "shared memory goes when the user of Slurm's jobs logs out",
        "ipc.removeipc",
        _removes_segments,
        "laid over",
        several=True,
    ),
    Row("another user id", "user.uid", _other_uid),
    Row(
        "sudo asks for a password",
        "ssh.reach",
        _password_asked,
        reason="sudo_refused",
        several=True,
    ),
    Row(
        "no sudo",
        "ssh.reach",
        lambda host, lab: faults.without(host, "/usr/bin/sudo"),
        reason="sudo_refused",
        several=True,
    ),
    Row(
        "nproc of the job's user",
        "lim.nproc",
        lambda host, lab: faults.limit(host, "nproc", "200", TRAINER),
    ),
)

# A user without rights looks at machines with GPUs; what root alone may see is not known, and that
# is said.
ORDINARY_ROWS = (
    Row(
        "a GPU whose device node is closed",
        "gpu.hidden",
        _closed,
        verdict="unknown",
        reason="denied",
    ),
    Row(
        "a kernel log that root alone may read",
        "log.kernel",
        _log_closed,
        verdict="unknown",
        reason="denied",
        also={
            "gpu.xid": "it is told there",
            "gpu.sxid": "likewise",
            "pcie.mlx_limited": "likewise",
        },
    ),
)
