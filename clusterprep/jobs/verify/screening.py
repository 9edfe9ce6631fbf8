"""Blame at scale: which few of up to a thousand nodes, network cards, links or switches make a collective slow. Pure.

Questions go out as batches of probes that may run at once, answers come back as speeds: `screen` is a generator that
is given results and says what to run next, so that it can be played against a simulated cluster as well as a real one.

1. Groups of neighbours, then halves of the slow ones, padded with healthy nodes to the size they had: dozens of tests
   find who is suspected. No more than HEALTHY of them while nothing is proven slow, and than BUDGET at all; what is
   not decided by then stays suspected.
2. A suspect is bad where it is slow with each of two known-good partners, so that a bad link is not taken for a node.
3. Every pair that the rounds have, in rounds of disjoint pairs: a passing group has not used every link.
4. What is slow with most partners is a node; where such nodes are fast among each other, it is the switch above them.
   A node that is slow on some rails only has bad network cards; a pair that is left over is tried in each direction.

Every probe is repeated until the evidence suffices (Wald's sequential test between normal and slow); a sample counts
for CLIP at most, so that one freak does not decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from clusterprep.jobs.verify.meaning import Blame, explained
from clusterprep.jobs.verify.probes import (
    CLEAR,
    SURE,
    Probe,
    ProbeEvidence,
    ProbeSettings,
    Steps,
    calibrated,
    decided,
    partners,
)
from clusterprep.model.pair_schedule import ALL_PAIRS
from clusterprep.runtime.lazy_dataclass import dataclass

PARTS = 12  # groups of the first screening, whatever the number of nodes
HEALTHY, BUDGET = 28, 57  # group tests: of the screening, and with all splitting
FEW = 4  # suspects that are tried in pairs instead of being split further
CAUGHT = 7.0  # bound above which a group counts as slow
MISTAKES = 0.002  # healthy pairs that may be blamed, over all pairs of a run
SAMPLE = 100  # measurements of pairs that it takes to know well what is normal
OFTEN = 2  # times more that all pairs of a few nodes are measured for it


@dataclass(frozen=True)
class Screening:
    """What was found, and what it took. Pairs with a node that is bad are not judged, and not counted as exercised."""

    blames: tuple[Blame, ...]
    suspects: tuple[str, ...]  # that the group tests left
    group_tests: int
    pair_rounds: int
    measurements: int
    exercised: int
    pairs: int

    @property
    def healthy(self) -> bool:
        return not self.blames and self.exercised == self.pairs

    @property
    def coverage(self) -> str:
        return f"{self.exercised} of {self.pairs} pairs exercised"


def screen(
    nodes: Sequence[str],
    rounds: Iterable[Sequence[tuple[str, str]]],
    settings: ProbeSettings | None = None,
) -> Steps[Screening]:
    """Find who is slow. `nodes` are best in the order of racks; `rounds` of pairs come from `pairing`."""
    evidence = ProbeEvidence(settings or ProbeSettings())
    suspects, good = yield from _suspected(nodes, evidence)
    sure = -math.log(MISTAKES / max(1, _pairs(len(nodes))))
    bad = yield from _confirmed(nodes, suspects, good, evidence, sure)
    clear = (
        -SURE if len(nodes) <= ALL_PAIRS else CLEAR
    )  # of a few pairs each can be looked at longer
    pairs = yield from _swept(rounds, bad, evidence, clear, sure)
    blames = yield from explained(nodes, bad, pairs, evidence)
    exercised = sum(verdict is not None for verdict in pairs.values())
    return Screening(
        blames,
        suspects,
        evidence.groups,
        evidence.rounds,
        evidence.measured,
        exercised,
        _pairs(len(nodes)),
    )


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


# ---------------------------------------------------------------- groups


def _suspected(
    nodes: Sequence[str], evidence: ProbeEvidence
) -> Steps[tuple[tuple[str, ...], list[str]]]:
    """Suspects, and who is known to be good; of a handful of nodes all are suspected, as groups would be pairs."""
    parts = _parts(nodes, min(PARTS, len(nodes) // 2))
    if len(parts) < 4:
        return (), []
    probes = [Probe("group", part) for part in parts]
    found = yield from decided(evidence, probes, CLEAR, CAUGHT, HEALTHY)
    healthy = [probe.nodes for probe in probes if found[probe] is False]
    good = [node for part in healthy for node in part]
    slow = [list(probe.nodes) for probe in probes if found[probe]]
    suspects = [node for probe in probes if found[probe] is None for node in probe.nodes]
    if len(healthy) > 1:
        across = Probe(
            "group", tuple(part[len(part) // 2] for part in healthy)
        )  # every boundary is crossed by now
        told = yield from decided(evidence, [across], CLEAR, CAUGHT, BUDGET if slow else HEALTHY)
        suspects += across.nodes if told[across] is not False else ()
    suspects += yield from _split(slow, good, len(parts[0]), evidence)
    found_out = set(suspects)
    return tuple(node for node in nodes if node in found_out), [
        node for node in good if node not in found_out
    ]


def _parts(nodes: Sequence[str], count: int) -> list[tuple[str, ...]]:
    """Neighbours in groups of as equal a size as can be."""
    edges = [len(nodes) * part // count for part in range(count + 1)] if count else []
    return [tuple(nodes[start:end]) for start, end in itertools.pairwise(edges)]


def _split(
    slow: list[list[str]], good: list[str], size: int, evidence: ProbeEvidence
) -> Steps[list[str]]:
    """Halve slow groups until FEW are left; what was not tested after all comes last, for there may be more faults."""
    suspects: list[str] = []
    aside: list[list[str]] = []
    while slow or aside:
        if not slow:
            tests, aside = aside, []
        else:
            suspects += [node for group in slow if len(group) <= FEW for node in group]
            large = [group for group in slow if len(group) > FEW]
            tests = [group[: len(group) // 2] for group in large]
            others = [group[len(group) // 2 :] for group in large]
        probes = _padded(tests, good, size)
        found = yield from decided(evidence, probes, CLEAR, CAUGHT, BUDGET)
        verdicts = [found[probe] for probe in probes]
        if not slow:
            slow = [test for test, verdict in zip(tests, verdicts, strict=True) if verdict]
            suspects += [
                n
                for test, verdict in zip(tests, verdicts, strict=True)
                if verdict is None
                for n in test
            ]
            continue
        slow = []
        for test, other, verdict in zip(tests, others, verdicts, strict=True):
            if verdict is None:
                suspects += [*test, *other]
            elif verdict:
                slow.append(test)
                aside.append(other)
            else:
                slow.append(other)
                good += test
    return suspects


def _padded(tests: Sequence[Sequence[str]], good: Sequence[str], size: int) -> list[Probe]:
    """Groups with healthy nodes added up to a size, for small groups are faster; others for each, while there are."""
    at, probes = 0, []
    for test in tests:
        want = min(max(0, size - len(test)), len(good))
        pads = [good[(at + step) % len(good)] for step in range(want)]
        at += want
        probes.append(Probe("group", (*test, *pads)))
    return probes


# ---------------------------------------------------------------- pairs


def _confirmed(
    nodes: Sequence[str],
    suspects: Sequence[str],
    good: Sequence[str],
    evidence: ProbeEvidence,
    sure: float,
) -> Steps[frozenset[str]]:
    """Suspects that are slow with two known-good partners, a neighbour and one from afar."""
    left = list(suspects)
    if not left or len(good) < 2:
        return frozenset()
    yield from calibrated("pair", good, evidence)
    place = {node: at for at, node in enumerate(nodes)}
    for far in (False, True):
        mine = {node: Probe("pair", pair) for node, pair in partners(left, good, place, far)}
        found = yield from decided(evidence, list(mine.values()), CLEAR, sure)
        left = [node for node in left if found[mine[node]]]
    evidence.forget("pair")
    return frozenset(left)


# ---------------------------------------------------------------- pairs


def _swept(
    rounds: Iterable[Sequence[tuple[str, str]]],
    bad: frozenset[str],
    evidence: ProbeEvidence,
    clear: float,
    sure: float,
) -> Steps[dict[Probe, bool | None]]:
    """Every pair of the rounds, but for those with a node that is known to be bad."""
    batches = [
        tuple(Probe("pair", pair) for pair in pairs if bad.isdisjoint(pair)) for pairs in rounds
    ]
    known: dict[Probe, bool | None] = dict.fromkeys(probe for batch in batches for probe in batch)
    for _ in range(1 + min(OFTEN, SAMPLE // max(1, len(known)))):
        for batch in filter(None, batches):
            evidence.add(batch, (yield batch))
    evidence.freeze("pair")  # from now on the slow ones are measured more often than others
    known = {probe: evidence.slow(probe, clear, sure) for probe in known}
    doubtful = [probe for probe, verdict in known.items() if verdict is None]
    known.update((yield from decided(evidence, doubtful, clear, sure)))
    return known
