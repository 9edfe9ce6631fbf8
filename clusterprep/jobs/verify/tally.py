"""What a trial measured: its collectives and how far every rank came, without any judgement."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.schedule import SLOWER_THAN_LINKS, ScheduledTest
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.jobs.verify.turns import Turn
from clusterprep.model import CollectiveResult, RankGpu, RankRow
from clusterprep.model.units import format_size

# Factors from algorithm bandwidth to bus bandwidth for n ranks; nccl-tests, doc/PERFORMANCE.md.
BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "barrier": lambda n: 0.0,
}
# Why ranks make a step smaller, by the word that they report.
WHY_SMALLER = {
    "memory": "which fits the memory that is free",
    "time": "which fits the time limit at this speed",
    "links": (
        f"as at the speed of the size before it would take over {SLOWER_THAN_LINKS} times what "
        "most links need"
    ),
}
SWEEP = ("all_reduce", "float32")  # of the collectives whose speed is judged


def end_time(timeline: Timeline) -> float:
    """Return when the trial was called off or over; later events are our own doing."""
    ends: list[float] = []
    for what in ("overdue", "stopping"):
        event = timeline.first(what)
        if event is not None:
            ends.append(event.at)
    if ends:
        return min(ends)
    return timeline.last_time


def all_finished(timeline: Timeline) -> bool:
    return len(timeline.ranks_with("finished")) == timeline.plan.world_size


def step_name(step: ScheduledTest) -> str:
    return collective_name(step.op, step.bytes, step.dtype)


def step_name_as_run(step: ScheduledTest, entered: Mapping[int, Event]) -> str:
    """Return the name with the size that ran: ranks may have made it smaller, all of them alike."""
    size = step.bytes
    if step.fit or step.longest:
        first = next(iter(entered.values()))
        size = first.data["bytes"]
    return collective_name(step.op, size, step.dtype)


def scaled_down_steps(timeline: Timeline) -> tuple[str, ...]:
    """Return a sentence for each step that was made smaller than planned to fit memory or time."""
    sentences: list[str] = []
    for number, step in enumerate(timeline.plan.steps):
        entered = timeline.turn("entered", number)
        may_shrink = step.fit or step.longest is not None
        if not may_shrink or not entered:
            continue
        data = next(iter(entered.values())).data
        why = WHY_SMALLER.get(str(data.get("scaled")))
        if why is None:
            continue
        size = format_size(data["bytes"])
        sentences.append(f"{step_name(step)} was scaled down to {size}, {why}")
    return tuple(sentences)


def cut_short_steps(timeline: Timeline) -> tuple[ScheduledTest, ...]:
    """Return the steps that were cut short, as they are far slower than the links."""
    return _sweep_steps_scaled(timeline, ("links",))


def steps_that_did_not_fit(timeline: Timeline) -> tuple[ScheduledTest, ...]:
    """Return the steps of the sweep that were made smaller to fit memory or time limit."""
    return _sweep_steps_scaled(timeline, ("memory", "time"))


def _sweep_steps_scaled(timeline: Timeline, reasons: Container[str]) -> tuple[ScheduledTest, ...]:
    steps: list[ScheduledTest] = []
    for number, step in enumerate(timeline.plan.steps):
        may_shrink = step.fit or step.longest is not None
        if not may_shrink or (step.op, step.dtype) != SWEEP:
            continue
        entered = timeline.turn("entered", number)
        if entered and all(why in reasons for _, why in entered.told("scaled")):
            steps.append(step)
    return tuple(steps)


def collective_name(op: str, size: int, dtype: str) -> str:
    """Return a name such as "all_reduce 1 MiB", with the type unless it is float32.

    A barrier has no size.
    """
    parts = [op]
    if size:
        parts.append(format_size(size))
    if dtype != "float32":
        parts.append(dtype)
    return " ".join(parts)


def refusal_text(timeline: Timeline, left: Mapping[int, Event]) -> str:
    """Return what the backend says if it does not know a collective, or not with this type.

    Empty if no event in `left` has such a text.
    """
    for event in timeline.left_with("refused"):
        if event.rank is not None and left.get(event.rank) is event:
            return str(event.data["refused"])
    return ""


def refusals(timeline: Timeline) -> dict[ScheduledTest, str]:
    """Return the steps that were left out because the backend refused them, and its words."""
    refused: dict[ScheduledTest, str] = {}
    for number, step in enumerate(timeline.plan.steps):
        left = timeline.turn("left", number)
        text = refusal_text(timeline, left)
        if text:
            refused[step] = text
    return refused


# ---------------------------------------------------------------- collectives


def timed_collectives(timeline: Timeline) -> tuple[CollectiveResult, ...]:
    """Return the collectives that every rank left; the slowest rank's median repetition counts."""
    world = timeline.plan.world_size
    results: list[CollectiveResult] = []
    for number, step in enumerate(timeline.plan.steps):
        left = timeline.turn("left", number)
        is_complete = left and len(left) == world
        if is_complete and not refusal_text(timeline, left):
            result = _collective(step, left, world)
            results.append(result)
    return tuple(results)


