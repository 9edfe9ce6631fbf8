"""Folders that all nodes should share, as the job's user sees them on each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts import JOB_USER, Fact, user_of_job
from clusterprep.model import Absent, Inventory, Node, Read

SECONDS = 5.0  # in which all folders of a node together must answer


class Entries(Struct, frozen=True):
    """What is in a folder: how many entries, and those with the smallest checksums.

    `names` are checksums of their names, `inodes` of names and inodes.
    """

    count: int
    names: frozenset[int]
    inodes: frozenset[int]


class SharedFolder(Struct, frozen=True):
    """One folder on one node, and the mount that it lies on.

    `entries` is None where there are too many to be compared. `opening` and `reading` are seconds
    for the folder and for the beginning of a file; None without a file to read.
    """

    type: str
    source: str
    point: str
    mode: str  # ro or rw
    inode: int
    entries: Entries | None
    writable: bool
    size: int  # bytes, as `free`
    free: int
    opening: float
    reading: float | None = None


Folders = Mapping[str, "SharedFolder | Absent"]


def parse_shared(answer: Any = None) -> Folders | None:
    """Return what each path is, None where nothing is declared."""
    if answer is None:
        return None
    folders: dict[str, SharedFolder | Absent] = {}
    for path, result in answer.items():
        if result[0] == "no":
            folders[str(path)] = Absent(str(result[1]), str(result[2]))
        else:
            folders[str(path)] = _folder(result[1])
    return folders


def _folder(state: Mapping[str, Any]) -> SharedFolder:
    folder = SharedFolder(
        type=state["type"],
        source=state["source"],
        point=state["point"],
        mode=state["mode"],
        inode=state["inode"],
        entries=_entries(state["entries"]),
        writable=state["writable"],
        size=state["size"],
        free=state["free"],
        opening=float(state["open"]),
        reading=None if state["read"] is None else float(state["read"]),
    )
    texts = (folder.type, folder.source, folder.point)
    numbers = (folder.inode, folder.size, folder.free)
    are_texts = all(isinstance(text, str) for text in texts)
    are_numbers = all(type(number) is int and number >= 0 for number in numbers)
    is_known = folder.mode in ("ro", "rw") and isinstance(folder.writable, bool)
    if not (are_texts and are_numbers and is_known):
        raise ValueError(f"no folder: {state!r:.80}")
    return folder


def _entries(value: Any) -> Entries | None:
    if value is None:
        return None
    count, rows = value
    names = frozenset(int(name) for name, _ in rows)
    inodes = frozenset(int(inode) for _, inode in rows)
    if type(count) is not int or count < len(rows):
        raise ValueError(f"no number of entries: {count!r:.40}")
    return Entries(count, names, inodes)


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return one read for all folders of a node, none where it declares none."""
    if not node.shared:
        return ()
    arguments = (user_of_job(node), SECONDS, *node.shared)
    return (Read("shared", arguments, limit=SECONDS + 4),)


SHARED = Fact("fs.shared", _reads, parse_shared, deep=True, needs=JOB_USER, moves=True)
