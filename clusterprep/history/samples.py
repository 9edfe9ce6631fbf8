"""The counters of earlier runs: a stage that brings them to checks which judge by rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from clusterprep.facts.counters import EARLIER, IB, Counters, Earlier, Sample
from clusterprep.facts.host import BOOT_ID, UPTIME
from clusterprep.history.database import Unusable
from clusterprep.history.runs import Runs
from clusterprep.model import Absent, Fleet

LEAST = 600.0  # seconds between two samples that tell a rate
LONGEST = 24 * 3600.0
# Earlier runs that are read, as the newest may not have reached every node.
TRIED = 5

FACTS = (BOOT_ID.name, UPTIME.name, IB.name)
Old = Mapping[str, Mapping[str, Any]]  # of one earlier run: node → fact → value


def with_earlier(runs: Runs, fleet: Fleet, now: datetime) -> Fleet:
    """Return the fleet with the fact `counters.earlier`; None on all nodes without a history."""
    try:
        looks = _earlier_looks(runs, fleet.inventory.cluster, now)
    except Unusable:
        looks = []
    added = {}
    for node in fleet.reached:
        of_node = [facts[node.name] for facts in looks if node.name in facts]
        earlier = earlier_of(fleet.snapshots[node.name].facts, of_node)
        added[node.name] = {EARLIER.name: earlier}
    return fleet.with_facts(added)


def _earlier_looks(runs: Runs, cluster: str, now: datetime) -> list[Old]:
    """Return the newest looks of the last day, the newest first, and its oldest one."""
    recent = runs.holding(IB.name, cluster, _moment(now, LONGEST), _moment(now, LEAST))
    chosen = dict.fromkeys((*recent[:TRIED], *recent[-1:]))
    return [_facts_of(runs, run) for run in chosen]


def earlier_of(facts: Mapping[str, Any], old: Sequence[Mapping[str, Any]]) -> Earlier | None:
    """Return the samples among earlier looks at a node that can be compared with its facts. Pure.

    A look counts if it is at least ten minutes and at most a day old by the node's own clock, is of
    this boot, and no counter has begun anew since. `old` has the newest look first.
    """
    if not _is_whole(facts):
        return None
    boot, uptime, counters = (facts[name] for name in FACTS)
    samples = []
    for look in old:
        if not _is_whole(look) or look[BOOT_ID.name] != boot:
            continue
        seconds = uptime - look[UPTIME.name]
        if LEAST <= seconds <= LONGEST and not _is_reset(look[IB.name], counters):
            samples.append(Sample(seconds, look[IB.name]))
    samples.sort(key=lambda sample: sample.seconds)
    return Earlier(samples[0], samples[-1]) if samples else None


def _is_whole(facts: Mapping[str, Any]) -> bool:
    return not any(isinstance(facts.get(name, Absent("")), Absent) for name in FACTS)


def _is_reset(before: Counters, now: Counters) -> bool:
    """Return whether a counter is lower than before: it was cleared, or the driver was reloaded."""
    for port, counters in now.items():
        old = before.get(port, {})
        if any(value < old.get(name, 0) for name, value in counters.items()):
            return True
    return False


def _facts_of(runs: Runs, run: str) -> dict[str, dict[str, Any]]:
    nodes = [snapshot.node for snapshot in runs.report(run, only=()).nodes or ()]
    columns = {name: runs.column(run, name, nodes) for name in FACTS}
    facts = {}
    for node in nodes:
        facts[node] = {name: columns[name].get(node, Absent("")) for name in FACTS}
    return facts


def _moment(now: datetime, seconds_ago: float) -> str:
    moment = now - timedelta(seconds=seconds_ago)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
