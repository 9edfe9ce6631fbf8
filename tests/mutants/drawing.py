"""Which of all mutants are tried: so many of each module, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LEAST = 3  # mutants of a module, however small it is


@dataclass(frozen=True)
class Place:
    """Where a mutant changes something: its number in the file, the line and the function."""

    path: str
    number: int
    line: int
    function: str


def shares(there: Mapping[str, int], wanted: int) -> dict[str, int]:
    """Return how many mutants to draw of each module: `wanted` together, LEAST at least.

    They are in proportion to the mutants that there are.

    Raises ValueError where `wanted` is less than LEAST of each.
    """
    least = {name: min(LEAST, count) for name, count in there.items()}
    wanted = min(wanted, sum(there.values()))
    needed = sum(least.values())
    if wanted < needed:
        raise ValueError(
            f"{wanted} mutants are too few for {len(there)} modules: {needed} at least"
        )
    drawn = dict(least)
    while sum(drawn.values()) < wanted:
        # As parties get seats by Sainte-Laguë: the next to the one that has the fewest for its
        # size.
        rest = [name for name in there if drawn[name] < there[name]]
        drawn[min(rest, key=lambda name: ((2 * drawn[name] + 1) / there[name], name))] += 1
    return drawn


def shuffled(places: Sequence[Place], seed: int) -> Iterator[Place]:
    """Return a module's places in the order of this seed; no other module has a part in it."""
    order = list(places)
    path = order[0].path if order else ""
    random.Random(f"{seed} {path}").shuffle(order)
    return iter(order)
