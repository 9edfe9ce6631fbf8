"""Probes of a cluster and what their speeds prove, by Wald's sequential test. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Container, Generator, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from msgspec import Struct, field

from clusterprep.jobs.verify.peers import usual_level
from clusterprep.model.pair_schedule import pack_rounds

ENOUGH = 300  # samples of a kind that say well enough what is normal
CONTROLS = 12  # healthy pairs that tell what is normal where few others are measured
# Bound of the logarithm of one likelihood ratio; a healthy sample counts -4.5 on average at 10 %
# noise.
CLIP = 6.0
CLEAR = -3.0  # bound of that logarithm below which a probe counts as normal
SURE = 8.0  # bound either way, where a mistake would change what is blamed
REPEATS = 12  # of one probe at most

Kind = Literal["group", "pair", "way", "rail"]
T = TypeVar("T")


class Probe(Struct, frozen=True):
    """Something to measure.

    Kinds: an all-reduce of a group (in ring order) or of a pair, one direction of a pair ("way"),
    or a pair on one rail.
    """

    kind: Kind
    nodes: tuple[str, ...]
    rail: int | None = None


Sample = tuple[Probe, float]
Steps = Generator[tuple[Probe, ...], Sequence[float | None], T]


class ProbeSettings(Struct, frozen=True):
    """What counts as slow, as a share of normal, and the relative noise of one measurement."""

    slow: float = 0.7
    noise: float = 0.1
    rails: int = 0  # that a pair can be measured on one by one
    clip: float = CLIP  # what one sample counts for at most; less where freaks are frequent


class ProbeEvidence(Struct):
    """What was measured so far.

    `sums` has the sum of the logarithms of likelihood ratios per probe, positive for slow. `normal`
    is the normal speed per kind as it is estimated, `fixed` as it was settled.
    """

    settings: ProbeSettings
    sums: dict[Probe, float] = field(default_factory=dict)
    counts: Counter[Probe] = field(default_factory=Counter)
    normal: dict[Kind, float] = field(default_factory=dict)
    fixed: dict[Kind, float] = field(default_factory=dict)
    samples: dict[Kind, list[Sample]] = field(default_factory=dict)
    groups: int = 0
    rounds: int = 0
    measured: int = 0

    def add(self, batch: Sequence[Probe], results: Sequence[float | None]) -> None:
        """Count what the probes of a batch measured; None is a probe without a result."""
        fresh: dict[Kind, list[Sample]] = {}
        for probe, value in zip(batch, results, strict=True):
            samples = fresh.setdefault(probe.kind, [])
            if value is not None:
                samples.append((probe, value))
            if probe.kind == "group":
                self.groups += 1
        if any(kind != "group" for kind in fresh):
            self.rounds += 1
        self.measured += len(batch)
        for kind, samples in fresh.items():
            self._learn(kind, samples)
        self.counts.update(batch)

    def settle(self, kind: Kind) -> None:
        """Take what was measured so far as normal: it came from good nodes.

        Its sums are not kept.
        """
        values = [value for _, value in self.samples.get(kind, [])]
        if values:
            self.forget(kind)
            self.fixed[kind] = statistics.median(values)

    def freeze(self, kind: Kind) -> None:
        if kind in self.normal:
            self.fixed[kind] = self.normal[kind]

    def forget(self, kind: Kind) -> None:
        """Drop what was measured for one purpose; it says nothing about what is normal for all."""
        self.fixed.pop(kind, None)
        self.samples.pop(kind, None)
        for probe in list(self.sums):
            if probe.kind == kind:
                self.doubt([probe])

    def doubt(self, probes: Iterable[Probe]) -> None:
        """Drop what was measured for these probes; the normal speed stays."""
        for probe in probes:
            self.sums.pop(probe, None)
            self.counts.pop(probe, None)

    def _learn(self, kind: Kind, fresh: list[Sample]) -> None:
        """Add to the sums; while samples are few, compute the normal speed and all sums anew."""
        samples = self.samples.setdefault(kind, [])
        if kind in self.fixed:
            self.normal[kind] = self.fixed[kind]
        elif len(samples) < ENOUGH:
            samples += fresh
            fresh = samples
            values: list[float] = []
            for probe, value in samples:
                values.append(value)
                self.sums[probe] = 0.0
            settings = self.settings
            self.normal[kind] = usual_level(values, settings.slow, settings.noise)
        normal = self.normal[kind] or 1.0
        self._add_to_sums(fresh, normal)

    def _add_to_sums(self, samples: Iterable[Sample], normal: float) -> None:
        """Add to each probe's sum how much likelier a sample is if it is slow, as a logarithm."""
        slow = self.settings.slow
        noise = self.settings.noise
        clip = self.settings.clip
        # The logarithm of the ratio of two normal densities, around `slow` and 1, is linear.
        slope = (1.0 - slow) / noise**2
        middle = (1.0 + slow) / 2.0
        for probe, value in samples:
            ratio = slope * (middle - value / normal)
            clipped = max(-clip, min(clip, ratio))
            before = self.sums.get(probe, 0.0)
            self.sums[probe] = before + clipped

    def slow(self, probe: Probe, low: float, high: float) -> bool | None:
        """Return True if slow, False if normal, None if undecided."""
        score = self.sums.get(probe, 0.0)
        if score >= high:
            return True
        if score <= low:
            return False
        return None

    def verdicts(
        self, probes: Iterable[Probe], low: float, high: float
    ) -> dict[Probe, bool | None]:
        """Return what is known of each probe, as `slow` tells it."""
        return {probe: self.slow(probe, low, high) for probe in probes}


