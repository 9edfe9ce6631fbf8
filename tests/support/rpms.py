"""Small packages of rpm that a test builds, and hosts of the lab that have only those.

Such a host has dnf or zypper as its own manager; the programs are the machine's.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.lab import Host

PLACE = "/opt/lab-rpms"  # on the host
TOOLS = {"rpmbuild": "rpm", "createrepo_c": "createrepo-c", "dnf": "dnf", "zypper": "zypper"}
SPEC = """\
Name: {name}
Version: {version}
Release: 1
Summary: a package of the lab
License: none
{fields}
%description
A package of the lab.
%files
{files}
"""
SYSTEMS = {
    "dnf": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n',
    "zypper": 'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"\n',
}
FOLDERS = {"dnf": "/etc/yum.repos.d", "zypper": "/etc/zypp/repos.d"}
REPOSITORY = f"[lab]\nname=lab\nbaseurl=file://{PLACE}\nenabled=1\ngpgcheck=0\n"
# Debian's rpm has its list of packages below HOME otherwise.
LAY = f"""
rm -rf {PLACE} /var/cache/dnf
mkdir -p {PLACE} /etc/rpm /etc/dnf/vars && base64 -d | tar x -C {PLACE} || exit
echo '%_dbpath /var/lib/rpm' > /etc/rpm/macros
echo 9 > /etc/dnf/vars/releasever
"""


def require_tools() -> None:
    """Skip the calling test where a program for these packages is missing."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing (apt install {package})")


def build(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, str] | None = None,
    scripts: str = "",
    native: bool = False,
    **fields: str,
) -> None:
    """Build a package into a folder. `scripts` is the text of its sections for scripts.

    A `native` one is for this machine's architecture, others are for all. Files below /etc are
    settings, which stay as they are in an upgrade.
    """
    if not native:
        fields = {"BuildArch": "noarch", **fields}
    tree = folder / "trees" / f"{name}-{version}"
    lines = []
    for path, text in (files or {}).items():
        inside = tree / path.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_text(text)
        mark = "%config(noreplace) " if path.startswith("/etc/") else ""
        lines.append(f"{mark}{path}")
    said = "".join(f"{key}: {value}\n" for key, value in fields.items())
    text = SPEC.format(name=name, version=version, fields=said, files="\n".join(lines))
    copy = f"%install\nmkdir -p %{{buildroot}}\n[ ! -d {tree} ] || cp -a {tree}/. %{{buildroot}}\n"
    spec = folder / f"{name}-{version}.spec"
    spec.write_text(f"{text.replace('%files', copy + scripts + '%files', 1)}")
    defines = {"_topdir": folder / "top", "_rpmdir": folder / "repository"}
    words = [word for key, value in defines.items() for word in ("--define", f"{key} {value}")]
    subprocess.run(["rpmbuild", "-bb", "--quiet", *words, spec], check=True, capture_output=True)


def lay(folder: Path, host: Host, manager: str) -> None:
    """Make a host one of a distribution of this manager, with the packages of a folder."""
    repository = folder / "repository"
    subprocess.run(["createrepo_c", "-q", repository], check=True, capture_output=True)
    packed = subprocess.run(["tar", "c", "-C", repository, "."], check=True, capture_output=True)
    host.run(["sh", "-c", LAY], input=base64.b64encode(packed.stdout).decode())
    host.write("/etc/os-release", SYSTEMS[manager])
    host.run(["sh", "-c", f"rm -rf {FOLDERS[manager]}; mkdir -p {FOLDERS[manager]}"])
    host.write(f"{FOLDERS[manager]}/lab.repo", REPOSITORY)
    if manager == "zypper":
        host.run(["zypper", "--non-interactive", "refresh"])


def packages(host: Host) -> list[str]:
    """«lab-tool-1.0-1.noarch» of each package that rpm has."""
    return sorted(host.run(["rpm", "-qa"]).stdout.split())


def build_kernel(folder: Path, name: str, version: str, uname: str, **fields: str) -> None:
    """Build a package with the files that make a kernel be seen, which is none that boots."""
    files = {f"/boot/vmlinuz-{uname}": "no kernel\n", f"/lib/modules/{uname}/vmlinuz": "none\n"}
    build(folder, name, version, files, **fields)
