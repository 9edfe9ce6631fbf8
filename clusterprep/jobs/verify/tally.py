"""What a trial measured: its collectives and how far every rank came; no word of blame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from clusterprep.jobs.verify.schedule import ScheduledTest
from clusterprep.jobs.verify.timeline import Event, Timeline
from clusterprep.model import CollectiveResult, RankGpu, RankRow
from clusterprep.model.units import format_size

# Of algbw, for n ranks; nccl-tests, doc/PERFORMANCE.md.
BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "barrier": lambda n: 0.0,
}


def end_of(timeline: Timeline) -> float:
    """When the trial was called off or over; what came later is our own doing."""
    ends = [
        event.at
        for event in (timeline.first("overdue"), timeline.first("stopping"))
        if event is not None
    ]
    return min(ends) if ends else max((event.at for event in timeline.events), default=0.0)


def finished(timeline: Timeline) -> bool:
    return len(timeline.ranks_with("finished")) == timeline.plan.world_size


def nth(timeline: Timeline, what: str, number: int) -> Mapping[int, Event]:
    """The event `what` that came as number `number` (from 0) on every rank that has so many."""
    turns = timeline.in_turn(what)
    return turns[number] if number < len(turns) else {}


def step_name(step: ScheduledTest) -> str:
    return collective_name(step.op, step.bytes, step.dtype)


def as_run(step: ScheduledTest, entered: Mapping[int, Event]) -> str:
    """Ranks may have made it smaller, all of them alike."""
    size = next(iter(entered.values())).data["bytes"] if step.fit else step.bytes
    return collective_name(step.op, size, step.dtype)


def scaled(timeline: Timeline) -> tuple[str, ...]:
    """What was made smaller than planned, because memory or time would not have sufficed."""
    told = []
    for number, step in enumerate(timeline.plan.steps):
        entered = next(iter(nth(timeline, "entered", number).values()), None) if step.fit else None
        if entered is not None and (why := entered.data.get("scaled")):
            words = f"{step_name(step)} was scaled down to {format_size(entered.data['bytes'])}"
            reason = "memory that is free" if why == "memory" else "time limit at this speed"
            told.append(f"{words}, which fits the {reason}")
    return tuple(told)


def collective_name(op: str, size: int, dtype: str) -> str:
    """As in «all_reduce 1 MiB», with the type where it is not the usual one; a barrier has no size."""
    return " ".join(
        [op, *([format_size(size)] if size else []), *([dtype] if dtype != "float32" else [])]
    )


def refusal(timeline: Timeline, left: Mapping[int, Event]) -> str:
    """What the backend says where it does not know a collective, or not with this type."""
    refused = (event for event in timeline.left_with("refused") if event.rank is not None)
    return next(
        (str(event.data["refused"]) for event in refused if left.get(event.rank or 0) is event), ""
    )


def refusals(timeline: Timeline) -> dict[ScheduledTest, str]:
    """The steps that were left out because the backend refused them, and its words."""
    steps = timeline.plan.steps
    said = {
        step: refusal(timeline, nth(timeline, "left", number)) for number, step in enumerate(steps)
    }
    return {step: words for step, words in said.items() if words}


# ---------------------------------------------------------------- collectives


def collectives(timeline: Timeline) -> tuple[CollectiveResult, ...]:
    """Those that every rank left; the slowest rank's median repetition counts."""
    world = timeline.plan.world_size
    rows = []
    for number, step in enumerate(timeline.plan.steps):
        left = nth(timeline, "left", number)
        if left and len(left) == world and not refusal(timeline, left):
            rows.append(_collective(step, list(left.values()), world))
    return tuple(rows)


def sweep(timeline: Timeline) -> tuple[CollectiveResult, ...]:
    """The collectives whose speed is judged: all_reduce in float32."""
    return tuple(
        row for row in collectives(timeline) if (row.op, row.dtype) == ("all_reduce", "float32")
    )


def _collective(step: ScheduledTest, left: Sequence[Event], world: int) -> CollectiveResult:
    size = int(left[0].data["bytes"])
    seconds = max(float(event.data["seconds"]) for event in left)
    algbw = size / max(seconds, 1e-9) / 1e9
    wrong = sum(int(event.data["wrong"]) for event in left)
    return CollectiveResult(
        step.op, size, seconds, algbw, algbw * BUS_FACTOR[step.op](world), wrong, step.dtype
    )


# ---------------------------------------------------------------- ranks


def rank_rows(timeline: Timeline) -> tuple[RankRow, ...]:
    ready, last = timeline.ranks_with("ready"), last_events(timeline)
    return tuple(
        RankRow(
            rank.rank,
            rank.local_rank,
            rank.node,
            _gpu(ready.get(rank.rank)),
            last.get(rank.rank, "not started"),
        )
        for rank in timeline.plan.ranks
    )


def _gpu(ready: Event | None) -> RankGpu | None:
    gpu = ready.data.get("gpu") if ready else None
    return (
        RankGpu(str(gpu["uuid"]), int(gpu["index"]), str(gpu["pci"]), gpu["numa"]) if gpu else None
    )


def last_events(timeline: Timeline) -> dict[int, str]:
    """The last thing that every rank did by itself, in words; an end that we brought about is none."""
    last: dict[int, str] = {}
    for event in reversed(timeline.events):
        if event.rank is not None and event.rank not in last and (words := in_words(event)):
            last[event.rank] = words
    return last


def in_words(event: Event) -> str:
    """Empty where an event says nothing of how far its rank came."""
    data = event.data
    if event.what in ("entered", "warmed", "left"):
        verb = "in" if event.what == "warmed" else event.what
        return f"{verb} {collective_name(data['op'], data['bytes'], data.get('dtype', 'float32'))}"
    if event.what == "exit":
        how = f"ended by {data['name']}" if "signal" in data else f"exit {data['code']}"
        return "" if data.get("asked") else how
    if event.what == "error":
        return f"error in {data.get('stage')}"
    if event.what in ("nccl", "holds"):
        return ""
    return str(data["state"]) if event.what == "state" else event.what
