"""The links stage of verify: pairs of nodes exchange small messages and a few megabytes, in rounds of disjoint pairs.

It is always run, for an all-reduce that passes has not used every link, and one that fails says little of why.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.fanout import Fanout
from clusterprep.model import Fleet
from clusterprep.network import choose
from clusterprep.pairing import disjoint, each_once, rounds
from clusterprep.verify.links import Links, Way, dialled, seen_again, slow_ones, suspects, to_dial, with_best

PINGS = 200  # 2 % of lost packets show in at least 150 of them
BYTES = 4 << 20  # each way
AGAIN = 400  # of a second look
ONCE_MORE = 4  # looks at what is only slow: a busy machine is so now and then, a slow link is so always
LITTLE = 10, 1 << 20  # pings and bytes of these
LIMIT = 14.0  # seconds for one pair, whose own limits are shorter


Place = tuple[str, int, str]  # address, port, token


def measure_links(fanout: Fanout, fleet: Fleet) -> Links:
    """Every pair that the schedule has, between the addresses that the job uses. A node that is lost ends no round."""
    picks = {name: pick for name, pick in choose(fleet).picks.items() if name in fanout.links}
    began = time.monotonic()
    fanout.load("stream")
    token = secrets.token_hex(16)
    answers = fanout.ask("serve", {name: {"token": token} for name in picks}, 10.0)
    ports = {name: port for name, answer in answers.items() if (port := _port(answer)) is not None}
    places = {name: (picks[name].address, port, token) for name, port in ports.items()}
    ways = _measure(fanout, places, rounds(list(places), fleet.inventory.cluster), PINGS, BYTES)
    found = Links(tuple(node.name for node in fleet.reached), ways, time.monotonic() - began)
    if dead := to_dial(found):
        began = time.monotonic()
        again = _measure(fanout, places, each_once(dead), *LITTLE)
        found = dialled(found, again, time.monotonic() - began)
    if doubtful := suspects(found):
        began = time.monotonic()
        again = _measure(fanout, places, disjoint(doubtful), AGAIN, BYTES)
        found = seen_again(found, again, time.monotonic() - began)
    for _ in range(ONCE_MORE):
        if doubtful := slow_ones(found):
            began = time.monotonic()
            again = _measure(fanout, places, disjoint(doubtful), *LITTLE)
            found = with_best(found, again, time.monotonic() - began)
    fanout.ask("unserve", {name: {} for name in ports}, 5.0)
    return found


def _measure(
    fanout: Fanout, places: Mapping[str, Place], schedule: Iterable[Sequence[tuple[str, str]]], pings: int, size: int
) -> tuple[Way, ...]:
    return tuple(way for pairs in schedule for way in _round(fanout, places, pairs, pings, size))


def _port(answer: Any) -> int | None:
    port = None if isinstance(answer, LinkLost) else answer.get("port")
    return port if isinstance(port, int) and 0 < port < 65536 else None


def _round(
    fanout: Fanout, places: Mapping[str, Place], pairs: Sequence[tuple[str, str]], pings: int, size: int
) -> list[Way]:
    bodies = {dialer: {"reads": [["stream", [*places[listener], pings, size], LIMIT]]} for dialer, listener in pairs}
    answers = fanout.ask("look", bodies, LIMIT + 3.0)
    return [_way(dialer, listener, answers.get(dialer)) for dialer, listener in pairs]


def _way(dialer: str, listener: str, answer: Any) -> Way:
    """One answer of an agent; what is none is a pair that was not measured."""
    if isinstance(answer, LinkLost):
        return Way(dialer, listener, "lost", answer.message[:200])
    try:
        word, *rest = answer["answers"][0]
        if word != "ok":
            reason, why = rest
            return Way(dialer, listener, str(reason)[:40], str(why)[:200])
        (found,) = rest
        connect, rtt, worst, out, back = (float(found[key]) for key in ("connect", "rtt", "worst", "out", "back"))
        return Way(
            dialer, listener, "ok", "", connect, rtt, worst, out, back, int(found["resent"]), int(found["pings"])
        )
    except (TypeError, ValueError, KeyError, IndexError):
        return Way(dialer, listener, "garbled", "no answer that can be read")
