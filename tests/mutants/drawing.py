"""Which of all mutants are tried: so many of each module, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LEAST = 3  # mutants of a module, however small it is


@dataclass(frozen=True)
class Place:
    """Where a mutant changes something: the number of the change in its file, the line, the function around it."""

    path: str
    number: int
    line: int
    function: str


def shares(there: Mapping[str, int], wanted: int) -> dict[str, int]:
    """How many mutants to draw of each module: in proportion to those there are, LEAST at least, `wanted` together.

    What is left over by rounding goes to those that lost most by it, in the order of their names where they lost alike.
    """
    least = {name: min(LEAST, count) for name, count in there.items()}
    wanted = min(wanted, sum(there.values()))
    if wanted < sum(least.values()):
        raise ValueError(f"{wanted} mutants are too few for {len(there)} modules: {sum(least.values())} at least")
    drawn = dict(least)
    while missing := wanted - sum(drawn.values()):
        # The one that has the fewest for its size, as in Sainte-Laguë's method for seats.
        open_ones = [name for name in there if drawn[name] < there[name]]
        weights = {name: there[name] / (2 * drawn[name] + 1) for name in open_ones}
        for name in sorted(open_ones, key=lambda name: (-weights[name], name))[: max(1, missing // len(there))]:
            drawn[name] += 1
    return drawn


def shuffled(places: Sequence[Place], seed: int) -> Iterator[Place]:
    """A module's places in the order of this seed, which a change of another module leaves as it is."""
    order = list(places)
    path = order[0].path if order else ""
    random.Random(f"{seed} {path}").shuffle(order)
    return iter(order)
