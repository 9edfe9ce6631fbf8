"""When a watch looks at which node, and whether the watch itself stood still. Pure.

A node that gave no answer is tried in every look: that costs it nothing, and it is back in the look
after its return. One that answered and refused the login is tried less and less often, down to once
in MOST_WAIT seconds: each try is a failed login, which may lock an account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.model import Fleet, Inventory, Node, NodeSnapshot

MOST_WAIT = 300.0  # seconds
# Seconds that wall clock and monotonic clock may drift apart between two looks, and that a look
# may be late: a suspended machine, a stopped process or a clock that was set is more.
LATE = 20.0
LEAST_LOGIN = 3.0  # seconds; a busy node that takes longer for a login is not called down for less


class Moment(Struct, frozen=True):
    """The clocks of the controller: seconds since the epoch, and of a clock never set."""

    wall: float
    running: float  # stands still while the machine sleeps


def unseen_seconds(before: Moment, now: Moment, every: float) -> float | None:
    """Return for how long there was no look although one was due; None if all is as it should be.

    `before` is when the look before ended. A clock that was set back counts too: -3600.0.
    """
    passed = now.running - before.running
    jumped = (now.wall - before.wall) - passed
    if abs(jumped) > LATE:
        return jumped
    if passed > every + LATE:
        return passed
    return None


class _Refusal(Struct, frozen=True):
    tries: int
    next_try: float


class Backoff:
    """The nodes that refused us, and when each is tried again."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._refusals: dict[str, _Refusal] = {}

    def due(self, nodes: Iterable[Node], now: float) -> tuple[Node, ...]:
        """Return the nodes that are to be looked at now."""
        due = []
        for node in nodes:
            refusal = self._refusals.get(node.name)
            if refusal is None or now >= refusal.next_try:
                due.append(node)
        return tuple(due)

    def note(self, snapshots: Iterable[NodeSnapshot], now: float) -> None:
        """Note how the nodes that were looked at answered."""
        for snapshot in snapshots:
            if snapshot.reached or not snapshot.answered:
                self._refusals.pop(snapshot.node, None)
                continue
            before = self._refusals.get(snapshot.node)
            tries = before.tries + 1 if before else 1
            wait = min(self._every * 2 ** min(tries, 16), MOST_WAIT)
            # Half an interval earlier, or the look at that time would come just before it.
            self._refusals[snapshot.node] = _Refusal(tries, now + wait - self._every / 2)


def clipped_logins(inventory: Inventory, every: float) -> Inventory:
    """Return the inventory with logins that take half an interval at most, or LEAST_LOGIN."""
    limit = max(every / 2, LEAST_LOGIN)
    nodes = []
    for node in inventory.nodes:
        ssh = replace(node.ssh, connect_timeout=min(node.ssh.connect_timeout, limit))
        nodes.append(replace(node, ssh=ssh))
    return replace(inventory, nodes=tuple(nodes))


def with_last_words(fleet: Fleet, heard: Mapping[str, NodeSnapshot]) -> Fleet:
    """Return the fleet with what nodes that do not answer now said last: `heard`, by their names.

    Comparisons need their voices: without them a healthy node could become the odd one while
    another is down. The fleet is returned as it is where those that answer are no majority.
    """
    if 2 * len(fleet.reached) <= len(fleet.inventory.nodes):
        return fleet
    snapshots = dict(fleet.snapshots)
    for name, snapshot in fleet.snapshots.items():
        last = heard.get(name)
        if not snapshot.reached and last is not None:
            snapshots[name] = last
    return replace(fleet, snapshots=snapshots)
