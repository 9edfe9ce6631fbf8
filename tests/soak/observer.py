"""Look into hosts, and at what commands leave on the controller.

It uses none of clusterprep's code, but files, /proc and flock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.lab import Host

TARGETS = ("/etc/profile.d/clusterprep-nccl.sh", "/etc/nccl.conf")
STATE = "/var/lib/clusterprep"
NAME = "NCCL_BUFFSIZE"  # the variable that every apply sets anew
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/root", "/etc/clusterprep")
# What sshd, libfaketime (by which clocks are off) and mount leave there, and the lab itself.
OF_LAB = re.compile(r"/run/(lab|mount|sshd\.pid)|/dev/shm/(sem\.)?(lab_clock|faketime_\w+)")
BESIDE = ("/etc", "/etc/profile.d")
UNSETTLED = ("staged", "committed")
BROKEN = -1  # the version of a file that no apply wrote as it is

Versions = tuple[
    "int | None", ...
]  # of the TARGETS: the value that an apply wrote, None for no such file
Templates = tuple[bytes, ...]  # the TARGETS with `#` for the value


@dataclass(frozen=True)
class Pending:
    """A run in a node's journal that is not finalized, and what its files were and were to be."""

    run: str
    state: str
    before: Versions
    after: Versions


@dataclass(frozen=True)
class Seen:
    """What one host has at a moment."""

    versions: Versions
    pending: tuple[Pending, ...] = ()
    runs: tuple[str, ...] = ()  # with a folder in the state folder
    beside: frozenset[str] = (
        frozenset()
    )  # files that were laid beside others and have not become them
    stray: frozenset[str] = frozenset()  # what lies in folders where all may write
    processes: tuple[str, ...] = ()  # besides process 1
    locked: bool = False


def version_of(data: bytes | None, template: bytes) -> int | None:
    """Return the value of an apply whose file it is, to the byte, or BROKEN."""
    if data is None:
        return None
    found = re.search(rb"%s='?(\d+)" % NAME.encode(), data)
    whole = found is not None and data.replace(found[1], b"#") == template
    return int(found[1]) if found and whole else BROKEN


def template_of(data: bytes, value: int) -> bytes:
    return data.replace(str(value).encode(), b"#")


def bytes_of(host: Host, path: str) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        return _root(host, path).read_bytes()
    return None


def look(hosts: Sequence[Host], templates: Templates) -> dict[str, Seen]:
    """All hosts, which have to be up."""
    running = _processes(
        {Path(f"/proc/{host.pid}/ns/pid").stat().st_ino: host.name for host in hosts}
    )
    return {host.name: _look(host, templates, running[host.name]) for host in hosts}


def processes(hosts: Sequence[Host]) -> dict[str, tuple[str, ...]]:
    """What runs on each of these hosts besides process 1."""
    running = _processes(
        {Path(f"/proc/{host.pid}/ns/pid").stat().st_ino: host.name for host in hosts}
    )
    return {host.name: tuple(w for p, w in running[host.name] if p != host.pid) for host in hosts}


def _root(host: Host, path: str) -> Path:
    return Path(f"/proc/{host.pid}/root{path}")


def _look(host: Host, templates: Templates, running: Sequence[tuple[int, str]]) -> Seen:
    versions = tuple(
        version_of(bytes_of(host, path), form)
        for path, form in zip(TARGETS, templates, strict=True)
    )
    runs = sorted(_names(_root(host, f"{STATE}/runs")))
    journal = [(name, manifest) for name in runs if (manifest := _manifest(host, name)) is not None]
    return Seen(
        versions,
        tuple(
            _pending(host, n, m, versions, templates) for n, m in journal if m["state"] in UNSETTLED
        ),
        tuple(runs),
        frozenset(path for path in _paths(host, BESIDE) if ".clusterprep-" in path),
        frozenset(path for path in _paths(host, FOLDERS) if not OF_LAB.fullmatch(path)),
        tuple(words for pid, words in running if pid != host.pid),
        _locked(_root(host, f"{STATE}/lock")),
    )


def _manifest(host: Host, run: str) -> dict[str, Any] | None:
    data = bytes_of(host, f"{STATE}/runs/{run}/manifest.json")
    return None if data is None else json.loads(data)


def _pending(
    host: Host, run: str, manifest: Mapping[str, Any], now: Versions, templates: Templates
) -> Pending:
    before, after = list(now), list(now)
    for entry in manifest["files"]:
        if entry["path"] in TARGETS:
            at = TARGETS.index(entry["path"])
            for which, name in ((before, entry["backup"]), (after, entry["after"])):
                data = bytes_of(host, f"{STATE}/runs/{run}/{name}") if name else None
                which[at] = version_of(data, templates[at])
    return Pending(run, manifest["state"], tuple(before), tuple(after))


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [path.name for path in folder.iterdir()]
    return []


def _paths(host: Host, folders: Sequence[str]) -> list[str]:
    return [f"{folder}/{name}" for folder in folders for name in _names(_root(host, folder))]


def _locked(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _processes(names: Mapping[int, str]) -> dict[str, list[tuple[int, str]]]:
    """Return host → its processes, by their namespace: id on the machine, command line."""
    found: dict[str, list[tuple[int, str]]] = {name: [] for name in names.values()}
    for pid, process in _all_processes():
        with contextlib.suppress(OSError):
            name = names.get((process / "ns/pid").stat().st_ino)
            if name is not None and (
                words := _words(process)
            ):  # a process that only waits to be collected has none
                found[name].append((pid, words))
    return found


def _all_processes() -> Iterator[tuple[int, Path]]:
    return ((int(path.name), path) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _words(process: Path) -> str:
    return (
        (process / "cmdline")
        .read_bytes()
        .replace(b"\0", b" ")
        .decode(errors="replace")
        .strip()[:200]
    )


def with_token(token: str) -> list[str]:
    """Return the processes of this machine with a word in their environment.

    All processes that a command started have inherited it.
    """
    found = []
    for pid, process in _all_processes():
        with contextlib.suppress(OSError):
            if token.encode() in (process / "environ").read_bytes():
                found.append(f"{pid} {_words(process)}")
    return found


@dataclass(frozen=True)
class Size:
    """What a process has: memory in KiB, threads, open files."""

    rss: int
    threads: int
    files: int


def size_of(pid: int) -> Size:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    rows = dict(line.split(":", 1) for line in lines if ":" in line)
    return Size(
        int(rows["VmRSS"].split()[0]), int(rows["Threads"]), len(_names(Path(f"/proc/{pid}/fd")))
    )
