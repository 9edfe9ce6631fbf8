"""The counters of earlier runs: a stage that brings them to checks which judge by rate.

The fact `counters.earlier` has a stage and no reads, as the facts about pairs have. A check sees
two samples of the same boot and knows nothing of runs. The selftest brings a past of its own, else
no proof could show that these checks fire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from clusterprep.facts.counters import EARLIER, IB, Counters, Earlier, Sample
from clusterprep.facts.gpu_counters import COUNTERS as GPU
from clusterprep.facts.host import BOOT_ID, UPTIME
from clusterprep.facts.pci import ERRORS
from clusterprep.history.database import Unusable
from clusterprep.history.runs import Runs
from clusterprep.model import NOT_ASKED, Absent, Fleet

LEAST = 600.0  # seconds between two samples that tell a rate
LONGEST = 24 * 3600.0
# Earlier runs that are read, as the newest may not have reached every node.
TRIED = 5

FACTS = (BOOT_ID.name, UPTIME.name, IB.name)
COUNTED = (IB.name, ERRORS.name, GPU.name)  # what a sample has of a look
Old = Mapping[str, Mapping[str, Any]]  # of one earlier run: node → fact → value


def with_earlier(runs: Runs, fleet: Fleet, now: datetime) -> Fleet:
    """Return the fleet with the fact `counters.earlier`; None on all nodes without a history."""
    looks = recorded_looks(runs, fleet.inventory.cluster, now)
    added = {}
    for node in fleet.reached:
        facts = fleet.snapshots[node.name].facts
        added[node.name] = {EARLIER.name: earlier_of(facts, looks.get(node.name, ()))}
    return fleet.with_facts(added)


def recorded_looks(runs: Runs, cluster: str, now: datetime) -> dict[str, list[Mapping[str, Any]]]:
    """Return what recorded runs saw of each node, the newest first; empty without a history."""
    by_node: dict[str, list[Mapping[str, Any]]] = {}
    try:
        looks = _earlier_looks(runs, cluster, now)
    except Unusable:
        return {}
    for look in looks:
        for node, facts in look.items():
            by_node.setdefault(node, []).append(facts)
    return by_node


def _earlier_looks(runs: Runs, cluster: str, now: datetime) -> list[Old]:
    """Return the newest looks of the last day, the newest first, and its oldest one."""
    oldest, newest = _moment(now, LONGEST), _moment(now, LEAST)
    recent = runs.holding(IB.name, cluster, oldest, newest)
    chosen = recent[:TRIED]
    if len(recent) > TRIED:
        chosen.append(recent[-1])
    return [_facts_of(runs, run) for run in chosen]


def earlier_of(facts: Mapping[str, Any], old: Sequence[Mapping[str, Any]]) -> Earlier | None:
    """Return the samples among earlier looks at a node that can be compared with its facts. Pure.

    A look counts if it is at least ten minutes and at most a day old by the node's own clock, is of
    this boot, and no counter has begun anew since. `old` has the newest look first.
    """
    samples = []
    for look in old:
        sample = sample_of(facts, look)
        if sample is not None and LEAST <= sample.seconds <= LONGEST:
            samples.append(sample)
    if not samples:
        return None
    samples.sort(key=lambda sample: sample.seconds)
    return Earlier(samples[0], samples[-1])


def sample_of(facts: Mapping[str, Any], look: Mapping[str, Any]) -> Sample | None:
    """Return the counters of an earlier look at a node, None if they cannot be compared with now.

    They are comparable if both looks are of one boot and no counter has begun anew since. Pure.
    """
    if not (_is_whole(facts) and _is_whole(look)) or look[BOOT_ID.name] != facts[BOOT_ID.name]:
        return None
    if _is_reset(look[IB.name], facts[IB.name]):
        return None
    return Sample(
        facts[UPTIME.name] - look[UPTIME.name],
        look[IB.name],
        pcie=_known(look.get(ERRORS.name)),
        gpu=_known(look.get(GPU.name)),
    )


def _is_whole(facts: Mapping[str, Any]) -> bool:
    """Return whether all facts that are compared are known."""
    values = [facts.get(name, NOT_ASKED) for name in FACTS]
    return not any(isinstance(value, Absent) for value in values)


def _is_reset(before: Counters, now: Counters) -> bool:
    """Return whether a counter is lower than before: it was cleared, or the driver was reloaded."""
    for port, counters in now.items():
        old = before.get(port, {})
        for name, value in counters.items():
            if value < old.get(name, 0):
                return True
    return False


def _known(value: Any) -> Any:
    """Return a fact of an earlier run, None if that run did not learn it."""
    return None if isinstance(value, Absent) else value


def _facts_of(runs: Runs, run: str) -> dict[str, dict[str, Any]]:
    """Return node → fact → value of a recorded run, without the values that it does not have."""
    report = runs.report(run, only=())
    facts: dict[str, dict[str, Any]] = {}
    for snapshot in report.nodes or ():
        facts[snapshot.node] = {}
    for name in dict.fromkeys((*FACTS, *COUNTED)):
        column = runs.column(run, name, list(facts))
        for node, value in column.items():
            facts[node][name] = value
    return facts


def _moment(now: datetime, seconds_ago: float) -> str:
    moment = now - timedelta(seconds=seconds_ago)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
