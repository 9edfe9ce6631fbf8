"""Measure TCP connections between pairs of nodes: agents listen for a moment and dial each other.

One connection per pair tells three things: the port is open, a full-size packet gets through, and
how long a round trip takes. The agents listen where a training job would.

It needs no further port, no raw socket and no root, and does what NCCL's own sockets will do: TCP
never fragments, so a full-size packet tests the MTU of the path. `model/pair_schedule.py` says
which nodes dial which in a large fleet. Where such a sample meets something, nodes dial around it,
to tell whether it is a node, a group or a pair.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, cast

import msgspec

from clusterprep.checks.pair_causes import find_causes
from clusterprep.errors import LinkLost
from clusterprep.facts.pairs import DIALS, LISTEN, TABLE, Dial, Listen, TableWhileDialling
from clusterprep.model import Absent, Fleet
from clusterprep.model.pair_schedule import ALL_PAIRS, Pair, pairing, pairs_around, spans
from clusterprep.nccl.interfaces import Pick, choose
from clusterprep.remote.transports.link import Frame
from clusterprep.remote.untrusted import require_integer, shortened
from clusterprep.survey.fanout import Fanout

LISTEN_LIMIT = 10.0  # seconds for opening ports
# Seconds; a dropped SYN is repeated after one and three, a dropped segment after 0.2, 0.6 and 1.4.
DIAL_LIMIT = 3.0
# Seconds for finding the largest size, on connections that are known to open.
SIZES_LIMIT = 1.5
ANSWER_MARGIN = 5.0  # seconds beyond its limit that the answer to a dial request may take
# Bytes that are tried where a full-size packet was not carried. 0 is the full size again: three
# more of them are not all lost on a path that loses a third of its packets.
SIZES = (0, 0, 0, 8000, 4200, 1500, 1450, 1400, 1280)
# A path that loses packets may lose every SYN of a connection within DIAL_LIMIT. So what gave no
# answer is dialled again, eight times side by side: with a second SYN each, sixteen are not all
# lost even where half of the round trips are, and a filter drops them all.
RETRIES = (0,) * 8
RETRY_LIMIT = 1.5  # seconds; a dropped SYN is repeated after one
NO_ANSWER = ("timed_out", "no_route")  # words of dials that a loss of packets may explain
KNOCK_LIMIT = 1.2  # seconds; a dropped SYN is repeated after one
AROUND_LIMIT = 1.5  # seconds for dials around what failed; a dropped SYN is repeated after one
# Linux' default of net.ipv4.ip_local_port_range, for nodes whose own range is not known.
DEFAULT_RANGE = (32768, 60999)

Endpoint = tuple[str, int]  # address, port
Target = tuple[str, Endpoint]  # listener, and where it listens
Dials = tuple[Dial, ...] | Absent
Pairs = Callable[[Sequence[str]], Mapping[str, Sequence[str]]]
Bodies = dict[str, dict[str, Any]]  # of requests, by node
_LISTENER = attrgetter("listener")  # faster than a function of our own
NO_TABLE = Absent("not_applicable", "the kernel says nothing of its table of neighbours")


def probe_pairs(fanout: Fanout, fleet: Fleet, host: str) -> Fleet:
    """Return the fleet with the facts net.listen, net.dials and net.dialling_table.

    `host` is the rendezvous node, whose master port all other nodes must reach. Nodes without an
    agent or without an interface for NCCL neither listen nor dial.
    """
    picks: dict[str, Pick] = {}  # the interface that NCCL will use, by node
    for name, pick in choose(fleet).picks.items():
        if name in fanout.links:
            picks[name] = pick
    port = fleet.inventory.master_port
    ports, listen = _open_ports(fanout, fleet, picks, host, port)
    listeners = _Listeners(picks, ports)
    inventory = fleet.inventory
    pairs = pairing(list(picks), inventory.cluster, inventory.groups)
    targets = listeners.targets(pairs)
    if isinstance(listen, Listen) and listen.word == "ok":
        rendezvous = (host, (picks[host].address, port))
        for name in targets:
            if name != host:
                targets[name] = [rendezvous, *targets[name]]
    matrix = _Matrix(fanout)
    matrix.dial(targets, DIAL_LIMIT)
    if len(picks) > ALL_PAIRS:
        around = _targets_around(matrix, listeners, fleet)
        matrix.dial(around, AROUND_LIMIT)
    matrix.find_largest_sizes()
    fanout.tell("unlisten", ports)
    return _with_pairs(fleet, host, listen, matrix)


def knock(fanout: Fanout, fleet: Fleet, pairs: Pairs) -> tuple[Dial, ...]:
    """Return dials of the rendezvous port of each listener of `pairs`; no agent listens there.

    A refusal is an answer: the way there and back is open. So no port is held that a job may need
    in this moment, and over a connection that is made, to a job that runs, nothing is sent. `pairs`
    takes the nodes that can dial, and returns the listeners of each. What a node that gave no
    answer dialled, and which node dialled it, is left out. The agents have the part `dial`.
    """
    picks = {name: pick for name, pick in choose(fleet).picks.items() if name in fanout.links}
    port = fleet.inventory.master_port
    targets: dict[str, list[Target]] = {}
    for dialer, listeners in pairs(list(picks)).items():
        targets[dialer] = [(name, (picks[name].address, port)) for name in listeners]
    matrix = _Matrix(fanout, silent=True)
    matrix.dial(targets, KNOCK_LIMIT)
    answered = {name for name, dials in matrix.dials.items() if not isinstance(dials, Absent)}
    knocks: list[Dial] = []
    for dial in matrix.known_dials():
        if dial.listener in answered:
            word = "ok" if dial.word == "refused" else dial.word
            knocks.append(msgspec.structs.replace(dial, word=word))
    return tuple(knocks)


def with_knocks(fleet: Fleet, dials: Iterable[Dial]) -> Fleet:
    """Return the fleet with these dials as facts; that the rendezvous port is free is not known."""
    dials_by_node: dict[str, list[Dial]] = {node.name: [] for node in fleet.reached}
    for dial in dials:
        dials_by_node[dial.dialer].append(dial)
    of_all = {LISTEN.name: None, TABLE.name: NO_TABLE}
    facts: dict[str, dict[str, Any]] = {}
    for name, own in dials_by_node.items():
        facts[name] = {**of_all, DIALS.name: tuple(own)}
    return fleet.with_facts(facts)


def without_pairs(fleet: Fleet, why: Absent) -> Fleet:
    """Return the fleet with the facts of `probe_pairs` absent, for a probe that was cut off."""
    facts = {LISTEN.name: why, DIALS.name: why, TABLE.name: why}
    return fleet.with_facts({node.name: facts for node in fleet.reached})


def _with_pairs(fleet: Fleet, host: str, listen: Listen | Absent, matrix: _Matrix) -> Fleet:
    """Return the fleet with what was seen as facts."""
    facts: dict[str, dict[str, Any]] = {}
    for node in fleet.reached:
        # Only the host has opened the rendezvous port. That it is not known is so for all nodes.
        applies = isinstance(listen, Absent) or node.name == host
        own_listen = listen if applies else None
        own_dials = matrix.dials.get(node.name)
        if own_dials is None:
            own_dials = _no_interface("the node")
        facts[node.name] = {
            LISTEN.name: own_listen,
            DIALS.name: own_dials,
            TABLE.name: matrix.tables.get(node.name, NO_TABLE),
        }
    return fleet.with_facts(facts)


# ---------------------------------------------------------------- listening


def _open_ports(
    fanout: Fanout, fleet: Fleet, picks: Mapping[str, Pick], host: str, port: int
) -> tuple[dict[str, list[int]], Listen | Absent]:
    """Return the ephemeral ports that each node opened, and whether the rendezvous port opened."""
    bodies: Bodies = {}
    for name in picks:
        wanted = _port_spans(fleet, name)
        if name == host:
            wanted = [[port, port], *wanted]
        bodies[name] = {"spans": wanted, "ipv6": picks[name].is_ipv6}
    listening: dict[str, list[int]] = {}
    listen: Listen | Absent = _why_host_is_missing(fanout, host)
    for name, answer in fanout.ask("listen", bodies, LISTEN_LIMIT).items():
        if isinstance(answer, LinkLost):
            if name == host:
                listen = Absent(answer.reason, answer.message)
            continue
        rows = _opened_rows(answer, len(bodies[name]["spans"]))
        if name == host:
            listen = _rendezvous_port(host, port, rows[:1], answer)
            rows = rows[1:]
        ports = list(filter(_is_port, rows))
        listening[name] = ports
    return listening, listen


def _is_port(value: Any) -> bool:
    return type(value) is int and 0 < value < 65536


def _port_spans(fleet: Fleet, name: str) -> list[list[int]]:
    """Return [first, last] of the spans of which a node opens one port each."""
    port_range = fleet.fact(name, "net.port_range")
    if isinstance(port_range, Absent):
        port_range = DEFAULT_RANGE
    low, high = port_range
    return spans(low, high, f"{fleet.inventory.cluster}/{name}")


def _why_host_is_missing(fanout: Fanout, host: str) -> Absent:
    subject = f"the rendezvous host {host}"
    if host not in fanout.links:
        return Absent("not_reached", f"{subject} was not reached")
    return _no_interface(subject)


def _no_interface(subject: str) -> Absent:
    """Return why a node without an interface for NCCL neither listens nor dials."""
    return Absent("eth.iface_choice", f"{subject} has no usable interface")


def _opened_rows(answer: Frame, count: int) -> list[Any]:
    """Return what an agent says about each of `count` spans, or [] for another shape.

    That is the number of the port that it opened, or a dictionary with the reason why none.
    """
    rows = answer.get("ports")
    if not isinstance(rows, list) or len(rows) != count:
        return []
    return rows


def _rendezvous_port(
    host: str, port: int, rows: Sequence[Any], answer: Mapping[str, Any]
) -> Listen | Absent:
    """Return whether the rendezvous port opened, from the first row of the host's answer."""
    if not rows:
        return Absent("garbled", shortened(answer.get("why") or "no answer"))
    row = rows[0]
    if row == port:
        return Listen(host, port, "ok")
    if not isinstance(row, dict):
        return Absent("garbled", shortened(f"asked for port {port}, got {row!r}"))
    owner = row.get("owner")
    owner_text = ""
    if isinstance(owner, dict):
        owner_text = shortened(f"{owner.get('name')} (pid {owner.get('pid')})", 80)
    return Listen(host, port, shortened(row.get("no"), 40), owner_text)