def bandwidth_sweep(timeline: Timeline) -> tuple[CollectiveResult, ...]:
    """Return the collectives whose speed is judged: all_reduce in float32."""
    results = timed_collectives(timeline)
    return tuple(result for result in results if (result.op, result.dtype) == SWEEP)


def _collective(step: ScheduledTest, left: Turn, world: int) -> CollectiveResult:
    """Return the speed of a step that all ranks left; bandwidths are in GB/s as in nccl-tests."""
    first = next(iter(left.values()))
    size = int(first.data["bytes"])
    seconds = max(float(seconds) for _, seconds in left.told("seconds"))
    wrong = sum(int(wrong) for _, wrong in left.told("wrong"))
    algbw = size / max(seconds, 1e-9) / 1e9
    bus_factor = BUS_FACTOR[step.op]
    busbw = algbw * bus_factor(world)
    return CollectiveResult(
        op=step.op,
        bytes=size,
        seconds=seconds,
        algbw_gbs=algbw,
        busbw_gbs=busbw,
        wrong=wrong,
        dtype=step.dtype,
    )


# ---------------------------------------------------------------- ranks


def rank_rows(timeline: Timeline) -> tuple[RankRow, ...]:
    """Return a row of the report for every rank: its place, its GPU and how far it came."""
    ready = timeline.ranks_with("ready")
    last = last_events(timeline)
    rows: list[RankRow] = []
    for rank in timeline.plan.ranks:
        gpu = _gpu(ready.get(rank.rank))
        progress = last.get(rank.rank, "not started")
        rows.append(
            RankRow(
                rank=rank.rank,
                local_rank=rank.local_rank,
                node=rank.node,
                gpu=gpu,
                last_event=progress,
            )
        )
    return tuple(rows)


def _gpu(ready: Event | None) -> RankGpu | None:
    if ready is None:
        return None
    gpu = ready.data.get("gpu")
    if not gpu:
        return None
    uuid = str(gpu["uuid"])
    index = gpu["index"]
    pci = str(gpu["pci"])
    return RankGpu(uuid, index, pci, gpu["numa"])


def last_events(timeline: Timeline) -> dict[int, str]:
    """Return the last thing that every rank did by itself; an end that we brought about is none."""
    described: dict[int, Event] = {}
    for event in timeline.others:
        if event.rank is not None and event_words(event):
            described[event.rank] = event
    last: dict[int, str] = {}
    for rank, step in timeline.last_steps().items():
        event = described.setdefault(rank, step)
        if event.at < step.at:
            described[rank] = step
    for rank, event in described.items():
        last[rank] = event_words(event)
    return last


def event_words(event: Event) -> str:
    """Return how far a rank came with this event; empty if the event says nothing of that."""
    data = event.data
    if event.what in ("nccl", "holds", "working"):
        return ""
    if event.what in ("entered", "warmed", "left"):
        verb = "in" if event.what == "warmed" else event.what
        dtype = data.get("dtype", "float32")
        return f"{verb} {collective_name(data['op'], data['bytes'], dtype)}"
    if event.what == "exit":
        return _exit_words(event)
    if event.what == "error":
        return f"error in {data.get('stage')}"
    if event.what == "state":
        return str(data["state"])
    return event.what


def _exit_words(event: Event) -> str:
    data = event.data
    if data.get("asked"):
        return ""
    if "signal" in data:
        return f"ended by {data['name']}"
    return f"exit {data['code']}"
