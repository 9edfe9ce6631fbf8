"""What was seen during a trial, in one order of time: the only thing that judging a trial looks at."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterprep.jobs.verify.schedule import PlannedRank, TrialPlan

OUTSIDE = ("state", "nccl", "exit", "holds")  # of a rank, and no step that it takes by itself


@dataclass(frozen=True, slots=True)  # a large trial has millions
class Event:
    """One thing that happened.

    Of a rank (`rank` set): spawned, started, no_torch, imported, no_cuda, ready, store, joined, met, entered, warmed,
    left, finished, error, holds (data: part, items); seen from outside: state (data: state), nccl (data: lines, cut),
    exit (data: signal or code, asked). Of a node: refused (its agent could not start ranks), lost (its agent fell
    silent), sockets (of its ranks, when the trial hung; data: rows, own, cut), left_over (processes that did not die).
    Of the controller (`node` empty): go, overdue, stopping.
    """

    node: str
    what: str
    at: float  # seconds since the trial began, by the controller's clock
    rank: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    mono: float | None = None  # the node's own monotonic clock


NOTHING: Mapping[str, Any] = {}
SAID_BY_ALL = ("entered", "warmed")  # by every rank in the same words


class KeptEvents:
    """Makes events of what agents tell; what thousands of ranks say in the same words is kept once."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._data: dict[tuple[tuple[str, Any], ...], Mapping[str, Any]] = {}

    def event(
        self,
        node: str,
        what: str,
        at: float,
        rank: int | None,
        data: Mapping[str, Any],
        mono: float,
    ) -> Event:
        """`at` and `mono` as Event has them."""
        word = self._words.setdefault(what, what)
        return Event(node, word, at, rank, self._kept(word, data) if data else NOTHING, mono)

    def _kept(self, what: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._data.setdefault(tuple(data.items()), data) if what in SAID_BY_ALL else data
        except TypeError:  # a list among them, which no rank of ours says here
            return data


@dataclass(frozen=True)
class Timeline:
    """A whole trial: its plan and its events, earliest first."""

    plan: TrialPlan
    events: tuple[Event, ...]

    def of(self, what: str) -> Iterator[Event]:
        return iter(self.by_what.get(what, ()))

    @functools.cached_property
    def by_what(self) -> Mapping[str, tuple[Event, ...]]:
        """Events of the same kind, earliest first: thousands of ranks are looked at for each collective."""
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.what, []).append(event)
        return {what: tuple(events) for what, events in found.items()}

    def in_turn(self, what: str) -> Sequence[Mapping[int, Event]]:
        """First the first such event of every rank that has one, then the second of each, and so on."""
        if what not in self._turns:
            counts: dict[int, int] = {}
            turns: list[dict[int, Event]] = []
            for event in self.of(what):
                if event.rank is not None:
                    number = counts[event.rank] = counts.get(event.rank, -1) + 1
                    if number == len(turns):
                        turns.append({})
                    turns[number][event.rank] = event
            self._turns[what] = turns
        return self._turns[what]

    @functools.cached_property
    def _turns(self) -> dict[str, Sequence[Mapping[int, Event]]]:
        return {}

    def first(self, what: str) -> Event | None:
        return next(self.of(what), None)

    def ranks_with(self, what: str) -> dict[int, Event]:
        """The first such event of every rank that has one."""
        seen: dict[int, Event] = {}
        for event in self.of(what):
            if event.rank is not None:
                seen.setdefault(event.rank, event)
        return seen

    def left_with(self, key: str) -> Sequence[Event]:
        """The ends of collectives that say something besides how long it took: «wrong», «refused» or «blame»."""
        return self._remarkable[key]

    @functools.cached_property
    def _remarkable(self) -> Mapping[str, Sequence[Event]]:
        found: dict[str, list[Event]] = {"wrong": [], "refused": [], "blame": []}
        for event in self.of("left"):
            for key, events in found.items():
                if event.data.get(key):
                    events.append(event)
        return found

    @functools.cached_property
    def by_rank(self) -> Mapping[int, tuple[Event, ...]]:
        """The events of every rank that has any, earliest first."""
        found: dict[int, list[Event]] = {}
        for event in self.events:
            if event.rank is not None:
                found.setdefault(event.rank, []).append(event)
        return {rank: tuple(events) for rank, events in found.items()}

    def rank(self, number: int) -> PlannedRank:
        return self.plan.ranks[number]


def in_order(plan: TrialPlan, events: Iterable[Event]) -> Timeline:
    """Events by the time at which they happened, not at which they arrived.

    A node's clock is set against the controller's by the event that came fastest: what is left of the way it took is
    the same error for all events of that node, a round trip at most.
    """
    seen = tuple(events)
    offsets: dict[str, float] = {}
    for event in seen:
        if event.mono is not None:
            offsets[event.node] = min(offsets.get(event.node, float("inf")), event.at - event.mono)
    placed = [
        event if event.mono is None else _at(event, event.mono + offsets[event.node])
        for event in seen
    ]
    placed.sort(key=lambda event: event.at)
    return Timeline(plan, tuple(placed))


def _at(event: Event, at: float) -> Event:
    return Event(event.node, event.what, at, event.rank, event.data)
