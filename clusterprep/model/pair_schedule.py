"""Which node dials which, and when: all pairs of a small fleet, a fair share of a large one. Pure.

pairing(["n1", "n2", "n3"], "seed") == {"n1": ("n2", "n3"), "n2": ("n1", "n3"), …}
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")
Pair = tuple[str, str]  # (dialer, listener)
Rounds = tuple[tuple[Pair, ...], ...]

ALL_PAIRS = 64  # nodes up to which every ordered pair is dialled
SHARE = 64  # others that each node dials beyond that, and by which it is dialled
_TRIES = 63  # ports after a drawn one that are tried if it is taken


def pairing(names: Sequence[str], seed: str) -> dict[str, tuple[str, ...]]:
    """Return dialler → listeners, in an order that is fixed for a seed.

    Above ALL_PAIRS nodes each node dials SHARE others and is dialled by as many. For that the nodes
    stand in a ring, and the same randomly drawn distances are used for all of them.
    """
    dialled: dict[str, tuple[str, ...]] = {}
    if len(names) <= ALL_PAIRS:
        for name in names:
            dialled[name] = tuple(other for other in names if other != name)
        return dialled
    draw = random.Random(seed)  # noqa: S311 - a fair schedule, not a secret
    ring = list(names)
    draw.shuffle(ring)
    distances = draw.sample(range(1, len(ring)), SHARE)
    place_of = {name: place for place, name in enumerate(ring)}
    for name in names:
        listeners = []
        for distance in distances:
            place = (place_of[name] + distance) % len(ring)
            listeners.append(ring[place])
        dialled[name] = tuple(listeners)
    return dialled


def rounds(names: Sequence[str], seed: str) -> Rounds:
    """Return rounds of disjoint pairs: every pair once, or SHARE partners each above ALL_PAIRS.

    No node is in two pairs of a round, so each pair is measured by itself. Over all rounds every
    node both dials and listens.
    """
    draw = random.Random(seed)  # noqa: S311 - as above
    ring = list(names)
    draw.shuffle(ring)
    if len(ring) <= ALL_PAIRS:
        return circle_rounds(ring)
    schedule: list[tuple[Pair, ...]] = []
    distances = range(1, (len(ring) + 1) // 2)
    for distance in draw.sample(distances, SHARE // 2):
        schedule += _pairs_at(distance, ring)
    return tuple(schedule)


def circle_rounds(ring: Sequence[str]) -> Rounds:
    """Return every pair once, in rounds of disjoint pairs.

    By the circle method: one seat stays, the others move on.
    """
    seats: list[str | None] = list(ring)
    if len(seats) % 2 == 1:
        seats.append(None)  # its opposite has no partner in this round
    schedule = []
    for turn in range(len(seats) - 1):
        pairs: list[Pair] = []
        for place in range(len(seats) // 2):
            one, other = seats[place], seats[-1 - place]
            if one is None or other is None:
                continue
            # Dialling is passed back and forth, so that each node does it in half of its pairs.
            is_swapped = (turn + place) % 2 == 1
            pairs.append((other, one) if is_swapped else (one, other))
        schedule.append(tuple(pairs))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(schedule)


def _pairs_at(distance: int, ring: list[str]) -> list[tuple[Pair, ...]]:
    """Return all pairs at a distance in the ring, in two or three rounds.

    Steps of `distance` lead around one or several circles. The edges of a circle alternate between
    two rounds; the last edge of a circle of odd length goes into a third one.
    """
    parts: list[list[Pair]] = [[], [], []]
    visited: set[int] = set()
    for start in range(len(ring)):
        circle: list[Pair] = []
        place = start
        while place not in visited:
            visited.add(place)
            partner = (place + distance) % len(ring)
            circle.append((ring[place], ring[partner]))
            place = partner
        if len(circle) % 2 == 1:
            parts[2].append(circle.pop())
        parts[0].extend(circle[0::2])
        parts[1].extend(circle[1::2])
    return [tuple(part) for part in parts if part]


def disjoint(pairs: Iterable[Pair]) -> Rounds:
    """Return these pairs in rounds of disjoint pairs, each in the first round that has room."""
    return pack_rounds(pairs, lambda pair: pair)


def pack_rounds(
    things: Iterable[Thing], members: Callable[[Thing], Iterable[str]]
) -> tuple[tuple[Thing, ...], ...]:
    """Return things in rounds in which no member occurs twice.

    Each thing goes into the first round that has none of its members.
    """
    used_rounds: dict[str, int] = {}  # member -> a bit for each round that has it
    schedule: list[list[Thing]] = []
    for thing in things:
        names = tuple(members(thing))
        used = 0
        for name in names:
            used |= used_rounds.setdefault(name, 0)
        first_free = ~used & (used + 1)  # the lowest bit that is not set
        for name in names:
            used_rounds[name] |= first_free
        number = first_free.bit_length() - 1
        if number == len(schedule):
            schedule.append([])
        schedule[number].append(thing)
    return tuple(map(tuple, schedule))


def coverage(pairs: int, nodes: int) -> str:
    """Return «12 of 12 directed pairs» for the report."""
    all_pairs = nodes * (nodes - 1)
    return f"{pairs} of {all_pairs} directed pairs"


def spans(low: int, high: int, seed: str, count: int = 3) -> list[list[int]]:
    """Return ranges of ports to listen on: a drawn one in each of `count` parts of low to high.

    A firewall that opens half of the ephemeral range then blocks one of them at least.
    """
    draw = random.Random(seed)  # noqa: S311 - as above
    width = (high - low + 1) // count
    if width < 1:
        return [[low, high]]
    ranges = []
    for part in range(count):
        offset = draw.randrange(max(1, width - _TRIES))
        start = low + part * width + offset
        end = min(start + _TRIES, high)
        ranges.append([start, end])
    return ranges
