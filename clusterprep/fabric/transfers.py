"""`copy` and `fetch` on all nodes: what each has becomes a row of changes."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import os
import posixpath
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from clusterprep.errors import LinkLost, Unreached
from clusterprep.fabric.connection import NodeConnection, new_config, ssh_of
from clusterprep.fabric.fleet import Fleet, on_every_node
from clusterprep.fabric.node_files import Failed, NodeFiles, RemoteFile
from clusterprep.model import ChangeRow, Node
from clusterprep.model.units import format_size
from clusterprep.remote.untrusted import as_list, require_integer, require_text
from clusterprep.runtime import files as local_files

NODE = "{node}"
TOLD = 10.0  # seconds between two notes about a transfer
LONGEST_NAME = 255  # bytes of a file's name
LONGEST_PATH = 4096  # PATH_MAX of linux/limits.h
LONGEST_SUM = 64  # digits
MOST_FILES = 1000  # of one pattern on one node, as its agent has it
UNTOUCHED = "nothing was changed there"
PLACED = "the new file is in place, and perhaps not on the disk yet"


class CopyRequest(Struct, frozen=True):
    """What is to be copied: a file here, with its sum, and how it is to be there."""

    source: Path
    size: int
    sha: str
    path: str
    mode: int
    user: str | None = None
    group: str | None = None


class Moved(Struct, frozen=True):
    """What became of one file on its way."""

    target: str
    action: str
    outcome: str
    detail: str = ""


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file here. Raises OSError."""
    with path.open("rb") as source:
        total = hashlib.sha256()
        while piece := source.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def copy(fleet: Fleet, request: CopyRequest) -> tuple[dict[str, Any], bool]:
    """Copy a file to all nodes. Returns as `on_every_node`, with a list of Moved for each."""
    start = _Start(fleet, "copy")
    return on_every_node(fleet, "copy", lambda node: NodeCopy(start, node, request))


def fetch(fleet: Fleet, pattern: str, folder: str) -> tuple[dict[str, Any], bool]:
    """Fetch files from all nodes. Returns as `on_every_node`, with a list of Moved for each."""
    start = _Start(fleet, "fetch")
    return on_every_node(fleet, "fetch", lambda node: NodeFetch(start, node, pattern, folder))


class _Start:
    """What the work on all nodes has in common: how they are reached, and how far it has come."""

    def __init__(self, fleet: Fleet, stage: str) -> None:
        self.fleet = fleet
        self._ssh = ssh_of(fleet.transports)
        self._stage = stage
        self._config = new_config()
        self._lock = threading.Lock()
        self._bytes = 0
        self._told = time.monotonic()

    def connection(self, node: Node) -> NodeConnection:
        return NodeConnection(node, self._ssh, self.fleet.password, self._config)

    def moved(self, count: int) -> None:
        """Count bytes, and say from time to time how many they are."""
        now = time.monotonic()
        with self._lock:
            self._bytes += count
            if now - self._told < TOLD:
                return
            self._told = now
            total = self._bytes
        self.fleet.watch.note(f"{self._stage}: {format_size(total)} so far")


class _NodeTransfer:
    """The work on one node. See NodeWork."""

    def __init__(self, start: _Start, node: Node) -> None:
        self._start = start
        self._node = node
        self._connection = start.connection(node)
        self._closed = False
        self._target = ""
        self._action = "update"
        self._is_placing = False  # it is not known what the node has

    def run(self) -> list[Moved]:
        """Return what became of the files. Raises Unreached if the node could not be used."""
        files = NodeFiles(self._connection, self._start.fleet.password, self._start.moved)
        return self.transfer(files)

    def transfer(self, files: NodeFiles) -> list[Moved]:
        """Return what became of the files, and close `files`."""
        try:
            return self._transfer(files)
        except Failed as failed:
            if failed.is_placed:
                return [Moved(self._target, self._action, "failed", f"{failed}; {PLACED}")]
            return [self._failed(str(failed))]
        except LinkLost as lost:
            if self._is_placing:
                why = f"{lost}; the file there is the old one or the new one, whole"
                return [Moved(self._target, self._action, "unanswered", why)]
            return [self._failed(str(lost))]
        finally:
            files.close()

    def _transfer(self, files: NodeFiles) -> list[Moved]:
        raise NotImplementedError

    def _failed(self, why: str) -> Moved:
        if self._closed:
            why = "the time was up"
        return Moved(self._target, self._action, "failed", f"{why}; {UNTOUCHED}")

    def close(self) -> None:
        self._closed = True
        self._connection.close()


class NodeCopy(_NodeTransfer):
    """Copies one file to one node."""

    def __init__(self, start: _Start, node: Node, request: CopyRequest) -> None:
        super().__init__(start, node)
        self._request = request
        self._target = request.path

    def _transfer(self, files: NodeFiles) -> list[Moved]:
        request = self._request
        try:
            answer = files.ask(
                "copy_look",
                path=request.path,
                sha=request.sha,
                size=request.size,
                mode=request.mode,
                user=request.user,
                group=request.group,
            )
        except Failed as failed:
            if failed.reason == "missing":  # even the folder
                self._action = "create"
            raise
        if answer.get("same"):
            return [Moved(request.path, "none", "unchanged")]
        self._action = _action(answer)
        files.put(request.source, str(answer.get("stage")))
        self._is_placing = True
        answer = files.ask("copy_place")
        return [Moved(request.path, _action(answer), "done")]


def _action(answer: Mapping[str, Any]) -> str:
    """Return what a copy does, as the node says it."""
    return "create" if answer.get("action") == "create" else "update"


