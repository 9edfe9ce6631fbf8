"""Findings that come and go from look to look, and what of it is told. Pure.

A trouble is what one check says about one node. It is told when it appears, gets worse and is gone:

* What has failed is told at once. What followed from another finding a look ago is told when a
  second look in a row has it: answers that were taken before and after a change are no change of
  their own. What is unknown is told by the third look in a row: a busy node or controller measures
  badly for a moment.
* What appears for the third time within WINDOW looks is told once as unsteady. It is told again
  when it stays, or stays away, for STEADY looks.
* What cannot be judged any more is not gone: it stays open until the check passes.
* Nodes that were not looked at keep what they had.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.model import Finding
from clusterprep.survey.watch.changes import Change, Kind

WINDOW = 60  # looks that are remembered
STEADY = 20  # looks in a row after which something unsteady is steady again
LOOKS_UNTIL_TOLD = {"fail": 2, "unknown": 3}  # in a row, of what is not told at once
MOST_RISES = 3  # appearances within the window that make something unsteady
MOST_PER_NODE = 200  # troubles of one node; more are of a node that makes them up

_ALL = (1 << WINDOW) - 1
# Numbers with their unit differ from look to look: «3 times, last 20 s ago», «1.2 ms».
_NUMBER = re.compile(
    r"(?<![\w/:.-])[-+]?\d[\d.,]*(?:\s?(?:[KMGT]?i?B(?:/s)?|[munµ]?s|min|h|d|days?|%|W|°C|MHz)\b)?"
)


class Trouble(Struct, frozen=True):
    """What a check says about one node in one look; `counts` if it follows from nothing else."""

    node: str
    finding: Finding
    counts: bool = True


Key = tuple[str, str, str]  # check, node, and the message without its numbers
Place = tuple[str, str]  # check and node


class _Entry:
    """What is remembered of one trouble."""

    def __init__(self, trouble: Trouble) -> None:
        self.seen = 0  # a bit for each look, the last one lowest
        self.standing = 0  # looks in a row in which it was there and counted
        self.told = False
        self.unsteady = False
        self.since = 0.0
        self.worst = (False, False)
        self.trouble = trouble

    @property
    def is_there(self) -> bool:
        return bool(self.seen & 1)

    @property
    def is_sudden(self) -> bool:
        """Whether the look before did not have it."""
        return self.seen & 3 == 1

    @property
    def rises(self) -> int:
        """Return how often it appeared within the window."""
        return (self.seen & ~(self.seen >> 1)).bit_count()

    def look(self, trouble: Trouble | None) -> None:
        """Note the last look; None if it did not have the trouble."""
        self.seen = (self.seen << 1 | (trouble is not None)) & _ALL
        if trouble is not None:
            self.trouble = trouble
        self.standing = self.standing + 1 if trouble is not None and trouble.counts else 0

    def was_steady(self, there: bool) -> bool:
        """Return whether the last STEADY looks all had it, or all had not."""
        recent = self.seen & ((1 << STEADY) - 1)
        return recent == ((1 << STEADY) - 1 if there else 0)


class Troubles:
    """The troubles of all nodes that are told, or may be told soon."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._known_nodes: set[str] = set()

    @property
    def size(self) -> int:
        """Return how many troubles are remembered."""
        return len(self._entries)

    def look(
        self, now: float, troubles: Iterable[Trouble], looked_at: Collection[str]
    ) -> list[Change]:
        """Take what a look found, and return what is to be told of it.

        `now` is in seconds of a clock that only goes forward. `looked_at` names the nodes that
        answered; nothing is said of others.
        """
        present = {key_of(trouble): trouble for trouble in troubles if trouble.node in looked_at}
        self._add_new(present)
        not_known = {
            key[:2] for key, trouble in present.items() if trouble.finding.verdict == "unknown"
        }
        told: list[tuple[Key, Change]] = []
        for key, entry in list(self._entries.items()):
            if key[1] not in looked_at:
                continue
            entry.look(present.get(key))
            kind = self._kind(entry, is_open=key[:2] in not_known)
            if kind is not None:
                told.append((key, self._told(entry, kind, now)))
            if not entry.seen and not entry.told and not entry.unsteady:
                del self._entries[key]
        self._known_nodes.update(looked_at)
        return _replaced(told)

    def _add_new(self, present: Mapping[Key, Trouble]) -> None:
        counts: dict[str, int] = {}
        for _, node, _ in self._entries:
            counts[node] = counts.get(node, 0) + 1
        for key, trouble in present.items():
            if key in self._entries or counts.get(trouble.node, 0) >= MOST_PER_NODE:
                continue
            counts[trouble.node] = counts.get(trouble.node, 0) + 1
            self._entries[key] = _Entry(trouble)

    def _kind(self, entry: _Entry, *, is_open: bool) -> Kind | None:
        """Return what is to be told of a trouble now, if anything."""
        if entry.unsteady:
            return _kind_of_unsteady(entry)
        if entry.is_there:
            return self._kind_of_present(entry)
        if entry.told and not is_open:
            return "gone"
        return None

    def _kind_of_present(self, entry: _Entry) -> Kind | None:
        if entry.told:
            is_worse = entry.standing > 0 and _gravity(entry.trouble.finding) > entry.worst
            return "worse" if is_worse else None
        if entry.trouble.node not in self._known_nodes:
            return "there" if entry.standing else None
        verdict = entry.trouble.finding.verdict
        has_just_failed = verdict == "fail" and entry.is_sudden
        needed = 1 if has_just_failed else LOOKS_UNTIL_TOLD[verdict]
        if entry.standing < needed:
            return None
        return "unsteady" if entry.rises >= MOST_RISES else "new"

    def _told(self, entry: _Entry, kind: Kind, now: float) -> Change:
        """Note that something is told of a trouble, and return it."""
        finding = entry.trouble.finding
        seconds = None
        if kind == "gone":
            seconds = now - entry.since
            entry.worst = (False, False)
        elif not entry.told:
            entry.since = now
        entry.told = kind not in ("gone", "unsteady")
        entry.unsteady = kind == "unsteady"
        if kind != "gone":
            entry.worst = max(entry.worst, _gravity(finding))
        return Change(
            kind=kind,
            nodes=(entry.trouble.node,),
            check=finding.check,
            verdict=finding.verdict,
            severity=finding.severity,
            message=finding.message,
            seen=finding.seen,
            wanted=finding.wanted,
            remedy=str(finding.remedy),
            seconds=seconds,
        )


