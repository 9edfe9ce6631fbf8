"""What a watch tells: one value for each change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.model import Severity, Verdict

# there: it was there at the first look. new: it appeared. worse: a warning is an error now, or
# what was not known has failed. changed: the same check says something else. unsteady: it comes
# and goes, and is not told again until it stays or stays away. stays: what came and went is there
# all the time. gone: it is not there any more. down, back: a node does not answer, and does again.
# booted: a node has started anew. log: new lines in the kernel's log of a node. unseen: the
# controller itself did not look for a while. Of the job that is followed: moving, stuck, unknown
# (whether it moves), ended; resends: its TCP connections between two nodes send data again; since:
# what the kernel of a node said since the job began.
Kind = Literal[
    "there",
    "new",
    "worse",
    "changed",
    "unsteady",
    "stays",
    "gone",
    "down",
    "back",
    "booted",
    "log",
    "unseen",
    "moving",
    "stuck",
    "unknown",
    "ended",
    "resends",
    "since",
]


class Change(Struct, frozen=True):
    """One change on some nodes.

    `seconds` is how long what is gone was there. `lines` are those of the kernel's log that came
    with it; `left_out` counts further ones.
    """

    kind: Kind
    nodes: tuple[str, ...] = ()
    check: str = ""
    verdict: Verdict | None = None
    severity: Severity | None = None
    message: str = ""
    seen: str = ""
    wanted: str = ""
    remedy: str = ""
    seconds: float | None = None
    lines: tuple[str, ...] = ()
    left_out: int = 0


def folded(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return the changes, those that differ in their nodes alone as one."""
    nodes: dict[Change, list[str]] = {}
    for change in changes:
        nodes.setdefault(replace(change, nodes=()), []).extend(change.nodes)
    return tuple(replace(change, nodes=tuple(names)) for change, names in nodes.items())
