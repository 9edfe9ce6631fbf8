"""The stages of verify, each with its time, its limit, its verdict and the ranks that arrived.

Pure.

They happen in this order:

* reach: every node is logged in to
* start: processes are up, torch is imported, the device is bound
* consistency: every rank tells what must be equal on all ranks, before any of them waits for
  another
* rendezvous: the store, then the connections
* first collective
* bandwidth: the sweep of sizes
* correctness: every other collective and type once, and the data of all of them
* links

A stage that was not begun has no row: the last row is where the trial ended.

A stage is never better than the finding about it: a slow cluster does not pass its bandwidth.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.verify.consistency import NAME as CONSISTENCY
from clusterprep.jobs.verify.consistency import PARTS
from clusterprep.jobs.verify.init_time import NAME as INIT_TIME
from clusterprep.jobs.verify.pace import START_LIMIT
from clusterprep.jobs.verify.schedule import ScheduledTest
from clusterprep.jobs.verify.speed import NAME as SPEED
from clusterprep.jobs.verify.tally import (
    SWEEP,
    end_time,
    refusal_text,
    step_name,
    step_name_as_run,
)
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.jobs.verify.turns import Turn
from clusterprep.model import Finding, NodeSnapshot, Stage, Verdict

# Checks whose findings judge more of a stage than its course does: the stage is never better than
# them.
JUDGED_BY = {"consistency": CONSISTENCY, "first collective": INIT_TIME, "bandwidth": SPEED}
WORST: Mapping[Verdict, int] = {"skip": 0, "pass": 1, "unknown": 2, "fail": 3}

NumberedStep = tuple[int, ScheduledTest]  # with its place in the plan


class _Part(Struct, frozen=True):
    """Some collectives of the plan, by their number."""

    name: str
    steps: tuple[NumberedStep, ...]


def judge_stages(timeline: Timeline) -> tuple[Stage, ...]:
    """Return the stages that were begun.

    `arrived` are the ranks that reached the point where all have to meet: torch imported and the
    device bound, the store, the end of the rendezvous, the collective at which the trial ended. A
    rank that has arrived and waits for the others is not the one to look at.
    """
    ready = timeline.turn("ready")
    go = timeline.first("go")
    rows = [
        _stage(
            timeline,
            "start",
            0.0,
            START_LIMIT,
            ready,
            ready,
        )
    ]
    consistency = _consistency(timeline)
    if consistency is not None:
        rows.append(consistency)
    if go is None:
        return tuple(rows)
    limit = timeline.plan.meeting
    at_store = timeline.turn("store")
    joined = timeline.turn("joined")
    met = timeline.turn("met")
    rows.append(
        _stage(
            timeline,
            "rendezvous",
            go.at,
            limit,
            at_store,
            joined,
        )
    )
    if rows[-1].verdict != "fail":
        since = _last_time(joined, go.at)
        rows.append(
            _stage(
                timeline,
                "first collective",
                since,
                limit,
                joined,
                met,
            )
        )
    since = _last_time(met, go.at)
    for part in _parts(timeline):
        if rows[-1].verdict == "fail":
            break
        row, since = _collectives(timeline, part, since)
        rows.append(row)
    return _with_wrong_data(timeline, rows)


def stopped_at(timeline: Timeline) -> str:
    """Return what did not finish: the name of a stage, and of collectives the unfinished one."""
    names = [row.name for row in judge_stages(timeline) if row.name != "consistency"]
    last = names[-1]
    for part in _parts(timeline):
        if part.name == last:
            number, step = _unfinished_or_last(timeline, part)
            entered = timeline.turn("entered", number)
            name = step_name_as_run(step, entered) if entered else step_name(step)
            return f"{last}: {name}"
    return last


def _parts(timeline: Timeline) -> tuple[_Part, ...]:
    sweep: list[NumberedStep] = []
    others: list[NumberedStep] = []
    for number, step in enumerate(timeline.plan.steps):
        in_sweep = (step.op, step.dtype) == SWEEP
        steps = sweep if in_sweep else others
        steps.append((number, step))
    parts: list[_Part] = []
    if sweep:
        parts.append(_Part("bandwidth", tuple(sweep)))
    if others:
        parts.append(_Part("correctness", tuple(others)))
    return tuple(parts)


def _collectives(timeline: Timeline, part: _Part, since: float) -> tuple[Stage, float]:
    """Return the stage of some collectives, and when its last rank left the last of them."""
    number, _ = _unfinished_or_last(timeline, part)
    entered = timeline.turn("entered", number)
    left = timeline.turn("left", number)
    stage = _stage(
        timeline,
        part.name,
        since,
        timeline.plan.timeout,
        entered,
        left,
    )
    return stage, _last_time(left, since)


def _unfinished_or_last(timeline: Timeline, part: _Part) -> NumberedStep:
    """Return the first collective that not all ranks left, else the last one."""
    for number, step in part.steps:
        left = timeline.turn("left", number)
        if not _is_complete(timeline, left):
            return number, step
    return part.steps[-1]


def _is_complete(timeline: Timeline, left: Turn) -> bool:
    if len(left) == timeline.plan.world_size:
        return True
    return bool(refusal_text(timeline, left))


def _stage(
    timeline: Timeline, name: str, since: float, limit: float, arrived: Turn, done: Turn
) -> Stage:
    is_complete = _is_complete(timeline, done)
    verdict: Verdict = "pass" if is_complete else "fail"
    until = _last_time(done, since) if is_complete else end_time(timeline)
    seconds = _seconds_between(since, until)
    after = [_seconds_between(since, at) for _, at in arrived.times()]
    missing = _missing_ranks(timeline, arrived)
    ranks = timeline.all_ranks  # one object for all stages that all ranks came to
    if missing:
        ranks = tuple(rank for rank, _ in arrived.times())
    return Stage(
        name=name,
        seconds=seconds,
        verdict=verdict,
        arrived=ranks,
        missing=missing,
        limit=limit,
        after=tuple(after),
    )


def _seconds_between(since: float, until: float) -> float:
    return round(max(0.0, until - since), 6)


def _missing_ranks(timeline: Timeline, arrived: Container[int]) -> tuple[int, ...]:
    world = range(timeline.plan.world_size)
    return tuple(rank for rank in world if rank not in arrived)


def _last_time(turn: Turn, otherwise: float) -> float:
    return max((at for _, at in turn.times()), default=otherwise)


def _consistency(timeline: Timeline) -> Stage | None:
    """Return the stage in which ranks tell what they have; None if no rank did.

    It is a part of the start and under its limit. Its time is that of the slowest rank.
    """
    parts_by_rank: dict[int, set[str]] = {}
    took: dict[int, float] = {}
    imported = dict(timeline.turn("imported").times())
    for event in timeline.turn_by_turn("holds"):
        if event.rank is None or event.rank not in imported:
            continue
        part = str(event.data.get("part"))
        parts_by_rank.setdefault(event.rank, set()).add(part)
        took[event.rank] = event.at - imported[event.rank]
    if not parts_by_rank:
        return None
    arrived: set[int] = set()
    for rank, parts in parts_by_rank.items():
        if parts.issuperset(PARTS):
            arrived.add(rank)
    missing = _missing_ranks(timeline, arrived)
    verdict: Verdict = "unknown" if missing else "pass"
    seconds = _seconds_between(0.0, max(took.values()))
    ranks = tuple(sorted(arrived))
    return Stage(
        name="consistency",
        seconds=seconds,
        verdict=verdict,
        arrived=ranks,
        missing=missing,
        limit=START_LIMIT,
    )


def _with_wrong_data(timeline: Timeline, rows: Sequence[Stage]) -> tuple[Stage, ...]:
    """Fail correctness if data were wrong in any collective, also in one of the sweep."""
    if not timeline.left_with("wrong"):
        return tuple(rows)
    judged: list[Stage] = []
    for row in rows:
        if row.name == "correctness":
            row = replace(row, verdict="fail")  # noqa: PLW2901
        judged.append(row)
    if rows[-1].name != "correctness":
        world = tuple(range(timeline.plan.world_size))
        limit = timeline.plan.timeout
        judged.append(
            Stage(
                name="correctness",
                seconds=0.0,
                verdict="fail",
                arrived=world,
                missing=(),
                limit=limit,
            )
        )
    return tuple(judged)


def limited_by_findings(rows: Sequence[Stage], findings: Iterable[Finding]) -> tuple[Stage, ...]:
    """Return stages that are no better than their findings: a slow cluster fails its bandwidth."""
    worst: dict[str, Verdict] = {}
    for finding in findings:
        before = worst.get(finding.check, "skip")
        worst[finding.check] = max(before, finding.verdict, key=WORST.__getitem__)
    judged: list[Stage] = []
    for row in rows:
        check = JUDGED_BY.get(row.name, "")
        verdict = worst.get(check, row.verdict)
        if row.verdict != "fail":
            row = replace(row, verdict=verdict)  # noqa: PLW2901
        judged.append(row)
    return tuple(judged)


def reach_stage(snapshots: Iterable[NodeSnapshot], limit: float) -> Stage:
    """Return the stage of the logins: the time is that of the slowest one, `limit` that of each."""
    verdict: Verdict = "pass"
    slowest = 0.0
    for snapshot in snapshots:
        if snapshot.reached:
            slowest = max(slowest, snapshot.login)
        elif snapshot.answered:
            verdict = "fail"
        elif verdict == "pass":
            verdict = "unknown"
    return Stage("reach", round(slowest, 6), verdict, limit=limit)
