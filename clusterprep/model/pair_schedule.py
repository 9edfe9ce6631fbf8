"""Which node dials which when pairs are measured: all of them in a small fleet, a fair share in a large one. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")

ALL_PAIRS = 64  # nodes up to which every ordered pair is dialled
SHARE = 64  # others that each node dials beyond that, and by which it is dialled


def pairing(names: Sequence[str], seed: str) -> dict[str, tuple[str, ...]]:
    """Dialler → listeners, in a fixed order for a seed.

    Above ALL_PAIRS nodes each dials SHARE others and is dialled by as many: the nodes stand in a ring, and the same
    drawn distances hold for all of them.
    """
    if len(names) <= ALL_PAIRS:
        return {name: tuple(other for other in names if other != name) for name in names}
    draw = random.Random(seed)  # noqa: S311 - a fair schedule, not a secret
    ring = list(names)
    draw.shuffle(ring)
    distances = draw.sample(range(1, len(ring)), SHARE)
    places = {name: place for place, name in enumerate(ring)}
    return {name: tuple(ring[(places[name] + d) % len(ring)] for d in distances) for name in names}


def rounds(names: Sequence[str], seed: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Rounds of disjoint pairs: each pair of nodes once up to ALL_PAIRS nodes, beyond that SHARE partners for each.

    Nobody is in two pairs of a round, so that a pair is measured by itself. A pair is (dialer, listener); over the
    rounds everybody is both.
    """
    draw = random.Random(seed)  # noqa: S311 - as above
    ring = list(names)
    draw.shuffle(ring)
    if len(ring) <= ALL_PAIRS:
        return _tournament(ring)
    found = []
    for distance in draw.sample(range(1, (len(ring) + 1) // 2), SHARE // 2):
        found += _around(ring, distance)
    return tuple(found)


def _tournament(ring: list[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Everybody meets everybody: one seat stays, the others move on by one each round."""
    seats: list[str | None] = [*ring, None] if len(ring) % 2 else list(ring)
    found = []
    for turn in range(len(seats) - 1):
        pairs = [(seats[at], seats[-1 - at]) for at in range(len(seats) // 2)]
        turned = [(b, a) if (turn + at) % 2 else (a, b) for at, (a, b) in enumerate(pairs)]
        found.append(tuple((a, b) for a, b in turned if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(found)


def _around(ring: list[str], distance: int) -> list[tuple[tuple[str, str], ...]]:
    """All pairs at a distance in two or three rounds: every second edge of each circle, and the odd one at its end."""
    parts: list[list[tuple[str, str]]] = [[], [], []]
    seen: set[int] = set()
    for start in range(len(ring)):
        circle = []
        at = start
        while at not in seen:
            seen.add(at)
            circle.append((ring[at], ring[(at + distance) % len(ring)]))
            at = (at + distance) % len(ring)
        for place, pair in enumerate(circle):
            odd = len(circle) % 2 == 1 and place == len(circle) - 1
            parts[2 if odd else place % 2].append(pair)
    return [tuple(part) for part in parts if part]


def tournament(names: Sequence[str], seed: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Every pair of nodes once in rounds of disjoint pairs, however many nodes there are."""
    ring = list(names)
    random.Random(seed).shuffle(ring)  # noqa: S311 - as above
    return _tournament(ring)


def disjoint(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Any pairs in rounds in which nobody is twice: each goes into the first round that has neither of its ends."""
    return packed(pairs, lambda pair: pair)


def packed(
    things: Iterable[Thing], members: Callable[[Thing], Iterable[str]]
) -> tuple[tuple[Thing, ...], ...]:
    """Anything that has members in rounds in which nobody is twice: each in the first round that has none of them."""
    taken: dict[str, int] = {}  # member -> a bit for each round that has it
    found: list[list[Thing]] = []
    for thing in things:
        names = tuple(members(thing))
        used = 0
        for name in names:
            used |= taken.get(name, 0)
        first = ~used & (used + 1)  # the lowest bit that is not set
        for name in names:
            taken[name] = taken.get(name, 0) | first
        at = first.bit_length() - 1
        if at == len(found):
            found.append([])
        found[at].append(thing)
    return tuple(map(tuple, found))


def coverage(pairs: int, nodes: int) -> str:
    """«12 of 12 directed pairs» for the report."""
    return f"{pairs} of {nodes * (nodes - 1)} directed pairs"


def spans(low: int, high: int, seed: str, count: int = 3) -> list[list[int]]:
    """Where a node listens in its ephemeral range: a drawn stretch in each of `count` equal parts of it.

    A firewall that opens half of the range is met by one of them.
    """
    draw = random.Random(seed)  # noqa: S311 - as above
    width = (high - low + 1) // count
    if width < 1:
        return [[low, high]]
    starts = [low + part * width + draw.randrange(max(1, width - _TRIES)) for part in range(count)]
    return [[start, min(start + _TRIES, high)] for start in starts]


_TRIES = 63  # neighbours of a drawn port that are tried where it is taken
