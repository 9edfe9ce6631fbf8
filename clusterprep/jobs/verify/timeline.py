"""The events of a trial in one order of time: the only thing that judging a trial looks at."""

from __future__ import annotations

import functools
import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.schedule import PlannedRank, TrialPlan
from clusterprep.jobs.verify.turns import (
    AMISS,
    FOR_EACH_COLLECTIVE,
    IN_PIECES,
    MOST_PIECES,
    ONCE,
    Turn,
)

_by_time = attrgetter("at")
_NO_TURN = Turn("", ())


class EventLog:
    """Takes the events of a trial as they arrive.

    The steps of ranks are kept in turns, as there are millions of them. That a rank is within a
    collective is of no use once it has left it.
    """

    def __init__(self, plan: TrialPlan) -> None:
        self._plan = plan
        self._node_names = tuple(rank.node for rank in plan.ranks)
        self._others: list[Event] = []
        self._within: dict[int, Event] = {}  # the event «warmed» of a rank that has not left
        self._turns: dict[str, list[Turn]] = {}
        self._most = {
            **dict.fromkeys(ONCE, 1),
            **dict.fromkeys(FOR_EACH_COLLECTIVE, len(plan.steps)),
            **dict.fromkeys(IN_PIECES, MOST_PIECES),
        }
        self._counts: dict[str, array[int]] = {}  # how often each rank took a step
        for what in self._most:
            self._counts[what] = array("i", [0]) * len(plan.ranks)
        # By node what makes the controller's time of its own, by the event that came fastest.
        self._offsets: dict[str, float] = {}

    def add(self, event: Event) -> None:
        """Keep an event that came after those before."""
        if event.mono is not None:
            offset = event.at - event.mono
            if offset < self._offsets.get(event.node, math.inf):
                self._offsets[event.node] = offset
        rank = event.rank
        if rank is None:
            self._others.append(event)
            return
        if event.what == "warmed":
            self._within[rank] = event
            return
        if event.what == "left":
            self._within.pop(rank, None)
        turn = self._turn_of(event.what, rank)
        if turn is None:
            self._others.append(event)
        else:
            turn.add(rank, event)

    def _turn_of(self, what: str, rank: int) -> Turn | None:
        """Return the turn in which a rank takes this step now; None if it is no step.

        A rank that takes a step more often than planned is none of ours, and makes no more turns.
        """
        counts = self._counts.get(what)
        if counts is None or rank >= len(counts):
            return None
        number = counts[rank]
        if number >= self._most[what]:
            return None
        counts[rank] = number + 1
        turns = self._turns.setdefault(what, [])
        if number == len(turns):
            turns.append(Turn(what, self._node_names))
        return turns[number]

    def timeline(self) -> Timeline:
        """Return the events in order of time, and end the log.

        A node's clock is set against the controller's by the event that came fastest. The time
        which that event took is the same error for all events of the node, a round trip at most.
        """
        events = self._others
        events.extend(self._within.values())
        self._within.clear()
        # In place: there are several of each rank, and the log lives as long as what judges them.
        for position, event in enumerate(events):
            events[position] = self._moved(event)
        events.sort(key=_by_time)
        offsets = [self._offsets.get(name, 0.0) for name in self._node_names]
        for turns in self._turns.values():
            for turn in turns:
                turn.settle(offsets, self._moved)
        return Timeline(self._plan, tuple(events), self._turns)

    def _moved(self, event: Event) -> Event:
        """Return the event with the time at which it happened, by the controller's clock."""
        if event.mono is None:
            return event
        at = event.mono + self._offsets[event.node]
        return Event(event.node, event.what, at, event.rank, event.data)


