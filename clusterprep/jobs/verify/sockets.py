"""From the TCP sockets of a hung trial to the node or link that does not carry packets. Pure.

A connection without an answer, or data without an acknowledgement, lies between two nodes. Where such pairs have one
node in common it is that node; a pair that stands alone is a link. The kernel of the waiting end cannot tell in which
direction packets are lost, but a half-open connection at the other end can: then the first packet did arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from clusterprep.jobs.verify.pace import MILESTONES
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model.colocation import neighbours
from clusterprep.runtime.lazy_dataclass import dataclass

SYN_SENT, SYN_RECV = 2, 3  # include/net/tcp_states.h
MOST = 8  # sockets that are quoted for one fault
Key = tuple[str, int]  # address and port
_TYPES: tuple[Any, ...] = (
    int | None,
    int,
    str,
    int,
    str,
    int,
    int,
)  # of a row: rank, state, address, port, peer, port, again


@dataclass(frozen=True)
class Edge:
    """One connection of a rank on `source` that gets nothing back from `target`."""

    source: str
    target: str
    words: str
    arrived: bool = False  # the other end has half of this connection


@dataclass(frozen=True)
class Cut:
    """A node, or the two ends of a link, between which packets are lost, and the sockets that show it."""

    nodes: tuple[str, ...]
    cause: str
    evidence: tuple[str, ...]
    source: str | None = None
    target: str | None = None


def cuts(timeline: Timeline) -> tuple[Cut, ...]:
    """Nodes that several bad pairs have in common, the worst first, then the pairs that are left."""
    left = list(edges(timeline))
    found = []
    while (name := _shared(left)) is not None:
        mine = [edge for edge in left if name in (edge.source, edge.target)]
        found.append(Cut((name,), _node_words(name, mine), _quoted(mine)))
        left = [edge for edge in left if name not in (edge.source, edge.target)]
    pairs: dict[frozenset[str], list[Edge]] = {}
    for edge in left:
        pairs.setdefault(frozenset((edge.source, edge.target)), []).append(edge)
    order = {node.name: place for place, node in enumerate(timeline.plan.nodes)}
    return (
        *found,
        *(_link(tuple(sorted(ends, key=order.__getitem__)), same) for ends, same in pairs.items()),
    )


def edges(timeline: Timeline) -> Iterable[Edge]:
    """Sockets that wait for another node in vain; addresses that no rank uses lead nowhere that is known.

    The last look at a connection counts, and none after which its rank came further: that was a stall.
    """
    homes, half, found = _homes(timeline), _half_open(timeline), dict[tuple[int, str, int], Edge]()
    moved = {event.rank: event.at for event in timeline.events if event.what in MILESTONES}
    for event in timeline.of("sockets"):
        for rank, state, address, port, peer, peer_port, again in _rows(event.data):
            if rank is None or peer not in homes or moved.get(rank, 0.0) > event.at:
                continue
            target, arrived = homes[peer], ((peer, peer_port), (address, port)) in half
            words = f"rank {rank} on {event.node} to {peer}:{peer_port} on {target}: "
            if state == SYN_SENT:
                words += f"no answer to a new connection, asked for {_times(again + 1)}"
                words += ", which half-opened it there" if arrived else ""
            else:
                words += f"data sent again {_times(again)} without an acknowledgement"
            found[rank, peer, peer_port] = Edge(
                event.node, target, words, arrived and state == SYN_SENT
            )
    return found.values()


def _homes(timeline: Timeline) -> Mapping[str, str]:
    """Addresses to nodes: those that ranks use, and those of the inventory; not those that two nodes have.

    Nodes that share this machine have every address of it together, also where only one of them told its own.
    """
    found: dict[str, set[str]] = {}
    for node in timeline.plan.nodes:
        found.setdefault(node.address, set()).add(node.name)
    found.setdefault(timeline.plan.address, set()).add(timeline.plan.ranks[0].node)
    for event in timeline.of("sockets"):
        own = event.data.get("own")
        for address in own if isinstance(own, list) else ():
            if _leads_out(address):
                found.setdefault(str(address), set()).add(event.node)
    here = {node.name for node in neighbours(timeline.plan.nodes)}
    return {
        address: next(iter(names))
        for address, names in found.items()
        if len(names) == 1 and not names & here
    }


def _leads_out(address: object) -> bool:
    try:
        place = ip_address(str(address))
    except ValueError:
        return False
    return not (place.is_loopback or place.is_unspecified)


def _half_open(timeline: Timeline) -> frozenset[tuple[Key, Key]]:
    """Connections that listeners have seen begin, as (listener, dialer)."""
    rows = (row for event in timeline.of("sockets") for row in _rows(event.data))
    return frozenset(((row[2], row[3]), (row[4], row[5])) for row in rows if row[1] == SYN_RECV)


def _rows(data: Mapping[str, Any]) -> Iterable[tuple[int | None, int, str, int, str, int, int]]:
    """What looks like a row; whatever else a node may say shows nothing."""
    rows = data.get("rows")
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, list | tuple) or len(row) != len(_TYPES):
            continue
        if all(isinstance(value, kind) for value, kind in zip(row, _TYPES, strict=True)):
            yield tuple(row)


def _shared(left: Sequence[Edge]) -> str | None:
    """The node that the most bad pairs have in common: two at least, or one that does not even reach itself."""
    bad: Counter[str] = Counter()
    for pair in {frozenset((edge.source, edge.target)) for edge in left}:
        bad.update(pair if len(pair) > 1 else [*pair, *pair])
    worst = max(bad.items(), key=lambda item: item[1], default=("", 0))
    return worst[0] if worst[1] > 1 else None


def _node_words(name: str, mine: Sequence[Edge]) -> str:
    others = {end for edge in mine for end in (edge.source, edge.target)} - {name}
    side = "to" if all(edge.target == name for edge in mine) else "from"
    side = side if side == "to" or all(edge.source == name for edge in mine) else "to and from"
    return f"TCP {side} {name} gets no answer, with {len(others)} other{'' if len(others) == 1 else 's'}"


def _link(ends: tuple[str, ...], same: Sequence[Edge]) -> Cut:
    """Where every connection of a pair was half-opened by the same end, its answers are what is lost."""
    answering = {(edge.target, edge.source) for edge in same}
    lost = (
        next(iter(answering))
        if len(answering) == 1 and all(edge.arrived for edge in same)
        else (None, None)
    )
    cause = f"TCP between {' and '.join(ends)} gets no answer"
    if lost[0]:
        cause = f"what {lost[0]} sends to {lost[1]} does not arrive"
    return Cut(ends, cause, _quoted(same), *lost)


def _quoted(same: Sequence[Edge]) -> tuple[str, ...]:
    rest = len(same) - MOST
    return (*(edge.words for edge in same[:MOST]), *([f"and {rest} more"] if rest > 0 else []))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
