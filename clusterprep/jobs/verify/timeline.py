"""The events of a trial in one order of time: the only thing that judging a trial looks at."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from clusterprep.jobs.verify.schedule import PlannedRank, TrialPlan

# Kinds of events that are observed of a rank from outside; they are no step that it takes by
# itself.
OBSERVED = ("state", "working", "nccl", "exit", "holds")

EventsByKey = dict[str, list["Event"]]


class Event(Struct, frozen=True):  # a large trial has millions
    """One thing that happened.

    Of a rank (`rank` set): spawned, started, no_torch, imported, no_cuda, ready, store, joined,
    met, entered, warmed, left, finished, error, holds (data: part, items); seen from outside: state
    (data: state), working (not ready, and it has used the processor), nccl (data: lines, cut), exit
    (data: signal or code, asked). Of a node: refused (its agent could not start ranks), lost (its
    agent fell silent), sockets (of its ranks, when the trial hung; data: rows, own, cut), left_over
    (processes that did not die). Of the controller (`node` empty): go, overdue, stopping.
    """

    node: str
    what: str
    at: float  # seconds since the trial began, by the controller's clock
    rank: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    mono: float | None = None  # the node's own monotonic clock


NO_DATA: Mapping[str, Any] = {}
SAID_BY_ALL = ("entered", "warmed")  # events that have the same data on every rank


class SharedEvents:
    """Makes events of what agents tell; data that thousands of ranks have alike are kept once."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
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
        """Return the event; `at` and `mono` are as in `Event`."""
        what = self._kinds.setdefault(what, what)
        if not data:
            data = NO_DATA
        elif what in SAID_BY_ALL:
            data = self._shared(data)
        return Event(
            node,
            what,
            at,
            rank,
            data,
            mono,
        )

    def _shared(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._data.setdefault(tuple(data.items()), data)
        except TypeError:  # a list among the values, which no rank of ours sends in these events
            return data


class Timeline(Struct, frozen=True, dict=True):
    """A whole trial: its plan and its events, earliest first."""

    plan: TrialPlan
    events: tuple[Event, ...]

    def of(self, what: str) -> Iterator[Event]:
        events = self.by_what.get(what, ())
        return iter(events)

    @functools.cached_property
    def by_what(self) -> Mapping[str, tuple[Event, ...]]:
        """Events by their kind, earliest first.

        It is cached because thousands of ranks are looked at for each collective.
        """
        grouped: EventsByKey = {}
        for event in self.events:
            grouped.setdefault(event.what, []).append(event)
        return {what: tuple(events) for what, events in grouped.items()}

    def in_turn(self, what: str) -> Sequence[Mapping[int, Event]]:
        """Return the first event of this kind of every rank, then the second one, and so on."""
        turns = self._turns.get(what)
        if turns is None:
            turns = self._sort_into_turns(what)
            self._turns[what] = turns
        return turns

    def _sort_into_turns(self, what: str) -> Sequence[Mapping[int, Event]]:
        counts: dict[int, int] = {}
        turns: list[dict[int, Event]] = []
        for event in self.of(what):
            if event.rank is None:
                continue
            number = counts.get(event.rank, 0)
            counts[event.rank] = number + 1
            if number == len(turns):
                turns.append({})
            turns[number][event.rank] = event
        return turns

    @functools.cached_property
    def _turns(self) -> dict[str, Sequence[Mapping[int, Event]]]:
        return {}

    def first(self, what: str) -> Event | None:
        return next(self.of(what), None)

    def ranks_with(self, what: str) -> dict[int, Event]:
        """Return the first event of this kind of every rank that has one."""
        first: dict[int, Event] = {}
        for event in self.of(what):
            if event.rank is not None:
                first.setdefault(event.rank, event)
        return first

    def left_with(self, key: str) -> Sequence[Event]:
        """Return the ends of collectives whose data have this key: wrong, refused or blame."""
        return self._left_with[key]

    @functools.cached_property
    def _left_with(self) -> Mapping[str, Sequence[Event]]:
        grouped: EventsByKey = {
            "wrong": [],
            "refused": [],
            "blame": [],
        }
        for event in self.of("left"):
            for key, events in grouped.items():
                if event.data.get(key):
                    events.append(event)
        return grouped

    @functools.cached_property
    def by_rank(self) -> Mapping[int, tuple[Event, ...]]:
        """The events of every rank that has any, earliest first."""
        grouped: dict[int, list[Event]] = {}
        for event in self.events:
            if event.rank is not None:
                grouped.setdefault(event.rank, []).append(event)
        return {rank: tuple(events) for rank, events in grouped.items()}

    def rank(self, number: int) -> PlannedRank:
        return self.plan.ranks[number]

    def node_names(self) -> tuple[str, ...]:
        """Return the names of all nodes, in inventory order."""
        return tuple(node.name for node in self.plan.nodes)

    def nodes_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Return the names of the nodes that run these ranks, in inventory order."""
        wanted = {self.rank(rank).node for rank in ranks}
        return self.sorted_nodes(wanted)

    def sorted_nodes(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names of nodes in inventory order, each once."""
        wanted = frozenset(names)
        return tuple(name for name in self.node_names() if name in wanted)


def ordered_timeline(plan: TrialPlan, events: Iterable[Event]) -> Timeline:
    """Return events by the time at which they happened, not at which they arrived.

    A node's clock is set against the controller's by the event that came fastest. The time which
    that event took is the same error for all events of the node, a round trip at most.
    """
    arrived = tuple(events)
    offsets: dict[str, float] = {}
    for event in arrived:
        if event.mono is None:
            continue
        offset = event.at - event.mono
        smallest = offsets.get(event.node, float("inf"))
        offsets[event.node] = min(smallest, offset)
    placed: list[Event] = []
    for event in arrived:
        if event.mono is None:
            placed.append(event)
        else:
            at = event.mono + offsets[event.node]
            placed.append(Event(event.node, event.what, at, event.rank, event.data))
    placed.sort(key=_time)
    return Timeline(plan, tuple(placed))


def _time(event: Event) -> float:
    return event.at
