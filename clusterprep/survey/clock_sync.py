"""Measure the offset of a node's clock from the controller's clock over the link to its agent.

Five exchanges travel in one piece once the agent runs, so they cost one round trip. Nodes whose
result is coarser than 10 ms are measured again after all nodes have logged in, one node every two
milliseconds, so that no answer waits until it is read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.facts.clock import OFFSET, Offset
from clusterprep.model import Absent, Fleet, NodeSnapshot
from clusterprep.remote.transports.link import Link
from clusterprep.remote.untrusted import require_number

ROUNDS = 5  # exchanges per node in one round trip; the shortest counts
PINGS: tuple[tuple[str, dict[str, Any]], ...] = (("ping", {}),) * ROUNDS
PING_LIMIT = 10.0  # seconds that one answer may take
COARSE_BOUND = 0.010  # seconds; a bound above it is measured again when the controller is idle
REPEATS = 3  # exchanges for that, each a round trip of its own
# Seconds between the nodes that are measured again: an answer must not wait until another one is
# read.
STAGGER = 0.002

Turn = tuple[int, str]  # position in the order of measuring, name of the node
# Runs a function for all items in parallel, as Fanout.each does.
RunEach = Callable[[Iterable[Turn], Callable[[Turn], None]], None]


def measure_clock(link: Link) -> Offset | Absent:
    """Return the node's clock minus the controller's clock, from one exchange."""
    sent_at = time.time()
    number = link.send("ping")
    return best_clock(link, sent_at, [number])


def best_clock(link: Link, sent_at: float, numbers: Sequence[int]) -> Offset | Absent:
    """Return the offset with the smallest bound of the ping requests that were sent at `sent_at`.

    The four time stamps of an exchange are those of NTP (RFC 5905): sent and received by the
    controller, received and sent by the node. Half of the time on the way is the most by which the
    offset can be wrong.
    """
    best: Offset | None = None
    for number in numbers:
        frame = link.receive(number, PING_LIMIT)
        received_at = time.time()
        try:
            node_received = require_number(frame.get("seen"))
            node_sent = require_number(frame.get("sent"))
        except ValueError:
            return Absent("garbled", "a clock exchange brought no time stamps")
        outward = node_received - sent_at
        homeward = node_sent - received_at
        offset = (outward + homeward) / 2
        travel = (received_at - sent_at) - (node_sent - node_received)
        bound = max(0.0, travel / 2)
        if best is None or bound < best.bound:
            best = Offset(offset, bound)
    return best or Absent("garbled")


def is_coarse(snapshot: NodeSnapshot) -> bool:
    """Return True if the node's clock was measured, and another measurement may be better."""
    offset = snapshot.facts.get(OFFSET.name)
    return isinstance(offset, Offset) and offset.bound > COARSE_BOUND


def refine_clocks(fleet: Fleet, links: Mapping[str, Link], run_each: RunEach) -> Fleet:
    """Return the fleet with coarse clock offsets measured again.

    The first measurement happens while all nodes log in, so the controller reads some answers late.
    Now the nodes are asked one after the other.
    """
    offsets: dict[str, Offset] = {}
    for name, snapshot in fleet.snapshots.items():
        if name in links and is_coarse(snapshot):
            coarse: Offset = snapshot.facts[OFFSET.name]
            offsets[name] = coarse
    began = time.monotonic()

    def refine(turn: Turn) -> None:
        position, name = turn
        wait = began + position * STAGGER - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        better = _better_offset(links[name], offsets[name])
        offsets[name] = better

    turns = list(enumerate(offsets))
    run_each(turns, refine)
    return fleet.with_facts({name: {OFFSET.name: offset} for name, offset in offsets.items()})


def _better_offset(link: Link, offset: Offset) -> Offset:
    """Return the best of `offset` and REPEATS further measurements."""
    best = offset
    with contextlib.suppress(LinkLost):
        for _ in range(REPEATS):
            measured = measure_clock(link)
            if isinstance(measured, Offset) and measured.bound < best.bound:
                best = measured
    return best
