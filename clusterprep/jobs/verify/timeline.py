"""The events of a trial in one order of time: the only thing that judging a trial looks at."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct, field

from clusterprep.jobs.verify.schedule import PlannedRank, TrialPlan

# Kinds of events that are observed of a rank from outside; they are no step that it takes by
# itself.
OBSERVED = ("state", "working", "nccl", "exit", "holds")

EventsByKey = dict[str, list["Event"]]


class Event(Struct, frozen=True, gc=False):  # a large trial has millions, and none has a cycle
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
# Events that have the same data on most ranks: what they hold is a hundred texts on each.
SAID_BY_ALL = ("entered", "warmed", "holds")


class SharedEvents:
    """Makes events of what agents tell; data that thousands of ranks have alike are kept once."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._data: dict[tuple[object, ...], Mapping[str, Any]] = {}

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
            return self._data.setdefault(_key_of(data), data)
        except TypeError:  # a list among the values, as for a file that cannot be read
            return data


def _key_of(data: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what is equal for equal data alone, though True is 1 in Python."""
    key: list[object] = []
    for name, value in data.items():
        if isinstance(value, dict):
            key += (name, *value.items(), *map(type, value.values()))
        else:
            key += (name, type(value), value)
    return tuple(key)


class EventLog:
    """Keeps the events of a trial as they arrive, but those that tell nothing any more.

    That a rank is within a collective is of no use once it has left it.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._within: dict[int, Event] = {}  # the event «warmed» of a rank that has not left

    def add(self, event: Event) -> None:
        """Keep an event that came after those before."""
        if event.rank is not None:
            if event.what == "warmed":
                self._within[event.rank] = event
                return
            if event.what == "left":
                self._within.pop(event.rank, None)
        self._events.append(event)

    def timeline(self, plan: TrialPlan) -> Timeline:
        """Return the events in order of time; the log is empty then, as they are many."""
        events = [*self._events, *self._within.values()]
        self._events.clear()
        self._within.clear()
        return _take_over(plan, events)


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
    return _take_over(plan, list(events))


def _take_over(plan: TrialPlan, events: list[Event]) -> Timeline:
    """Return the timeline of a list, whose events are replaced one by one: twice is too much."""
    offsets: dict[str, float] = {}
    for event in events:
        if event.mono is None:
            continue
        offset = event.at - event.mono
        smallest = offsets.get(event.node, float("inf"))
        offsets[event.node] = min(smallest, offset)
    for place, event in enumerate(events):
        if event.mono is not None:
            at = event.mono + offsets[event.node]
            events[place] = Event(event.node, event.what, at, event.rank, event.data)
    events.sort(key=attrgetter("at"))
    return Timeline(plan, tuple(events))
