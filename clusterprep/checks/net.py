"""Judges ports: the rendezvous port is free, and every node reaches it and the other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.facts.pairs import Dial, Listen
from clusterprep.model.pair_schedule import coverage
from clusterprep.model.units import pluralize
from clusterprep.remedies import Word, placed, shell_line

OPEN = shell_line(
    "nft list ruleset   # and the security group: allow TCP PORT and the ephemeral range "
    "between the nodes"
)


class Cause(Struct, frozen=True):
    """The cause of failed dials: a "listener", a "dialer", or a "pair" with both its ends.

    `failed` holds the dials that are explained by it.
    """

    role: str
    nodes: tuple[str, ...]
    failed: tuple[Dial, ...]


def unreached(dial: Dial) -> bool:
    """Return whether a dial did not get through."""
    return dial.word != "ok"


def find_causes(
    dials: Iterable[Dial], bad: Callable[[Dial], bool] = unreached, by_port: bool = False
) -> tuple[Cause, ...]:
    """Return the causes of the failed dials; each failed dial belongs to exactly one of them.

    `bad` tells which dials failed. A listener that fails at least half of its dialers and at least
    two is blamed alone and set aside, then a dialer likewise, and with `by_port` a listener for one
    of its ports. Every other failed dial stands by itself.
    """
    remaining = list(dials)
    failed = [dial for dial in remaining if bad(dial)]
    causes: list[Cause] = []
    for end in _ENDS if by_port else _ENDS[:2]:
        guilty = _guilty(remaining, failed, end)
        for failures in guilty.values():
            node = end.node(failures[0])
            causes.append(Cause(end.role, (node,), failures))
        if guilty:
            remaining = [dial for dial in remaining if end.key(dial) not in guilty]
            failed = [dial for dial in failed if end.key(dial) not in guilty]
    for dial in failed:
        pair = Cause("pair", (dial.dialer, dial.listener), (dial,))
        causes.append(pair)
    return tuple(causes)


NodeOrPort = str | tuple[str, int]


class _End(Struct, frozen=True):
    """An end of a dial that can be at fault, and how it is read from the dial.

    `key` groups the dials, `node` is the end itself and `peer` the other end.
    """

    role: str
    key: Callable[[Dial], NodeOrPort]
    node: Callable[[Dial], str]
    peer: Callable[[Dial], str]


def _dialer(dial: Dial) -> str:
    return dial.dialer


def _listener(dial: Dial) -> str:
    return dial.listener


def _port_of_listener(dial: Dial) -> NodeOrPort:
    return dial.listener, dial.port


_ENDS = (
    _End("listener", _listener, _listener, _dialer),
    _End("dialer", _dialer, _dialer, _listener),
    _End("listener", _port_of_listener, _listener, _dialer),
)


def _guilty(dials: list[Dial], failed: list[Dial], end: _End) -> dict[NodeOrPort, tuple[Dial, ...]]:
    """Return the failed dials of each guilty end, the worst first.

    Guilty is an end that failed for at least two peers, and for at least half of those that tried.
    Nodes are counted, not ports: one dialer that fails on two ports is one.
    """
    failures: dict[NodeOrPort, list[Dial]] = {}
    failed_peers: dict[NodeOrPort, set[str]] = {}
    for dial in failed:
        key = end.key(dial)
        failures.setdefault(key, []).append(dial)
        failed_peers.setdefault(key, set()).add(end.peer(dial))
    all_peers: dict[NodeOrPort, set[str]] = {}
    for key, peers in failed_peers.items():
        if len(peers) >= 2:
            all_peers[key] = set()
    if not all_peers:  # usual, and there are many dials
        return {}
    for dial in dials:
        key = end.key(dial)
        if key in all_peers:
            all_peers[key].add(end.peer(dial))
    ranked = []
    for key, peers in all_peers.items():
        number = len(failed_peers[key])
        if 2 * number >= len(peers):
            ranked.append((number, key))
    ranked.sort(reverse=True)
    return {key: tuple(failures[key]) for _, key in ranked}


def all_dials(context: CheckContext) -> list[Dial]:
    """Return all dials of the nodes that know theirs."""
    dials: list[Dial] = []
    for node in context.nodes:
        dials.extend(context.value(node, "net.dials"))
    return dials


def ports(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether the rendezvous port is free, and whether nodes reach it and each other."""
    number = context.inventory.master_port
    rendezvous = f"the rendezvous port {number} free"
    wanted = f"{rendezvous}, and it and the ephemeral range open to all nodes"
    blamed: set[str] = set()
    port_is_taken = False
    for node in context.nodes:
        listen: Listen | None = context.value(node, "net.listen")
        if listen is not None and listen.word != "ok":
            port_is_taken = True
            blamed.add(listen.host)
            yield _port_taken(listen, wanted)
    dials = all_dials(context)
    for cause in find_causes(dials, by_port=True):
        blamed.update(cause.nodes)
        blamed.update(dial.dialer for dial in cause.failed)
        yield _unreachable(cause, wanted)
    if not port_is_taken:
        # Otherwise it cannot be told whether the other nodes would get through to that port.
        yield from _reachable(context, dials, blamed, wanted)


