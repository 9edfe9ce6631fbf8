"""What ranks tell is kept as numbers, and judged as if every event had been kept."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from clusterprep.jobs.verify import blame
from clusterprep.jobs.verify.events import Event, SharedEvents
from clusterprep.jobs.verify.schedule import PlannedRank, TrialPlan
from clusterprep.jobs.verify.timeline import EventLog, Timeline
from clusterprep.jobs.verify.turns import AMISS, FOR_EACH_COLLECTIVE, IN_PIECES, ONCE, Turn
from clusterprep.model import VerifyResult
from tests.jobs.verify.stories import MILESTONES, make_plan

TRIALS = range(24)
PACKAGES = {"part": "packages", "items": {"torch": "2.7.0"}}


def random_trial(plan: TrialPlan, rng: random.Random) -> list[Event]:
    """What agents told of a trial in which some ranks are late, slow, wrong, crash or hang.

    Clocks of nodes differ, and events are some time underway.
    """
    clocks = {node.name: rng.uniform(-1e4, 1e4) for node in plan.nodes}
    trouble = rng.choice(("none", "late", "slow", "wrong", "blame", "refused", "crash", "hang"))
    odd = rng.sample(range(plan.world_size), rng.choice((1, 1, 2)))
    rows = [row for rank in plan.ranks for row in _of_rank(plan, rank, trouble, odd, rng)]
    rows.sort(key=lambda row: row[0])
    told = []
    for at, rank, what, data in rows:
        mono = at + clocks[rank.node]
        told.append(Event(rank.node, what, at + rng.uniform(0, 0.2), rank.rank, data, mono))
    told.append(Event("", "go", 4.5))
    told.sort(key=lambda event: event.at)
    return [*told, Event("", "stopping", 60.0)]


def _of_rank(
    plan: TrialPlan, rank: PlannedRank, trouble: str, odd: list[int], rng: random.Random
) -> Iterator[tuple[float, PlannedRank, str, dict[str, Any]]]:
    is_odd = rank.rank in odd
    at = rng.uniform(0, 0.1)
    end = rng.randrange(len(MILESTONES)) if is_odd and trouble in ("crash", "hang") else 99
    for number, milestone in enumerate(MILESTONES):
        at += rng.uniform(0.5, 1.0) * (5 if is_odd and trouble == "late" else 1)
        if number > end:
            break
        what, _, collective = milestone.partition(" ")
        yield at, rank, what, _data(plan, what, collective, trouble if is_odd else "none", rng)
        if what == "imported":
            yield at + 0.1, rank, "holds", {**PACKAGES, "items": {}} if is_odd else PACKAGES
    if end < 99 and trouble == "crash":
        yield at + 0.3, rank, "exit", {"signal": 9, "name": "SIGKILL", "output": "", "asked": False}


def _data(
    plan: TrialPlan, what: str, collective: str, trouble: str, rng: random.Random
) -> dict[str, Any]:
    if what == "ready":
        return {"gpu": {"uuid": f"GPU-{rng.random()}", "index": 0, "pci": "", "numa": None}}
    if not collective:
        return {}
    step = plan.steps[int(collective)]
    data: dict[str, Any] = {"op": step.op, "bytes": step.bytes, "dtype": step.dtype}
    if what != "left":
        return data
    own = rng.uniform(0.001, 0.002) * (2000 if trouble == "slow" else 1)
    data |= {"seconds": rng.uniform(0.01, 0.02), "best": 0.01, "wrong": 0, "first": None}
    if trouble == "wrong":
        data |= {"wrong": 3, "first": {"index": 5, "seen": "9.0", "wanted": 10.0}}
    if trouble == "blame":
        data["blame"] = [[rng.randrange(plan.world_size), "wrong"]]
    if trouble == "refused":
        data["refused"] = "no such collective"
    return {**data, "own": own}


def logged(plan: TrialPlan, events: Iterable[Event]) -> Timeline:
    log = EventLog(plan)
    for event in events:
        log.add(event)
    return log.timeline()


def all_kept(events: Iterable[Event]) -> list[Event]:
    """The events by the controller's clock, in order, but those of collectives that were left."""
    kept: list[Event] = []
    offsets: dict[str, float] = {}
    for event in events:
        if event.mono is not None:
            offset = event.at - event.mono
            offsets[event.node] = min(offset, offsets.get(event.node, offset))
        if event.what in ("left", "warmed"):
            kept = [e for e in kept if (e.rank, e.what) != (event.rank, "warmed")]
        kept.append(event)
    moved = []
    for event in kept:
        at = event.at if event.mono is None else event.mono + offsets[event.node]
        moved.append(Event(event.node, event.what, at, event.rank, event.data))
    return sorted(moved, key=lambda event: event.at)


@pytest.mark.parametrize("seed", TRIALS)
def test_all_events_can_be_had_again(seed: int) -> None:
    plan = make_plan(3, 2)
    events = random_trial(plan, random.Random(seed))
    timeline = logged(plan, events)
    wanted = all_kept(events)
    assert list(timeline.events) == wanted
    for rank in range(plan.world_size):
        assert list(timeline.of_rank(rank)) == [event for event in wanted if event.rank == rank]
    for what in (*ONCE, *FOR_EACH_COLLECTIVE, *IN_PIECES, "warmed", "exit"):
        assert list(timeline.of(what)) == [event for event in wanted if event.what == what]
        first: dict[int, Event] = {}
        for event in wanted:
            if event.what == what and event.rank is not None:
                first.setdefault(event.rank, event)
        assert list(timeline.ranks_with(what).items()) == list(first.items())
    for key in AMISS:
        amiss = [event for event in wanted if event.what == "left" and event.data.get(key)]
        assert list(timeline.left_with(key)) == amiss


