"""Root file systems of other systems for hosts of a lab, made once per machine by mmdebstrap.

They lie in `CLUSTERPREP_LAB_ROOTS`, where one takes about 300 MB, and hosts see them as the lower
layer of an overlay, so that nothing on a host changes them. A system that is declared otherwise has
another name there and is made anew.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER = Path(os.environ.get("CLUSTERPREP_LAB_ROOTS", "/var/cache/clusterprep-lab"))
MAKING_LIMIT = 900.0  # seconds; half a minute on a machine with nothing else to do
# As `locale` names them: where they are said in /etc/default/locale they must exist.
LOCALES = {
    "de_DE.UTF-8": ("de_DE", "UTF-8"),
    "ja_JP.UTF-8": ("ja_JP", "UTF-8"),
    "de_DE.ISO-8859-1": ("de_DE", "ISO-8859-1"),
}
_PACKAGES = (
    "openssh-server python3 iproute2 procps kmod sudo zsh fish tcsh locales busybox nftables"
)


@dataclass(frozen=True)
class System:
    """A release of Debian with the packages of its hosts, and what tells it from the others."""

    title: str
    suite: str
    packages: tuple[str, ...]
    glibc: str
    python: str
    openssh: str
    init: str

    @property
    def root(self) -> Path:
        """Where its root file system lies once it is made."""
        declared = " ".join((self.suite, _PACKAGES, *self.packages, *LOCALES))
        digest = hashlib.sha256(declared.encode()).hexdigest()[:8]
        return FOLDER / f"{self.suite}-{digest}"


BULLSEYE = System(
    "Debian 11",
    "bullseye",
    ("systemd", "doas"),
    glibc="2.31",
    python="3.9",
    openssh="8.4",
    init="systemd 247",
)
BOOKWORM = System(
    "Debian 12",
    "bookworm",
    ("systemd", "opendoas"),
    glibc="2.36",
    python="3.11",
    openssh="9.2",
    init="systemd 252",
)
BOOKWORM_SYSV = replace(BOOKWORM, packages=("sysvinit-core", "opendoas"), init="sysvinit")
TRIXIE = System(
    "Debian 13",
    "trixie",
    ("systemd", "opendoas", "sudo-rs"),
    glibc="2.41",
    python="3.13",
    openssh="10.0",
    init="systemd 257",
)
SYSTEMS = (BULLSEYE, BOOKWORM, BOOKWORM_SYSV, TRIXIE)


@functools.cache
def why_no_roots() -> str | None:
    """Why no root file system can be made here, in one line; None if one can."""
    if shutil.which("mmdebstrap") is None:
        return "root file systems of other systems need mmdebstrap (apt install mmdebstrap)"
    if _mirror() is None:
        return "root file systems of other systems need a mirror of Debian in apt's sources"
    return None


def _mirror() -> str | None:
    """Return the mirror that this machine's own packages come from, None if it has no Debian's."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in listed.stdout.splitlines():
        label, _, address = line.partition(" ")
        if label == "Debian":
            return address
    return None


def made(system: System) -> Path:
    """Return the root file system of a system; it is made if it is not there.

    Processes that want the same one wait for the first of them.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{system.root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not system.root.exists():
            _make(system)
    return system.root


def _make(system: System) -> None:
    """Make it beside its place, so that one which was cut off is never taken for whole."""
    fresh = system.root.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    included = ",".join((*_PACKAGES.split(), *system.packages))
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={included}"]
    command.append('--aptopt=APT::Install-Recommends "false"')
    command.append("--dpkgopt=force-unsafe-io")
    for folder in ("man", "doc"):
        command.append(f"--dpkgopt=path-exclude=/usr/share/{folder}/*")
    for name, (source, letters) in LOCALES.items():
        compiled = f'chroot "$1" localedef -i {source} -f {letters} {name}'
        command.append(f"--customize-hook={compiled}")
    command += [system.suite, str(fresh), str(_mirror())]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=MAKING_LIMIT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(fresh, ignore_errors=True)
        message = f"mmdebstrap {system.suite}: {done.stderr.strip()[-2000:]}"
        raise RuntimeError(message)
    fresh.rename(system.root)
