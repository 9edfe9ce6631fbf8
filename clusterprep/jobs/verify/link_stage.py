"""The links stage of verify: pairs of nodes exchange small messages and a few megabytes, in rounds of disjoint pairs.

It is always run, for an all-reduce that passes has not used every link, and one that fails says little of why.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.jobs.verify.links import (
    PAIR_LIMIT,
    MeasuredLinks,
    Way,
    bad_pairs,
    blocked,
    dialled,
    seen_again,
    to_dial,
    usual_speed,
)
from clusterprep.model import Fleet
from clusterprep.model.colocation import neighbours
from clusterprep.model.pair_schedule import disjoint, rounds
from clusterprep.nccl.interfaces import Pick, choose
from clusterprep.remote.untrusted import as_list as listed
from clusterprep.remote.untrusted import require_integer, require_number, shortened
from clusterprep.survey.fanout import Fanout

PINGS = 200  # 2 % of lost packets show in at least 150 of them
BYTES = 4 << 20  # each way
AGAIN, MORE = 400, 16 << 20  # of a further look
LOOKS = 2  # more at what looks bad: on a busy machine one pair of ten is slow for a moment
ENOUGH = 3  # failed pairs, and none that works, after which a node is set aside
DIAL_LIMIT = 3.0  # seconds; a dropped SYN is repeated after one and three


Place = tuple[str, int, str]  # address, port, token


def measure_links(fanout: Fanout, fleet: Fleet) -> MeasuredLinks:
    """Every pair that the schedule has, between the addresses that the job uses. A node that is lost ends no round."""
    picks = {name: pick for name, pick in choose(fleet).picks.items() if name in fanout.links}
    began = time.monotonic()
    fanout.load("stream")
    token = secrets.token_hex(16)
    answers = fanout.ask("serve", {name: {"token": token} for name in picks}, 10.0)
    ports = {name: port for name, answer in answers.items() if (port := _port(answer)) is not None}
    places = {name: (picks[name].address, port, token) for name, port in ports.items()}
    rated = _rated(fleet, picks)
    ways = _measure(fanout, places, rounds(list(places), fleet.inventory.cluster), PINGS, BYTES)
    found = MeasuredLinks(
        tuple(node.name for node in fleet.reached), ways, time.monotonic() - began, rated
    )
    if unclear := to_dial(found):
        found = dialled(
            found, _dial_again(fanout, places, found, unclear), time.monotonic() - began
        )
    dead = {frozenset((way.dialer, way.listener)) for way in found.ways if blocked(way)}
    for _ in range(LOOKS):
        bad = bad_pairs(found.ways, usual_speed(found.ways, rated))
        if doubtful := [pair for pair in bad if frozenset(pair) not in dead]:
            again = _measure(fanout, places, disjoint(doubtful), AGAIN, MORE)
            found = seen_again(found, again, time.monotonic() - began)
    fanout.ask("unserve", {name: {} for name in ports}, 5.0)
    return found


def _rated(fleet: Fleet, picks: Mapping[str, Pick]) -> float:
    """Bytes per second of the slowest interface that says its speed."""
    known = {name: fleet.fact(name, "net.interfaces") for name in picks}
    speeds = [
        i.speed
        for name, own in known.items()
        for i in own
        if i.name == picks[name].name and i.speed
    ]
    return min(speeds) * 125_000 if speeds else math.inf


def _measure(
    fanout: Fanout,
    places: Mapping[str, Place],
    schedule: Iterable[Sequence[tuple[str, str]]],
    pings: int,
    size: int,
) -> tuple[Way, ...]:
    """Round by round. A node that fails its first few pairs is set aside: each of them costs seconds for all others."""
    found: list[Way] = []
    trouble: Counter[str] = Counter()
    well: set[str] = set()
    for pairs in schedule:
        todo = [
            pair for pair in pairs if all(name in well or trouble[name] < ENOUGH for name in pair)
        ]
        new = _round(fanout, places, todo, pings, size) if todo else []
        found += new
        bad = set(bad_pairs(new, usual_speed(found)))
        for pair in todo:
            trouble.update(pair if pair in bad else ())
            well.update(() if pair in bad else pair)
    return tuple(found)


def _dial_again(
    fanout: Fanout,
    places: Mapping[str, Place],
    first: MeasuredLinks,
    pairs: Sequence[tuple[str, str]],
) -> tuple[Way, ...]:
    """Connects all these pairs at once, and measures those that do connect and were not measured before."""
    fanout.load("dial")
    targets: dict[str, list[str]] = {}
    for dialer, listener in pairs:
        targets.setdefault(dialer, []).append(listener)
    bodies = {
        dialer: {"targets": [list(places[name][:2]) for name in listeners], "limit": DIAL_LIMIT}
        for dialer, listeners in targets.items()
    }
    before = {(way.dialer, way.listener) for way in first.ways}
    found, good = list[Way](), list[tuple[str, str]]()
    for dialer, answer in fanout.ask("dial", bodies, DIAL_LIMIT + 3.0).items():
        rows = None if isinstance(answer, LinkLost) else answer.get("dials")
        for listener, row in zip(targets[dialer], listed(rows), strict=False):
            if not isinstance(row, list) or not row:
                continue
            if row[0] != "ok":
                found.append(Way(dialer, listener, str(row[0])[:40], "connecting"))
            elif (dialer, listener) in before:
                good.append((dialer, listener))
    return (*found, *_measure(fanout, places, disjoint(good), AGAIN, BYTES))


def _port(answer: Any) -> int | None:
    port = None if isinstance(answer, LinkLost) else answer.get("port")
    return port if type(port) is int and 0 < port < 65536 else None


def _round(
    fanout: Fanout,
    places: Mapping[str, Place],
    pairs: Sequence[tuple[str, str]],
    pings: int,
    size: int,
) -> list[Way]:
    bodies = {
        dialer: {"reads": [["stream", [*places[listener], pings, size], PAIR_LIMIT]]}
        for dialer, listener in pairs
    }
    answers = fanout.ask("look", bodies, PAIR_LIMIT + 3.0)
    ways = [_way(dialer, listener, answers.get(dialer)) for dialer, listener in pairs]
    here = {node.name for node in neighbours(fanout.inventory.nodes)}
    return [replace(way, near=way.dialer in here and way.listener in here) for way in ways]


def _way(dialer: str, listener: str, answer: Any) -> Way:
    """One answer of an agent; what is none is a pair that was not measured."""
    if isinstance(answer, LinkLost):
        return Way(dialer, listener, "lost", shortened(answer.message))
    try:
        word, *rest = answer["answers"][0]
        if word != "ok":
            reason, why = rest
            return Way(dialer, listener, shortened(reason, 40), shortened(why))
        (found,) = rest
        connect, rtt, worst, out, back = (
            require_number(found[key]) for key in ("connect", "rtt", "worst", "out", "back")
        )
        return Way(
            dialer,
            listener,
            "ok",
            "",
            connect,
            rtt,
            worst,
            out,
            back,
            require_integer(found["resent"]),
            require_integer(found["pings"]),
        )
    except (TypeError, ValueError, LookupError):
        return Way(dialer, listener, "garbled", "no answer that can be read")
