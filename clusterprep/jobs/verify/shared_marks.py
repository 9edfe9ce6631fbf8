"""Marks in shared folders: what one node writes, all others have to read within SECONDS.

A look at a folder compares what is in it; only a mark shows that what is written now arrives. One
node that may write there writes it, and it is removed whatever happens, see
`remote/agent/shared_marks.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from clusterprep.errors import LinkLost
from clusterprep.facts import user_of_job
from clusterprep.facts.shared import SHARED, SharedFolder
from clusterprep.model import Absent, Finding, Fleet, Node, Verdict
from clusterprep.model.colocation import neighbours
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_duration
from clusterprep.remedies import Remedy, sentence, shell_line
from clusterprep.remote.untrusted import require_number, shortened
from clusterprep.survey.fanout import Fanout

SECONDS = 10.0  # in which a mark has to be seen; NFS and parallel file systems show it at once
WRITE_LIMIT = 8.0  # the agent gives its child five
SEEN = f"read within {SECONDS:g} s"


class Mark(Struct, frozen=True):
    """One mark: the folder, who writes it, and who has to see it."""

    path: str
    writer: Node
    readers: tuple[Node, ...]


class Seen(Struct, frozen=True):
    """What came of a mark.

    `refused` says why it could not be written; `by` has by node the seconds until it was read, or
    why it was not; `left` says which file may remain, and why. `place` is that file.
    """

    mark: Mark
    place: str
    refused: Absent | None = None
    by: Mapping[str, float | Absent] | None = None
    left: str = ""


def mark_findings(fanout: Fanout, fleet: Fleet) -> tuple[Finding, ...]:
    """Mark every shared folder in turn, and return what its nodes saw of it."""
    marks = tuple(planned_marks(fleet))
    if not marks:
        return ()
    fanout.load("sessions")
    fanout.load("shared_marks")
    findings: list[Finding] = []
    for mark in marks:
        findings.extend(judge(try_mark(fanout, mark)))
    return tuple(findings)


def planned_marks(fleet: Fleet) -> Iterator[Mark]:
    """Yield a mark for each folder that several reached nodes share and one may write to."""
    by_path: dict[str, list[tuple[Node, SharedFolder]]] = {}
    for node in fleet.reached:
        folders = fleet.fact(node.name, SHARED.name)
        if isinstance(folders, Absent) or folders is None:
            continue
        for path, folder in folders.items():
            if isinstance(folder, SharedFolder):
                by_path.setdefault(path, []).append((node, folder))
    for path, rows in by_path.items():
        nodes = [node for node, _ in rows]
        writers = [node for node, folder in rows if folder.writable]
        is_one_machine = len(neighbours(nodes)) == len(nodes)
        if len(nodes) > 1 and writers and not is_one_machine:
            writer = writers[0]
            readers = tuple(node for node in nodes if node is not writer)
            yield Mark(path, writer, readers)


def try_mark(fanout: Fanout, mark: Mark, seconds: float = SECONDS) -> Seen:
    """Write a mark, have all readers look for it for so many seconds, and remove it."""
    text = secrets.token_hex(16)
    what = {"path": mark.path, "name": f".clusterprep-{text[:8]}", "text": text}
    writer = mark.writer.name
    place = f"{mark.path}/{what['name']}"
    body = {**what, "user": user_of_job(mark.writer)}
    answer = fanout.ask("mark", {writer: body}, WRITE_LIMIT)[writer]
    refused = _refusal(answer)
    if refused is not None:
        # A node that did not answer may have written it.
        left = "" if _is_answered(answer) else f"{place}: {writer} did not say whether it is there"
        return Seen(mark, place, refused, left=left or _left(answer))
    bodies = {}
    for node in mark.readers:
        bodies[node.name] = {**what, "user": user_of_job(node), "seconds": seconds}
    by = {}
    for name, seen in fanout.ask("see_mark", bodies, seconds + WRITE_LIMIT).items():
        by[name] = _seconds(seen)
    removed = fanout.ask("unmark", {writer: {}}, WRITE_LIMIT)[writer]
    left = _left(removed)
    if isinstance(removed, LinkLost):
        left = f"{place}: {writer} was lost before it said that it is removed"
    return Seen(mark, place, None, by, left)


def _is_answered(answer: object) -> bool:
    return not isinstance(answer, LinkLost)


def _refusal(answer: object) -> Absent | None:
    """Return why a request was refused or not answered, None if it was done."""
    if isinstance(answer, LinkLost):
        return Absent(answer.reason, shortened(answer.message))
    if isinstance(answer, Mapping) and "no" in answer:
        return Absent(shortened(str(answer["no"])), shortened(str(answer.get("why", ""))))
    return None


def _seconds(answer: object) -> float | Absent:
    refused = _refusal(answer)
    if refused is not None:
        return refused
    try:
        return require_number(answer["seconds"])  # type: ignore[index]
    except (ValueError, TypeError, KeyError) as error:
        return Absent("garbled", shortened(str(error)))


def _left(answer: object) -> str:
    if not isinstance(answer, Mapping) or not answer.get("left"):
        return ""
    return f"{shortened(str(answer['left']))}: {shortened(str(answer.get('why', '')))}"


# ---------------------------------------------------------------- judgement


def judge(seen: Seen) -> Iterable[Finding]:
    """Yield what the nodes of a mark saw of it."""
    mark = seen.mark
    writer = (mark.writer.name,)
    if seen.left:
        message = f"a mark that was written to {mark.path} may remain"
        cure = shell_line("rm -f {place}", place=seen.place)
        yield _finding("fail", writer, message, seen.left, "removed", cure)
    if seen.refused is not None:
        refused = seen.refused
        message = f"{mark.path} could not be marked: {refused.detail or refused.reason}"
        yield _finding("unknown", writer, message, refused.detail, SEEN, reason=refused.reason)
        return
    by = seen.by or {}
    unseen = [name for name, result in by.items() if _is_unseen(result)]
    read = {name: result for name, result in by.items() if isinstance(result, float)}
    if unseen:
        yield _not_seen(mark, tuple(unseen), read)
    for name, result in by.items():
        if isinstance(result, Absent) and not _is_unseen(result):
            message = f"{mark.path}: whether the mark of {writer[0]} arrives is not known"
            yield _finding("unknown", (name,), message, result.detail, SEEN, reason=result.reason)
    if read:
        slowest = format_duration(max(read.values()))
        message = f"{mark.path}: what {writer[0]} wrote was read within {slowest}"
        yield _finding("pass", tuple(read), message, slowest, SEEN)


def _not_seen(mark: Mark, nodes: tuple[str, ...], read: Mapping[str, float]) -> Finding:
    """Return the failure of nodes that did not read a mark in time; others `read` it."""
    writer = mark.writer.name
    message = (
        f"{mark.path}: what {writer} wrote there was not read within {SECONDS:g} s: it is "
        "another folder, or changes arrive late"
    )
    seen = f"read on {fold(read)}" if read else "read on no other node"
    cure = shell_line(
        "findmnt --target {path}; grep {path} /etc/fstab   # source and options as on {writer}",
        path=mark.path,
        writer=writer,
    )
    return _finding("fail", nodes, message, seen, SEEN, cure)


def _is_unseen(result: float | Absent) -> bool:
    return isinstance(result, Absent) and result.reason in ("missing", "stale")


def _finding(
    verdict: Verdict,
    nodes: tuple[str, ...],
    message: str,
    seen: str,
    wanted: str,
    remedy: Remedy | None = None,
    reason: str | None = None,
) -> Finding:
    cure = remedy or sentence("look at the mount on these nodes, and at its server")
    return Finding(
        SHARED.name,
        verdict,
        "warning",
        nodes,
        message,
        seen,
        wanted,
        cure,
        reason,
    )
