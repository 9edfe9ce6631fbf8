"""The kernel's command line, and the kernels that are installed beside the running one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from clusterprep.facts import Fact, file
from clusterprep.model import Read

_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')  # the kernel knows double quotes and nothing else


def parse_cmdline(text: str | None) -> tuple[str, ...]:
    """Return the words of /proc/cmdline before `--`, behind which those of process 1 stand."""
    if text is None or not text.strip():
        raise ValueError("/proc/cmdline is empty or not there")
    words = []
    for match in _WORD.finditer(text):
        word = match[0].replace('"', "")
        if word == "--":
            break
        words.append(word)
    return tuple(words)


def parse_installed(releases: Any) -> tuple[str, ...]:
    """Return the releases of the kernels in /boot and /lib/modules.

    There are none in a container, or where the network boots.
    """
    if not isinstance(releases, list):
        raise ValueError("no list of releases")  # noqa: TRY004 - garbled
    for release in releases:
        if not isinstance(release, str):
            raise ValueError("no list of releases")  # noqa: TRY004 - as above
    return tuple(releases)


def newest_waiting(running: str, installed: Iterable[str]) -> str | None:
    """Return the newest installed kernel of the running one's flavour, or None if none is newer.

    None as well if the running kernel is not installed: it was booted over the network, or this
    is a container.
    """
    running_numbers, running_flavour = _numbers_and_flavour(running)
    running_is_installed = False
    newer = []
    for release in installed:
        if release == running:
            running_is_installed = True
        numbers, flavour = _numbers_and_flavour(release)
        if flavour == running_flavour and numbers > running_numbers:
            newer.append((numbers, release))
    if not running_is_installed or not newer:
        return None
    _, newest = max(newer)
    return newest


def _numbers_and_flavour(release: str) -> tuple[tuple[int, ...], str]:
    """Return ((6, 8, 0, 45), "-generic") for «6.8.0-45-generic».

    The flavours of el9_4 and el9_5 are one.
    """
    match = re.match(r"(?:\d+[.-])*\d+(?=[^\d]|$)", release)
    if match is None:
        return (), release
    numbers = tuple(map(int, re.split(r"[.-]", match[0])))
    flavour = release[match.end() :]
    return numbers, re.sub(r"(\.el\d+)_\d+", r"\1", flavour)


CMDLINE = Fact("kernel.cmdline", file("/proc/cmdline"), parse_cmdline)
INSTALLED = Fact("kernel.installed", lambda node, inventory: (Read("kernels"),), parse_installed)
