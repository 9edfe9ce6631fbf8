"""Matches the two ends of the ranks' TCP sockets, and finds those over which nothing comes. Pure.

Each kernel knows its own end alone: data that it sends again and again is lost on the way there or
on the way back. An end whose other end does not exist waits for a process that is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from clusterprep.jobs.live.model import End, NodeLook, Socket

ESTABLISHED, SYN_SENT, CLOSE_WAIT = 1, 2, 8  # include/net/tcp_states.h
LOST = 2  # times that data was sent again in a row; a packet that is lost once proves nothing
CERTAIN = 3
HEARTBEATS = 4096  # bytes in a look that heartbeats of torch and NCCL may pass


class Connection(Struct, frozen=True):
    """A socket of a process on `node`, and the other end where a node of ours has it."""

    node: str
    socket: Socket
    peer_node: str | None  # by the peer's address
    peer_socket: Socket | None

    @property
    def places(self) -> tuple[str, str]:
        """«node:pid» of both ends; the second is empty where it is not known."""
        here = f"{self.node}:{self.socket.pid}"
        if self.peer_socket is None:
            return here, ""
        return here, f"{self.peer_node}:{self.peer_socket.pid}"

    @property
    def ends(self) -> str:
        """«10.0.0.1:4000 to 10.0.0.2:5000», with addresses of IPv6 in brackets."""
        one = self.socket
        here, there = _bracketed(one.address), _bracketed(one.peer)
        return f"{here}:{one.port} to {there}:{one.peer_port}"


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def connections_of(
    looks: Mapping[str, NodeLook], addresses: Mapping[str, str]
) -> tuple[Connection, ...]:
    """Return every socket of all nodes with its other end. `addresses`: name of node by address."""
    node_of = _node_of(looks, addresses)
    by_end: dict[End, list[tuple[str, Socket]]] = {}
    for node, look in looks.items():
        for socket in look.sockets:
            end = (socket.address, socket.port, socket.peer, socket.peer_port)
            by_end.setdefault(end, []).append((node, socket))
    found: list[Connection] = []
    for node, look in looks.items():
        for socket in look.sockets:
            is_local = socket.peer == socket.address or _is_loopback(socket.peer)
            peer_node = node if is_local else node_of.get(socket.peer)
            end = (socket.peer, socket.peer_port, socket.address, socket.port)
            peer_socket = None
            for other_node, other in by_end.get(end, ()):
                if other_node == peer_node:
                    peer_socket = other
            found.append(Connection(node, socket, peer_node, peer_socket))
    return tuple(found)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _node_of(looks: Mapping[str, NodeLook], addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the node of each address that one node alone uses."""
    users: dict[str, set[str]] = {}
    for node, look in looks.items():
        for socket in look.sockets:
            if not _is_loopback(socket.address):
                users.setdefault(socket.address, set()).add(node)
    node_of = dict(addresses)
    for address, nodes in users.items():
        if len(nodes) == 1 and address not in node_of:
            (node_of[address],) = nodes
    return node_of


def of_places(connections: Iterable[Connection], places: set[str]) -> tuple[Connection, ...]:
    """Return the connections of the processes at these places («node:pid»)."""
    return tuple(one for one in connections if one.places[0] in places)


def passed_bytes(connections: Iterable[Connection], port: int | None) -> int | None:
    """Return the bytes that passed between ranks, None if no kernel counts them.

    Connections to the rendezvous at `port` do not count: they carry heartbeats.
    """
    total = None
    for one in connections:
        socket = one.socket
        if not socket.of_rank or socket.passed is None or port in (socket.port, socket.peer_port):
            continue
        total = (total or 0) + socket.passed
    return total


def quiet_seconds(connections: Iterable[Connection], port: int | None) -> float | None:
    """Return the seconds since any rank last received data from another one; None: not known."""
    least = None
    for one in connections:
        socket = one.socket
        if not socket.of_rank or socket.received_ago is None or one.peer_socket is None:
            continue
        if port in (socket.port, socket.peer_port) or not one.peer_socket.of_rank:
            continue
        seconds = socket.received_ago / 1000
        least = seconds if least is None else min(least, seconds)
    return least


def is_lost(one: Connection) -> bool:
    """Return whether what this end sends gets no acknowledgement, though the peer has room.

    A kernel that drops its own packets does not count them as sent again (net/ipv4/tcp_timer.c),
    but its data waits: acknowledgements take 0.2 s at most, and the looks are further apart.
    """
    socket = one.socket
    if socket.passed or (socket.probing and not _has_read_all(one.peer_socket)):
        return False
    if socket.state == SYN_SENT:
        return socket.again >= 1
    waits = socket.again >= LOST or socket.passed == 0
    return socket.sendq > 0 and socket.held and waits


def _has_read_all(peer: Socket | None) -> bool:
    """Return whether this end is known to have room, as nothing waits there for its reader.

    A sender whose peer has no room probes it. But so does one whose own kernel dropped the first
    packet after all else was acknowledged: nothing is on the way then that could be sent again
    (tcp_check_probe_timer of include/net/tcp.h).
    """
    return peer is not None and peer.recvq == 0


def lost(connections: Iterable[Connection]) -> tuple[Connection, ...]:
    """Return the connections to other nodes over which data gets lost."""
    return tuple(one for one in connections if is_lost(one) and one.peer_node != one.node)


def half_gone(
    connections: Iterable[Connection], looks: Mapping[str, NodeLook]
) -> tuple[Connection, ...]:
    """Return the connections of ranks whose other end does not exist or was closed."""
    found = []
    for one in connections:
        socket = one.socket
        if not socket.of_rank or not socket.old:
            continue
        if socket.state == CLOSE_WAIT:
            found.append(one)
            continue
        peer = looks.get(one.peer_node or "")
        if socket.state != ESTABLISHED or one.peer_socket is not None or peer is None or peer.cut:
            continue
        end = (socket.peer, socket.peer_port, socket.address, socket.port)
        if end not in peer.others and not _is_loopback(socket.peer):
            found.append(one)
    return tuple(found)


def common_node(found: Iterable[Connection]) -> str | None:
    """Return the node that all these have in common, if they lead to several others."""
    pairs = {frozenset((one.node, one.peer_node or one.socket.peer)) for one in found}
    counts: Counter[str] = Counter()
    for pair in pairs:
        counts.update(pair)
    if len(pairs) < 2:
        return None
    name, count = max(sorted(counts.items()), key=lambda item: item[1])
    return name if count == len(pairs) else None