# ---------------------------------------------------------------- dialling


class _Listeners:
    """The ports that are open for dials, which the dialers of a listener take in turn."""

    def __init__(self, picks: Mapping[str, Pick], ports: Mapping[str, Sequence[int]]) -> None:
        self._targets: dict[str, list[Target]] = {}  # one for each port, of nodes that have any
        self._next_target: dict[str, Iterator[Target]] = {}
        for name, open_ports in ports.items():
            if not open_ports:
                continue
            address = picks[name].address
            own = [(name, (address, port)) for port in open_ports]
            # Listeners begin with different ports. Otherwise the third dialer would meet the third
            # port of all of them, and be blamed for a filter of that range on every node.
            first = len(self._targets) % len(own)
            self._next_target[name] = itertools.cycle([*own[first:], *own[:first]])
            self._targets[name] = own

    def targets(self, pairs: Mapping[str, Sequence[str]]) -> dict[str, list[Target]]:
        """Return what each node dials: one port of each listener.

        Where a listener has more ports than dialers, each of them dials several, so that all ports
        are tried.
        """
        shares: dict[str, int] = {}  # of a listener's ports, which each of its dialers takes
        for name, count in Counter(itertools.chain.from_iterable(pairs.values())).items():
            shares[name] = -(-len(self.all_ports(name)) // count)  # rounded up
        targets: dict[str, list[Target]] = {}
        if all(share == 1 for share in shares.values()):  # as in large fleets
            for dialer, listeners in pairs.items():
                turns = map(self._next_target.__getitem__, listeners)
                targets[dialer] = list(map(next, turns))
            return targets
        for dialer, listeners in pairs.items():
            own = targets[dialer] = []
            for name in listeners:
                for _ in range(shares[name]):
                    own.append(next(self._next_target[name]))
        return targets

    def all_ports(self, listener: str) -> Sequence[Target]:
        """Return one target for each port of a listener."""
        return self._targets.get(listener, ())


def _targets_around(
    matrix: _Matrix, listeners: _Listeners, fleet: Fleet
) -> dict[str, list[Target]]:
    """Return what nodes dial further, where the sample met something that failed.

    The dialer of a failed pair tries every port of the listener, and the nodes at both ends and
    others of their groups dial each other.
    """
    causes = find_causes(matrix.known_dials(), by_port=True)
    if not causes:
        return {}
    tried: set[tuple[str, Target]] = set()
    for cause in causes:
        if cause.role == "pair":
            dialer = cause.nodes[0]
            tried.update((dialer, _target(dial)) for dial in matrix.dials_of(dialer))
    ends = [cause.nodes for cause in causes]
    inventory = fleet.inventory
    pairs = pairs_around(ends, _DialledPairs(matrix), inventory.groups, inventory.cluster)
    targets = listeners.targets(pairs)
    for cause in causes:
        if cause.role != "pair":
            continue
        dialer, listener = cause.nodes
        for target in listeners.all_ports(listener):
            if (dialer, target) not in tried:
                tried.add((dialer, target))
                targets.setdefault(dialer, []).append(target)
    return targets


class _DialledPairs:
    """Tells of a pair of nodes whether the first dialled the second, in what is known so far.

    The pairs of a large fleet are not put into a set, as few of them are asked for.
    """

    def __init__(self, matrix: _Matrix) -> None:
        self._matrix = matrix
        self._listeners_of: dict[str, set[str]] = {}

    def __contains__(self, pair: object) -> bool:
        dialer, listener = cast("Pair", pair)
        if dialer not in self._listeners_of:
            self._listeners_of[dialer] = set(map(_LISTENER, self._matrix.dials_of(dialer)))
        return listener in self._listeners_of[dialer]


class _Matrix:
    """All dials so far, by dialer, and what its kernel said of the table of neighbours."""

    def __init__(self, fanout: Fanout, *, silent: bool = False) -> None:
        self._fanout = fanout
        self._silent = silent  # nothing is sent over the connections
        self.dials: dict[str, Dials] = {}
        self.tables: dict[str, TableWhileDialling | Absent] = {}

    def known_dials(self) -> list[Dial]:
        """Return the dials of all nodes that know theirs."""
        return list(itertools.chain.from_iterable(map(self.dials_of, self.dials)))

    def dials_of(self, dialer: str) -> Sequence[Dial]:
        """Return the dials of a node, none where they are not known."""
        own = self.dials.get(dialer, ())
        return () if isinstance(own, Absent) else own

    def dial(self, targets: Mapping[str, Sequence[Target]], limit: float) -> None:
        """Let every node dial its targets, all nodes at once, and add the connections.

        What gives no answer is dialled again. A node that gives no answer keeps its earlier dials.
        """
        answers = self._ask(targets, limit)
        self._dial_again(
            answers,
            _is_unanswered,
            RETRY_LIMIT,
            RETRIES,
            _as_answered,
        )
        for name in targets:
            before = self.dials.get(name, ())
            new = answers.get(name, ())
            if isinstance(before, Absent) or (isinstance(new, Absent) and before):
                continue
            self.dials[name] = new if isinstance(new, Absent) else (*before, *new)

    def find_largest_sizes(self) -> None:
        """Replace what did not carry a full-size packet by what carries the largest size."""
        self._dial_again(
            self.dials,
            _lost_full_size,
            SIZES_LIMIT,
            SIZES,
            _with_largest_size,
        )

    def _dial_again(
        self,
        dials: dict[str, Dials],
        is_wanted: Callable[[Dial], bool],
        limit: float,
        sizes: Sequence[int],
        combined: Callable[[Dial, Sequence[Dial]], Dial],
    ) -> None:
        """Dial the wanted ones of `dials` again, once for each size, and put in what is `combined`.

        `combined` gets a dial and its further tries. A node that does not answer this time keeps
        its dials.
        """
        targets: dict[str, list[Target]] = {}
        for name, attempts in dials.items():
            if isinstance(attempts, Absent):
                continue
            for dial in filter(is_wanted, attempts):
                targets.setdefault(name, []).append(_target(dial))
        if not targets:
            return
        for name, again in self._ask(targets, limit, sizes).items():
            before = dials[name]
            if isinstance(before, Absent) or isinstance(again, Absent):
                continue
            tries: dict[Target, list[Dial]] = {}
            for dial in again:
                tries.setdefault(_target(dial), []).append(dial)
            dials[name] = tuple(
                combined(dial, tries[_target(dial)]) if is_wanted(dial) else dial for dial in before
            )

    def _ask(
        self,
        targets: Mapping[str, Sequence[Target]],
        limit: float,
        sizes: Sequence[int] = (),
    ) -> dict[str, Dials]:
        """Return the connections to the targets by dialer, for nodes that have any target.

        With `sizes`, each target is dialled once for each size, in bytes.
        """
        bodies: Bodies = {}
        for name, chosen in targets.items():
            if chosen:
                bodies[name] = _dial_body(chosen, limit, sizes)
                if self._silent:
                    bodies[name]["silent"] = True
        dials: dict[str, Dials] = {}

        def take(name: str, answer: Frame | LinkLost) -> None:
            if isinstance(answer, LinkLost):
                dials[name] = Absent(answer.reason, answer.message)
                return
            attempts = targets[name]
            if sizes:
                attempts = [target for target in attempts for _ in sizes]
            dials[name] = _parse_dials(name, attempts, answer)
            self._note_table(name, answer, targets[name])

        self._fanout.ask_each("dial", bodies, limit + ANSWER_MARGIN, take)
        return {name: dials[name] for name in bodies}

    def _note_table(self, name: str, answer: Frame, targets: Sequence[Target]) -> None:
        """Note what a kernel says of its table: the last entries, and all refusals together."""
        is_ipv6 = ":" in targets[0][1][0]  # all addresses are of the family that NCCL uses
        table = _parse_table(answer.get("neighbours"), is_ipv6)
        before = self.tables.get(name)
        if isinstance(before, TableWhileDialling) and isinstance(table, TableWhileDialling):
            refused = before.refused + table.refused
            table = msgspec.structs.replace(table, refused=refused)
        self.tables[name] = table


def _parse_table(row: Any, is_ipv6: bool) -> TableWhileDialling | Absent:
    """Return the table of an agent's answer, which is of the family that was dialled."""
    if row is None:
        return NO_TABLE
    try:
        return TableWhileDialling(
            most=require_integer(row["most"]),
            entries=require_integer(row["entries"]),
            refused=require_integer(row["refused"]),
            is_ipv6=is_ipv6,
        )
    except (TypeError, ValueError, LookupError):
        return Absent("garbled", shortened(f"no table of neighbours: {row!r:.80}"))


def _dial_body(targets: Sequence[Target], limit: float, sizes: Sequence[int]) -> dict[str, Any]:
    return {
        "targets": [endpoint for _, endpoint in targets],
        "limit": limit,
        "sizes": list(sizes),
    }


def _parse_dials(dialer: str, attempts: Sequence[Target], answer: Frame) -> Dials:
    """Return the connections that an agent reports, one for each attempt."""
    rows = answer.get("dials") or ()
    dials: list[Dial] = []
    try:
        for (listener, endpoint), row in zip(attempts, rows, strict=True):
            dials.append(Dial(dialer, listener, *endpoint, *_parse_outcome(*row)))
    except (TypeError, ValueError, LookupError):
        why = answer.get("why") or "no answer"
        return Absent("garbled", shortened(why))
    return tuple(dials)


# Of 300,000 dials few have another outcome than one before: most differ in their round trips alone,
# which are whole microseconds.
@functools.lru_cache(maxsize=8192, typed=True)
def _parse_outcome(word: Any, *measures: Any) -> tuple[Any, ...]:
    """Return the fields of a Dial from its word on, of the row that an agent sends of it.

    Raises TypeError or ValueError for a row of another shape.
    """
    if word != "ok":
        return (str(word)[:40],)
    microseconds, packet, is_carried, path_mtu = measures
    rtt = require_integer(microseconds) / 1e6
    size = require_integer(packet)
    carried = size if is_carried is True else None
    return "ok", rtt, size, carried, require_integer(path_mtu)


# ---------------------------------------------------------------- dialled again


def _is_unanswered(dial: Dial) -> bool:
    return dial.word in NO_ANSWER


def _as_answered(dial: Dial, again: Sequence[Dial]) -> Dial:
    """Return the first try in `again` that got an answer, else the dial as it was."""
    return next((other for other in again if not _is_unanswered(other)), dial)


def _lost_full_size(dial: Dial) -> bool:
    return dial.word == "ok" and bool(dial.packet) and dial.carried is None


def _with_largest_size(dial: Dial, again: Sequence[Dial]) -> Dial:
    """Return the connection with the largest size in bytes that it carried in `again`.

    That is 0 if it opened and carried none of the sizes. If none of them opened, nothing is known
    of sizes: `packet` and `carried` are None.
    """
    carried = [other.carried or 0 for other in again if other.word == "ok" and other.packet]
    if not carried:
        return msgspec.structs.replace(dial, packet=None)
    return msgspec.structs.replace(dial, carried=max(carried))


def _target(dial: Dial) -> Target:
    return dial.listener, (dial.address, dial.port)