@pytest.mark.parametrize("seed", TRIALS)
def test_a_trial_is_judged_as_if_every_event_had_been_kept(seed: int) -> None:
    plan = make_plan(3, 2)
    events = random_trial(plan, random.Random(seed))
    # Data that differ from those of all other ranks are no numbers of a column.
    apart = [
        Event(
            event.node,
            event.what,
            event.at,
            event.rank,
            {**event.data, "number": number},
            event.mono,
        )
        for number, event in enumerate(events)
    ]
    assert judged(logged(plan, events)) == judged(logged(plan, apart))


def judged(timeline: Timeline) -> tuple[object, ...]:
    result = blame.judge(timeline)
    fields = [getattr(result, name) for name in VerifyResult.__struct_fields__]
    return (*fields, blame.findings(result))


def test_trials_are_of_all_kinds() -> None:
    plan = make_plan(3, 2)
    verdicts = set()
    for seed in TRIALS:
        timeline = logged(plan, random_trial(plan, random.Random(seed)))
        for finding in blame.findings(blame.judge(timeline)):
            verdicts.add((finding.check, finding.verdict))
    wanted = {"nccl.hang", "nccl.correct", "nccl.straggler"}
    assert wanted <= {check for check, verdict in verdicts if verdict == "fail"}
    assert wanted <= {check for check, verdict in verdicts if verdict == "pass"}


def test_what_ranks_that_behave_tell_is_kept_as_numbers() -> None:
    plan = make_plan(3, 2)
    left = [
        Event(rank.node, "left", 1.0, rank.rank, {"op": "barrier", "own": 0.1 * rank.rank}, 1.0)
        for rank in plan.ranks
    ]
    turn = logged(plan, left).turn("left")
    assert not turn.unusual
    assert list(turn.told("own")) == [(rank, 0.1 * rank) for rank in range(6)]
    assert list(turn.told("op")) == [(rank, "barrier") for rank in range(6)]
    assert list(turn.told("nothing")) == [(rank, None) for rank in range(6)]
    assert turn[3] == Event("n2", "left", 1.0, 3, {"op": "barrier", "own": 0.1 * 3})


def test_what_ranks_have_alike_is_kept_once() -> None:
    plan = make_plan(3, 2)
    shared = SharedEvents()
    told = []
    for rank in plan.ranks:
        version = "2.6.0" if rank.rank == 4 else "2.7.0"
        data = {"part": "packages", "items": {"torch": version}}
        told.append(shared.event(rank.node, "holds", 1.0, rank.rank, data, 1.0))
    timeline = logged(plan, told)
    assert list(timeline.turn("holds").unusual) == [4]
    assert not timeline.others
    assert [event.data for event in timeline.of("holds")] == [event.data for event in told]
    assert not timeline.last_steps(), "it is no step"


@pytest.mark.parametrize(
    "data",
    [
        {"wrong": True, "own": 0.5},
        {"wrong": 1, "own": 0.5},
        {"wrong": 0, "own": None},
        {"wrong": 0, "own": 1},
        {"wrong": 0},
        {"wrong": 0, "own": 0.5, "more": 1},
        {"wrong": 0, "own": 0.5, "blame": [[1, "wrong"]]},
        {"wrong": [], "own": 0.5},
        {"wrong": False, "own": 0.5},
    ],
    ids=str,
)
def test_what_is_told_otherwise_is_kept_as_it_is(data: dict[str, Any]) -> None:
    usual = {"wrong": 0, "own": 0.25}
    for order in ((usual, data), (data, usual)):
        turn = Turn("left", ("n1", "n1", "n2"))
        for rank, told in enumerate(order):
            turn.add(rank, Event("n1", "left", 1.0, rank, told, 2.0))
        turn.settle((0.0, 0.0, 0.0), lambda event: event)
        seen = [turn[rank].data for rank in (0, 1)]
        assert seen == list(order)
        assert [type(told.get("wrong")) for told in seen] == [type(o["wrong"]) for o in order]


def test_a_turn_has_only_the_ranks_that_came_there() -> None:
    turn = Turn("met", ("n1", "n1", "n2"))
    turn.add(2, Event("n2", "met", 1.0, 2, {}, 1.0))
    turn.add(0, Event("n1", "met", 2.0, 0, {}, 2.0))
    assert list(turn) == [2, 0]
    assert len(turn) == 2
    assert [rank in turn for rank in (-1, 0, 1, 2, 3, "0")] == [
        False,
        True,
        False,
        True,
        False,
        False,
    ]
    for rank in (-1, 1, 3):
        with pytest.raises(KeyError):
            turn[rank]


def test_a_rank_that_takes_more_steps_than_planned_makes_no_turns() -> None:
    plan = make_plan()
    collectives = len(plan.steps)
    events = [
        Event(
            "n1", what, float(number), 0, {"op": "all_reduce", "wrong": 1, "bytes": 8}, 1.0 * number
        )
        for number in range(collectives + 50)
        for what in ("left", "met")
    ]
    timeline = logged(plan, events)
    assert len(timeline.turns["left"]) == collectives
    assert len(timeline.turns["met"]) == 1
    assert len(timeline.left_with("wrong")) == len(events) // 2
    assert len(timeline.of_rank(0)) == len(events)