def key_of(trouble: Trouble) -> Key:
    """Return what makes a trouble the same in two looks: not the numbers in what is said."""
    finding = trouble.finding
    shape = _NUMBER.sub("#", finding.message)
    return finding.check, trouble.node, f"{finding.verdict} {shape}"


def _gravity(told: Finding | Change) -> tuple[bool, bool]:
    return told.severity == "error", told.verdict == "fail"


def _kind_of_unsteady(entry: _Entry) -> Kind | None:
    if entry.was_steady(there=True):
        return "stays"
    if entry.was_steady(there=False):
        return "gone"
    return None


def _replaced(told: list[tuple[Key, Change]]) -> list[Change]:
    """Return the changes; what is gone while the same check says something new is one change."""
    gone: dict[Place, Change] = {}
    new: set[Place] = set()
    for (check, node, _), change in told:
        place = (check, node)
        if change.kind == "gone" and _gravity(change) >= _gravity(gone.get(place, change)):
            gone[place] = change
        elif change.kind in ("new", "worse"):
            new.add(place)
    changes = []
    for (check, node, _), change in told:
        before = gone.get((check, node))
        if change.kind == "gone" and (check, node) in new:
            continue
        # What was not known is over with what had failed before it.
        if change.kind == "gone" and change.verdict == "unknown" and change is not before:
            continue
        kind = change.kind
        if kind == "new" and before is not None:
            kind = "worse" if _gravity(change) > _gravity(before) else "changed"
        changes.append(replace(change, kind=kind))
    return changes
