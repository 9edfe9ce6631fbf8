"""The ports stage: the first node's agent listens on the rendezvous port and all others dial it."""

from __future__ import annotations

import dataclasses
from typing import Any

from clusterprep.checks.net import Dial, Listen
from clusterprep.errors import LinkLost
from clusterprep.fanout import Fanout
from clusterprep.model import Absent, Fleet
from clusterprep.network import choose

DIAL_LIMIT = 3.0  # seconds; a dropped SYN is repeated after one and three


def probe_ports(fanout: Fanout, fleet: Fleet, host: str) -> Fleet:
    """The fleet with net.listen and net.dials; both absent where the rendezvous host cannot be used."""
    port = fleet.inventory.master_port
    if host not in fanout.links:
        return _with(fleet, {}, Absent("not_reached", f"the rendezvous host {host} was not reached"))
    pick = choose(fleet).picks.get(host)
    if pick is None:
        return _with(fleet, {}, Absent("eth.iface_choice", f"the rendezvous host {host} has no usable interface"))
    answer = fanout.ask("listen", {host: {"port": port}}, 5.0)[host]
    listen = _listen(host, port, answer)
    if isinstance(listen, Absent):
        return _with(fleet, {}, listen)
    values: dict[str, Any] = {node.name: () for node in fleet.reached}
    if listen.word == "ok" and not isinstance(answer, LinkLost):
        values.update(_dial_all(fanout, fleet, host, pick.address, port))
        fanout.ask("unlisten", {host: {"handle": answer.get("handle")}}, 5.0)
    return _with(fleet, values, listen)


def _listen(host: str, port: int, answer: Any) -> Listen | Absent:
    if isinstance(answer, LinkLost):
        return Absent(answer.reason, answer.message)
    if "no" not in answer:
        return Listen(host, port, "ok")
    owner = answer.get("owner")
    name = f"{owner.get('name')} (pid {owner.get('pid')})" if isinstance(owner, dict) else ""
    return Listen(host, port, str(answer["no"]), name)


def _dial_all(fanout: Fanout, fleet: Fleet, host: str, address: str, port: int) -> dict[str, Any]:
    body = {"targets": [[address, port]], "limit": DIAL_LIMIT}
    dialers = [node.name for node in fleet.reached if node.name != host]
    values: dict[str, Any] = {}
    for name, answer in fanout.ask("dial", dict.fromkeys(dialers, body), DIAL_LIMIT + 5.0).items():
        if isinstance(answer, LinkLost):
            values[name] = Absent(answer.reason, answer.message)
            continue
        words = answer.get("words")
        if isinstance(words, list) and len(words) == 1:
            values[name] = (Dial(name, host, address, port, str(words[0])),)
        else:
            values[name] = Absent("garbled", str(answer.get("why") or "no answer"))
    return values


def _with(fleet: Fleet, dials: dict[str, Any], listen: Listen | Absent) -> Fleet:
    sightings = dict(fleet.sightings)
    for node in fleet.reached:
        mine: Any = listen if isinstance(listen, Absent) or listen.host == node.name else None
        facts = {"net.listen": mine, "net.dials": dials.get(node.name, listen)}
        before = sightings[node.name]
        sightings[node.name] = dataclasses.replace(before, facts={**before.facts, **facts})
    return dataclasses.replace(fleet, sightings=sightings)
