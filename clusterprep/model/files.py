"""A file, or a value of the running kernel, as it is and as it is wanted: what resources compare for the writer."""

from __future__ import annotations

from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Access:
    """Who may do what with a file."""

    mode: int
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"mode {self.mode:04o}, user {self.uid}, group {self.gid}"


@dataclass(frozen=True)
class FileState:
    """A file on a node as it is: None as content means that there is no such file."""

    path: str
    content: bytes | None
    mode: int = 0o644
    uid: int = 0
    gid: int = 0

    @property
    def access(self) -> Access | None:
        return None if self.content is None else Access(self.mode, self.uid, self.gid)


@dataclass(frozen=True)
class FileChange:
    """One file on one node, from what was planned against to what is wanted (None: absent).

    `path` is the file's own; the node's `root` is put before it where it is written. A file that exists keeps its
    owner and mode, unless `access` says which it gets; `was` has those of the file as it is. A `running` change is of
    a value of the kernel's, at its path below /proc/sys, which cannot be renamed into place. `notify` names the
    handlers that are to follow it.
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
        if self.before == self.after:
            return "none" if self.access in (None, self.was) else "update"
        if self.before is None:
            return "create"
        return "delete" if self.after is None else "update"
