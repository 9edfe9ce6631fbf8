"""A real Slurm in a lab: munged and slurmctld on the controller, munged and slurmd on every host.

All of it is the machine's own packages, each daemon in the namespaces of its host. Paths lie in the
lab's folder, which hosts have under the same name, so that one slurm.conf fits all and labs do not
meet. What runs is looked at by hand so:

    python -m tests.support.lab up --slurm
    python -m tests.support.lab exec controller -- sinfo -lN
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.lab import processes
from tests.support.lab.lab import Lab
from tests.support.lab.layout import CONTROLLER_ADDRESS, HOST_ENVIRONMENT
from tests.support.lab.rooms import Host

# On hosts; the controller's lies in the lab's folder, as its /etc is the machine's.
CONF = "/etc/slurm/slurm.conf"
START_LIMIT = 60.0
PARTITION = "main"
_TOOLS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
_CONF = """\
ClusterName=lab
SlurmctldHost=controller({controller})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir=/var/spool/slurmd
SlurmdPidFile=/run/slurmd.pid
SlurmdLogFile=/var/log/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
DebugFlags=NO_CONF_HASH
{extra}
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
# slurmd wants a freezer, and /sys of a host is the machine's, read-only.
_FREEZER = (
    "mountpoint -q /sys/fs/cgroup/freezer && exit; mount -t tmpfs none /sys/fs/cgroup && "
    "mkdir /sys/fs/cgroup/freezer && mount -t cgroup -o freezer none /sys/fs/cgroup/freezer"
)


@functools.cache
def why_no_slurm() -> str | None:
    """Why no Slurm can run here, in one line; None if one can."""
    for tool, package in _TOOLS.items():
        if shutil.which(tool, path=HOST_ENVIRONMENT["PATH"]) is None:
            return f"Slurm's {tool} is not installed (apt install {package})"
    return None


