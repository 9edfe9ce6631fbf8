"""What all ranks tell at one point of a trial, kept as columns of numbers instead of events.

A trial of 80,000 ranks has three million events. Ranks that behave tell the same at one point, but
for the time and for what they measured, so a few numbers of each are kept.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from clusterprep.jobs.verify.events import Event

# Steps that each rank takes by itself: once in a trial, or once in every collective of the plan.
ONCE = ("spawned", "started", "imported", "ready", "store", "joined", "met", "finished")
FOR_EACH_COLLECTIVE = ("entered", "left")
# What each rank tells in several pieces. It is no step, but nearly all ranks tell the same.
IN_PIECES = ("holds",)
MOST_PIECES = 8
# What a rank tells at the end of a collective only if something is wrong.
AMISS = ("wrong", "refused", "blame")

NO_TIME = math.nan  # of a rank that did not come there


class Turn(Mapping[int, Event]):
    """The events of all ranks at one point of a trial, such as the end of the third collective.

    It is a mapping from ranks to events, earliest first, which makes an event when it is asked for.
    Each rank has one event in it. Those that tell anything unusual are kept as they came. While the
    trial goes on events are added; `settle` ends that, and then nothing changes.
    """

    def __init__(self, what: str, node_names: Sequence[str]) -> None:
        """`node_names` has the node of each rank."""
        self.unusual: dict[int, Event] = {}  # events that are kept whole
        self._what = what
        self._node_names = node_names
        self._count = 0
        self._times = array("d", [NO_TIME]) * len(node_names)  # by rank, as are all columns
        self._shape: tuple[object, ...] = ()  # keys of the usual data and types of their values
        self._same: Mapping[str, Any] = {}  # the part of the usual data that is equal on all ranks
        self._measured: dict[str, array[float]] = {}
        self._shared: Mapping[str, Any] | None = None  # usual data without anything measured

    def add(self, rank: int, event: Event) -> None:
        """Keep the event of a rank that has none in this turn yet."""
        if event.mono is None or not self._is_usual(event.data):
            self.unusual[rank] = event
            self._times[rank] = event.at
        else:
            self._times[rank] = event.mono
            for key, column in self._measured.items():
                column[rank] = event.data[key]
        self._count += 1

    def _is_usual(self, data: Mapping[str, Any]) -> bool:
        """Return whether data are those of the first rank that had nothing amiss, but for floats.

        Types are compared because True is 1 in Python.
        """
        if data is self._shared:
            return True
        shape = (*data, *map(type, data.values()))
        if self._count == len(self.unusual):
            return self._begin(shape, data)
        if shape != self._shape or not self._same.items() <= data.items():
            return False
        if not self._measured:
            self._shared = data  # the next ranks often come with the same object
        return True

    def _begin(self, shape: tuple[object, ...], data: Mapping[str, Any]) -> bool:
        """Take data as the usual ones, unless something is amiss or they cannot be compared."""
        if any(data.get(key) for key in AMISS):
            return False
        if self._what in IN_PIECES:
            # Not compared: what ranks have alike comes with the same object (`SharedEvents`).
            self._shared = self._same = data
            return True
        if any(value and not isinstance(value, str | int | float) for value in data.values()):
            return False
        self._shape = shape
        same = {}
        for key, value in data.items():
            if type(value) is float and key not in AMISS:
                self._measured[key] = array("d", [0.0]) * len(self._node_names)
            else:
                same[key] = value
        self._same = same
        return True

    def settle(self, offsets: Sequence[float], moved: Callable[[Event], Event]) -> None:
        """Move the times to the controller's clock.

        `offsets` has by rank what makes its time of that of the node; `moved` does so with whole
        events.
        """
        self._times = array("d", map(operator.add, self._times, offsets))
        self.unusual = {rank: moved(event) for rank, event in self.unusual.items()}
        for rank, event in self.unusual.items():
            self._times[rank] = event.at

    # ------------------------------------------------------------ as events

    def __len__(self) -> int:
        return self._count

    def __contains__(self, rank: object) -> bool:
        if not isinstance(rank, int) or not 0 <= rank < len(self._times):
            return False
        return not math.isnan(self._times[rank])

    def __iter__(self) -> Iterator[int]:
        ranks = [rank for rank, _ in self.times()]
        ranks.sort(key=self._times.__getitem__)
        return iter(ranks)

    def __getitem__(self, rank: int) -> Event:
        whole = self.unusual.get(rank)
        if whole is not None:
            return whole
        if rank not in self:
            raise KeyError(rank)
        data = self._same
        if self._measured:
            data = {**data, **{key: column[rank] for key, column in self._measured.items()}}
        return Event(self._node_names[rank], self._what, self._times[rank], rank, data)

    # ------------------------------------------------------------ as numbers, which is quicker

    def times(self) -> Iterator[tuple[int, float]]:
        """Return each rank with the time of its event, in order of ranks."""
        if self._count == len(self._times):
            return enumerate(self._times)
        return ((rank, time) for rank, time in enumerate(self._times) if not math.isnan(time))

    def told(self, key: str) -> Iterator[tuple[int, Any]]:
        """Return each rank with what it told under a key, None if nothing, in order of ranks."""
        values: list[Any] = [self._same.get(key)] * len(self._times)
        if key in self._measured:
            values = self._measured[key].tolist()
        for rank, event in self.unusual.items():
            values[rank] = event.data.get(key)
        for rank, _ in self.times():
            yield rank, values[rank]
