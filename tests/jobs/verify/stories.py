"""Timelines told in a few words: a healthy trial up to some point, and what went wrong then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.jobs.verify.timeline import Timeline, ordered_timeline
from clusterprep.model import Node, VerifySettings

SITUATIONS = sorted((Path(__file__).parent / "situations").glob("*.json"))
SIZES = (8, 1 << 20)
MILESTONES = (
    "spawned",
    "started",
    "imported",
    "ready",
    "store",
    "joined",
    "met",
    "entered 0",
    "warmed 0",
    "left 0",
)
MILESTONES += ("entered 1", "warmed 1", "left 1", "finished")
BEFORE = MILESTONES.index("ready")  # the last that is reached without the others


def make_plan(nodes: int = 2, nproc: int = 2, **settings: Any) -> TrialPlan:
    of = [Node(f"n{i + 1}", f"10.0.0.{i + 1}", i, nproc_per_node=nproc) for i in range(nodes)]
    given = VerifySettings(**{"sizes": SIZES, "timeout": 10.0, **settings})
    return plan_trial(of, {}, ("10.0.0.1", 29500), given, {})


def recorded(path: Path) -> tuple[dict[str, Any], Timeline]:
    """A situation that was recorded from real processes, and what is expected of it."""
    told = json.loads(path.read_text())
    plan = make_plan(
        told["nodes"], told["nproc"], sizes=tuple(told["sizes"]), timeout=told["timeout"]
    )
    rows = [Event(node, what, at, rank, data) for at, node, rank, what, data in told["events"]]
    return told, ordered_timeline(plan, rows)


def story(
    *extra: Event,
    plan: TrialPlan | None = None,
    until: str = "finished",
    but: Mapping[int, str] | None = None,
    end: str = "stopping",
    wrong: Mapping[int, int] | None = None,
) -> Timeline:
    """Every rank gets as far as `until`, those in `but` only so far ("" is nowhere).

    One milestone per second.

    `wrong` gives the number of wrong elements that a rank has in the last collective.
    """
    plan = plan or make_plan()
    events = list(extra)
    for rank in plan.ranks:
        last = (but or {}).get(rank.rank, until)
        for second, milestone in enumerate(
            MILESTONES[: MILESTONES.index(last) + 1] if last else ()
        ):
            events.append(
                _event(plan, rank.rank, milestone, float(second), (wrong or {}).get(rank.rank, 0))
            )
    if MILESTONES.index(until) > BEFORE:
        events.append(Event("", "go", BEFORE + 0.5))
    return ordered_timeline(plan, [*events, Event("", end, 30.0)])


def _event(plan: TrialPlan, rank: int, milestone: str, at: float, wrong: int) -> Event:
    what, _, number = milestone.partition(" ")
    data: dict[str, Any] = {}
    if number:
        step = plan.steps[int(number)]
        data = {"op": step.op, "bytes": step.bytes}
    if what == "left":
        bad = wrong if number == "1" else 0
        first = {"index": 5, "seen": "9.0", "wanted": 10.0} if bad else None
        data |= {
            "seconds": 0.001 * (rank + 1),
            "best": 0.0005 * (rank + 1),
            "wrong": bad,
            "first": first,
        }
    return Event(plan.ranks[rank].node, what, at + rank * 0.001, rank, data)


def on(rank: int, what: str, at: float = 20.0, **data: Any) -> Event:
    """Something of a rank of the usual plan: two ranks per node."""
    return Event(f"n{rank // 2 + 1}", what, at, rank, data)


def at_node(name: str, what: str, at: float = 20.0, **data: Any) -> Event:
    return Event(name, what, at, None, data)


def killed(
    rank: int, name: str = "SIGKILL", at: float = 20.0, asked: bool = False, output: str = ""
) -> Event:
    return on(rank, "exit", at, signal=9, name=name, output=output, asked=asked)


def failed(ranks: Iterable[int], text: str, stage: str, at: float = 20.1) -> list[Event]:
    return [on(rank, "error", at, stage=stage, type="RuntimeError", text=text) for rank in ranks]


def on_node(plan: TrialPlan, rank: int, what: str, at: float = 20.0, **data: Any) -> Event:
    """Something of a rank of any plan."""
    return Event(plan.ranks[rank].node, what, at, rank, data)