class Slurm:
    """Slurm over all hosts of a lab made with ``slurm=True``, until ``with`` or the lab ends.

    ``extra`` are further lines of slurm.conf, such as «Prolog=/etc/slurm/prolog.sh».
    """

    def __init__(self, lab: Lab, extra: Sequence[str] = ()) -> None:
        self.lab = lab
        self._extra = self._first_extra = tuple(extra)
        self._daemons: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Slurm:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        """What daemons on the controller keep, and on every host the way to munge."""
        return self.lab.folder / "slurm"

    @property
    def env(self) -> dict[str, str]:
        """What a command on the controller needs to find this Slurm."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": HOST_ENVIRONMENT["PATH"]}

    def start(self) -> None:
        """Everything up to nodes that are idle."""
        (self.folder / "state").mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._write_conf()
        self._start_munged()
        self.start_controller()
        for host in self.lab.hosts:
            self._prepare(host)
            self.start_slurmd(host)
        self.wait_state("idle", *(host.name for host in self.lab.hosts))

    def stop(self) -> None:
        """End all daemons; jobs end with the slurmd of their node."""
        for host in self.lab.hosts:
            if host.alive():
                host.run(["pkill", "-KILL", "slurmstepd|slurmd|munged"], check=False)
        for name in list(self._daemons):
            self._end(name)

    def reset(self) -> None:
        """Begin anew, with the first lines of slurm.conf, over hosts as they were born."""
        for name in list(self._daemons):
            self._end(name)
        self.lab.reset()
        self._extra = self._first_extra
        self.start()

    def run(self, *argv: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command of Slurm's on the controller."""
        return self.lab.controller.run(argv, env={**self.env, **options.pop("env", {})}, **options)

    def popen(self, *argv: str | Path, **options: Any) -> subprocess.Popen[str]:
        """The same, left running."""
        return self.lab.controller.popen(
            argv, env={**self.env, **options.pop("env", {})}, **options
        )

    def states(self) -> dict[str, str]:
        """The state of every node as sinfo has it: idle, mixed, drained or down*, say."""
        rows = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines()
        return dict(row.split(maxsplit=1) for row in rows)

    def wait_state(self, state: str, *names: str, timeout: float = START_LIMIT) -> None:
        """Wait until nodes are in a state."""
        deadline = time.monotonic() + timeout
        while wrong := {
            name: seen for name, seen in self.states().items() if name in names and seen != state
        }:
            if time.monotonic() > deadline:
                message = f"not {state} after {timeout:g} s: {wrong}\n{self._log()}"
                raise TimeoutError(message)
            time.sleep(0.05)

    def set_down(self, name: str, reason: str) -> None:
        """Set a node down, again if what its slurmd had sent before brings it back."""

        def is_down() -> bool:
            self.run(
                "scontrol", "update", f"node={name}", "state=down", f"reason={reason}", check=True
            )
            return self.states()[name] == "down"

        self._await(is_down, f"{name} is down")

    def start_controller(self) -> None:
        """Start slurmctld. It insists on the host name that slurm.conf gives it."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname controller && exec "$@"', "sh"]
        self._daemon("slurmctld", *named, "slurmctld", "-D")
        self._await(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld answers")

    def stop_controller(self) -> None:
        """End slurmctld, which writes down what it knows; nodes and steps go on."""
        self._daemons["slurmctld"].terminate()
        self._daemons["slurmctld"].wait(START_LIMIT)
        self._end("slurmctld")

    def start_slurmd(self, host: Host) -> None:
        """Start slurmd on a host, where it becomes a daemon that holds no pipe of ours."""
        host.run(["sh", "-c", 'exec slurmd -f "$0" </dev/null >/run/slurmd.out 2>&1', CONF])

    def stop_slurmd(self, host: Host) -> None:
        """Kill slurmd on a host; steps have a process of their own there and go on."""
        host.run(["pkill", "-KILL", "-x", "slurmd"])
        self._await(lambda: not host.processes("^slurmd "), f"slurmd of {host.name} is gone")

    def configure(self, *extra: str) -> None:
        """Further lines of slurm.conf instead of those before, taken over by all daemons."""
        self._extra = extra
        self._write_conf()
        for host in self.lab.hosts:
            self._give_conf(host)
        self.run("scontrol", "reconfigure", check=True)

    def _write_conf(self) -> None:
        nodes = "\n".join(
            f"NodeName={host.name} NodeAddr={host.address} CPUs=4 RealMemory=1000 State=UNKNOWN"
            for host in self.lab.hosts
        )
        words = {"controller": CONTROLLER_ADDRESS, "folder": self.folder, "partition": PARTITION}
        text = _CONF.format(**words, extra="\n".join(self._extra), nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text(_CGROUP_CONF)

    def _munged(self) -> list[str]:
        places = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
        places |= {"log-file": "munged.log", "seed-file": "munged.seed"}
        return [
            "munged",
            "--force",
            *(f"--{option}={self.folder / name}" for option, name in places.items()),
        ]

    def _start_munged(self) -> None:
        self._daemon("munged", *self._munged(), "--foreground")
        self._await((self.folder / "munge.socket").exists, "munged has its socket")

    def _prepare(self, host: Host) -> None:
        """What slurmd needs on a host: the same key and configuration, a freezer, munge."""
        host.run(["sh", "-c", _FREEZER])
        host.run(["mkdir", "-p", self.folder, "/etc/slurm"])
        host.run(
            ["sh", "-c", 'umask 377; base64 -d > "$0"', self.folder / "munge.key"],
            input=self._key(),
        )
        self._give_conf(host)
        host.run(["ln", "-sf", CONF, self.folder / "slurm.conf"])
        host.run(self._munged())

    def _key(self) -> str:
        return base64.b64encode((self.folder / "munge.key").read_bytes()).decode()

    def _give_conf(self, host: Host) -> None:
        for name in ("slurm.conf", "cgroup.conf"):
            host.write(f"/etc/slurm/{name}", (self.folder / name).read_text())

    def _daemon(self, name: str, *argv: str | Path) -> None:
        with (self.folder / f"{name}.out").open("w") as out:
            self._daemons[name] = self.popen(
                *argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _end(self, name: str) -> None:
        process = self._daemons.pop(name)
        processes.kill_group(process)
        process.wait()

    def _await(self, true: Any, what: str) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not true():
            if time.monotonic() > deadline:
                message = f"it did not come to be that {what}\n{self._log()}"
                raise TimeoutError(message)
            time.sleep(0.05)

    def _log(self) -> str:
        """The last words of every daemon."""
        said = [
            path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log"))
        ]
        said += [
            path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.out"))
        ]
        for host in self.lab.hosts:
            with contextlib.suppress(subprocess.CalledProcessError, RuntimeError):
                said.append(host.read("/var/log/slurmd.log")[-2000:])
        return "\n".join(said)
