"""A lab of hosts that have little in common, as declared values.

    with unlike_lab() as lab:  # n1, n2, … are HOSTS in this order
        ...

What is not this machine's is prepared on the hosts as an administrator would, by files and the
system's own programs. `ssh_config` is what a user needs to reach them all.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.lab import faults
from tests.support.lab.lab import Lab
from tests.support.lab.layout import CONTROLLER_ADDRESS
from tests.support.lab.rooms import Host
from tests.support.lab.roots import (
    BOOKWORM,
    BOOKWORM_SYSV,
    BULLSEYE,
    SYSTEMS,
    TRIXIE,
    System,
    made,
)

USER = "op"  # logs in where root may not, and becomes root
JOB_PYTHON = "/usr/local/bin/job-python"  # where this machine's Python needs a newer glibc
CERTIFICATES = "certificates"
_OWN_LIBRARIES = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class Unlike:
    """One host as it is declared; what is not said is as on the machine that runs the lab."""

    system: System | None = None  # None: this machine's own
    login_shell: str = "bash"
    locale: str = "C.UTF-8"
    become: str = ""  # "sudo", "sudo-rs" or "doas", by which USER becomes root; "": root logs in
    sshd: str = ""  # a line of sshd_config, or CERTIFICATES for nothing but these
    bastion: str = ""  # the host through which it is reached, and not otherwise
    busybox: bool = False  # in the place of the usual tools

    @property
    def has_own_glibc_for_job(self) -> bool:
        """Whether the job's Python needs a newer glibc than the host has."""
        return self.system is BULLSEYE

    def row(self, name: str) -> tuple[str, ...]:
        """Return the cells of its row in the table of the docs."""
        system = "this machine's" if self.system is None else self.system.title
        init = "systemd" if self.system is None else self.system.init
        login = f"{USER}, then {self.become}" if self.become else "root"
        tools = "busybox" if self.busybox else "GNU"
        ways = [f"through {self.bastion}" if self.bastion else "", self.sshd]
        way = ", ".join(filter(None, ways)) or "directly"
        return (name, system, init, tools, self.login_shell, self.locale, login, way)


HOSTS = (
    Unlike(),
    Unlike(TRIXIE, become="sudo-rs"),
    Unlike(TRIXIE, login_shell="tcsh", locale="de_DE.ISO-8859-1"),
    Unlike(TRIXIE, become="doas"),
    Unlike(BOOKWORM, login_shell="zsh", locale="ja_JP.UTF-8", bastion="n1"),
    Unlike(BOOKWORM, login_shell="fish", locale="de_DE.UTF-8", become="sudo"),
    Unlike(BOOKWORM_SYSV, sshd="MaxSessions 1"),
    Unlike(BOOKWORM_SYSV, login_shell="sh", busybox=True),
    Unlike(BULLSEYE, sshd=CERTIFICATES),
    Unlike(BULLSEYE, login_shell="fish", locale="ja_JP.UTF-8"),
    Unlike(BULLSEYE, login_shell="zsh", become="sudo"),
    Unlike(login_shell="tcsh", sshd="MaxStartups 1"),
)
HEAD = ("host", "system", "init", "tools", "login shell", "locale", "login", "reached")


SYSTEMS_HEAD = ("system", "glibc", "the system's Python", "OpenSSH", "init")


def table() -> str:
    """Return the table of the hosts for the docs."""
    return _table(HEAD, [host.row(f"n{number}") for number, host in enumerate(HOSTS, 1)])


