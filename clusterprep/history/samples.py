"""What counters were in earlier runs: the stage that brings it, from the history, to checks that judge by rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from clusterprep.facts.counters import EARLIER, IB, Counters, Earlier, Sample
from clusterprep.facts.host import BOOT_ID, UPTIME
from clusterprep.history.database import Unusable
from clusterprep.history.runs import Runs
from clusterprep.model import Absent, Fleet

LEAST = 600.0  # seconds between two samples that tell a rate
LONGEST = 24 * 3600.0
TRIED = 5  # earlier runs that are looked at for nodes which the newest did not reach

FACTS = (BOOT_ID.name, UPTIME.name, IB.name)
Old = Mapping[str, Mapping[str, Any]]  # of one earlier run: node → fact → value


def with_earlier(runs: Runs, fleet: Fleet, now: datetime) -> Fleet:
    """The fleet with the fact `counters.earlier`. Where the history cannot be used there is nothing earlier."""
    try:
        recent = runs.holding(
            IB.name, fleet.inventory.cluster, _word(now, LONGEST), _word(now, LEAST)
        )
        chosen = dict.fromkeys(
            (*recent[:TRIED], *recent[-1:])
        )  # newest first, and the oldest of the day
        old = [_looked(runs, run) for run in chosen]
    except Unusable:
        old = []
    snapshots = dict(fleet.snapshots)
    for node in fleet.reached:
        snapshot = snapshots[node.name]
        told = earlier_of(snapshot.facts, [facts[node.name] for facts in old if node.name in facts])
        snapshots[node.name] = replace(snapshot, facts={**snapshot.facts, EARLIER.name: told})
    return replace(fleet, snapshots=snapshots)


def earlier_of(facts: Mapping[str, Any], old: Sequence[Mapping[str, Any]]) -> Earlier | None:
    """The samples among earlier looks at a node, newest first, that say something about now. Pure.

    A look counts that is at least ten minutes and at most a day old by the node's own clock, is of this boot, and of
    counters that have not begun anew since.
    """
    if any(isinstance(facts.get(name, Absent("")), Absent) for name in FACTS):
        return None
    boot, uptime, counters = (facts[name] for name in FACTS)
    samples = []
    for look in old:
        if (
            any(isinstance(look.get(name, Absent("")), Absent) for name in FACTS)
            or look[BOOT_ID.name] != boot
        ):
            continue
        seconds = uptime - look[UPTIME.name]
        if LEAST <= seconds <= LONGEST and not _is_reset(look[IB.name], counters):
            samples.append(Sample(seconds, look[IB.name]))
    samples.sort(key=lambda sample: sample.seconds)
    return Earlier(samples[0], samples[-1]) if samples else None


def _is_reset(then: Counters, now: Counters) -> bool:
    """Whether a counter is lower than it was: somebody has cleared it, or the driver was loaded again."""
    return any(
        value < then.get(port, {}).get(name, 0)
        for port, own in now.items()
        for name, value in own.items()
    )


def _looked(runs: Runs, run: str) -> dict[str, dict[str, Any]]:
    nodes = [snapshot.node for snapshot in runs.report(run, only=()).nodes or ()]
    columns = {name: runs.column(run, name, nodes) for name in FACTS}
    return {node: {name: columns[name].get(node, Absent("")) for name in FACTS} for node in nodes}


def _word(now: datetime, ago: float) -> str:
    return f"{now - timedelta(seconds=ago):%Y-%m-%dT%H:%M:%SZ}"