def _reachable(
    context: CheckContext, dials: Sequence[Dial], blamed: set[str], wanted: str
) -> Iterable[Outcome]:
    """Return the outcomes of nodes that nothing is known against."""
    others = [node.name for node in context.nodes if node.name not in blamed]
    if len(context.inventory.nodes) == 1:
        if others:
            message = "the rendezvous port can be opened, and there is no other node"
            yield Outcome("pass", tuple(others), message, "open", wanted)
        return
    tried_nodes = {dial.dialer for dial in dials} | {dial.listener for dial in dials}
    good = [name for name in others if name in tried_nodes]
    untried = [name for name in others if name not in tried_nodes]
    if untried:
        message = "it could dial no other node, and none dialled it"
        reason = "no other node was tried"
        yield Outcome("unknown", tuple(untried), message, wanted=wanted, reason=reason)
    if good:
        pairs = {(dial.dialer, dial.listener) for dial in dials}
        tried = coverage(len(pairs), len(context.inventory.nodes))
        message = "the rendezvous port and the others' ephemeral ports can be reached"
        yield Outcome(
            "pass",
            tuple(good),
            message,
            f"open; {tried} tried",
            wanted,
        )


def _port_taken(listen: Listen, wanted: str) -> Outcome:
    """Return the failure of the node that could not listen on the rendezvous port."""
    state = "in use" if listen.word == "in_use" else listen.word
    seen = f"port {listen.port} is {state}"
    if listen.owner:
        seen = f"{seen} by {listen.owner}"
    cure = shell_line(
        "ss -ltnp {filter}   # end that process, or set ports: {{master: …}}",
        filter=f"sport = :{listen.port}",
    )
    message = "the rendezvous port cannot be opened"
    return Outcome(
        "fail",
        (listen.host,),
        message,
        seen,
        wanted,
        cure,
    )


def _unreachable(cause: Cause, wanted: str) -> Outcome:
    """Return the failure of a listener, a dialer, or one pair of them."""
    first = cause.failed[0]
    dialers = set()
    listeners = set()
    ports = set()
    failures = set()
    for dial in cause.failed:
        dialers.add(dial.dialer)
        listeners.add(dial.listener)
        ports.add(dial.port)
        failures.add(dial.word.replace("_", " "))
    endpoint = f"{first.address}:{first.port}"
    seen = f"{endpoint} {', '.join(sorted(failures))}"
    if cause.role == "listener":
        message = f"{pluralize(len(dialers), 'node')} cannot reach {first.listener} at {endpoint}"
    elif cause.role == "dialer":
        message = f"{first.dialer} cannot reach {pluralize(len(listeners), 'listener')}"
    else:
        message = f"{first.dialer} cannot reach {first.listener} at {endpoint}"
        # Each pair is a finding of its own, and findings that look alike are merged.
        seen = f"{first.dialer} to {seen}"
    port: Word = first.port if len(ports) == 1 else "the ports above"
    cure = placed(OPEN, PORT=port)
    return Outcome(
        "fail",
        cause.nodes,
        message,
        seen,
        wanted,
        cure,
    )


PORTS = Check(
    "net.ports",
    facts=("net.listen", "net.dials"),
    judge=ports,
    severity="error",
    title="The rendezvous port is free, and the nodes reach each other",
    why="All ranks meet at one host and port, and then connect to each other on ports that each "
    "node's kernel chooses. If one is taken or filtered they wait until a time-out of half an hour "
    "says nothing about ports.",
    how="The agent of the first node listens on the rendezvous port at the address that NCCL would "
    "use and every other node dials it. Every agent also listens for a moment on three ports of "
    "its ephemeral range, one in each third of it, and the others dial these in turn: a firewall "
    "that is open for part of the range is met. All directed pairs are dialled up to 64 nodes, "
    "above that 64 others for each node as dialer and as listener, drawn with a fixed seed; the "
    "report says how many. What gives no answer within three seconds is dialled eight times more.",
    remedy=placed(OPEN, PORT=29500),
    proof=Proof(
        "net.dials", lambda dials: tuple(replace(dial, word="timed_out") for dial in dials)
    ),
)