def systems_table() -> str:
    """Return the table of the systems that the hosts have, for the docs."""
    rows = []
    for system in SYSTEMS:
        rows.append((system.title, system.glibc, system.python, system.openssh, system.init))
    return _table(SYSTEMS_HEAD, rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


@contextlib.contextmanager
def unlike_lab(keep: Sequence[Path] = (), hosts: Sequence[Unlike] = HOSTS) -> Iterator[Lab]:
    """Start the hosts and make them what is declared; their ssh_config is the controller's."""
    roots = [Path("/") if host.system is None else made(host.system) for host in hosts]
    needed = [BOOKWORM.root] if any(host.has_own_glibc_for_job for host in hosts) else []
    with Lab(len(hosts), [*keep, *needed], roots=roots) as lab:
        for host, unlike in zip(lab.hosts, hosts, strict=True):
            prepare(lab, host, unlike)
        config = "".join(
            _ssh_config(lab, host, unlike) for host, unlike in zip(lab.hosts, hosts, strict=True)
        )
        (lab.home / ".ssh" / "config").write_text(config)
        yield lab


def prepare(lab: Lab, host: Host, unlike: Unlike) -> None:
    """Make a host what is declared."""
    account = "root"
    if unlike.become:
        account = USER
        faults.add_user(host, USER)
        _rights(host, unlike.become)
    # Its path differs, as Debian 11 may have /bin and /usr/bin apart; sshd wants one that exists.
    shell = host.run(["which", unlike.login_shell]).stdout.strip()
    host.run(["usermod", "--shell", shell, account])
    host.write("/etc/default/locale", f"LANG={unlike.locale}\n")
    if unlike.has_own_glibc_for_job:
        host.write(JOB_PYTHON, _with_own_glibc(), 0o755)
    if unlike.sshd:
        _allow_only(lab, host, unlike.sshd)
    if unlike.bastion:
        host.run(["ip", "route", "add", "unreachable", CONTROLLER_ADDRESS])
    if unlike.busybox:
        host.run(["busybox", "sh", "-c", _BUSYBOX])


def _rights(host: Host, program: str) -> None:
    """Let USER become root by one program, without a password and without the others."""
    if program == "doas":
        host.write("/etc/doas.conf", f"permit nopass {USER}\n", 0o400)
        host.run(["rm", "-f", "/usr/bin/sudo", "/usr/bin/sudo-rs"])
        return
    host.write(f"/etc/sudoers.d/{USER}", f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440)
    if program == "sudo-rs":
        host.run(["ln", "-sf", "sudo-rs", "/usr/bin/sudo"])


def _allow_only(lab: Lab, host: Host, what: str) -> None:
    if what == CERTIFICATES:
        authority = certificate_authority(lab)
        host.write("/etc/ssh/authority.pub", authority.with_suffix(".pub").read_text())
        what = "TrustedUserCAKeys /etc/ssh/authority.pub\nAuthorizedKeysFile none"
    host.write("/etc/ssh/lab.conf", f"{what}\n")
    faults.reload_sshd(host)


def certificate_authority(lab: Lab) -> Path:
    """Return the key that signs the controller's certificate for root; both are made if needed."""
    authority = lab.home / "authority"
    if authority.exists():
        return authority
    quiet = ["ssh-keygen", "-q"]
    made_key = [*quiet, "-t", "ed25519", "-N", "", "-f", authority]
    public = lab.home / "certified.pub"
    public.write_text(lab.key.with_suffix(".pub").read_text())
    (lab.home / "certified").write_text(lab.key.read_text())
    (lab.home / "certified").chmod(0o600)
    signed = [*quiet, "-s", authority, "-I", "lab", "-n", "root", public]
    for command in (made_key, signed):
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return authority


def _with_own_glibc() -> str:
    """Return a script that starts this Python with the glibc of Debian 12, as Nix and conda do."""
    folders = [str(BOOKWORM.root / name) for name in _OWN_LIBRARIES]
    loader = BOOKWORM.root / _OWN_LIBRARIES[0] / "ld-linux-x86-64.so.2"
    words = [str(loader), "--argv0", sys.executable, "--library-path", ":".join(folders)]
    words.append(os.path.realpath(sys.executable))
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'


def ssh_settings(lab: Lab) -> dict[str, str]:
    """Return the value of `ssh` for an inventory that leaves users and keys to the ssh_config."""
    return {"config": str(lab.home / ".ssh" / "config"), "known_hosts": str(lab.known_hosts)}


def _ssh_config(lab: Lab, host: Host, unlike: Unlike) -> str:
    """Return the lines of ssh_config for one host."""
    lines = [
        f"Host {host.name}",
        f"HostName {host.address}",
        f"User {USER if unlike.become else 'root'}",
        f"UserKnownHostsFile {lab.known_hosts}",
    ]
    if unlike.sshd == CERTIFICATES:
        lines.append(f"IdentityFile {lab.home / 'certified'}")
        lines.append(f"CertificateFile {lab.home / 'certified-cert.pub'}")
    else:
        lines.append(f"IdentityFile {lab.key}")
    if unlike.bastion:
        lines.append(f"ProxyJump {unlike.bastion}")
    return "\n  ".join(lines) + "\n"


# The tools of these packages go, and busybox answers to the names that it knows. What is left is
# sshd, Python and what they load.
_BUSYBOX = r"""
for package in bash coreutils util-linux findutils grep sed gzip tar procps iproute2 kmod \
  hostname diffutils mount bsdutils dash zsh fish tcsh; do
  dpkg-query -L "$package" 2>/dev/null
done | busybox grep -E "/s?bin/[^/]+$" > /run/tools
busybox xargs busybox rm -f < /run/tools
for path in $(busybox --list-full); do
  busybox mkdir -p "/${path%/*}"
  [ -e "/$path" ] || busybox ln -s /bin/busybox "/$path"
done
busybox rm -f /run/tools
"""
