"""From the TCP sockets of a hung trial to the node or link that does not carry packets. Pure.

A connection without an answer, or data without an acknowledgement, lies between two nodes. If such
pairs have one node in common it is that node; a pair that stands alone is a link. The kernel of the
waiting end cannot tell in which direction packets are lost, but a half-open connection at the other
end can: then the first packet did arrive.

The agents look at the sockets twice: while the ranks still wait, because a rank that gives up
closes them, and before the ranks are ended. The links stage then confirms or widens the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from msgspec import Struct

from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model.colocation import neighbours

SYN_SENT, SYN_RECV = 2, 3  # include/net/tcp_states.h
MOST = 8  # sockets that are quoted for one fault

Key = tuple[str, int]  # address and port
Ends = frozenset[str]  # the nodes of a connection; one node if it leads to itself
Row = tuple[int | None, int, str, int, str, int, int]
# Types of a row: rank, state, address, port, address and port of the peer, times sent again.
_TYPES: tuple[Any, ...] = (int | None, int, str, int, str, int, int)


class Edge(Struct, frozen=True):
    """One connection of a rank on `source` that gets nothing back from `target`."""

    source: str
    target: str
    description: str
    arrived: bool = False  # the other end has half of this connection

    @property
    def ends(self) -> Ends:
        return frozenset((self.source, self.target))


class Cut(Struct, frozen=True):
    """A node, or the two ends of a link, that loses packets, and the sockets that show it."""

    nodes: tuple[str, ...]
    cause: str
    evidence: tuple[str, ...]
    source: str | None = None
    target: str | None = None


def cuts(timeline: Timeline) -> tuple[Cut, ...]:
    """Return nodes that several bad pairs have in common, the worst first, then other pairs."""
    remaining = list(edges(timeline))
    found: list[Cut] = []
    name = _common_node(timeline, remaining)
    while name is not None:
        at_node, remaining = _split_at(name, remaining)
        cause = _node_words(name, at_node)
        found.append(Cut((name,), cause, _quoted(at_node)))
        name = _common_node(timeline, remaining)
    pairs: dict[Ends, list[Edge]] = {}
    for edge in remaining:
        pairs.setdefault(edge.ends, []).append(edge)
    for ends, same in pairs.items():
        nodes = timeline.sorted_nodes(ends)
        found.append(_link(nodes, same))
    return tuple(found)


def _split_at(node: str, bad: Iterable[Edge]) -> tuple[list[Edge], list[Edge]]:
    """Return the connections at a node, and the others."""
    at_node: list[Edge] = []
    others: list[Edge] = []
    for edge in bad:
        if node in edge.ends:
            at_node.append(edge)
        else:
            others.append(edge)
    return at_node, others


def edges(timeline: Timeline) -> Iterable[Edge]:
    """Return sockets that wait for another node in vain.

    Addresses that no rank uses lead to no known node. The last look at a connection counts, unless
    its rank came further after it: then it was only a stall.
    """
    if timeline.first("sockets") is None:
        return ()
    node_by_address = _node_by_address(timeline)
    half_open = _half_open(timeline, node_by_address)
    own_ranks = _own_ranks(timeline)
    last_progress = _last_progress(timeline)
    found: dict[tuple[int, str, int], Edge] = {}
    for event in timeline.of("sockets"):
        for rank, state, address, port, peer, peer_port, again in _rows(event.data):
            target = node_by_address.get(peer)
            is_own = rank in own_ranks[event.node]
            if rank is None or target is None or not is_own:
                continue
            was_only_stalled = last_progress.get(rank, 0.0) > event.at
            if was_only_stalled:
                continue
            listener = (peer, peer_port)
            dialer = (address, port)
            arrived = state == SYN_SENT and (listener, dialer) in half_open
            waits_for = _waits_for(state, again, arrived)
            ends = f"rank {rank} on {event.node} to {peer}:{peer_port} on {target}"
            description = f"{ends}: {waits_for}"
            edge = Edge(event.node, target, description, arrived)
            found[rank, peer, peer_port] = edge
    return found.values()


def _last_progress(timeline: Timeline) -> Mapping[int, float]:
    """Return when each rank last came further."""
    times: dict[int, float] = {}
    for rank, event in timeline.last_steps().items():
        times[rank] = event.at
    for event in timeline.of("warmed"):
        if event.rank is not None:
            times[event.rank] = max(event.at, times.get(event.rank, event.at))
    return times


def _own_ranks(timeline: Timeline) -> Mapping[str, frozenset[int]]:
    """Return the ranks of each node. What a node says of other ranks is not believed."""
    ranks_by_node = timeline.plan.ranks_by_node
    return {name: frozenset(rank.rank for rank in ranks) for name, ranks in ranks_by_node.items()}


def _waits_for(state: int, again: int, arrived: bool) -> str:
    if state != SYN_SENT:
        return f"data sent again {_times(again)} without an acknowledgement"
    sentence = f"no answer to a new connection, asked for {_times(again + 1)}"
    if arrived:
        sentence += ", which half-opened it there"
    return sentence


def _node_by_address(timeline: Timeline) -> Mapping[str, str]:
    """Return the node of each address that ranks use or the inventory has.

    An address of two nodes is left out. Nodes that share this machine have every address of it
    together, even if only one of them told its own. A node that says that an address is its own
    takes none that the inventory or the plan gives to another one.
    """
    plan = timeline.plan
    names_by_address: dict[str, set[str]] = {}
    for node in plan.nodes:
        names_by_address.setdefault(node.address, set()).add(node.name)
    first = plan.ranks[0]
    names_by_address.setdefault(plan.address, set()).add(first.node)
    assigned = frozenset(names_by_address)
    for event in timeline.of("sockets"):
        own = event.data.get("own")
        if not isinstance(own, list):
            continue
        for address in own:
            if str(address) not in assigned and _leads_out(address):
                names_by_address.setdefault(str(address), set()).add(event.node)
    local = {node.name for node in neighbours(plan.nodes)}
    node_by_address: dict[str, str] = {}
    for address, names in names_by_address.items():
        if len(names) == 1 and names.isdisjoint(local):
            (name,) = names
            node_by_address[address] = name
    return node_by_address


def _leads_out(address: object) -> bool:
    try:
        parsed = ip_address(str(address))
    except ValueError:
        return False
    return not parsed.is_loopback and not parsed.is_unspecified


def _half_open(
    timeline: Timeline, node_by_address: Mapping[str, str]
) -> frozenset[tuple[Key, Key]]:
    """Return connections that listeners have seen begin, as (listener, dialer).

    A node is a listener at its own addresses only.
    """
    connections: set[tuple[Key, Key]] = set()
    for event in timeline.of("sockets"):
        for _, state, address, port, peer, peer_port, _ in _rows(event.data):
            if state != SYN_RECV or node_by_address.get(address) != event.node:
                continue
            listener = (address, port)
            dialer = (peer, peer_port)
            connections.add((listener, dialer))
    return frozenset(connections)


def _rows(data: Mapping[str, Any]) -> Iterable[Row]:
    """Yield what has the types of a row; other things that a node may send show nothing."""
    rows = data.get("rows")
    if not isinstance(rows, list):
        return
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != len(_TYPES):
            continue
        if all(map(isinstance, row, _TYPES)):
            yield tuple(row)


def _common_node(timeline: Timeline, bad: Sequence[Edge]) -> str | None:
    """Return the node with the most bad pairs, if it has two, or one that does not reach itself.

    Among equals it is the first one of the inventory.
    """
    counts: Counter[str] = Counter()
    for ends in {edge.ends for edge in bad}:
        counts.update(ends)
        if len(ends) == 1:
            counts.update(ends)
    # `counts` itself is in the order of sets, which differs from one interpreter to the next.
    nodes = timeline.sorted_nodes(counts)
    worst = max(nodes, key=counts.__getitem__, default=None)
    if worst is None or counts[worst] < 2:
        return None
    return worst


def _node_words(name: str, at_node: Sequence[Edge]) -> str:
    others: set[str] = set()
    for edge in at_node:
        others.update(edge.ends - {name})
    side = "to and from"
    if all(edge.target == name for edge in at_node):
        side = "to"
    elif all(edge.source == name for edge in at_node):
        side = "from"
    count = "1 other" if len(others) == 1 else f"{len(others)} others"
    return f"TCP {side} {name} gets no answer, with {count}"


def _link(ends: tuple[str, ...], same: Sequence[Edge]) -> Cut:
    """Blame a link, and its direction if it is known.

    If the same end half-opened every connection, the answers of that end are lost.
    """
    evidence = _quoted(same)
    answering = {(edge.target, edge.source) for edge in same}
    if len(answering) == 1 and all(edge.arrived for edge in same):
        ((source, target),) = answering
        cause = f"what {source} sends to {target} does not arrive"
        return Cut(
            ends,
            cause,
            evidence,
            source,
            target,
        )
    pair = " and ".join(ends)
    return Cut(ends, f"TCP between {pair} gets no answer", evidence)


def _quoted(same: Sequence[Edge]) -> tuple[str, ...]:
    sentences = [edge.description for edge in same[:MOST]]
    if len(same) > MOST:
        sentences.append(f"and {len(same) - MOST} more")
    return tuple(sentences)


def _times(count: int) -> str:
    if count == 1:
        return "once"
    return f"{count} times"
