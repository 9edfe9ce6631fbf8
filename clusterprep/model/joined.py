"""A mapping of a few entries of its own, before those of another one that many share. Pure.

    Joined({"n7": ("10.0.0.7",)}, others)   # equal to {"n7": ("10.0.0.7",), **others}

Where ten thousand nodes answer alike but for one entry, a dictionary for each takes ten times the
memory.
"""

from __future__ import annotations

import itertools
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any


class Joined(Mapping[str, Any]):
    """Entries by key, which do not change: `own`, and `shared`, which has none of their keys."""

    __slots__ = ("own", "shared")

    def __init__(self, own: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
        self.own = own
        self.shared = shared

    def __getitem__(self, key: str) -> Any:
        return self.own[key] if key in self.own else self.shared[key]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.own, self.shared)

    def __len__(self) -> int:
        return len(self.own) + len(self.shared)

    def keys(self) -> KeysView[str]:
        """Return the keys. This view and the others are those of a dictionary, which are faster."""
        return self.merged().keys()

    def values(self) -> ValuesView[Any]:
        return self.merged().values()

    def items(self) -> ItemsView[str, Any]:
        return self.merged().items()

    def __repr__(self) -> str:
        return repr(self.merged())

    def merged(self) -> dict[str, Any]:
        """Return a dictionary with the same entries in the same order."""
        return {**self.own, **self.shared}
