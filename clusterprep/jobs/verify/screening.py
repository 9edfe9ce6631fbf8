"""Find the few nodes, network cards, links or switches that make a collective slow. Pure.

`screen` is a generator: it yields batches of probes that may run at once and is sent their speeds.
So it can be played against a simulated cluster as well as a real one.

1. Groups of neighbours are tested, then halves of the slow ones, padded with healthy nodes to the
   size they had: dozens of tests find who is suspected. No more than HEALTHY tests are run while no
   group is proven slow, and no more than BUDGET at all; a group that is undecided by then stays
   suspected.
2. A suspect is bad if it is slow with each of two known-good partners, so that a bad link is not
   taken for a node.
3. Every pair that the rounds have is measured, in rounds of disjoint pairs: a passing group has not
   used every link.
4. What is slow with most partners is a node; if such nodes are fast among each other, it is the
   switch above them. A node that is slow on some rails only has bad network cards; a remaining pair
   is tried in each direction.

Every probe is repeated until the evidence suffices (Wald's sequential test between normal and
slow); a sample counts for CLIP at most, so that one freak value does not decide.

`python -m tests.support.simulator` runs it on simulated clusters with faults, and prints how often
it is right and what it costs. `group_measurement` runs it on real nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterprep.jobs.verify.fault_location import LocatedFault, locate_faults
from clusterprep.jobs.verify.probes import (
    CLEAR,
    SURE,
    Probe,
    ProbeEvidence,
    ProbeSettings,
    Steps,
    calibrate,
    partners,
    positions,
    run_probes,
    without,
)
from clusterprep.model.pair_schedule import ALL_PAIRS

PARTS = 12  # groups of the first screening, whatever the number of nodes
FEWEST_PARTS = 4  # fewer groups would be as small as pairs
HEALTHY, BUDGET = 28, 57  # group tests: of the screening, and with all splitting
FEW = 4  # suspects that are tried in pairs instead of being split further
CAUGHT = 7.0  # bound above which a group counts as slow
MISTAKES = 0.002  # healthy pairs that may be blamed, over all pairs of a run
SAMPLE = 100  # measurements of pairs that it takes to know well what is normal
OFTEN = 2  # times more that all pairs of a few nodes are measured for it

Suspects = tuple[tuple[str, ...], list[str]]  # suspects, and nodes that are known to be good


class Screening(Struct, frozen=True):
    """What was found, and what it took.

    Pairs with a bad node are not judged, and not counted as exercised.
    """

    blames: tuple[LocatedFault, ...]
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
    """Find what is slow.

    `nodes` are best in the order of racks; `rounds` come from `model.pair_schedule`.
    """
    evidence = ProbeEvidence(settings or ProbeSettings())
    suspects, good = yield from _suspects(nodes, evidence)
    count = len(nodes)
    pair_count = count * (count - 1) // 2
    sure = -math.log(MISTAKES / max(1, pair_count))
    bad = yield from _confirmed(
        nodes,
        suspects,
        good,
        evidence,
        sure,
    )
    clear = CLEAR
    if count <= ALL_PAIRS:
        clear = -SURE  # of a few pairs each one can be measured longer
    pairs = yield from _measured_pairs(
        rounds,
        bad,
        evidence,
        clear,
        sure,
    )
    blames = yield from locate_faults(nodes, bad, pairs, evidence)
    undecided = _undecided(pairs)
    exercised = len(pairs) - len(undecided)
    return Screening(
        blames=blames,
        suspects=suspects,
        group_tests=evidence.groups,
        pair_rounds=evidence.rounds,
        measurements=evidence.measured,
        exercised=exercised,
        pairs=pair_count,
    )


def _undecided(verdicts: Mapping[Probe, bool | None]) -> list[Probe]:
    return [probe for probe, is_slow in verdicts.items() if is_slow is None]


# ---------------------------------------------------------------- groups


def _suspects(nodes: Sequence[str], evidence: ProbeEvidence) -> Steps[Suspects]:
    """Test groups of neighbours. Returns suspects and good nodes, both empty for few nodes."""
    parts = _parts(nodes, min(PARTS, len(nodes) // 2))
    if len(parts) < FEWEST_PARTS:
        return (), []
    suspects: set[str] = set()
    good: list[str] = []
    slow: list[list[str]] = []
    healthy: list[tuple[str, ...]] = []
    probes = [Probe("group", part) for part in parts]
    verdicts = yield from run_probes(
        evidence,
        probes,
        CLEAR,
        CAUGHT,
        HEALTHY,
    )
    for probe, is_slow in verdicts.items():
        if is_slow is None:
            suspects.update(probe.nodes)
        elif is_slow:
            slow.append(list(probe.nodes))
        else:
            healthy.append(probe.nodes)
            good += probe.nodes
    if len(healthy) > 1:
        budget = BUDGET if slow else HEALTHY
        across = yield from _suspects_across(healthy, evidence, budget)
        suspects.update(across)
    size = len(parts[0])
    found = yield from _split(slow, good, size, evidence)
    suspects.update(found)
    ordered = [node for node in nodes if node in suspects]
    return tuple(ordered), without(good, suspects)


def _suspects_across(
    healthy: Sequence[tuple[str, ...]], evidence: ProbeEvidence, budget: int
) -> Steps[tuple[str, ...]]:
    """Test one node of each healthy group: with this test every boundary is crossed."""
    middles = tuple(part[len(part) // 2] for part in healthy)
    probe = Probe("group", middles)
    verdicts = yield from run_probes(
        evidence,
        [probe],
        CLEAR,
        CAUGHT,
        budget,
    )
    if verdicts[probe] is False:
        return ()
    return middles


def _parts(nodes: Sequence[str], count: int) -> list[tuple[str, ...]]:
    """Return neighbours in `count` groups of sizes as equal as possible."""
    parts: list[tuple[str, ...]] = []
    start = 0
    for number in range(1, count + 1):
        end = len(nodes) * number // count
        parts.append(tuple(nodes[start:end]))
        start = end
    return parts


def _split(
    slow: list[list[str]], good: list[str], size: int, evidence: ProbeEvidence
) -> Steps[list[str]]:
    """Halve slow groups until FEW nodes are left in each; return the suspects and extend `good`.

    Of a group whose first half is slow, the second half is set aside and tested last, as there may
    be more faults.
    """
    suspects: list[str] = []
    aside: list[list[str]] = []
    while slow or aside:
        if not slow:
            slow = yield from _test_again(
                aside,
                suspects,
                good,
                size,
                evidence,
            )
            aside = []
            continue
        large: list[list[str]] = []
        for group in slow:
            if len(group) > FEW:
                large.append(group)
            else:
                suspects += group
        firsts = [group[: len(group) // 2] for group in large]
        verdicts = yield from _test_groups(firsts, good, size, evidence)
        slow = []
        for group, first, is_slow in zip(large, firsts, verdicts, strict=True):
            second = group[len(first) :]
            if is_slow is None:
                suspects += group
            elif is_slow:
                slow.append(first)
                aside.append(second)
            else:
                slow.append(second)
                good += first
    return suspects


def _test_again(
    groups: Sequence[list[str]],
    suspects: list[str],
    good: Sequence[str],
    size: int,
    evidence: ProbeEvidence,
) -> Steps[list[list[str]]]:
    """Test groups that were set aside. Returns the slow ones; undecided ones go to `suspects`."""
    verdicts = yield from _test_groups(groups, good, size, evidence)
    slow: list[list[str]] = []
    for group, is_slow in zip(groups, verdicts, strict=True):
        if is_slow is None:
            suspects += group
        elif is_slow:
            slow.append(group)
    return slow


def _test_groups(
    groups: Sequence[Sequence[str]], good: Sequence[str], size: int, evidence: ProbeEvidence
) -> Steps[list[bool | None]]:
    probes = _padded(groups, good, size)
    verdicts = yield from run_probes(
        evidence,
        probes,
        CLEAR,
        CAUGHT,
        BUDGET,
    )
    return [verdicts[probe] for probe in probes]


def _padded(groups: Sequence[Sequence[str]], good: Sequence[str], size: int) -> list[Probe]:
    """Return probes of groups that are filled with healthy nodes, as small groups are faster.

    Each group gets other healthy nodes while there are enough.
    """
    healthy = itertools.cycle(good)
    probes: list[Probe] = []
    for group in groups:
        lacking = max(0, size - len(group))
        count = min(lacking, len(good))
        padding = itertools.islice(healthy, count)
        probes.append(Probe("group", (*group, *padding)))
    return probes


# ---------------------------------------------------------------- pairs


def _confirmed(
    nodes: Sequence[str],
    suspects: Sequence[str],
    good: Sequence[str],
    evidence: ProbeEvidence,
    sure: float,
) -> Steps[frozenset[str]]:
    """Return suspects that are slow with two good partners, a neighbour and a distant node."""
    remaining = list(suspects)
    if not remaining or len(good) < 2:
        return frozenset()
    yield from calibrate("pair", good, evidence)
    place = positions(nodes)
    for far in (False, True):
        pairs = partners(remaining, good, place, far)
        probes = [Probe("pair", pair) for _, pair in pairs]
        verdicts = yield from run_probes(evidence, probes, CLEAR, sure)
        remaining = [probe.nodes[0] for probe in probes if verdicts[probe]]
    evidence.forget("pair")
    return frozenset(remaining)


def _measured_pairs(
    rounds: Iterable[Sequence[tuple[str, str]]],
    bad: frozenset[str],
    evidence: ProbeEvidence,
    clear: float,
    sure: float,
) -> Steps[dict[Probe, bool | None]]:
    """Measure every pair of the rounds, except those with a node that is known to be bad."""
    batches: list[tuple[Probe, ...]] = []
    for pairs in rounds:
        batch = tuple(Probe("pair", pair) for pair in pairs if bad.isdisjoint(pair))
        if batch:
            batches.append(batch)
    probes = dict.fromkeys(itertools.chain(*batches))
    repeats = min(OFTEN, SAMPLE // max(1, len(probes)))
    for _ in range(1 + repeats):
        for batch in batches:
            speeds = yield batch
            evidence.add(batch, speeds)
    evidence.freeze("pair")  # from now on the slow ones are measured more often than others
    verdicts = evidence.verdicts(probes, clear, sure)
    decided = yield from run_probes(evidence, _undecided(verdicts), clear, sure)
    verdicts.update(decided)
    return verdicts
