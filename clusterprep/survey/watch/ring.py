"""Which nodes dial which in a look of a watch, and which failed dials count. Pure.

A look dials few pairs, so that it costs little. The nodes stand in a ring, and each dials the next
ones at distances that go up from look to look. So a node that others cannot reach, or that reaches
no others, is met in every look, and a single pair in one of half as many looks as there are nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clusterprep.facts.pairs import Dial

PARTNERS = 2  # others that each node dials, and by which it is dialled: two blame a node alone
MOST_AGAIN = 4  # more that a node dials, as they were not reached in the look before


class Ring:
    """The pairs of the next look, and those that failed in the last one."""

    def __init__(self) -> None:
        self._looks = 0
        self._failed: dict[str, list[str]] = {}  # listeners by dialer

    def pairs(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Return the listeners that each of these nodes dials in this look, by dialer."""
        distances = self._distances(len(names))
        self._looks += 1
        pairs: dict[str, list[str]] = {}
        for place, name in enumerate(names):
            listeners = [names[(place + distance) % len(names)] for distance in distances]
            failed = self._failed.get(name, ())
            again = [other for other in failed if other in names and other not in listeners]
            pairs[name] = [*listeners, *again[:MOST_AGAIN]]
        return pairs

    def _distances(self, count: int) -> list[int]:
        others = max(count - 1, 0)
        begin = self._looks * PARTNERS
        return [1 + (begin + step) % others for step in range(min(PARTNERS, others))]

    def counted(self, dials: Sequence[Dial], filtered: Collection[str] = ()) -> tuple[Dial, ...]:
        """Take the dials of a look, and return those that count.

        A failure counts if the same pair failed in the look before, or if one of its ends is among
        `filtered`, the nodes whose own rules are seen to drop packets. So a filter is told once,
        with its rules, also if it was set between the answers of a look and its dials.
        """
        counted: list[Dial] = []
        failed: dict[str, list[str]] = {}
        for dial in dials:
            is_known = dial.listener in self._failed.get(dial.dialer, ())
            is_explained = dial.dialer in filtered or dial.listener in filtered
            if dial.word == "ok" or is_known or is_explained:
                counted.append(dial)
            if dial.word != "ok":
                failed.setdefault(dial.dialer, []).append(dial.listener)
        self._failed = failed
        return tuple(counted)
