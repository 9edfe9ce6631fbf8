"""The facts of a node as a row of values; nodes that were asked the same share the names. Pure.

A dictionary for each of ten thousand nodes would hold the names anew, three times the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Places = Mapping[str, int]  # the place of each fact in a row, in their order


class NodeFacts(Mapping[str, Any]):
    """Facts by name, which do not change: `places` has the place of each in `row`."""

    __slots__ = ("places", "row")

    def __init__(self, places: Places, row: tuple[Any, ...]) -> None:
        self.places = places
        self.row = row

    def __getitem__(self, name: str) -> Any:
        return self.row[self.places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        return repr(dict(self))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a fact, `default` for one that is not there."""
        place = self.places.get(name)
        return default if place is None else self.row[place]

    def values(self) -> tuple[Any, ...]:  # type: ignore[override]
        """Return the values, in the order of the names; they need no view of their own."""
        return self.row


class Rows:
    """Makes the rows of the nodes of one fleet, which share their names."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], Places] = {}
        self._extended: dict[tuple[int, tuple[str, ...]], Places] = {}

    def extended(self, facts: Mapping[str, Any], added: Mapping[str, Any]) -> NodeFacts:
        """Return facts with others besides; one of the same name is replaced in its place."""
        if not isinstance(facts, NodeFacts):
            facts = self._row_of(facts)
        places, row = facts.places, facts.row
        if not places.keys().isdisjoint(added):
            return self._row_of({**dict(zip(places, row, strict=True)), **added})
        # The facts that are extended live as long as this: their places are known by identity.
        key = (id(places), tuple(added))
        if key not in self._extended:
            self._extended[key] = _places_of((*places, *added))
        return NodeFacts(self._extended[key], row + tuple(added.values()))

    def _row_of(self, facts: Mapping[str, Any]) -> NodeFacts:
        names = tuple(facts)
        if names not in self._places:
            self._places[names] = _places_of(names)
        return NodeFacts(self._places[names], tuple(facts.values()))


def _places_of(names: tuple[str, ...]) -> Places:
    return {name: place for place, name in enumerate(names)}
