"""Which machine answers: its identity, kernel and distribution."""

from __future__ import annotations

import math
import re
import shlex

from clusterprep.facts import Fact, file


def parse_os_release(text: str | None) -> str:
    """«debian 12» from /etc/os-release, whose values are quoted as in a shell."""
    if text is None:
        raise ValueError("there is no /etc/os-release")
    pairs = (
        line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")
    )
    values = {key.strip(): "".join(shlex.split(value)[:1]) for key, value in pairs}
    return f"{values['ID']} {values.get('VERSION_ID', '')}".strip()


def parse_word(text: str | None) -> str:
    """A file that holds one word."""
    if text is None or not text.strip():
        raise ValueError("empty or not there")
    return text.strip()


def parse_machine_id(text: str | None) -> str:
    """32 hexadecimal digits, as machine-id(5) says; images that are to be cloned hold nothing or «uninitialized»."""
    word = parse_word(text)
    if not re.fullmatch(r"[0-9a-fA-F]{32}", word):
        raise ValueError(f"'{word[:40]}' is no machine id")
    return word


def parse_boot_id(text: str | None) -> str:
    """The UUID that the kernel draws at boot."""
    word = parse_word(text)
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", word):
        raise ValueError(f"'{word[:40]}' is no boot id")
    return word


def parse_uptime(text: str | None) -> float:
    """Seconds since boot: the first of the two numbers of /proc/uptime."""
    if text is None:
        raise ValueError("there is no /proc/uptime")
    since_boot, _idle = (float(word) for word in text.split())
    if not (math.isfinite(since_boot) and since_boot >= 0):
        raise ValueError(f"'{text.strip()}' is no time since boot")
    return since_boot


MACHINE_ID = Fact("host.machine_id", file("/etc/machine-id", etc=True), parse_machine_id)
BOOT_ID = Fact("host.boot_id", file("/proc/sys/kernel/random/boot_id"), parse_boot_id)
HOST_NAME = Fact("host.name", file("/proc/sys/kernel/hostname"), parse_word)
KERNEL = Fact("kernel.release", file("/proc/sys/kernel/osrelease"), parse_word)
OS_RELEASE = Fact("os.release", file("/etc/os-release", etc=True), parse_os_release)
UPTIME = Fact("host.uptime", file("/proc/uptime"), parse_uptime)
