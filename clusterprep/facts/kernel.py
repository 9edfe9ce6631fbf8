"""What the kernel was started with, and the kernels that the machine could start instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def newest_waiting(running: str, installed: Iterable[str]) -> str | None:
    """The newest installed kernel of the running one's flavour, if it is newer.

    A running kernel that is not among them was booted from elsewhere: by the network, or it is a container's host's.
    """
    numbers, flavour = _taken_apart(running)
    alike = {release: _taken_apart(release) for release in installed}
    if running not in alike:
        return None
    newer = [
        (other[0], release)
        for release, other in alike.items()
        if other[1] == flavour and other[0] > numbers
    ]
    return max(newer)[1] if newer else None


def _taken_apart(release: str) -> tuple[tuple[int, ...], str]:
    """Numbers and flavour: ((6, 8, 0, 45), "-generic"); el9_4 and el9_5 are one flavour."""
    match = re.match(r"(?:\d+[.-])*\d+(?=[^\d]|$)", release)
    if match is None:
        return (), release
    numbers = tuple(int(number) for number in re.split(r"[.-]", match[0]))
    return numbers, re.sub(r"(\.el\d+)_\d+", r"\1", release[match.end() :])


CMDLINE = Fact("kernel.cmdline", file("/proc/cmdline"), parse_cmdline)
INSTALLED = Fact("kernel.installed", lambda node, inventory: (Read("kernels"),), parse_installed)
