"""The system calls by which code changes files: recorded, refused once, or cut off at one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CHANGING = (
    "mkdir",
    "chmod",
    "fchmod",
    "fchown",
    "fsync",
    "ftruncate",
    "link",
    "pwrite",
    "removexattr",
    "rename",
    "rmdir",
    "setxattr",
    "unlink",
)
OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Cut(BaseException):
    """The process was killed: nothing that it would still do reaches the disk."""


class Call(NamedTuple):
    """A call by its name and its path; of a rename and a link the one that it leads to."""

    name: str
    path: str
    flags: int = 0
    mode: int = 0
    source: str = ""


class Calls:
    """The calls that change files, in their order.

    At the call of number `at`, from 0 on, `end` comes instead.

    An OSError refuses this call alone. A Cut refuses all that follow, too, for what has been killed
    does nothing more.
    """

    def __init__(self, at: int | None = None, end: BaseException | None = None) -> None:
        self.at, self.end = at, end
        self.made: list[Call] = []
        self.opened: list[Call] = []

    @property
    def ended(self) -> bool:
        """Whether it came to that call."""
        return self.at is not None and len(self.made) > self.at

    def note(self, call: Call) -> None:
        self.made.append(call)
        number = len(self.made) - 1
        if self.end and (number == self.at or (isinstance(self.end, Cut) and self.ended)):
            raise self.end


def path_of(place: Any) -> str:
    """The path of a descriptor, or of what is a path already."""
    return (
        str(Path(f"/proc/self/fd/{place}").readlink())
        if isinstance(place, int)
        else os.fspath(place)
    )


def descriptors() -> int:
    """How many files this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])


@contextmanager
def noted(at: int | None = None, end: BaseException | None = None) -> Iterator[Calls]:
    """Note the calls that change files. A Cut ends the block."""
    calls = Calls(at, end)
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING:
            patch.setattr(os, name, _noting(calls, name, getattr(os, name)))
        patch.setattr(os, "open", _opening(calls, os.open))
        with suppress(Cut):
            yield calls


def _noting(calls: Calls, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*words: Any, **more: Any) -> Any:
        renames = name in ("link", "rename")
        calls.note(
            Call(
                name,
                path_of(words[1 if renames else 0]),
                source=path_of(words[0]) if renames else "",
            )
        )
        return None if name == "fsync" else real(*words, **more)  # no power fails here

    return call


def _opening(calls: Calls, real: Callable[..., int]) -> Callable[..., int]:
    def call(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        opened = Call("open", os.fspath(path), flags, mode)
        calls.opened.append(opened)
        if flags & OPENED_TO_WRITE:
            calls.note(opened)
        return real(path, flags, mode, **more)

    return call


def out_of_order(calls: Calls, journals: tuple[str, ...]) -> list[str]:
    """What could be lost although a journal, one of these names, says already that it was done.

    A file is synced before its rename. What was renamed, removed or made is synced by its folder
    before a journal gets its name, and the journal's own folder is synced before anything else
    happens. What lies beside a file does not count: it is no loss.
    """
    lost: list[str] = []
    unsynced: set[str] = set()  # files, and folders whose names have changed
    told = ""  # the folder of a journal that was just renamed
    for call in calls.made:
        if told and call != Call("fsync", told):
            lost.append(f"{call} before the journal in {told} is on disk")
        told = ""
        folder, name = os.path.split(call.path)
        if call.name == "fsync":
            unsynced.discard(call.path)
        elif call.name == "open" and call.flags & os.O_CREAT:
            unsynced.add(call.path)
        elif call.name == "rename":
            if call.source in unsynced:
                lost.append(f"{call.path} was renamed before its bytes were on disk")
            if name in journals:
                lost += [
                    f"the journal was renamed before {path} was on disk"
                    for path in sorted(unsynced)
                ]
                told = folder
            unsynced.add(folder)
        elif call.name in ("mkdir", "unlink") and ".clusterprep-" not in name:
            unsynced.add(folder)
    return lost


def tree_of(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Mode and bytes of all that lies below a root, but for our own state."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in root.rglob("*")
        if root / "var" not in (path, *path.parents)
    }