class NodeFetch(_NodeTransfer):
    """Fetches the files of a pattern from one node into a folder of its own."""

    def __init__(self, start: _Start, node: Node, pattern: str, folder: str) -> None:
        super().__init__(start, node)
        self._pattern = pattern
        self._base = folder
        self._target = folder
        self._action = "create"

    def _transfer(self, files: NodeFiles) -> list[Moved]:
        folder = folder_of(self._base, self._node.name)
        self._target = str(folder)
        known = {}
        if not is_pattern(self._pattern):
            place = folder / relative_name(self._pattern, self._pattern)
            total = local_sum(place)
            if total:
                known[self._pattern] = total
        answer = files.ask("fetch_look", path=self._pattern, known=known)
        rows = as_list(answer.get("files"))
        if not rows:
            raise Failed("no file matches")
        if len(rows) > MOST_FILES:
            raise Failed(f"the node answered with more than {MOST_FILES:,} files")
        return [self._brought(files, folder, row) for row in rows]

    def _brought(self, files: NodeFiles, folder: Path, row: Any) -> Moved:
        """Fetch one file. That it fails keeps no other from being fetched."""
        try:
            return self._fetched(files, folder, row)
        except Failed as failed:
            return self._failed(str(failed))
        except FileExistsError as error:
            return self._failed(f"{error.filename} is here already, and is no folder")
        except OSError as error:
            return self._failed(f"{error.filename}: {error.strerror}")

    def _fetched(self, files: NodeFiles, folder: Path, row: Any) -> Moved:
        file = remote_file(row)
        place = folder / relative_name(self._pattern, file.name)
        self._target = str(place)
        if local_sum(place) == file.sha:
            return Moved(str(place), "none", "unchanged")
        action = "update" if os.path.lexists(place) else "create"
        make_folders(base_of(self._base), place.parent)
        room = shutil.disk_usage(place.parent).free
        if file.size > room:  # known before it is full: other files need room too
            size = format_size(file.size)
            raise Failed(f"it has {size}, and {format_size(room)} is free in {place.parent}")
        files.get(file, place)
        return Moved(str(place), action, "done")


# ---------------------------------------------------------------- places here


def local_sum(place: Path) -> str:
    """Return the SHA-256 of a regular file here, empty for all else. Raises Failed."""
    try:
        if place.is_symlink() or not place.is_file():
            return ""
        return sum_of(place)
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}") from error


def make_folders(base: Path, folder: Path) -> None:
    """Make a folder below `base`, and those between. Raises OSError.

    The user named `base`. Below it links are followed only if this user or root has laid them, as
    in a folder that others share one could be laid where the name of a node is expected.
    """
    base.mkdir(parents=True, exist_ok=True)
    place = base
    for part in folder.relative_to(base).parts:
        place = place / part
        local_files.destination(place).mkdir(exist_ok=True)


def base_of(text: str) -> Path:
    """Return the folders of DIR that all nodes share: those before a part with {node}."""
    return Path(*itertools.takewhile(lambda part: NODE not in part, Path(text).parts))


# ---------------------------------------------------------------- names


def folder_of(text: str, node: str) -> Path:
    """Return the folder of a node: DIR/NODE, or DIR with the name of the node in place of {node}.

    Raises Failed for a node whose name is no name of a folder.
    """
    refuse_unsafe(node)
    if NODE in text:
        return Path(text.replace(NODE, node))
    return Path(text, node)


def relative_name(pattern: str, name: str) -> str:
    """Return what a file of a node is called below its folder here.

    That is its last part, and with a pattern of several folders all from the first of them on. The
    name comes from the node: raises Failed for one that the pattern does not have.
    """
    if not is_pattern(pattern):
        if name != pattern:
            raise Failed("the node answered with another file")
        base = posixpath.basename(pattern)
        refuse_unsafe(base)
        return base
    wanted, parts = pattern.split("/"), name.split("/")
    first = next(index for index, part in enumerate(wanted) if is_pattern(part))
    is_right = len(wanted) == len(parts)
    if not is_right or not all(map(fnmatch.fnmatchcase, parts, wanted)):
        raise Failed("the node answered with a file that the pattern does not have")
    for part in parts[first:]:
        refuse_unsafe(part)
    return "/".join(parts[first:])


def is_pattern(text: str) -> bool:
    return any(letter in text for letter in "*?[")


def refuse_unsafe(name: str) -> None:
    """Raise Failed for a name that could lead out of a folder, or that no terminal should show."""
    is_path = name in ("", ".", "..") or "/" in name or "\\" in name
    if is_path or not name.isprintable() or len(name.encode()) > LONGEST_NAME:
        raise Failed(f"{name!a} is not a name for a file here")


def remote_file(row: Any) -> RemoteFile:
    """Return a row of the node's answer. Raises Failed for what no agent of ours answers."""
    try:
        return RemoteFile(
            require_text(row["name"], LONGEST_PATH),
            require_integer(row["size"]),
            require_text(row["sha"], LONGEST_SUM),
            require_text(row["from"], LONGEST_PATH),
            require_integer(row["mode"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Failed("the node answered with no list of files") from error


# ---------------------------------------------------------------- rows


def rows_of(
    resource: str, outcomes: Mapping[str, Sequence[Moved] | Unreached]
) -> tuple[ChangeRow, ...]:
    """Return the rows of a report, equal ones of several nodes as one."""
    nodes_by_change: dict[Moved, list[str]] = {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, Unreached):
            continue
        for moved in outcome:
            nodes_by_change.setdefault(moved, []).append(name)
    rows = []
    for moved, nodes in nodes_by_change.items():
        rows.append(
            ChangeRow(
                tuple(nodes),
                resource,
                moved.target,
                moved.action,
                moved.outcome,  # type: ignore[arg-type]
                detail=moved.detail,
            )
        )
    return tuple(rows)
