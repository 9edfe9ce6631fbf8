"""The packages that the NVIDIA driver was installed from, and what could update them by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact, apt
from clusterprep.model import Absent, Inventory, Node, Read

# Packages of the driver on Ubuntu and Debian, and in NVIDIA's own repository: metapackages, kernel
# module, user libraries, and the fabric manager, which must have the driver's version.
PATTERNS = (
    "nvidia-driver*",
    "nvidia-dkms-*",
    "nvidia-kernel-*",
    "nvidia-open*",
    "linux-modules-nvidia-*",
    "libnvidia-compute*",
    "libcuda1",
    "cuda-drivers*",
    "nvidia-fabricmanager*",
)
_APT_CONF = "/etc/apt/apt.conf.d/*"
_PERIODIC = re.compile(r'^\s*APT::Periodic::Unattended-Upgrade\s+"([^"]*)"\s*;', re.MULTILINE)
_BLACKLIST = re.compile(r"Unattended-Upgrade::Package-Blacklist\s*\{(.*?)\}", re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", re.DOTALL | re.MULTILINE)

_PACKAGE = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_DNF = (
    "/etc/dnf/plugins/versionlock.list",
    "/etc/dnf/versionlock.toml",
    "/etc/dnf/automatic.conf",
    "/etc/systemd/system/timers.target.wants/*",
)
_TIMERS = ("dnf-automatic.timer", "dnf-automatic-install.timer", "dnf5-automatic.timer")
_APPLY = re.compile(r"^\s*apply_updates\s*=\s*(yes|true|1)\s*$", re.MULTILINE | re.IGNORECASE)


class DriverPackages(Struct, frozen=True):
    """The driver's packages.

    `held` are those that are kept at their version, `loose` the others. `automatic`: something
    installs updates by itself, and it does not leave these packages out.
    """

    manager: str  # apt or dnf
    held: tuple[str, ...]
    loose: tuple[str, ...]
    automatic: bool


def parse_packages(states: Any, conf: Any, owner: Any, dnf: Any) -> DriverPackages | Absent:
    """Return the packages of the driver.

    Absent where neither dpkg nor rpm has the driver: it came from NVIDIA's installer, or there is
    none.
    """
    for answer in (states, owner):
        if isinstance(answer, Absent) and answer.reason != "missing_tool":
            return answer
    for answer in (conf, dnf):
        if isinstance(answer, Absent):
            return answer
    if isinstance(states, Mapping):
        found = _of_dpkg(states, conf)
        if found is not None:
            return found
    if isinstance(owner, Mapping):
        found = _of_rpm(owner, dnf)
        if found is not None:
            return found
    return Absent("not_applicable", "the driver does not come from packages")


def _of_dpkg(answer: Mapping[str, Any], conf: Mapping[str, str]) -> DriverPackages | None:
    """Return the packages that dpkg has installed; it ends with 1 where a pattern has none."""
    if answer["code"] not in (0, 1):
        raise ValueError(f"dpkg-query ended with {answer['code']}: {answer['err']!r:.80}")
    packages = apt.parse_states(answer["out"])
    held: list[str] = []
    loose: list[str] = []
    for name, package in packages.items():
        if ":" in name or not package.there:
            continue
        (held if package.held else loose).append(name)
    if not held and not loose:
        return None
    text = "\n".join(conf[path] for path in sorted(conf))
    text = _COMMENT.sub("", text)
    blacklist = _blacklisted(text)
    loose = [name for name in loose if not any(re.match(entry, name) for entry in blacklist)]
    return DriverPackages("apt", tuple(sorted(held)), tuple(sorted(loose)), _is_periodic(text))


def _is_periodic(text: str) -> bool:
    """Return whether apt installs updates by itself; of several settings the last counts."""
    values = _PERIODIC.findall(text)
    return bool(values) and values[-1] not in ("", "0")


def _blacklisted(text: str) -> tuple[str, ...]:
    """Return the patterns that unattended-upgrades leaves out: regular expressions of Python."""
    entries: list[str] = []
    for block in _BLACKLIST.findall(text):
        entries += re.findall(r'"([^"]+)"', block)
    return tuple(entry for entry in entries if _is_pattern(entry))


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _of_rpm(answer: Mapping[str, Any], files: Mapping[str, str]) -> DriverPackages | None:
    """Return the package that owns nvidia-smi; None where no package does."""
    name = answer["out"].strip()
    if answer["code"] != 0:  # «file … is not owned by any package»
        return None
    if not _PACKAGE.fullmatch(name):
        raise ValueError(f"no name of a package: {name!r:.80}")
    locks = files.get(_DNF[0], "") + files.get(_DNF[1], "")
    is_locked = re.search(rf"\b{re.escape(name)}\b", locks) is not None
    timers = {path.rpartition("/")[2] for path in files}
    applies = _APPLY.search(files.get(_DNF[2], "")) is not None
    is_automatic = not timers.isdisjoint(_TIMERS) and (applies or _TIMERS[1] in timers)
    held = (name,) if is_locked else ()
    loose = () if is_locked else (name,)
    return DriverPackages("dnf", held, loose, is_automatic)


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    # Debian's rpm makes a database in the home of the user who asks it; in /proc it cannot.
    owner = ("env", "HOME=/proc", "rpm", "-qf", "--qf", "%{NAME}", "/usr/bin/nvidia-smi")
    return (
        apt.installed(PATTERNS),
        Read("files", (_APT_CONF,)),
        Read("command", owner),
        Read("files", _DNF),
    )


DRIVER = Fact("nv.packages", _reads, parse_packages, lenient=True, costly=("command", "files"))
