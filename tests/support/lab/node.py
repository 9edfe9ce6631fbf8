"""Turn a fresh process into a host.

It gets its own file system, names and network, and then sshd as process 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import traceback
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.support.lab import kernel, processes, timekeeper, wires
from tests.support.lab.layout import (
    CONTROLLER_ADDRESS,
    CONTROLLER_IPV6,
    HOST_ENVIRONMENT,
    IPV6_PREFIX_LENGTH,
    PREFIX_LENGTH,
    HostSpec,
    Layout,
    Spec,
)

SSHD = "/usr/sbin/sshd"
ARP_HOSTS = 24  # hosts up to which they ask for each other's hardware addresses, as real ones do
UNSHARED, CABLED = b"u", b"c"
HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
# Folders that each host has for itself; what lies below them on the machine is out of sight, unless
# kept.
SCRATCH = ("tmp", "var/tmp", "run")
# Folders whose content is the machine's owner's business; on a host they are empty, and keep what
# is put there.
EMPTY = ("home", "media", "mnt", "opt", "srv")
_OPAQUE = "trusted.overlay.opaque"  # of a folder in an upper layer: what lies below it is not shown
_DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "kmsg": (1, 11),
    "tty": (5, 0),
    "ptmx": (5, 2),
}
# By these one tells a node of Slurm's, and a host is none because its machine has the packages.
_SLURM_NODE = ("usr/sbin/slurmd", "lib/systemd/system/slurmd.service")
# Lmod and environment-modules cost each login shell 30 ms. A test that is about them starts them.
_MODULES = ("etc/profile.d/lmod.sh", "etc/profile.d/modules.sh")
_DOT_FILES = (
    ".bashrc",
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".pam_environment",
)
_SSHD_CONFIG = """\
Include /etc/ssh/lab.conf
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM yes
UseDNS no
MaxStartups 200
MaxSessions 100
PrintMotd no
PrintLastLog no
LogLevel VERBOSE
AcceptEnv LANG LC_*
Subsystem sftp /usr/lib/openssh/sftp-server
"""
# Limits and /etc/environment as on a real node; without message of the day and mail, which only
# cost time.
_PAM_SSHD = """\
auth include common-auth
account required pam_nologin.so
account include common-account
session include common-session
session required pam_limits.so
session required pam_env.so
session required pam_env.so envfile=/etc/default/locale
"""


@dataclass(frozen=True)
class Birth:
    """All that one host needs to come to life."""

    host: HostSpec
    spec: Spec
    layout: Layout
    again: bool = False

    @property
    def folder(self) -> Path:
        """The host's folder on the machine."""
        return self.layout.host(self.host.name)

    @property
    def root(self) -> Path:
        """Where the host's file system is put together."""
        return self.folder / "root"


def live(birth: Birth, line: socket.socket) -> NoReturn:
    """Become the host.

    ``line`` tells the supervisor when a cable can be led here, and this process when it is.
    """
    try:
        _detach(birth.folder / "sshd.log")
        kernel.unshare(
            kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNET
        )
        wires.quieten_ipv6()
        line.sendall(UNSHARED)
        _build_root(birth)
        if line.recv(1) != CABLED:
            sys.exit("the supervisor is gone")
        wires.raise_interface("lo")
        wires.raise_interface(wires.INTERFACE, birth.host.ipv4, PREFIX_LENGTH)
        if birth.host.ipv6:
            wires.add_ipv6(wires.INTERFACE, birth.host.ipv6, IPV6_PREFIX_LENGTH)
        if len(birth.spec.hosts) > ARP_HOSTS:
            others = [host for host in birth.spec.hosts if host != birth.host]
            wires.know_neighbours({host.ipv4: host.index for host in others if host.ipv4})
        kernel.enter_root(birth.root)
        _start(birth)
    except BaseException:  # noqa: BLE001 - whatever it was, this is a forked copy of the supervisor
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _detach(log: Path) -> None:
    """Lead standard streams away from the supervisor's, and reset signals as at boot."""
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    signal.set_wakeup_fd(-1)
    processes.default_signals()


def _build_root(birth: Birth) -> None:
    kernel.mount("none", Path("/"), flags=kernel.MS_REC | kernel.MS_PRIVATE)
    _overlay(birth.folder, birth.host.root)
    _special_file_systems(birth.root, birth.folder)
    _keep_visible(birth)
    _identity(birth)
    _ssh(birth)


def _overlay(folder: Path, lower: str) -> None:
    shutil.rmtree(
        folder / "work", ignore_errors=True
    )  # a volatile overlay refuses one that was used
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(exist_ok=True)
    _hide_places(folder / "upper")
    # volatile: these files are not needed after a crash, and syncing 256 overlays takes seconds.
    data = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work,volatile"
    kernel.mount("overlay", folder / "root", "overlay", data=data)


def _hide_places(upper: Path) -> None:
    for name in EMPTY:
        if not (upper / name).exists():
            (upper / name).mkdir()
            os.setxattr(upper / name, _OPAQUE, b"y")


