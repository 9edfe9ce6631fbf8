"""Ports: every node reaches the rendezvous host and every other node, and the port is free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.facts.pairs import Dial, Listen
from clusterprep.model.pair_schedule import coverage
from clusterprep.runtime.lazy_dataclass import dataclass

OPEN = "nft list ruleset   # and the security group: allow TCP {port} and the ephemeral range between the nodes"


@dataclass(frozen=True)
class Blame:
    """Who is at fault in a set of failed pairs: one listener, one dialer, or a pair with both ends."""

    role: str
    nodes: tuple[str, ...]
    failed: tuple[Dial, ...]


def unreached(dial: Dial) -> bool:
    return dial.word != "ok"


def blame(
    dials: Iterable[Dial], bad: Callable[[Dial], bool] = unreached, by_port: bool = False
) -> tuple[Blame, ...]:
    """Who is at fault, and every failed pair is somebody's; `bad` says which dials failed.

    A listener that fails at least half of its dialers and at least two is blamed alone and set aside, then a dialer
    likewise, and with `by_port` a listener for one of its ports; every other failed pair stands by itself.
    """
    left = list(dials)
    failed = [dial for dial in left if bad(dial)]
    found: list[Blame] = []
    for role, place in _ROLES if by_port else _ROLES[:2]:
        guilty = _guilty(left, failed, role, place)
        found.extend(
            Blame(role, (mine[0].listener if role == "listener" else mine[0].dialer,), mine)
            for mine in guilty.values()
        )
        left = [dial for dial in left if place(dial) not in guilty] if guilty else left
        failed = [dial for dial in failed if place(dial) not in guilty]
    found.extend(Blame("pair", (d.dialer, d.listener), (d,)) for d in failed)
    return tuple(found)


Place = Callable[[Dial], object]
_ROLES: tuple[tuple[str, Place], ...] = (
    ("listener", lambda dial: dial.listener),
    ("dialer", lambda dial: dial.dialer),
    ("listener", lambda dial: (dial.listener, dial.port)),
)


def _guilty(
    dials: list[Dial], failed: list[Dial], role: str, place: Place
) -> dict[object, tuple[Dial, ...]]:
    """The failed dials of each place at which at least two nodes failed, and at least half; the worst come first."""
    # Nodes are counted, not ports: one dialer that fails on two ports is one.
    other = "dialer" if role == "listener" else "listener"
    mine: dict[Any, list[Dial]] = {}
    for dial in failed:
        mine.setdefault(place(dial), []).append(dial)
    ends = {where: {getattr(dial, other) for dial in same} for where, same in mine.items()}
    tried: dict[Any, set[str]] = {where: set() for where, names in ends.items() if len(names) >= 2}
    for dial in dials if tried else ():
        if (where := place(dial)) in tried:
            tried[where].add(getattr(dial, other))
    guilty = [where for where, names in tried.items() if 2 * len(ends[where]) >= len(names)]
    guilty.sort(key=lambda where: (len(ends[where]), where), reverse=True)
    return {where: tuple(mine[where]) for where in guilty}


def dialled(context: CheckContext) -> list[Dial]:
    """All dials of the nodes that know theirs."""
    return [dial for node in context.nodes for dial in context.value(node, "net.dials")]


def ports(context: CheckContext) -> Iterable[Outcome]:
    """The rendezvous port is free, every node gets through to it, and to the others' ephemeral ports."""
    wanted = f"the rendezvous port {context.inventory.master_port} free, and it and the ephemeral range open to all nodes"
    listens: list[Listen] = [
        v for node in context.nodes if (v := context.value(node, "net.listen")) is not None
    ]
    taken = [listen for listen in listens if listen.word != "ok"]
    for listen in taken:
        yield _taken(listen, wanted)
    dials = dialled(context)
    blamed = blame(dials, by_port=True)
    yield from (_blocked(guilt, wanted) for guilt in blamed)
    named = {node for guilt in blamed for node in guilt.nodes} | {listen.host for listen in taken}
    named |= {dial.dialer for guilt in blamed for dial in guilt.failed}
    good = tuple(node.name for node in context.nodes if node.name not in named)
    # Where the rendezvous port is taken nobody can tell whether the others would get through to it.
    if good and not taken:
        pairs = len({(dial.dialer, dial.listener) for dial in dials})
        seen = f"open; {coverage(pairs, len(context.inventory.nodes))} tried"
        yield Outcome(
            "pass",
            good,
            "the rendezvous port and the others' ephemeral ports can be reached",
            seen,
            wanted,
        )


def _taken(listen: Listen, wanted: str) -> Outcome:
    seen = f"port {listen.port} is {'in use' if listen.word == 'in_use' else listen.word}"
    seen += f" by {listen.owner}" if listen.owner else ""
    cure = f"ss -ltnp 'sport = :{listen.port}'   # end that process, or set ports: {{master: …}}"
    return Outcome(
        "fail", (listen.host,), "the rendezvous port cannot be opened", seen, wanted, cure
    )


def _blocked(guilt: Blame, wanted: str) -> Outcome:
    first = guilt.failed[0]
    words = ", ".join(sorted({dial.word.replace("_", " ") for dial in guilt.failed}))
    place = f"{first.address}:{first.port}"
    seen = f"{place} {words}"
    if guilt.role == "listener":
        message = f"{len({dial.dialer for dial in guilt.failed})} nodes cannot reach {first.listener} at {place}"
    elif guilt.role == "dialer":
        message = (
            f"{first.dialer} cannot reach {len({dial.listener for dial in guilt.failed})} listeners"
        )
    else:
        message = f"{first.dialer} cannot reach {first.listener} at {place}"
        seen = f"{first.dialer} to {seen}"  # each pair is a finding of its own, and findings that look alike are merged
    port = first.port if len({dial.port for dial in guilt.failed}) == 1 else "the ports above"
    return Outcome("fail", guilt.nodes, message, seen, wanted, OPEN.format(port=port))


PORTS = Check(
    "net.ports",
    facts=("net.listen", "net.dials"),
    judge=ports,
    severity="error",
    title="The rendezvous port is free, and the nodes reach each other",
    why="All ranks meet at one host and port, and then connect to each other on ports that each node's kernel chooses. "
    "If one is taken or filtered they wait until a time-out of half an hour says nothing about ports.",
    how="The agent of the first node listens on the rendezvous port at the address that NCCL would use and every "
    "other node dials it. Every agent also listens for a moment on three ports of its ephemeral range, one in each "
    "third of it, and the others dial these in turn: a firewall that is open for part of the range is met. All "
    "directed pairs are dialled up to 64 nodes, above that 64 others for each node as dialer and as listener, drawn "
    "with a fixed seed; the report says how many.",
    remedy=OPEN.format(port="29500"),
    proof=Proof(
        "net.dials", lambda dials: tuple(replace(dial, word="timed_out") for dial in dials)
    ),
)
