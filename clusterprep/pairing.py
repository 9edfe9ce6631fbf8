"""Which node dials which when pairs are measured: all of them in a small fleet, a fair share in a large one. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

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
