"""Counters of earlier looks, so that checks which judge by growth see it within two looks. Pure.

Runs that are recorded are at least ten minutes apart, and what a watch sees is not recorded. It
holds a few earlier looks itself: one for each minute of the last ten, one for each hour of the last
day. Growth is judged since the oldest look of the last ten minutes, as growth within ten minutes:
so what grew within ten seconds is seen at once, and one error is not taken for 360 an hour.

What grew before the first look of a node is judged since the looks of recorded runs, if there are
any of the last day: they stand before its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from clusterprep.facts.counters import EARLIER, Earlier, Sample
from clusterprep.facts.host import UPTIME
from clusterprep.history.samples import COUNTED, FACTS, LEAST, LONGEST, sample_of
from clusterprep.model import NOT_ASKED, Absent, Fleet

STEP = LEAST / 10  # seconds between two looks that are held
HOUR = 3600.0

Kept = Mapping[str, Any]  # facts of one look


class Past:
    """What is held of earlier looks, by node, the oldest look first.

    `recorded` has what recorded runs saw, by node, the newest look first.
    """

    def __init__(self, recorded: Mapping[str, Sequence[Kept]] | None = None) -> None:
        self._looks: dict[str, tuple[Kept, ...]] = {}
        self._recorded = dict(recorded or {})  # of the nodes of which no look is held yet

    @property
    def size(self) -> int:
        """Return how many looks are held."""
        return sum(len(looks) for looks in self._looks.values())

    def with_earlier(self, fleet: Fleet) -> Fleet:
        """Return the fleet with the counters of earlier looks as a fact, and hold this look."""
        added = {}
        for node in fleet.reached:
            facts = fleet.snapshots[node.name].facts
            looks = self._looks.get(node.name, ()) or self._recorded_looks(node.name, facts)
            added[node.name] = {EARLIER.name: earlier_of(facts, looks)}
            self._looks[node.name] = kept_looks(looks, facts)
            if self._looks[node.name]:
                self._recorded.pop(node.name, None)
        return fleet.with_facts(added)

    def _recorded_looks(self, node: str, facts: Mapping[str, Any]) -> tuple[Kept, ...]:
        """Return the looks of recorded runs that can be compared with these facts."""
        looks = []
        for look in reversed(self._recorded.get(node, ())):
            sample = sample_of(facts, look)
            if sample is not None and LEAST <= sample.seconds <= LONGEST:
                looks.append(look)
        looks.sort(key=lambda look: float(look[UPTIME.name]))
        return tuple(looks)


def earlier_of(facts: Mapping[str, Any], looks: Sequence[Kept]) -> Earlier | None:
    """Return the samples that counters are compared with, None if none can be."""
    samples = []
    for look in looks:
        sample = sample_of(facts, look)
        if sample is not None and 0 < sample.seconds <= LONGEST:
            samples.append(sample)
    if not samples:
        return None
    lately = [sample for sample in samples if sample.seconds <= LEAST]
    recent = lately[0] if lately else samples[-1]
    return Earlier(_within_ten_minutes(recent), _within_ten_minutes(samples[0]))


def _within_ten_minutes(sample: Sample) -> Sample:
    return replace(sample, seconds=max(sample.seconds, LEAST))


def kept_looks(looks: Sequence[Kept], facts: Mapping[str, Any]) -> tuple[Kept, ...]:
    """Return the looks that are held from now on, with this one if it is STEP after the last."""
    now = facts.get(UPTIME.name, NOT_ASKED)
    if isinstance(now, Absent):
        return tuple(looks)
    kept: list[Kept] = []
    for look in looks:
        age = now - look[UPTIME.name]
        if not 0 <= age <= LONGEST:
            continue  # of an earlier boot, or too old
        is_old = age > LEAST + STEP
        if is_old and kept and _hour(kept[-1]) == _hour(look):
            continue
        kept.append(look)
    if not kept or now - kept[-1][UPTIME.name] >= STEP:
        kept.append(_counted(facts, kept[-1] if kept else {}))
    return tuple(kept)


def _hour(look: Kept) -> int:
    return int(look[UPTIME.name] // HOUR)


def _counted(facts: Mapping[str, Any], before: Kept) -> Kept:
    """Return what is held of a look. Counters that did not change are those of the look before."""
    counted = {}
    for name in dict.fromkeys((*FACTS, *COUNTED)):
        value = facts.get(name, NOT_ASKED)
        old = before.get(name, NOT_ASKED)
        counted[name] = old if old == value else value
    return counted
