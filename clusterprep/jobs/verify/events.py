"""One event of a trial, and how events of thousands of ranks share what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

# Kinds of events that are observed of a rank from outside; they are no step that it takes by
# itself.
OBSERVED = ("state", "working", "nccl", "exit", "holds")


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
