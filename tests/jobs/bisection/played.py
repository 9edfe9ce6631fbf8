"""Plays a search against a fleet whose faults are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable

from clusterprep.jobs.bisection.evidence import Outcome
from clusterprep.jobs.bisection.search import LEAST, Search

MOST = 400  # runs; no search takes so many
Fails = Callable[[frozenset[str]], bool]


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def with_faults(faults: Iterable[Collection[str]]) -> Fails:
    """A command that fails where all nodes of one of these sets are among those it runs on."""
    sets = [frozenset(fault) for fault in faults]
    return lambda nodes: any(fault <= nodes for fault in sets)


def at_times(fails: Fails, share: float, rng: random.Random) -> Fails:
    """A command that fails only at times where it could."""
    return lambda nodes: fails(nodes) and rng.random() < share


def played(
    count: int,
    fails: Fails,
    *,
    least: int = LEAST,
    slow: bool = False,
    seconds: Callable[[], float] = lambda: 5.0,
) -> Search:
    """The search at its end. With `slow` a bad run passes and takes nearly twice as long."""
    search = Search(names(count), least)
    while search.found is None:
        assert len(search.runs) < MOST
        assert len(search.next) >= least
        bad = fails(frozenset(search.next))
        if slow:
            outcome = Outcome("passed", seconds() * (1.8 if bad else 1.0))
        else:
            outcome = Outcome("failed" if bad else "passed", 5.0)
        search.take(outcome)
    return search


def found(search: Search) -> list[list[str]]:
    """The nodes of the faults that a search has found; all of them if it is decided."""
    return in_order(fault.nodes for fault in search.faults)


def in_order(faults: Iterable[Collection[str]]) -> list[list[str]]:
    """The same faults, sorted."""
    return sorted(sorted(fault) for fault in faults)


def undecided(search: Search) -> str:
    assert search.found is not None
    return search.found.undecided
