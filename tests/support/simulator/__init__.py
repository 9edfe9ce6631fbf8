"""A simulated cluster with faults, for blame at scale.

    python -m tests.support.simulator --nodes 232 --faults 2 --runs 200

Everything is as fast as its slowest part. A fault takes 30 % of what passes it, every measurement
has noise with a standard deviation of 10 % of the normal speed, and both can be set.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from clusterprep.jobs.verify.fault_location import LocatedFault
from clusterprep.jobs.verify.probes import Probe, ProbeSettings, Steps
from clusterprep.jobs.verify.screening import Screening, screen
from clusterprep.model.pair_schedule import Rounds, circle_rounds, rounds

KINDS = ("node", "rail", "pair", "boundary")
BASE = {
    "group": 320.0,
    "pair": 410.0,
    "way": 47.0,
    "rail": 51.0,
}  # each has a normal speed of its own, to be learnt


def tournament(names: Sequence[str], seed: str) -> Rounds:
    """Return every pair of nodes once, also where the product would only take a share."""
    ring = list(names)
    random.Random(seed).shuffle(ring)
    return circle_rounds(ring)


@dataclass(frozen=True)
class Cluster:
    """Nodes in racks behind one switch each; a boundary is the uplink of a rack."""

    nodes: tuple[str, ...]
    racks: tuple[tuple[str, ...], ...]
    rails: int = 4

    @staticmethod
    def of(nodes: int, rack: int = 16, rails: int = 4) -> Cluster:
        names = tuple(f"n{number:04d}" for number in range(1, nodes + 1))
        size = min(rack, max(2, nodes // 2))
        return Cluster(names, tuple(names[at : at + size] for at in range(0, nodes, size)), rails)


@dataclass
class World:
    """A cluster with its faults, which answers probes and checks that batches do not overlap."""

    cluster: Cluster
    faults: tuple[LocatedFault, ...]
    draw: random.Random
    slow: float = 0.7
    noise: float = 0.1
    pairs_used: set[frozenset[str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._nodes = {fault.nodes[0] for fault in self.faults if fault.kind == "node"}
        self._rails = {
            (fault.nodes[0], fault.rail) for fault in self.faults if fault.kind == "rail"
        }
        self._any = self._nodes | {node for node, _ in self._rails}
        self._ways = {way for fault in self.faults for way in fault.ways}
        self._racks = [frozenset(fault.nodes) for fault in self.faults if fault.kind == "boundary"]

    def answer(self, batch: Sequence[Probe]) -> list[float]:
        members = [node for probe in batch for node in probe.nodes]
        assert len(members) == len(set(members)), "a batch measures no node twice"
        return [self._speed(probe) for probe in batch]

    def _speed(self, probe: Probe) -> float:
        if probe.kind == "pair":
            self.pairs_used.add(frozenset(probe.nodes))
        share = self.slow if self._is_slow(probe) else 1.0
        return BASE[probe.kind] * max(0.01, self.draw.gauss(share, self.noise))

    def _is_slow(self, probe: Probe) -> bool:
        nodes = probe.nodes
        here = self._any if probe.kind != "rail" else self._nodes
        if not here.isdisjoint(nodes):
            return True
        if probe.kind == "rail" and any((node, probe.rail) in self._rails for node in nodes):
            return True
        if self._ways:
            edges = (
                [nodes]
                if probe.kind == "way"
                else list(zip(nodes, (*nodes[1:], nodes[0]), strict=True))
            )
            if not self._ways.isdisjoint(edges):
                return True
        return any(0 < len(rack.intersection(nodes)) < len(nodes) for rack in self._racks)


def planted(
    cluster: Cluster, count: int, draw: random.Random, kinds: Sequence[str] = KINDS
) -> tuple[LocatedFault, ...]:
    """Draw faults of which none hides another.

    No node has two, and no bad pair has an end below a bad switch.
    """
    faults: list[LocatedFault] = []
    free = list(cluster.nodes)
    racks = list(cluster.racks)
    for _ in range(count):
        kind = draw.choice(kinds)
        if len(free) < 2:
            break  # a switch took half of a small cluster
        whole = [
            rack
            for rack in racks
            if len(rack) > 1 and len(rack) < len(cluster.nodes) and set(rack) <= set(free)
        ]
        if kind == "boundary" and (not whole or any(fault.kind == "boundary" for fault in faults)):
            kind = "node"
        fault = _fault(kind, cluster, free, whole, draw)
        free = [node for node in free if node not in fault.nodes]
        faults.append(fault)
    return tuple(faults)


def _fault(
    kind: str, cluster: Cluster, free: list[str], racks: list[tuple[str, ...]], draw: random.Random
) -> LocatedFault:
    if kind == "boundary":
        return LocatedFault("boundary", draw.choice(racks))
    if kind == "rail":
        return LocatedFault("rail", (draw.choice(free),), draw.randrange(cluster.rails))
    if kind == "pair":
        way = tuple(draw.sample(free, 2))
        return LocatedFault("pair", tuple(sorted(way)), ways=((way[0], way[1]),))
    return LocatedFault("node", (draw.choice(free),))


def answered(
    steps: Steps[Screening], answer: Callable[[tuple[Probe, ...]], Sequence[float | None]]
) -> Screening:
    """Play a screening to its end."""
    batch = next(steps)
    while True:
        try:
            batch = steps.send(answer(batch))
        except StopIteration as stop:
            found: Screening = stop.value
            return found


@dataclass(frozen=True)
class Run:
    """One simulated cluster and what was made of it."""

    faults: tuple[LocatedFault, ...]
    found: Screening
    right: bool
    pairs_right: bool  # every pair that was planted is blamed as this pair
    covered: bool  # every pair that is called exercised was


def play(
    nodes: int,
    faults: int,
    seed: str,
    kinds: Sequence[str] = KINDS,
    *,
    share: bool = False,
    **more: float,
) -> Run:
    """Draw a cluster with faults from a seed, and let `screen` find them.

    `share`: not all pairs of a large one.
    """
    draw = random.Random(seed)
    cluster = Cluster.of(nodes)
    world = World(cluster, planted(cluster, faults, draw, kinds), draw, **more)
    schedule = (rounds if share else tournament)(cluster.nodes, seed)
    settings = ProbeSettings(world.slow, world.noise, cluster.rails)
    found = answered(screen(cluster.nodes, schedule, settings), world.answer)
    return Run(
        world.faults,
        found,
        same(cluster, world.faults, found.blames),
        {_known(cluster, f) for f in world.faults if f.kind == "pair"}
        <= {_known(cluster, b) for b in found.blames},
        found.exercised <= len(world.pairs_used),
    )


def same(cluster: Cluster, faults: Sequence[LocatedFault], blames: Sequence[LocatedFault]) -> bool:
    """Whether exactly the planted faults are blamed, with rail and direction."""
    single = {fault.nodes[0] for fault in faults if fault.kind in {"node", "rail"}}
    return {_known(cluster, fault, single) for fault in faults} == {
        _known(cluster, b, single) for b in blames
    }


def _known(cluster: Cluster, blame: LocatedFault, single: Collection[str] = ()) -> object:
    """A boundary is the same from both sides, and no measurement tells on which a bad node is."""
    if blame.kind == "boundary":
        inside = frozenset(blame.nodes)
        return frozenset(
            (inside.difference(single), frozenset(cluster.nodes) - inside.union(single))
        )
    return blame.kind, frozenset(blame.nodes), blame.rail, frozenset(blame.ways)
