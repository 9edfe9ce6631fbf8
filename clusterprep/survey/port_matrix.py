"""The pairs stage: agents listen for a moment, where a job would, and dial each other.

One connection per pair tells three things: the port is open, a full-size packet gets through, and how long it takes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.facts.pairs import Dial, Listen
from clusterprep.model import Absent, Fleet
from clusterprep.model.pair_schedule import pairing, spans
from clusterprep.nccl.interfaces import Pick, choose
from clusterprep.remote.untrusted import require_integer, shortened
from clusterprep.survey.fanout import Fanout

DIAL_LIMIT = 3.0  # seconds; a dropped SYN is repeated after one and three, a dropped segment after 0.2, 0.6 and 1.4
AGAIN_LIMIT = 1.5  # seconds for finding the largest size, on connections that are known to open
SIZES = (
    8000,
    4200,
    1500,
    1450,
    1400,
    1280,
)  # bytes: what else is tried where a full-size packet is not carried
NO_PICK = Absent("eth.iface_choice", "the node has no usable interface")
DEFAULT_RANGE = (
    32768,
    60999,
)  # net.ipv4.ip_local_port_range as Linux has it, where a node's own is not known


Target = tuple[str, str, int]  # listener, address, port


def probe_pairs(fanout: Fanout, fleet: Fleet, host: str) -> Fleet:
    """The fleet with net.listen and net.dials. `host` is the node whose rendezvous port everybody must reach."""
    picks = {name: pick for name, pick in choose(fleet).picks.items() if name in fanout.links}
    port = fleet.inventory.master_port
    listening, listen = _listen(fanout, fleet, picks, host, port)
    targets = _targets(picks, listening, fleet.inventory.cluster)
    if isinstance(listen, Listen) and listen.word == "ok":
        for name in targets:
            if name != host:
                targets[name] = [(host, picks[host].address, port), *targets[name]]
    dials = _dial(fanout, targets)
    _measure_again(fanout, dials)
    fanout.tell("unlisten", listening)
    return _with(fleet, host, listen, {name: dials.get(name, NO_PICK) for name in fleet.snapshots})


def _listen(
    fanout: Fanout, fleet: Fleet, picks: Mapping[str, Pick], host: str, port: int
) -> tuple[dict[str, list[int]], Listen | Absent]:
    """The ephemeral ports on which each node listens, and what became of the rendezvous port."""
    bodies = {name: {"spans": _spans(fleet, name)} for name in picks}
    if host in bodies:
        bodies[host]["spans"].insert(0, [port, port])
    listening: dict[str, list[int]] = {}
    listen: Listen | Absent = _host_missing(fanout, fleet, host)
    for name, answer in fanout.ask("listen", bodies, 10.0).items():
        if isinstance(answer, LinkLost):
            if name == host:
                listen = Absent(answer.reason, answer.message)
            continue
        rows = answer.get("ports")
        if not isinstance(rows, list) or len(rows) != len(bodies[name]["spans"]):
            rows = []
        if name == host:
            listen, rows = _listened(host, port, rows[:1], answer), rows[1:]
        listening[name] = [row for row in rows if type(row) is int and 0 < row < 65536]
    return listening, listen


def _host_missing(fanout: Fanout, fleet: Fleet, host: str) -> Absent:
    if host not in fanout.links:
        return Absent("not_reached", f"the rendezvous host {host} was not reached")
    return Absent("eth.iface_choice", f"the rendezvous host {host} has no usable interface")


def _listened(
    host: str, port: int, rows: Sequence[Any], answer: Mapping[str, Any]
) -> Listen | Absent:
    if not rows:
        return Absent("garbled", shortened(answer.get("why") or "no answer"))
    row = rows[0]
    if row == port:
        return Listen(host, port, "ok")
    if not isinstance(row, dict):
        return Absent("garbled", shortened(f"asked for port {port}, got {row!r}"))
    owner = row.get("owner")
    name = (
        shortened(f"{owner.get('name')} (pid {owner.get('pid')})", 80)
        if isinstance(owner, dict)
        else ""
    )
    return Listen(host, port, shortened(row.get("no"), 40), name)


def _spans(fleet: Fleet, name: str) -> list[list[int]]:
    known = fleet.fact(name, "net.port_range")
    low, high = DEFAULT_RANGE if isinstance(known, Absent) else known
    return spans(low, high, f"{fleet.inventory.cluster}/{name}")


def _targets(
    picks: Mapping[str, Pick], listening: Mapping[str, Sequence[int]], seed: str
) -> dict[str, list[Target]]:
    """Who dials whom: each pair on one of the listener's ports, on several where there are few to dial them all."""
    pairs = pairing(list(picks), seed)
    dialers = Counter(other for others in pairs.values() for other in others)
    turns = {name: itertools.cycle(ports) for name, ports in listening.items() if ports}
    return {
        name: [
            (other, picks[other].address, next(turns[other]))
            for other in others
            if other in turns
            for _ in range(-(-len(listening[other]) // dialers[other]))
        ]
        for name, others in pairs.items()
    }


def _dial(
    fanout: Fanout, targets: Mapping[str, Sequence[Target]], sizes: Sequence[int] = ()
) -> dict[str, tuple[Dial, ...] | Absent]:
    """Every node dials its targets, all nodes at once."""
    found: dict[str, tuple[Dial, ...] | Absent] = dict.fromkeys(targets, ())
    busy = {name: mine for name, mine in targets.items() if mine}
    limit = AGAIN_LIMIT if sizes else DIAL_LIMIT
    bodies = {
        name: {
            "targets": [[address, port] for _, address, port in mine],
            "limit": limit,
            "sizes": list(sizes),
        }
        for name, mine in busy.items()
    }
    for name, answer in fanout.ask("dial", bodies, limit + 5.0).items():
        if isinstance(answer, LinkLost):
            found[name] = Absent(answer.reason, answer.message)
            continue
        rows, mine = answer.get("dials"), [target for target in busy[name] for _ in sizes or (0,)]
        try:
            found[name] = tuple(
                _row(name, target, row) for target, row in zip(mine, rows or (), strict=True)
            )
        except (TypeError, ValueError, LookupError):
            found[name] = Absent("garbled", shortened(answer.get("why") or "no answer"))
    return found


def _row(dialer: str, target: Target, row: Sequence[Any]) -> Dial:
    """One answer of an agent. Raises TypeError, ValueError or LookupError for any other shape."""
    if row[0] != "ok":
        return Dial(dialer, *target, str(row[0])[:40])
    _, micros, packet, carried, path_mtu = row
    size = require_integer(packet)
    return Dial(
        dialer,
        *target,
        "ok",
        require_integer(micros) / 1e6,
        size,
        size if carried is True else None,
        require_integer(path_mtu),
    )


def _measure_again(fanout: Fanout, dials: dict[str, tuple[Dial, ...] | Absent]) -> None:
    """Where a full-size packet was not carried: the largest that is."""
    stuck = {
        name: [dial for dial in mine if dial.word == "ok" and dial.carried is None]
        for name, mine in dials.items()
        if not isinstance(mine, Absent)
    }
    stuck = {name: mine for name, mine in stuck.items() if mine}
    targets = {
        name: [(d.listener, d.address, d.port) for d in mine] for name, mine in stuck.items()
    }
    for name, again in (_dial(fanout, targets, SIZES) if targets else {}).items():
        before = dials[name]
        if not isinstance(before, Absent) and not isinstance(again, Absent):
            dials[name] = tuple(_with_largest(dial, again) for dial in before)


def _with_largest(dial: Dial, again: Iterable[Dial]) -> Dial:
    if dial.word != "ok" or dial.carried is not None:
        return dial
    same = [
        d for d in again if (d.listener, d.port) == (dial.listener, dial.port) and d.word == "ok"
    ]
    return dataclasses.replace(dial, carried=max((d.carried or 0 for d in same), default=None))


def _with(fleet: Fleet, host: str, listen: Listen | Absent, dials: Mapping[str, Any]) -> Fleet:
    snapshots = dict(fleet.snapshots)
    for node in fleet.reached:
        mine: Any = listen if isinstance(listen, Absent) or node.name == host else None
        facts = {**snapshots[node.name].facts, "net.listen": mine, "net.dials": dials[node.name]}
        snapshots[node.name] = dataclasses.replace(snapshots[node.name], facts=facts)
    return dataclasses.replace(fleet, snapshots=snapshots)
