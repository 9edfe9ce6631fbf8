"""Which links send data of a job again, from look to look. Pure.

Each kernel counts for each of its sockets how many segments it sent, and how many of them again. A
few are normal where several nodes send to one at a time. A link is told when one in a thousand and
MOST are sent again between two looks, and is over after QUIET looks with fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterprep.jobs.live.connections import Connection
from clusterprep.survey.watch.changes import Change

MOST = 10  # segments that are sent again between two looks without being told
SHARE = 0.001  # of all segments
QUIET = 3  # looks in a row
SHOWN = 3  # connections of a link

Pair = tuple[str, str]  # two nodes, or a node and an address that is of none
SocketKey = tuple[str, str, int, str, int]  # node, and both ends
Counts = tuple[int, int]  # segments sent again, and in all


class Growth(Struct, frozen=True):
    """What one connection sent since the look before, or since it exists."""

    words: str
    resent: int
    segments: int


class Resends:
    """The counters of the last look, and the links that were told."""

    def __init__(self) -> None:
        self._counts: dict[SocketKey, Counts] | None = None
        self._quiet: dict[Pair, int] = {}  # looks in a row, of each link that was told

    def look(
        self, connections: Sequence[Connection], names: Mapping[str, str]
    ) -> tuple[Change, ...]:
        """Return which links began to send again, and which do no more.

        `connections` are those of the job's ranks, `names` those of the ranks by their places. The
        first look tells what was sent again since the connections exist.
        """
        since = "the job's connections exist" if self._counts is None else "the last look"
        before = self._counts or {}
        counts: dict[SocketKey, Counts] = {}
        growths: dict[Pair, list[Growth]] = {}
        for one in connections:
            now = _counts_of(one)
            if now is None or one.peer_node == one.node:
                continue
            key = _key(one)
            counts[key] = now
            growths.setdefault(_pair(one), []).append(_growth(one, before.get(key), now, names))
        is_first = self._counts is None
        self._counts = counts
        unknown = _uncounted(connections) if is_first else ()
        return (*unknown, *self._new(growths, since), *self._over(growths))

    def _new(self, growths: Mapping[Pair, list[Growth]], since: str) -> list[Change]:
        changes = []
        for pair, rows in sorted(growths.items()):
            if not _is_much(rows):
                continue
            if pair not in self._quiet:
                changes.append(_change(pair, rows, since))
            self._quiet[pair] = 0
        return changes

    def _over(self, growths: Mapping[Pair, list[Growth]]) -> list[Change]:
        """Return the links that send nothing again for QUIET looks, or have no connection left."""
        changes = []
        for pair in sorted(self._quiet):
            if _is_much(growths.get(pair, ())):
                continue
            self._quiet[pair] += 1
            if self._quiet[pair] == QUIET:
                del self._quiet[pair]
                message = f"link {pair[0]} - {pair[1]} does not resend data of the job any more"
                changes.append(Change("gone", pair, message=message))
        return changes


def _uncounted(connections: Sequence[Connection]) -> tuple[Change, ...]:
    """Return that resends are not known of some connections, if a kernel does not count them."""
    nodes = {
        one.node: None
        for one in connections
        if _counts_of(one) is None and one.peer_node != one.node
    }
    if not nodes:
        return ()
    message = (
        "which links of the job resend is not known in part: sockets there have no counters, as "
        "those within a container's own network"
    )
    return (Change("unknown", tuple(nodes), message=message),)


def _counts_of(one: Connection) -> Counts | None:
    socket = one.socket
    if socket.resent is None or socket.segments is None:
        return None
    return socket.resent, socket.segments


def _key(one: Connection) -> SocketKey:
    socket = one.socket
    return one.node, socket.address, socket.port, socket.peer, socket.peer_port


def _pair(one: Connection) -> Pair:
    first, second = sorted((one.node, one.peer_node or one.socket.peer))
    return first, second


def _growth(
    one: Connection, before: Counts | None, now: Counts, names: Mapping[str, str]
) -> Growth:
    """Return what was sent since `before`; a socket that counts less now is a new one."""
    resent, segments = now
    if before is not None and before[0] <= resent and before[1] <= segments:
        resent -= before[0]
        segments -= before[1]
    here, there = one.places
    who = names.get(here, here)
    to = names.get(there, one.peer_node or one.socket.peer)
    return Growth(f"{who} to {to}, {one.ends}", resent, segments)


def _is_much(rows: Iterable[Growth]) -> bool:
    """Return whether a link resends more than what is normal."""
    resent = segments = 0
    for row in rows:
        resent += row.resent
        segments += row.segments
    return resent >= MOST and resent >= SHARE * segments


def _change(pair: Pair, rows: Iterable[Growth], since: str) -> Change:
    with_resends = sorted((row for row in rows if row.resent), key=lambda row: -row.resent)
    resent = sum(row.resent for row in with_resends)
    segments = sum(row.segments for row in rows)
    lines = tuple(
        f"{row.words}: {row.resent:,} of {row.segments:,} segments sent again"
        for row in with_resends[:SHOWN]
    )
    return Change(
        "resends",
        pair,
        message=(
            f"link {pair[0]} - {pair[1]} resends data of the job: {resent:,} of {segments:,} "
            f"segments since {since}"
        ),
        lines=lines,
    )