def _special_file_systems(root: Path, folder: Path) -> None:
    guarded = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("proc", root / "proc", "proc", guarded | kernel.MS_NOEXEC)
    _protect_machine(root / "proc")
    (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    kernel.bind(folder / "boot_id", root / "proc/sys/kernel/random/boot_id")
    kernel.mount("sysfs", root / "sys", "sysfs", guarded | kernel.MS_NOEXEC | kernel.MS_RDONLY)
    _devices(root / "dev")
    for name in SCRATCH:
        mode = "0755" if name == "run" else "1777"
        kernel.mount("tmpfs", root / name, "tmpfs", guarded, f"mode={mode}")
    for name in ("sshd", "lock"):
        (root / "run" / name).mkdir()


def _protect_machine(proc: Path) -> None:
    """Kernel settings that are not per namespace are the machine's: readable, not writable."""
    kernel.bind(proc / "sys", proc / "sys")
    kernel.bind(proc / "sys/net", proc / "sys/net")
    kernel.mount("none", proc / "sys", flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY)
    if (proc / "sysrq-trigger").exists():
        kernel.bind(proc / "sysrq-trigger", proc / "sysrq-trigger", read_only=True)


def _devices(dev: Path) -> None:
    """A /dev of the host's own, as making a device node in a shared one would reach the machine."""
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, "mode=0755")
    for name, (major, minor) in _DEVICES.items():
        os.mknod(dev / name, 0o020666, os.makedev(major, minor))
        (dev / name).chmod(0o644 if name == "kmsg" else 0o666)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (dev / name).symlink_to(f"/proc/self/fd{target}")
    (dev / "pts").mkdir()
    (dev / "shm").mkdir()
    kernel.mount("devpts", dev / "pts", "devpts", data="newinstance,ptmxmode=0666,mode=0620,gid=5")
    kernel.mount("tmpfs", dev / "shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")


def _keep_visible(birth: Birth) -> None:
    """Show kept folders, read-only, that the host's own mounts or another root would hide."""
    for path in map(Path, birth.spec.keep):
        if path.is_dir() and (birth.host.root != "/" or _hidden(path)):
            target = birth.root / path.relative_to("/")
            target.mkdir(parents=True, exist_ok=True)
            kernel.bind(path, target, read_only=True)


def _hidden(path: Path) -> bool:
    if path.stat().st_dev != Path("/").stat().st_dev:
        return True  # an overlay shows one file system, not what is mounted below it
    return any(path.is_relative_to(f"/{name}") for name in (*SCRATCH, *EMPTY, "dev/shm"))


def _identity(birth: Birth) -> None:
    etc, name = birth.root / "etc", birth.host.name
    socket.sethostname(name)
    if birth.again:
        return
    (etc / "hostname").write_text(f"{name}\n")
    (etc / "machine-id").unlink(missing_ok=True)
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "hosts").write_text(hosts_file(birth.spec))
    (birth.root / ".dockerenv").unlink(
        missing_ok=True
    )  # a host is not a container, whatever the machine is
    if birth.spec.chrony:
        timekeeper.follower_config(etc)
    hidden = _MODULES if birth.spec.slurm else (*_MODULES, *_SLURM_NODE)
    for path in hidden:
        (birth.root / path).unlink(missing_ok=True)


def hosts_file(spec: Spec) -> str:
    """Return /etc/hosts of every host: each name has its address in the lab, also on itself."""
    lines = [
        "127.0.0.1 localhost",
        "::1 localhost ip6-localhost ip6-loopback",
    ]
    if spec.ipv6 != "only":
        lines.append(f"{CONTROLLER_ADDRESS} controller")
    if spec.ipv6:
        lines.append(f"{CONTROLLER_IPV6} controller")
    for host in spec.hosts:
        lines += [f"{address} {host.name}" for address in host.addresses]
    return "\n".join(lines) + "\n"


def _ssh(birth: Birth) -> None:
    """Own host key, the controller's key authorised, no start-up files of the machine's root."""
    if birth.again:
        return
    _empty_home(birth.root / "root")
    ssh = birth.root / "root/.ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "authorized_keys").write_text(birth.layout.key.with_suffix(".pub").read_text())
    for old in (birth.root / "etc/ssh").glob("ssh_host_*"):
        old.unlink()
    make_key(birth.root / HOST_KEY, f"root@{birth.host.name}")
    (birth.root / "etc/ssh/sshd_config").write_text(_SSHD_CONFIG)
    (birth.root / "etc/pam.d/sshd").write_text(_PAM_SSHD)


def _empty_home(home: Path) -> None:
    for name in _DOT_FILES:
        (home / name).unlink(missing_ok=True)
    if (home / ".ssh").is_dir():
        shutil.rmtree(home / ".ssh")


def make_key(path: Path, comment: str) -> None:
    """A new ed25519 key pair at ``path`` and ``path``.pub."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def _start(birth: Birth) -> None:
    """Become sshd, without the power over the machine's clock and kernel modules."""
    if birth.spec.chrony:
        timekeeper.start_follower()
    for number in (kernel.CAP_SYS_TIME, kernel.CAP_SYS_MODULE):
        kernel.give_up_capability(number)
    os.execve(SSHD, [SSHD, "-D", "-e"], HOST_ENVIRONMENT)
