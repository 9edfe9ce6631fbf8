"""Ports: every node reaches the rendezvous host, and the port is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from clusterprep.checks import Check, Outcome, Scene

OPEN = "nft list ruleset   # and the security group: allow TCP {port} and the ephemeral range between the nodes"


@dataclass(frozen=True)
class Dial:
    """One directed attempt: `word` is ok, refused, timed_out, no_route or an error."""

    dialer: str
    listener: str
    address: str
    port: int
    word: str


@dataclass(frozen=True)
class Listen:
    """The rendezvous host's side: whether the port could be opened, and who holds it if not."""

    host: str
    port: int
    word: str  # ok, in_use, denied
    owner: str = ""


@dataclass(frozen=True)
class Blame:
    """Who is at fault in a set of failed pairs: one listener, one dialer, or a pair with both ends."""

    role: str
    nodes: tuple[str, ...]
    failed: tuple[Dial, ...]


def blame(dials: Iterable[Dial]) -> tuple[Blame, ...]:
    """Who is at fault, and every failed pair is somebody's.

    A listener that fails at least half of its dialers and at least two is blamed alone and set aside, then a dialer
    likewise; every other failed pair stands by itself.
    """
    left = list(dials)
    found: list[Blame] = []
    for role in ("listener", "dialer"):
        while (culprit := _worst(left, role)) is not None:
            failed = tuple(d for d in left if getattr(d, role) == culprit and d.word != "ok")
            found.append(Blame(role, (culprit,), failed))
            left = [d for d in left if getattr(d, role) != culprit]
    pairs = [d for d in left if d.word != "ok"]
    found.extend(Blame("pair", (d.dialer, d.listener), (d,)) for d in pairs)
    return tuple(found)


def _worst(dials: list[Dial], role: str) -> str | None:
    # Nodes are counted, not ports: one dialer that fails on two ports is one.
    other = "dialer" if role == "listener" else "listener"
    tried = Counter(name for name, _ in {(getattr(d, role), getattr(d, other)) for d in dials})
    failed = Counter(name for name, _ in {(getattr(d, role), getattr(d, other)) for d in dials if d.word != "ok"})
    guilty = [(n, name) for name, n in failed.items() if n >= 2 and 2 * n >= tried[name]]
    return max(guilty)[1] if guilty else None


def ports(scene: Scene) -> Iterable[Outcome]:
    """The rendezvous port is free and every node gets through to it."""
    wanted = f"every node reaches the rendezvous port {scene.inventory.master_port}, and it is free"
    listens: list[Listen] = [v for node in scene.nodes if (v := scene.value(node, "net.listen")) is not None]
    bad = [listen for listen in listens if listen.word != "ok"]
    for listen in bad:
        yield _taken(listen, wanted)
    dials = [dial for node in scene.nodes for dial in scene.value(node, "net.dials")]
    blamed = blame(dials)
    yield from (_blocked(guilt, wanted) for guilt in blamed)
    named = {node for guilt in blamed for node in guilt.nodes} | {listen.host for listen in bad}
    named |= {dial.dialer for dial in dials if dial.word != "ok"} if blamed else set()
    good = tuple(node.name for node in scene.nodes if node.name not in named)
    if good and not bad:
        yield Outcome("pass", good, "the rendezvous port can be reached", "open", wanted)


def _taken(listen: Listen, wanted: str) -> Outcome:
    seen = f"port {listen.port} is {'in use' if listen.word == 'in_use' else listen.word}"
    seen += f" by {listen.owner}" if listen.owner else ""
    cure = f"ss -ltnp 'sport = :{listen.port}'   # end that process, or set ports: {{master: …}}"
    return Outcome("fail", (listen.host,), "the rendezvous port cannot be opened", seen, wanted, cure)


def _blocked(guilt: Blame, wanted: str) -> Outcome:
    first = guilt.failed[0]
    words = ", ".join(sorted({dial.word.replace("_", " ") for dial in guilt.failed}))
    place = f"{first.address}:{first.port}"
    seen = f"{place} {words}"
    if guilt.role == "listener":
        message = f"{len({dial.dialer for dial in guilt.failed})} nodes cannot reach {first.listener} at {place}"
    elif guilt.role == "dialer":
        message = f"{first.dialer} cannot reach {len({dial.listener for dial in guilt.failed})} listeners"
    else:
        message = f"{first.dialer} cannot reach {first.listener} at {place}"
        seen = f"{first.dialer} to {seen}"  # each pair is a finding of its own, and findings that look alike are merged
    return Outcome("fail", guilt.nodes, message, seen, wanted, OPEN.format(port=first.port))


PORTS = Check(
    "net.ports",
    facts=("net.listen", "net.dials"),
    judge=ports,
    severity="error",
    title="The rendezvous port is free and reachable",
    why="All ranks meet at one host and port. If it is taken or filtered they wait until a time-out of half an hour "
    "says nothing about ports.",
    how="The agent of the first node listens on the rendezvous port at the address that NCCL would use, and every "
    "other node dials it.",
    remedy=OPEN.format(port="29500"),
)