def run_probes(
    evidence: ProbeEvidence,
    probes: Sequence[Probe],
    low: float,
    high: float,
    budget: int | None = None,
) -> Steps[dict[Probe, bool | None]]:
    """Repeat each probe until its evidence leaves the bounds.

    Returns None for a probe that stays undecided, as it does if the `budget` of group tests is
    spent.
    """
    limits: dict[Probe, int] = {}
    for probe in probes:
        limits[probe] = evidence.counts[probe] + REPEATS
    remaining = probes
    while remaining:
        for batch in pack_rounds(remaining, lambda probe: probe.nodes):
            needed = evidence.groups + len(batch)
            if budget is not None and needed > budget:
                return evidence.verdicts(probes, low, high)
            results = yield batch
            evidence.add(batch, results)
        undecided: list[Probe] = []
        for probe in remaining:
            if evidence.counts[probe] >= limits[probe]:
                continue
            if evidence.slow(probe, low, high) is None:
                undecided.append(probe)
        remaining = undecided
    return evidence.verdicts(probes, low, high)


def partners(
    suspects: Sequence[str], good: Sequence[str], place: Mapping[str, int], far: bool
) -> Iterable[tuple[str, tuple[str, str]]]:
    """Yield each suspect with a pair of it and a good node, the nearest or farthest in order.

    Each suspect gets another good node while there are enough.
    """
    free = list(good)
    choose = max if far else min
    for suspect in suspects:
        if not free:
            free = list(good)
        distances: dict[str, int] = {}
        for other in free:
            distances[other] = abs(place[other] - place[suspect])
        best = choose(free, key=distances.__getitem__)
        free.remove(best)
        yield suspect, (suspect, best)


def without(names: Iterable[str], excluded: Container[str]) -> list[str]:
    """Return the names that are not excluded, in their order."""
    return [name for name in names if name not in excluded]


def positions(names: Iterable[str]) -> dict[str, int]:
    """Return the place of each name, as `partners` takes it."""
    return {name: place for place, name in enumerate(names)}


def calibrate(kind: Kind, good: Sequence[str], evidence: ProbeEvidence) -> Steps[None]:
    """Learn the normal speed of a kind from pairs of good nodes, as most others may be slow."""
    rail = 0 if kind == "rail" else None
    pairs: list[Probe] = []
    for first, second in zip(good[::2], good[1::2], strict=False):  # neighbours share a switch
        pairs.append(Probe(kind, (first, second), rail))
    step = len(pairs) // CONTROLS or 1
    pairs = pairs[::step]
    evidence.forget(kind)
    if len(pairs) < 2:
        return
    repeats = 2 * CONTROLS // len(pairs) + 1
    for _ in range(repeats):
        results = yield tuple(pairs)
        evidence.add(pairs, results)
    evidence.settle(kind)
