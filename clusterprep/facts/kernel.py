"""What the kernel was started with, and the kernels that the machine could start instead."""

from __future__ import annotations

import re
from typing import Any

from clusterprep.facts import Fact, file
from clusterprep.model import Read

_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')  # the kernel knows double quotes and nothing else


def parse_cmdline(text: str | None) -> tuple[str, ...]:
    """The words of /proc/cmdline before `--`, behind which those of process 1 stand."""
    if text is None or not text.strip():
        raise ValueError("/proc/cmdline is empty or not there")
    words = [word.replace('"', "") for word in _WORD.findall(text)]
    return tuple(words[: words.index("--")] if "--" in words else words)


def parse_installed(releases: Any) -> tuple[str, ...]:
    """Releases of the kernels in /boot and /lib/modules; none in a container, or where the network boots."""
    if not (isinstance(releases, list) and all(isinstance(release, str) for release in releases)):
        raise ValueError("no list of releases")
    return tuple(releases)


CMDLINE = Fact("kernel.cmdline", file("/proc/cmdline"), parse_cmdline)
INSTALLED = Fact("kernel.installed", lambda node, inventory: (Read("kernels"),), parse_installed)
