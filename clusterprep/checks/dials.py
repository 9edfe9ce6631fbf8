"""The dials of the port matrix, put in order once for all checks that look at them. Pure.

    dials = dials_of(context)
    dials.failed   # those of the nodes of the context that did not get through

A fleet of ten thousand nodes has 300,000 dials, and several checks look at all of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from operator import attrgetter

from msgspec import Struct

from clusterprep.checks import CheckContext
from clusterprep.facts.pairs import CONNECTED, DIALS, Dial
from clusterprep.model import Absent, Fleet
from clusterprep.model.memoize import once_per_fleet
from clusterprep.model.pair_schedule import describe_tried

_LISTENER = attrgetter("listener")  # faster than a function of our own, and there are many dials


class Dials(Struct, frozen=True, dict=True):
    """Dials by the node that dialled. What follows from them is computed when it is asked for."""

    of_dialer: Mapping[str, tuple[Dial, ...]]

    @functools.cached_property
    def all(self) -> tuple[Dial, ...]:
        """All dials, those of a node one after the other."""
        return tuple(itertools.chain.from_iterable(self.of_dialer.values()))

    @functools.cached_property
    def failed(self) -> tuple[Dial, ...]:
        """The dials that did not get through."""
        return tuple([dial for dial in self.all if dial.word != CONNECTED])

    @functools.cached_property
    def connected(self) -> Dials:
        """The dials that got through."""
        if not self.failed:
            return self
        of_dialer = dict(self.of_dialer)
        for name in {dial.dialer for dial in self.failed}:
            own = self.of_dialer[name]
            of_dialer[name] = tuple([dial for dial in own if dial.word == CONNECTED])
        return Dials(of_dialer)

    @functools.cached_property
    def dialers(self) -> frozenset[str]:
        """The nodes that dialled another one."""
        return frozenset([name for name, own in self.of_dialer.items() if own])

    @functools.cached_property
    def listeners(self) -> frozenset[str]:
        """The nodes that were dialled."""
        return frozenset(map(_LISTENER, self.all))

    @functools.cached_property
    def ends(self) -> frozenset[str]:
        """The nodes that dialled or were dialled."""
        return self.dialers | self.listeners

    def describe_tried(self, fleet_size: int) -> str:
        """Return how many directed pairs were tried, of a fleet of so many nodes."""
        pairs = 0
        for own in self.of_dialer.values():
            pairs += len(set(map(_LISTENER, own)))
        return describe_tried(pairs, len(self.ends), fleet_size)


@once_per_fleet
def dials_of_fleet(fleet: Fleet) -> Dials:
    """Return the dials of all nodes that know theirs."""
    of_dialer = {}
    for node in fleet.reached:
        dials = fleet.fact(node.name, DIALS.name)
        if not isinstance(dials, Absent):
            of_dialer[node.name] = dials
    return Dials(of_dialer)


def dials_of(context: CheckContext) -> Dials:
    """Return the dials of the nodes of a context, all of which know theirs."""
    of_fleet = dials_of_fleet(context.fleet)
    if len(context.nodes) == len(of_fleet.of_dialer):
        return of_fleet
    return Dials({name: of_fleet.of_dialer[name] for name in context.names})
