"""Journals with chosen entries, written by systemd's own systemd-journal-remote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES = ("/lib/systemd", "/usr/lib/systemd")  # where Debian and others have it
MACHINE_ID = "0123456789abcdef0123456789abcdef"
OTHER_BOOT = "1" * 32


def journal_remote() -> str | None:
    """The program that writes journals; Debian's package has its own name."""
    path = os.pathsep.join((os.environ.get("PATH", ""), *PLACES))
    return shutil.which("systemd-journal-remote", path=path)


def this_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


@dataclass(frozen=True)
class Entry:
    """A line of the kernel, `age` seconds old; of an earlier boot if `boot` says so.

    Other fields than those of the kernel's own lines are in `more`.
    """

    text: str
    age: float
    boot: str = ""
    more: tuple[tuple[str, str], ...] = ()


def export(entries: Iterable[Entry]) -> str:
    """The entries, the oldest first, in systemd's Journal Export Format."""
    now, up = time.time(), uptime()
    blocks = []
    for entry in sorted(entries, key=lambda entry: -entry.age):
        microseconds = int((now - entry.age) * 1e6)
        since_boot = 100.0 if entry.boot else max(0.0, up - entry.age)
        fields = {
            "__REALTIME_TIMESTAMP": str(microseconds),
            "__MONOTONIC_TIMESTAMP": str(int((since_boot + 2) * 1e6)),
            "_BOOT_ID": entry.boot or this_boot(),
            "_TRANSPORT": "kernel",
            "PRIORITY": "4",
            "SYSLOG_FACILITY": "0",
            "SYSLOG_IDENTIFIER": "kernel",
            "_SOURCE_MONOTONIC_TIMESTAMP": str(int(since_boot * 1e6)),
            "MESSAGE": entry.text,
            **dict(entry.more),
        }
        blocks.append("".join(f"{name}={value}\n" for name, value in fields.items()))
    return "\n".join(blocks) + "\n"


def write(folder: Path, entries: Iterable[Entry]) -> None:
    """Write the journal of the machine MACHINE_ID below a folder, as in /var/log/journal."""
    program = journal_remote()
    assert program is not None
    place = folder / MACHINE_ID
    place.mkdir(parents=True)
    argv = [program, "-o", str(place / "system.journal"), "-"]
    subprocess.run(argv, input=export(entries), text=True, check=True, capture_output=True)


# In a mount namespace of its own: the journal, the machine's id and the ring are ours.
_INSIDE = """
set -e
mount -t tmpfs none /var/log
mkdir /var/log/journal
if [ -d "$1/journal" ]; then mount --bind "$1/journal" /var/log/journal; fi
if [ -d /run/log ]; then mount -t tmpfs none /run/log; fi
mount --bind "$1/machine-id" /etc/machine-id
mount --bind "$1/kmsg" /dev/kmsg
shift
exec "$@"
"""
_READ = """
import json, sys
from clusterprep.remote.agent import kernel_journal, look
kernel_journal.install(None)
print(json.dumps(look.answer("kernel_journal", json.loads(sys.argv[1]))))
"""


def read(
    folder: Path, arguments: Sequence[Any], ring: str = "", user: Sequence[str] = ()
) -> list[Any]:
    """The raw answer of the agent's reader on a machine with the journal below a folder.

    `user` are words before the command that make it run as somebody.
    """
    (folder / "machine-id").write_text(f"{MACHINE_ID}\n")
    (folder / "kmsg").write_text(ring)
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    reader = [*user, sys.executable, "-c", _READ, json.dumps(arguments)]
    argv = ["unshare", *as_root, "--mount", "sh", "-c", _INSIDE, "sh", str(folder), *reader]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    answer: list[Any] = json.loads(done.stdout)
    return answer