class Timeline(Struct, frozen=True, dict=True):
    """A whole trial: its plan, the steps that its ranks took, and all other events by time."""

    plan: TrialPlan
    others: tuple[Event, ...]
    turns: Mapping[str, Sequence[Turn]]

    def of(self, what: str) -> Iterator[Event]:
        """Return the events of this kind, earliest first."""
        events = sorted(self.turn_by_turn(what), key=_by_time)
        return iter(events)

    def turn_by_turn(self, what: str) -> Iterator[Event]:
        """Yield the events of this kind, each rank's earliest first, made one after the other.

        All at once those of a large trial take a hundred megabytes.
        """
        for turn in self.turns.get(what, ()):
            yield from turn.values()
        yield from self._others_by_kind.get(what, ())

    @functools.cached_property
    def _others_by_kind(self) -> Mapping[str, Sequence[Event]]:
        """Cached, because thousands of ranks are looked at for each collective."""
        grouped: dict[str, list[Event]] = {}
        for event in self.others:
            grouped.setdefault(event.what, []).append(event)
        return grouped

    @property
    def events(self) -> tuple[Event, ...]:
        """All events, earliest first: those of a large trial take gigabytes."""
        events = list(self.others)
        for turn in self._all_turns():
            events.extend(turn.values())
        events.sort(key=_by_time)
        return tuple(events)

    def turn(self, what: str, number: int = 0) -> Turn:
        """Return the events of a step that were the first, or nth, of their kind on each rank."""
        turns = self.turns.get(what, ())
        return turns[number] if number < len(turns) else _NO_TURN

    def first(self, what: str) -> Event | None:
        return next(self.of(what), None)

    def ranks_with(self, what: str) -> Mapping[int, Event]:
        """Return the first event of this kind of every rank that has one, earliest first."""
        if what in self.turns:
            return self.turn(what)
        first: dict[int, Event] = {}
        for event in self.of(what):
            if event.rank is not None:
                first.setdefault(event.rank, event)
        return first

    def left_with(self, key: str) -> Sequence[Event]:
        """Return the ends of collectives whose data have this key, one of AMISS."""
        return self._left_with[key]

    @functools.cached_property
    def _left_with(self) -> Mapping[str, Sequence[Event]]:
        unusual = list(self._others_by_kind.get("left", ()))
        for turn in self.turns.get("left", ()):
            unusual.extend(turn.unusual.values())
        unusual.sort(key=_by_time)
        grouped: dict[str, list[Event]] = {key: [] for key in AMISS}
        for event in unusual:
            for key, events in grouped.items():
                if event.data.get(key):
                    events.append(event)
        return grouped

    @property
    def last_time(self) -> float:
        """Return when the last event happened, 0 if there is none."""
        last = self.others[-1].at if self.others else 0.0
        for turn in self._all_turns():
            last_of_turn = max(time for _, time in turn.times())
            last = max(last, last_of_turn)
        return last

    def last_steps(self) -> dict[int, Event]:
        """Return the last step of every rank that took one."""
        times: dict[int, float] = {}
        turns: dict[int, Turn] = {}
        steps = [turns for what, turns in self.turns.items() if what not in IN_PIECES]
        for turn in itertools.chain.from_iterable(steps):
            for rank, time in turn.times():
                if time >= times.get(rank, -math.inf):
                    times[rank] = time
                    turns[rank] = turn
        return {rank: turn[rank] for rank, turn in turns.items()}

    def _all_turns(self) -> Iterator[Turn]:
        return itertools.chain.from_iterable(self.turns.values())

    def of_rank(self, rank: int) -> Sequence[Event]:
        """Return the events of a rank, earliest first."""
        events = list(self._others_by_rank.get(rank, ()))
        events.extend([turn[rank] for turn in self._all_turns() if rank in turn])
        events.sort(key=_by_time)
        return events

    @functools.cached_property
    def _others_by_rank(self) -> Mapping[int, Sequence[Event]]:
        grouped: dict[int, list[Event]] = {}
        for event in self.others:
            if event.rank is not None:
                grouped.setdefault(event.rank, []).append(event)
        return grouped

    @functools.cached_property
    def all_ranks(self) -> tuple[int, ...]:
        """Return the numbers of all ranks, which every stage of a trial that goes well has."""
        return tuple(range(self.plan.world_size))

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
    """Return the timeline of events in any order."""
    log = EventLog(plan)
    for event in sorted(events, key=_by_time):
        log.add(event)
    return log.timeline()
