"""The stages of verify: how far the ranks came together, each part with its time, its limit and its verdict. Pure.

In the order in which they happen: reach (every node is logged in to), start (processes up, torch imported, device
bound), consistency (what must be equal on all ranks is told before any of them waits for another), rendezvous (the
store, then the connections), first collective, bandwidth (the sweep of sizes), correctness (every other collective and
type once, and the data of all of them), links. What was not begun has no row: the last one is where it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from clusterprep.jobs.verify.beginning import NAME as INIT_TIME
from clusterprep.jobs.verify.consistency import NAME as CONSISTENCY
from clusterprep.jobs.verify.consistency import PARTS
from clusterprep.jobs.verify.pace import START_LIMIT
from clusterprep.jobs.verify.schedule import ScheduledTest
from clusterprep.jobs.verify.speed import NAME as SPEED
from clusterprep.jobs.verify.tally import as_run, end_of, nth, refusal, step_name
from clusterprep.jobs.verify.timeline import Event, Timeline
from clusterprep.model import Finding, NodeSnapshot, Stage, Verdict
from clusterprep.runtime.lazy_dataclass import dataclass

# The finding that says of a stage what its own course does not: a stage is never better than it.
JUDGED_BY = {"consistency": CONSISTENCY, "first collective": INIT_TIME, "bandwidth": SPEED}
WORST: Mapping[Verdict, int] = {"skip": 0, "pass": 1, "unknown": 2, "fail": 3}

Ranks = Mapping[int, Event]


@dataclass(frozen=True)
class _Part:
    """Some collectives of the plan, by their number."""

    name: str
    steps: tuple[tuple[int, ScheduledTest], ...]


def stages(timeline: Timeline) -> tuple[Stage, ...]:
    """Those that were begun. `arrived` are the ranks that reached the point where all have to meet.

    That is torch imported and the device bound, the store, the end of the rendezvous, the collective at which it ended:
    who has arrived and waits for the others is not the one to look at.
    """
    ready, go = timeline.ranks_with("ready"), timeline.first("go")
    rows = [_stage(timeline, "start", 0.0, START_LIMIT, ready, ready), *_consistency(timeline)]
    if go is None:
        return tuple(rows)
    limit, joined, met = (
        timeline.plan.timeout,
        timeline.ranks_with("joined"),
        timeline.ranks_with("met"),
    )
    rows.append(_stage(timeline, "rendezvous", go.at, limit, timeline.ranks_with("store"), joined))
    if rows[-1].verdict != "fail":
        rows.append(_stage(timeline, "first collective", _last(joined, go.at), limit, joined, met))
    since = _last(met, go.at)
    for part in _parts(timeline):
        if rows[-1].verdict == "fail":
            break
        row, since = _collectives(timeline, part, since)
        rows.append(row)
    return _with_wrong_data(timeline, rows)


def stopped_at(timeline: Timeline) -> str:
    """What did not finish: a stage by its name, of collectives the one that did not."""
    last = [row.name for row in stages(timeline) if row.name != "consistency"][-1]
    part = next((part for part in _parts(timeline) if part.name == last), None)
    if part is None:
        return last
    number, step = _reached(timeline, part)
    entered = nth(timeline, "entered", number)
    return f"{last}: {as_run(step, entered) if entered else step_name(step)}"


def _parts(timeline: Timeline) -> tuple[_Part, ...]:
    sweep, others = list[tuple[int, ScheduledTest]](), list[tuple[int, ScheduledTest]]()
    for number, step in enumerate(timeline.plan.steps):
        (sweep if (step.op, step.dtype) == ("all_reduce", "float32") else others).append(
            (number, step)
        )
    parts = (_Part("bandwidth", tuple(sweep)), _Part("correctness", tuple(others)))
    return tuple(part for part in parts if part.steps)


def _collectives(timeline: Timeline, part: _Part, since: float) -> tuple[Stage, float]:
    number, _ = _reached(timeline, part)
    entered, left = nth(timeline, "entered", number), nth(timeline, "left", number)
    return _stage(timeline, part.name, since, timeline.plan.timeout, entered, left), _last(
        left, since
    )


def _reached(timeline: Timeline, part: _Part) -> tuple[int, ScheduledTest]:
    """The first collective that not all ranks left, else the last."""
    unfinished = (
        entry for entry in part.steps if not _whole(timeline, nth(timeline, "left", entry[0]))
    )
    return next(unfinished, part.steps[-1])


def _whole(timeline: Timeline, left: Ranks) -> bool:
    return len(left) == timeline.plan.world_size or bool(refusal(timeline, left))


def _stage(
    timeline: Timeline, name: str, since: float, limit: float, arrived: Ranks, done: Ranks
) -> Stage:
    world, whole = range(timeline.plan.world_size), _whole(timeline, done)
    until = _last(done, since) if whole else end_of(timeline)
    missing = tuple(rank for rank in world if rank not in arrived)
    seconds = round(max(0.0, until - since), 6)
    after = tuple(round(max(0.0, event.at - since), 6) for _, event in sorted(arrived.items()))
    return Stage(
        name, seconds, "pass" if whole else "fail", tuple(sorted(arrived)), missing, limit, after
    )


def _last(events: Ranks, otherwise: float) -> float:
    return max((event.at for event in events.values()), default=otherwise)


def _consistency(timeline: Timeline) -> Iterable[Stage]:
    """Part of the start and under its limit; its time is that of the rank that took longest to tell what it has."""
    told: dict[int, set[str]] = {}
    took: dict[int, float] = {}
    imported = timeline.ranks_with("imported")
    for event in timeline.of("holds"):
        if event.rank is not None and event.rank in imported:
            told.setdefault(event.rank, set()).add(str(event.data.get("part")))
            took[event.rank] = event.at - imported[event.rank].at
    if told:
        whole = set(PARTS)
        arrived = {rank for rank, parts in told.items() if parts >= whole}
        missing = tuple(rank for rank in range(timeline.plan.world_size) if rank not in arrived)
        seconds = round(max(0.0, *took.values()), 6)
        verdict: Verdict = "unknown" if missing else "pass"
        yield Stage("consistency", seconds, verdict, tuple(sorted(arrived)), missing, START_LIMIT)


def _with_wrong_data(timeline: Timeline, rows: Sequence[Stage]) -> tuple[Stage, ...]:
    """Data are compared in every collective; where they were wrong in the sweep, correctness fails for that."""
    if not timeline.left_with("wrong"):
        return tuple(rows)
    if rows[-1].name != "correctness":
        world = tuple(range(timeline.plan.world_size))
        rows = [*rows, Stage("correctness", 0.0, "fail", world, (), timeline.plan.timeout)]
    return tuple(replace(row, verdict="fail") if row.name == "correctness" else row for row in rows)


def as_found(rows: Sequence[Stage], findings: Iterable[Finding]) -> tuple[Stage, ...]:
    """Each stage no better than the finding about it: a cluster that is slow does not pass its bandwidth."""
    said: dict[str, Verdict] = {}
    for finding in findings:
        said[finding.check] = max(
            said.get(finding.check, "skip"), finding.verdict, key=WORST.__getitem__
        )
    return tuple(
        row
        if row.verdict == "fail"
        else replace(row, verdict=said.get(JUDGED_BY.get(row.name, ""), row.verdict))
        for row in rows
    )


def reach(snapshots: Iterable[NodeSnapshot], limit: float) -> Stage:
    """Of all nodes that were to be reached; the time is that of the slowest login, the limit that of one."""
    seen = tuple(snapshots)
    bad = [snapshot for snapshot in seen if not snapshot.reached]
    verdict: Verdict = (
        "pass" if not bad else "fail" if any(snapshot.answered for snapshot in bad) else "unknown"
    )
    return Stage(
        "reach",
        round(max((one.login for one in seen if one.reached), default=0.0), 6),
        verdict,
        limit=limit,
    )
