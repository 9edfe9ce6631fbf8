"""What a rollback would write: the old bytes of a cluster's last run, unless somebody built on the new ones. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from clusterprep.changes.file_plan import plan_files
from clusterprep.errors import InputError, Refused
from clusterprep.model.files import Access, FileChange
from clusterprep.remote.untrusted import require_text
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class OldFile:
    path: str
    mode: int
    before: bytes | None
    after: bytes | None
    now: bytes | None
    strange: str | None = None  # what stands there instead of a file
    resource: str = "env"
    running: bool = False
    was: Access | None = None  # before the run, where the run changed owner or mode
    access: Access | None = None  # now


@dataclass(frozen=True)
class OldRun:
    """A run as a node remembers it; `undoes` names the run that this one rolled back.

    `by` names the rollback that undid this one because it had been cut off.
    """

    run: str
    cluster: str
    state: str
    undoes: str | None
    files: tuple[OldFile, ...]
    by: str | None = None


def parse_runs(answer: Mapping[str, object]) -> tuple[OldRun, ...]:
    """The agent's answer to `runs`. Raises KeyError, TypeError or ValueError when it is not one."""
    rows = answer["runs"]
    if not isinstance(rows, list):
        raise TypeError("runs is no list")
    return tuple(_run(row) for row in rows)


def _run(row: Mapping[str, object]) -> OldRun:
    files = row["files"]
    if not isinstance(files, list):
        raise TypeError("files is no list")
    old = tuple(_file(file) for file in files)
    return OldRun(
        str(row["run"]),
        str(row["cluster"]),
        str(row["state"]),
        _word(row["undoes"]),
        old,
        _word(row["by"]),
    )


def _file(row: Mapping[str, Any]) -> OldFile:
    before, after, now = (_decode(row[key]) for key in ("before", "after", "now"))
    was, access = (_access(row.get(key)) for key in ("was", "access"))
    return OldFile(
        path=require_text(row["path"], 4096),
        mode=int(row["mode"]),
        before=before,
        after=after,
        now=now,
        strange=_word(row["strange"]),
        resource=str(row.get("resource") or "env"),
        running=bool(row.get("running")),
        was=was,
        access=access,
    )


def _access(numbers: Any) -> Access | None:
    return None if numbers is None else Access(*map(int, numbers))


def _word(value: object) -> str | None:
    return None if value is None else str(value)


def _decode(text: object) -> bytes | None:
    return None if text is None else base64.b64decode(str(text), validate=True)


def last_run(
    memories: Mapping[str, Sequence[OldRun]], cluster: str, wanted: str | None
) -> str | None:
    """The run to undo: the one asked for, else the cluster's last that changed something; None when there is none.

    A run that put everything back itself, because it could not commit everywhere, changed nothing: nobody undid it.
    """
    mine = [r for runs in memories.values() for r in runs if r.cluster == cluster]
    known = {r.run for r in mine if r.undoes is None}
    if wanted is not None and wanted not in known:
        raise InputError.of(
            f"no node remembers a run {wanted!r} of cluster {cluster!r}", key="--run"
        )
    rolled_back = {r.undoes for r in mine if r.state == "done"} | {
        r.run for r in mine if r.by is not None
    }
    done = {r.run for r in mine if r.undoes is None and (r.state == "done" or r.run in rolled_back)}
    return wanted if wanted is not None else max(done, default=None)


def plan_rollback(
    memories: Mapping[str, Sequence[OldRun]], run: str, force: bool
) -> tuple[FileChange, ...]:
    """The changes that put a run's old bytes back; Refused where that would destroy what came later."""
    changes: list[FileChange] = []
    blocked: list[FileChange] = []
    reasons: list[str] = []
    for node, runs in memories.items():
        for old in (r for r in runs if r.run == run and r.state == "done"):
            for file in old.files:
                if file.strange:
                    raise Refused(f"{node}: {file.strange}; nothing was written")
                change = _back(node, file)
                reason = _obstacle(node, runs, old, file)
                if reason:
                    reasons.append(reason)
                    blocked.append(FileChange(node, file.resource, file.path, file.after, file.now))
                changes.append(change)
    if reasons and not force:
        more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        raise Refused(
            f"{reasons[0]}{more}; --force puts the old bytes back all the same",
            plan_files(blocked[0]),
        )
    return tuple(changes)


def _back(node: str, file: OldFile) -> FileChange:
    return FileChange(
        node=node,
        resource=file.resource,
        path=file.path,
        before=file.now,
        after=file.before,
        mode=file.mode,
        access=None if file.before is None else file.was,
        was=file.access,
        running=file.running,
    )


def _obstacle(node: str, runs: Sequence[OldRun], old: OldRun, file: OldFile) -> str:
    newer = [
        r.run
        for r in runs
        if r.run > old.run and r.state == "done" and r.undoes is None and _touches(r, file)
    ]
    if newer:
        return f"{node}: run {newer[-1]} changed {file.path} after run {old.run}"
    if file.now != file.after:
        return f"{node}: {file.path} was edited after run {old.run}"
    return ""


def _touches(run: OldRun, file: OldFile) -> bool:
    return any(other.path == file.path for other in run.files)
