"""Probes of a cluster and what their answers prove: Wald's sequential test between normal and slow. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from clusterprep.jobs.verify.peers import usual
from clusterprep.model.pair_schedule import packed

ENOUGH = 300  # samples of a kind that say well enough what is normal
CONTROLS = 12  # healthy pairs that tell what is normal where few others are measured
CLIP = 6.0  # of the logarithm of the likelihood ratio; a healthy sample counts -4.5 on average at 10 % noise
CLEAR = -3.0  # bound of that logarithm below which a probe counts as normal
SURE = 8.0  # bound either way, where a mistake would change what is blamed
REPEATS = 12  # of one probe at most

Kind = Literal["group", "pair", "way", "rail"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Probe:
    """Something to measure: an all-reduce of a group (in ring order) or pair, one direction, or a pair on one rail."""

    kind: Kind
    nodes: tuple[str, ...]
    rail: int | None = None


Steps = Generator[tuple[Probe, ...], Sequence[float | None], T]


@dataclass(frozen=True)
class ProbeSettings:
    """What slow means, as a share of normal, and the relative standard deviation of one measurement."""

    slow: float = 0.7
    noise: float = 0.1
    rails: int = 0  # that a pair can be measured on one by one
    clip: float = CLIP  # what one sample counts for at most; less where freaks are frequent


@dataclass
class ProbeEvidence:
    """What was measured so far: per probe the sum of the logarithms of likelihood ratios, positive for slow."""

    settings: ProbeSettings
    sums: dict[Probe, float] = field(default_factory=dict)
    counts: Counter[Probe] = field(default_factory=Counter)
    normal: dict[Kind, float] = field(default_factory=dict)
    fixed: dict[Kind, float] = field(default_factory=dict)
    seen: dict[Kind, list[tuple[Probe, float]]] = field(default_factory=dict)
    groups: int = 0
    rounds: int = 0
    measured: int = 0

    def add(self, batch: Sequence[Probe], results: Sequence[float | None]) -> None:
        kinds = {probe.kind for probe in batch}
        self.groups += sum(probe.kind == "group" for probe in batch)
        self.rounds += bool(kinds - {"group"})
        self.measured += len(batch)
        fresh = [
            (probe, value) for probe, value in zip(batch, results, strict=True) if value is not None
        ]
        for kind in kinds:
            self._learn(kind, [entry for entry in fresh if entry[0].kind == kind])
        self.counts.update(batch)

    def settle(self, kind: Kind) -> None:
        """What was measured so far is normal: it came from what is known to be good. Its sums are not kept."""
        if values := [value for _, value in self.seen.get(kind, [])]:
            self.forget(kind)
            self.fixed[kind] = statistics.median(values)

    def freeze(self, kind: Kind) -> None:
        if kind in self.normal:
            self.fixed[kind] = self.normal[kind]

    def forget(self, kind: Kind) -> None:
        """What was measured for a purpose says nothing about what is normal for all."""
        self.fixed.pop(kind, None)
        self.seen.pop(kind, None)
        for probe in [probe for probe in self.sums if probe.kind == kind]:
            del self.sums[probe], self.counts[probe]

    def doubt(self, probes: Iterable[Probe]) -> None:
        """What was measured for these does not count any more; what is normal stays."""
        for probe in probes:
            self.sums.pop(probe, None)
            self.counts.pop(probe, None)

    def _learn(self, kind: Kind, fresh: list[tuple[Probe, float]]) -> None:
        """Add to the sums; while samples are few, what is normal is worked out anew and with it all sums."""
        seen = self.seen.setdefault(kind, [])
        if kind in self.fixed:
            self.normal[kind] = self.fixed[kind]
        elif len(seen) < ENOUGH:
            seen += fresh
            self.normal[kind] = usual(
                [value for _, value in seen], self.settings.slow, self.settings.noise
            )
            self.sums.update(dict.fromkeys((probe for probe, _ in seen), 0.0))
            fresh = seen
        normal, slow = self.normal[kind] or 1.0, self.settings.slow
        steep, middle = (1.0 - slow) / self.settings.noise**2, (1.0 + slow) / 2.0
        for probe, value in fresh:
            ratio = steep * (middle - value / normal)
            self.sums[probe] = self.sums.get(probe, 0.0) + max(
                -self.settings.clip, min(self.settings.clip, ratio)
            )

    def slow(self, probe: Probe, low: float, high: float) -> bool | None:
        """None: not known."""
        score = self.sums.get(probe, 0.0)
        return True if score >= high else False if score <= low else None


def decided(
    evidence: ProbeEvidence,
    probes: Sequence[Probe],
    low: float,
    high: float,
    budget: int | None = None,
) -> Steps[dict[Probe, bool | None]]:
    """Each probe repeated until its evidence leaves the bounds; None where it does not, or the budget is spent."""
    limits = {probe: evidence.counts[probe] + REPEATS for probe in probes}
    left: Sequence[Probe] = probes
    while left:
        for batch in packed(left, lambda probe: probe.nodes):
            if budget is not None and evidence.groups + len(batch) > budget:
                return {probe: evidence.slow(probe, low, high) for probe in probes}
            evidence.add(batch, (yield batch))
        left = [
            p
            for p in left
            if evidence.slow(p, low, high) is None and evidence.counts[p] < limits[p]
        ]
    return {probe: evidence.slow(probe, low, high) for probe in probes}


def partners(
    suspects: Sequence[str], good: Sequence[str], place: Mapping[str, int], far: bool
) -> Iterable[tuple[str, tuple[str, str]]]:
    """A good node for each suspect, the nearest or farthest in order; another one for each while there are."""
    free = list(good)
    for node in suspects:
        free = free or list(good)
        best = (max if far else min)(free, key=lambda other: abs(place[other] - place[node]))
        free.remove(best)
        yield node, (node, best)


def calibrated(kind: Kind, good: Sequence[str], evidence: ProbeEvidence) -> Steps[None]:
    """Learn what is normal for a kind from pairs of good nodes; where suspects are many, nothing else would tell."""
    rail = 0 if kind == "rail" else None
    half = len(good) // 2
    pairs = [
        Probe(kind, (good[2 * at], good[2 * at + 1]), rail) for at in range(half)
    ]  # neighbours share a switch
    pairs = pairs[:: half // CONTROLS or 1]
    evidence.forget(kind)
    if len(pairs) > 1:
        for _ in range(2 * CONTROLS // len(pairs) + 1):
            evidence.add(pairs, (yield tuple(pairs)))
        evidence.settle(kind)
