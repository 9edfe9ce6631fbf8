"""The identity, kernel and distribution of the machine that answers."""

from __future__ import annotations

import math
import re
import shlex

from clusterprep.facts import Fact, file


def parse_os_release(text: str | None) -> str:
    """Return «debian 12» from /etc/os-release, whose values are quoted as in a shell."""
    if text is None:
        raise ValueError("there is no /etc/os-release")
    values = {}
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            values[key.strip()] = _first_word(value)
    distribution = values["ID"]
    version = values.get("VERSION_ID", "")
    return f"{distribution} {version}".strip()


def _first_word(value: str) -> str:
    words = shlex.split(value)
    return words[0] if words else ""


def parse_word(text: str | None) -> str:
    """Return the text of a file that holds one word."""
    if text is None or not text.strip():
        raise ValueError("empty or not there")
    return text.strip()


NO_MACHINE_ID = ""
"""The machine id of a system that has none: Linux without systemd and D-Bus, such as Alpine."""


def parse_machine_id(text: str | None) -> str:
    """Return 32 hexadecimal digits, as in machine-id(5); NO_MACHINE_ID where there is no file.

    Images that are to be cloned hold nothing or «uninitialized», which raises ValueError.
    """
    if text is None:
        return NO_MACHINE_ID
    machine_id = parse_word(text)
    if not re.fullmatch(r"[0-9a-fA-F]{32}", machine_id):
        raise ValueError(f"'{machine_id[:40]}' is no machine id")
    return machine_id


def parse_boot_id(text: str | None) -> str:
    """Return the UUID that the kernel draws at boot."""
    boot_id = parse_word(text)
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot_id):
        raise ValueError(f"'{boot_id[:40]}' is no boot id")
    return boot_id


def parse_uptime(text: str | None) -> float:
    """Return the seconds since boot: the first of the two numbers of /proc/uptime."""
    if text is None:
        raise ValueError("there is no /proc/uptime")
    since_boot, _idle = map(float, text.split())
    if not (math.isfinite(since_boot) and since_boot >= 0):
        raise ValueError(f"'{text.strip()}' is no time since boot")
    return since_boot


MACHINE_ID = Fact("host.machine_id", file("/etc/machine-id", etc=True), parse_machine_id)
BOOT_ID = Fact("host.boot_id", file("/proc/sys/kernel/random/boot_id"), parse_boot_id)
# The boot id that the first look of this run saw; None in a first look, the only one of most runs.
BOOT_BEFORE = Fact("host.boot_before", stage="again", moves=True)
HOST_NAME = Fact("host.name", file("/proc/sys/kernel/hostname"), parse_word)
KERNEL = Fact("kernel.release", file("/proc/sys/kernel/osrelease"), parse_word)
OS_RELEASE = Fact("os.release", file("/etc/os-release", etc=True), parse_os_release)
UPTIME = Fact("host.uptime", file("/proc/uptime"), parse_uptime, moves=True)
