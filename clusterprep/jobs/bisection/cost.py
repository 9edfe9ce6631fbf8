"""How many runs a search takes at most. Pure.

most_runs(8)  →  MostRuns(one=16, two=31)
"""

from __future__ import annotations

from msgspec import Struct


class MostRuns(Struct, frozen=True):
    """The most runs where one node or pair is at fault, and where two are."""

    one: int
    two: int


def most_runs(nodes: int) -> MostRuns:
    """Return the most runs for so many nodes.

    Each halving takes log2 of the nodes. A pair takes two, one for each of its nodes, and ten more
    runs: all nodes, the good half, its confirmations, and all others without it. With two pairs
    there are more ways to leave one node of each out.
    """
    halvings = (nodes - 1).bit_length()
    return MostRuns(2 * halvings + 10, 4 * halvings + 19)
