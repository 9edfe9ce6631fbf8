"""Users: the one that logs in and may become root, and the one whose job it is."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.row import Plant, Row
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

LOGIN, TRAINER, UID = "alice", "trainer", 4711
CONF, PROFILE, SITE = "/etc/nccl.conf", "/etc/profile.d/zz-site.sh", "/opt/site"


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


def _of_root_alone(path: str, text: str) -> Plant:
    """A file that the job's user cannot read."""
    return lambda host, lab: faults.written(host, path, text, 0o600)


def _conf_behind_a_closed_folder(host: Host, lab: Lab) -> Fault:
    """NCCL's file is a link into a folder that the job's user cannot enter."""
    host.run(["sh", "-c", f"mkdir {SITE} && echo NCCL_DEBUG=INFO > {SITE}/nccl.conf"])
    host.run(["chmod", "700", SITE])
    host.run(["ln", "-s", f"{SITE}/nccl.conf", CONF])
    return Fault(lambda: host.run(["rm", "-r", SITE, CONF]))


def _conf_of_the_users_group(host: Host, lab: Lab) -> Fault:
    fault = faults.written(host, CONF, "# site\n", 0o640)
    host.run(["chgrp", TRAINER, CONF])
    return fault


def _slurm(nodes: str, state: str) -> Callable[[Host, Lab], Fault]:
    """Slurm's files with these nodes, and a scontrol that says this state of every node."""

    def plant(host: Host, lab: Lab) -> Fault:
        conf = f"ClusterName=lab\n{nodes.replace('HOST', host.name)}\n"
        script = f'#!/bin/sh\necho "NodeName={host.name} State={state}"\n'
        return faults.together(
            faults.written(host, "/etc/slurm/slurm.conf", conf),
            faults.written(host, "/usr/local/sbin/scontrol", script, 0o755),
        )

    return plant


ROWS = (
    Row(
        "nccl.conf of root alone",
        "env.readable",
        _of_root_alone(CONF, "NCCL_DEBUG=INFO\n"),
        several=True,
    ),
    Row(
        "nccl.conf behind a closed folder",
        "env.readable",
        _conf_behind_a_closed_folder,
        several=True,
    ),
    Row(
        "a site's profile of root alone",
        "env.readable",
        _of_root_alone(PROFILE, "export NCCL_DEBUG=INFO\n"),
        several=True,
    ),
    Row(
        "a profile of root alone that sets nothing for jobs",
        "env.readable",
        _of_root_alone(PROFILE, "umask 077\n"),
        verdict="pass",
        several=True,
    ),
    Row(
        "nccl.conf for root and the user's group",
        "env.readable",
        _conf_of_the_users_group,
        verdict="pass",
        several=True,
    ),
    Row(
        "slurm.conf with more processors than there are",
        "slurm.gres",
        _slurm("NodeName=HOST CPUs=4096 RealMemory=1", "IDLE"),
        several=True,
    ),
    Row(
        "a node that Slurm has drained",
        "slurm.state",
        _slurm("NodeName=elsewhere", "IDLE+DRAIN Reason=a fan [root@2026-11-01T10:00:00]"),
        "laid over",
        several=True,
    ),
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
