"""Files and values of the running kernel: as they are, and as they are wanted."""

from __future__ import annotations

from msgspec import Struct


class Access(Struct, frozen=True):
    """Mode and owner of a file."""

    mode: int
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"mode {self.mode:04o}, user {self.uid}, group {self.gid}"


class FileState(Struct, frozen=True):
    """A file on a node as it is. `content` None means that there is no such file."""

    path: str
    content: bytes | None
    mode: int = 0o644
    uid: int = 0
    gid: int = 0

    @property
    def access(self) -> Access | None:
        return None if self.content is None else Access(self.mode, self.uid, self.gid)


class FileChange(Struct, frozen=True):
    """A change of one file on one node, from `before` to `after`; None means no file.

    `path` does not include the node's `root`, which is put before it for writing. An existing file
    keeps its owner and mode, unless `access` is given; `was` has those of the file as it is. A
    `running` change sets a value of the kernel, at its path below /proc/sys, which cannot be
    renamed into place. `notify` names the handlers that follow it.
    """

    node: str
    resource: str
    path: str
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    access: Access | None = None
    was: Access | None = None
    running: bool = False
    notify: tuple[str, ...] = ()

    @property
    def action(self) -> str:
        """Return none, create, update or delete."""
        keeps_access = self.access in (None, self.was)
        if self.before == self.after and keeps_access:
            return "none"
        if self.before is None and self.after is not None:
            return "create"
        if self.before is not None and self.after is None:
            return "delete"
        return "update"
