"""Which node dials which, and when: all pairs of a small fleet, a fair sample of a large one. Pure.

pairing(["n1", "n2", "n3"], "seed") == {"n1": ("n2", "n3"), "n2": ("n1", "n3"), …}

What a sample finds is computed here too (`chance_of_pair`, `chance_between`), so that a report says
no more than what was dialled.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import TypeVar

Thing = TypeVar("Thing")
Pair = tuple[str, str]  # (dialer, listener)
Rounds = tuple[tuple[Pair, ...], ...]
Groups = Mapping[str, Collection[str]]  # names of nodes, by the name of their group

ALL_PAIRS = 64  # nodes up to which every ordered pair is dialled
SHARE = 64  # partners of each node in `rounds` beyond that
GROUP_DIALS = 2  # dials at least from each group of the inventory to each other one
FELLOWS = 4  # nodes of a group that dial and are dialled around one that failed
AROUND = 16  # others at most that a node dials, and by which it is dialled, around what failed
_TRIES = 63  # ports after a drawn one that are tried if it is taken


def pairing(names: Sequence[str], seed: str, groups: Groups | None = None) -> dict[str, list[str]]:
    """Return dialer → listeners, in an order that is fixed for a seed.

    Above ALL_PAIRS nodes each node dials `dials_per_node` others and is dialled by as many. For
    that the nodes stand in a ring, and the same randomly drawn distances are used for all of them.
    Then dials are added so that each of `groups` dials each other one, as far as these are no more
    than one for each node.
    """
    dialled: dict[str, list[str]] = {}
    if len(names) <= ALL_PAIRS:
        for name in names:
            dialled[name] = [other for other in names if other != name]
        return dialled
    draw = random.Random(seed)  # noqa: S311 - a fair schedule, not a secret
    ring = list(names)
    draw.shuffle(ring)
    distances = draw.sample(range(1, len(ring)), dials_per_node(len(ring)))
    place_of = {name: place for place, name in enumerate(ring)}
    for name in names:
        listeners = []
        for distance in distances:
            place = (place_of[name] + distance) % len(ring)
            listeners.append(ring[place])
        dialled[name] = listeners
    _add_dials_between(groups or {}, dialled, draw)
    return dialled


def dials_per_node(count: int) -> int:
    """Return how many others each of `count` nodes dials.

    All others up to ALL_PAIRS nodes. Beyond that twice the logarithm of their number, and at least
    so many that there are no fewer dials in all than between ALL_PAIRS nodes.
    """
    if count <= ALL_PAIRS:
        return max(0, count - 1)
    share_of_all_pairs = math.ceil(ALL_PAIRS**2 / count)
    return max(2 * count.bit_length(), share_of_all_pairs)


def _add_dials_between(groups: Groups, dialled: dict[str, list[str]], draw: random.Random) -> None:
    """Add dials until each ordered pair of groups has GROUP_DIALS of them.

    Nothing is added where there are so many groups that this takes more than a dial for each node.
    """
    members: dict[str, list[str]] = {}
    for group, names in groups.items():
        present = [name for name in names if name in dialled]
        if present:
            members[group] = present
    if GROUP_DIALS * len(members) ** 2 > len(dialled):
        return
    groups_of: dict[str, list[str]] = {}
    for group, names in members.items():
        for name in names:
            groups_of.setdefault(name, []).append(group)
    counts = _count_between(groups_of, dialled)
    for one, dialers in members.items():
        for other, listeners in members.items():
            missing = GROUP_DIALS - counts.get((one, other), 0)
            if one == other or missing <= 0:
                continue
            for dialer, listener in _drawn_pairs(dialers, listeners, missing, draw):
                if dialer != listener and listener not in dialled[dialer]:
                    dialled[dialer].append(listener)


def pairs_around(
    ends: Iterable[Sequence[str]], dialled: Container[Pair], groups: Groups, seed: str
) -> dict[str, list[str]]:
    """Return dialler → listeners that are dialled further, around dials that failed.

    `ends` has the one node that is at fault so far, or both nodes of a pair. The nodes at both
    ends and FELLOWS others of their groups dial each other in both directions; one node alone
    has the other ends at its other side. No node dials, or is dialled by, more than AROUND others.
    """
    draw = random.Random(seed)  # noqa: S311 - as above
    fellows = _Fellows(groups, draw)
    ends = list(ends)
    suspects = list(dict.fromkeys(name for end in ends for name in end))
    added: dict[str, list[str]] = {}
    heard: dict[str, int] = {}
    seen: set[Pair] = set()
    for end in ends:
        one = fellows.drawn(end[:1])
        if len(end) > 1:
            other = fellows.drawn(end[1:])
        else:
            other = [*one, *draw.sample(suspects, min(FELLOWS, len(suspects)))]
        for pair in (*itertools.product(one, other), *itertools.product(other, one)):
            dialer, listener = pair
            if dialer == listener or pair in dialled or pair in seen:
                continue
            listeners = added.setdefault(dialer, [])
            if len(listeners) < AROUND and heard.get(listener, 0) < AROUND:
                seen.add(pair)
                listeners.append(listener)
                heard[listener] = heard.get(listener, 0) + 1
    return added


class _Fellows:
    """Draws nodes of the groups that a node is in."""

    def __init__(self, groups: Groups, draw: random.Random) -> None:
        self._draw = draw
        self._groups_of: dict[str, list[list[str]]] = {}
        for members in groups.values():
            names = list(members)
            for name in names:
                self._groups_of.setdefault(name, []).append(names)

    def drawn(self, ends: Iterable[str]) -> list[str]:
        """Return these nodes, and FELLOWS others of the smallest group of each."""
        names: dict[str, None] = {}
        for end in ends:
            names[end] = None
            group = min(self._groups_of.get(end, [[]]), key=len)
            others = self._draw.sample(group, min(FELLOWS, len(group)))
            names.update(dict.fromkeys(others))
        return list(names)


def _count_between(
    groups_of: Mapping[str, Sequence[str]], dialled: Mapping[str, Sequence[str]]
) -> dict[Pair, int]:
    """Return the number of dials by (group of the dialer, group of the listener)."""
    counts: dict[Pair, int] = {}
    for dialer, listeners in dialled.items():
        for one in groups_of.get(dialer, ()):
            for listener in listeners:
                for other in groups_of.get(listener, ()):
                    counts[one, other] = counts.get((one, other), 0) + 1
    return counts


def _drawn_pairs(
    dialers: Sequence[str], listeners: Sequence[str], count: int, draw: random.Random
) -> Iterable[Pair]:
    """Return `count` pairs in which no node is twice, or as many as there are."""
    drawn_dialers = draw.sample(dialers, min(count, len(dialers)))
    drawn_listeners = draw.sample(listeners, min(count, len(listeners)))
    return zip(drawn_dialers, drawn_listeners, strict=False)


# ---------------------------------------------------------------- what a sample finds


def chance_of_pair(count: int) -> float:
    """Return the probability that a given ordered pair of `count` nodes is dialled.

    It is the same for all pairs.
    """
    if count < 2:
        return 1.0
    return dials_per_node(count) / (count - 1)


def chance_between(count: int, one: int, other: int) -> float:
    """Return the probability that a group of `one` nodes is met as cut off from one of `other`.

    That is: at least one dial goes from the first to the second. The ordered pairs between them
    are taken as drawn independently, which the ring comes close to.
    """
    if count < 2:
        return 1.0
    missed = 1.0 - chance_of_pair(count)
    pairs = one * other
    return 1.0 - math.pow(missed, pairs)


def chance_of_share(count: int, share: float) -> float:
    """Return the probability that a node which refuses this share of its dialers is met."""
    return 1.0 - math.pow(1.0 - share, dials_per_node(count))


def chance_of_block(share: float, parts: int = 3) -> float:
    """Return the least probability that a blocked range of ports of one node is met.

    `share` is that of the ephemeral range, without a gap. The node listens on one port in each of
    `parts` equal parts of its range, drawn evenly (`spans`). It is 1 if a whole part is blocked
    wherever the block begins.
    """
    width = share * parts  # of the block, in parts
    whole = math.floor(width)
    if whole >= 2 or share >= 1.0:
        return 1.0
    # The block begins inside of a part and leaves some of it open. The worst place is tried.
    least = 1.0
    for step in range(1001):
        open_before = step / 1000
        first = min(1.0 - open_before, width)
        second = min(1.0, width - first)
        third = max(0.0, width - first - second)
        missed = (1.0 - first) * (1.0 - second) * (1.0 - third)
        least = min(least, 1.0 - missed)
    return least


def coverage(pairs: int, nodes: int) -> str:
    """Return «12 of 12 directed pairs» for the report."""
    all_pairs = nodes * (nodes - 1)
    return f"{pairs} of {all_pairs} directed pairs"


def describe_tried(pairs: int, ends: int, nodes: int) -> str:
    """Return «12 of 12 directed pairs tried», and of a sample what it may have missed.

    `ends` is the number of nodes that took part, and `nodes` that of the fleet. It is a sample
    where the nodes that took part were too many for dialling all pairs of them.
    """
    tried = f"{coverage(pairs, nodes)} tried"
    all_pairs = ends * (ends - 1)
    if ends <= ALL_PAIRS or pairs >= all_pairs:
        return tried
    percent = 100 * pairs / all_pairs
    return f"{tried}, a sample: it meets a single bad pair with a chance of {percent:.2g} %"


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
