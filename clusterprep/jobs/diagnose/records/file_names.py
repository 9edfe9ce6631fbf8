"""Tells ranks by the names of files: what torch writes holds no rank."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

_RANK = re.compile(r"rank[_.=-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_MOST_DIGITS = 6  # of a rank; longer numbers are times or pids


def ranks_of(names: Sequence[str], members: Collection[int] = ()) -> dict[str, int]:
    """Return the rank of each file whose name tells it.

    «nccl_trace_rank_3» and «rank3.pkl» tell it by themselves. Of other names the number counts in
    which all of them differ, if it is that of a member: «node0-worker3.bin» among its like.
    """
    ranks: dict[str, int] = {}
    for name in names:
        told = _RANK.findall(name)
        if told:
            ranks[name] = int(told[-1])
    others = [name for name in names if name not in ranks]
    if len(set(ranks.values())) == len(ranks):
        free = set(members) - set(ranks.values())
        ranks.update(_by_position(others, free))
    return ranks


def _by_position(names: Sequence[str], members: Collection[int]) -> Mapping[str, int]:
    """Return the numbers at the one place, counted from the end, where all names differ."""
    if len(names) < 2:
        return {}
    numbers = {name: _NUMBER.findall(name) for name in names}
    fewest = min(len(found) for found in numbers.values())
    for place in range(1, fewest + 1):
        values = {name: found[-place] for name, found in numbers.items()}
        if any(len(value) > _MOST_DIGITS for value in values.values()):
            continue
        ranks = {name: int(value) for name, value in values.items()}
        are_distinct = len(set(ranks.values())) == len(names)
        are_members = not members or set(ranks.values()) <= set(members)
        if are_distinct and are_members:
            return ranks
    return {}
