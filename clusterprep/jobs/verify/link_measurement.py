"""The links stage of verify: pairs of nodes exchange small messages and a few megabytes.

They do so in rounds of disjoint pairs. It is done twice. The first time, before the collectives,
tells how fast links are, so that no collective is tried for minutes over links that are far slower;
a node has FIRST_ROUNDS partners then. The second time is always run too, as an all-reduce that
passes has not used every link, and one that fails says little about the reason.

What tells a lossy network from a busy machine is that the kernel had to send small messages again;
long round trips alone prove nothing. How long data was under way is taken from the sender's kernel,
because a process may have to wait for its turn. A pair that looks bad is measured up to LOOKS times
more before a node is named, and a pair that is blocked is dialled from both ends, and each end by
all its partners. Four nodes took 55 ms.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from clusterprep.errors import LinkLost
from clusterprep.jobs.verify.link_verdicts import (
    PAIR_LIMIT,
    MeasuredLinks,
    MeasuredPair,
    Pair,
    bad_pairs,
    is_blocked,
    pairs_to_dial,
    usual_speed,
    with_dialled_pairs,
    with_earlier_speeds,
    with_further_look,
)
from clusterprep.model import Fleet
from clusterprep.model.colocation import neighbours
from clusterprep.model.pair_schedule import disjoint, rounds
from clusterprep.nccl.interfaces import Pick, choose
from clusterprep.remote.untrusted import as_list, require_integer, require_number, shortened
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.port_matrix import RETRIES

PINGS = 200  # 2 % of lost packets show in at least 150 of them
BYTES = 4 << 20  # each way
# Small messages and bytes of a further look.
FURTHER_PINGS = 400
FURTHER_BYTES = 16 << 20
FIRST_ROUNDS = 8  # before the collectives
PARTNERS = 3  # with which a node is measured again that is slower than its peers
LOOKS = 2  # more at what looks bad: on a busy machine one pair of ten is slow for a moment
ENOUGH = 3  # failed pairs, and none that works, after which a node is set aside
DIAL_LIMIT = 3.0  # seconds; a dropped SYN is repeated after one and three
ANSWER_MARGIN = 3.0  # seconds over a limit until the agent has to answer
SERVE_LIMIT, UNSERVE_LIMIT = 10.0, 5.0  # seconds for an answer
BYTES_PER_MBIT = 125_000

Endpoint = tuple[str, int, str]  # address, port, token
Endpoints = Mapping[str, Endpoint]  # of the nodes that listen


def measure_first(fanout: Fanout, fleet: Fleet) -> MeasuredLinks:
    """Measure the links before the collectives, in FIRST_ROUNDS rounds at most.

    One further look at bad pairs is enough, as all are measured once more after the collectives.
    For the same reason a pair that is blocked is not dialled again.
    """
    began = time.monotonic()
    picks = _picks(fanout, fleet)
    rated = _rated_speed(fleet, picks)
    with _listening(fanout, picks) as endpoints:
        schedule = rounds(list(endpoints), fleet.inventory.cluster)
        first = itertools.islice(schedule, FIRST_ROUNDS)
        links = _measure_schedule(fanout, fleet, endpoints, first, rated, began)
        return _look_again(fanout, endpoints, links, _measured_bad_pairs(links), began)


def measure_links(fanout: Fanout, fleet: Fleet, before: MeasuredLinks | None) -> MeasuredLinks:
    """Measure every pair of the schedule, between the addresses that the job uses.

    A node that is lost ends no round. A pair that was found bad `before` is bad if it is so once
    more, and is not looked at further.
    """
    began = time.monotonic()
    picks = _picks(fanout, fleet)
    rated = _rated_speed(fleet, picks)
    with _listening(fanout, picks) as endpoints:
        schedule = rounds(list(endpoints), fleet.inventory.cluster)
        links = _measure_schedule(fanout, fleet, endpoints, schedule, rated, began)
        known: frozenset[Pair] = frozenset()
        if before is not None:
            known = frozenset(_measured_bad_pairs(before))
            links = with_earlier_speeds(links, before, known)
        unclear = pairs_to_dial(links)
        if unclear:
            again = _dial_again(fanout, endpoints, links, unclear)
            links = with_dialled_pairs(links, again, time.monotonic() - began)
        blocked = [measured for measured in links.pairs if is_blocked(measured)]
        for _ in range(LOOKS):
            doubtful = _without_blocked(_measured_bad_pairs(links), blocked)
            doubtful = [pair for pair in doubtful if pair not in known]
            links = _look_again(fanout, endpoints, links, doubtful, began)
    return links


def measure_once(fanout: Fanout, fleet: Fleet) -> tuple[MeasuredPair, ...]:
    """Measure every pair of the schedule once, and look at nothing again."""
    began = time.monotonic()
    picks = _picks(fanout, fleet)
    rated = _rated_speed(fleet, picks)
    with _listening(fanout, picks) as endpoints:
        schedule = rounds(list(endpoints), fleet.inventory.cluster)
        links = _measure_schedule(fanout, fleet, endpoints, schedule, rated, began)
    return links.pairs


def measure_again(fanout: Fanout, fleet: Fleet, names: Sequence[str]) -> tuple[MeasuredPair, ...]:
    """Measure links of these nodes once more, each with the others that are next to it."""
    picks = _picks(fanout, fleet)
    with _listening(fanout, picks) as endpoints:
        others = [name for name in endpoints if name not in names]
        pairs: list[Pair] = []
        for place, name in enumerate(names):
            if name not in endpoints:
                continue
            turned = itertools.islice(itertools.cycle(others), place, place + len(others))
            pairs.extend((name, other) for other in itertools.islice(turned, PARTNERS))
        return _measure(
            fanout,
            endpoints,
            disjoint(pairs),
            FURTHER_PINGS,
            FURTHER_BYTES,
        )


@contextlib.contextmanager
def _listening(fanout: Fanout, picks: Mapping[str, Pick]) -> Iterator[Endpoints]:
    """Let the agents listen for a while; yield where each one does."""
    fanout.load("stream")
    endpoints = _listen(fanout, picks)
    yield endpoints
    end_listening(fanout, endpoints)


def end_listening(fanout: Fanout, names: Iterable[str]) -> None:
    """Have the agents listen no more.

    A measurement that an exception ends does not do so: mostly the agents end with it.
    """
    bodies: dict[str, dict[str, Any]] = {name: {} for name in names}
    fanout.ask("unserve", bodies, UNSERVE_LIMIT)


def _measure_schedule(
    fanout: Fanout,
    fleet: Fleet,
    endpoints: Endpoints,
    schedule: Iterable[Sequence[Pair]],
    rated: float,
    began: float,
) -> MeasuredLinks:
    """Measure the pairs of all rounds once."""
    pairs = _measure(
        fanout,
        endpoints,
        schedule,
        PINGS,
        BYTES,
    )
    nodes = tuple(node.name for node in fleet.reached)
    return MeasuredLinks(nodes, pairs, time.monotonic() - began, rated)


def _measured_bad_pairs(links: MeasuredLinks) -> list[Pair]:
    """Return the pairs that connect and look bad."""
    measured = {pair.pair for pair in links.pairs if pair.outcome == "ok"}
    usual = usual_speed(links.pairs, links.rated)
    return [pair for pair in bad_pairs(links.pairs, usual) if pair in measured]


def _look_again(
    fanout: Fanout,
    endpoints: Endpoints,
    links: MeasuredLinks,
    pairs: Sequence[Pair],
    began: float,
) -> MeasuredLinks:
    """Return the links with a further look at some pairs."""
    if not pairs:
        return links
    again = _measure(
        fanout,
        endpoints,
        disjoint(pairs),
        FURTHER_PINGS,
        FURTHER_BYTES,
    )
    return with_further_look(links, again, time.monotonic() - began)


def _picks(fanout: Fanout, fleet: Fleet) -> dict[str, Pick]:
    """Return the interface that the job uses on each node that is still connected."""
    picks: dict[str, Pick] = {}
    for name, pick in choose(fleet).picks.items():
        if name not in fanout.links:
            continue
        picks[name] = pick
    return picks


def _without_blocked(pairs: Iterable[Pair], blocked: Iterable[MeasuredPair]) -> list[Pair]:
    """Return the pairs that are blocked in no direction."""
    ends = {frozenset(measured.pair) for measured in blocked}
    return [pair for pair in pairs if frozenset(pair) not in ends]


def _listen(fanout: Fanout, picks: Mapping[str, Pick]) -> Endpoints:
    """Have the agents listen. Returns where each one does; nodes without an answer are left out."""
    token = secrets.token_hex(16)
    bodies = {}
    for name, pick in picks.items():
        bodies[name] = {"token": token, "ipv6": pick.is_ipv6}
    endpoints: dict[str, Endpoint] = {}
    for name, answer in fanout.ask("serve", bodies, SERVE_LIMIT).items():
        port = _port(answer)
        if port is not None:
            endpoints[name] = (picks[name].address, port, token)
    return endpoints


def _port(answer: Any) -> int | None:
    if isinstance(answer, LinkLost):
        return None
    port = answer.get("port")
    if type(port) is not int or not 0 < port < 65536:
        return None
    return port


def _rated_speed(fleet: Fleet, picks: Mapping[str, Pick]) -> float:
    """Return bytes per second of the slowest interface that says its speed."""
    slowest = math.inf
    for name, pick in picks.items():
        for interface in fleet.fact(name, "net.interfaces"):
            if interface.name == pick.name and interface.speed:
                slowest = min(slowest, interface.speed * BYTES_PER_MBIT)
    return slowest


def _measure(
    fanout: Fanout,
    endpoints: Endpoints,
    schedule: Iterable[Sequence[Pair]],
    pings: int,
    size: int,
) -> tuple[MeasuredPair, ...]:
    """Measure round by round.

    A node that fails its first few pairs is set aside, as each of them costs seconds for all
    others.
    """
    found: list[MeasuredPair] = []
    failures: Counter[str] = Counter()
    set_aside: set[str] = set()
    working: set[str] = set()
    for pairs in schedule:
        tried = [pair for pair in pairs if set_aside.isdisjoint(pair)]
        if not tried:
            continue
        measured = _measure_round(
            fanout,
            endpoints,
            tried,
            pings,
            size,
        )
        found += measured
        bad = set(bad_pairs(measured, usual_speed(found)))
        for pair in tried:
            if pair in bad:
                failures.update(pair)
            else:
                working.update(pair)
        failing = {name for name, count in failures.items() if count >= ENOUGH}
        set_aside = failing - working
    return tuple(found)


def _dial_again(
    fanout: Fanout, endpoints: Endpoints, first: MeasuredLinks, pairs: Sequence[Pair]
) -> tuple[MeasuredPair, ...]:
    """Connect all these pairs at once, and measure those again that were blocked and do connect.

    Returns the pairs that do not connect, and those that were measured. A pair in the direction
    that was not tried in `first` is only connected: what it measures was measured in the other.
    """
    outcomes = _dial(fanout, endpoints, pairs)
    measured_before = {measured.pair for measured in first.pairs}
    failed: list[MeasuredPair] = []
    connected: list[Pair] = []
    for pair, outcome in outcomes.items():
        dialer, listener = pair
        if outcome != "ok":
            failed.append(MeasuredPair(dialer, listener, outcome, "connecting"))
        elif pair in measured_before:
            connected.append(pair)
    schedule = disjoint(connected)
    measured = _measure(
        fanout,
        endpoints,
        schedule,
        FURTHER_PINGS,
        BYTES,
    )
    return (*failed, *measured)


def _dial(fanout: Fanout, endpoints: Endpoints, pairs: Sequence[Pair]) -> dict[Pair, str]:
    """Connect all pairs at once. Returns "ok" or the error of each pair that has an answer.

    Each is tried several times side by side, as a path that loses packets loses single tries.
    """
    fanout.load("dial")
    listeners_by_dialer: dict[str, list[str]] = {}
    for dialer, listener in pairs:
        listeners_by_dialer.setdefault(dialer, []).append(listener)
    bodies: dict[str, dict[str, Any]] = {}
    for dialer, listeners in listeners_by_dialer.items():
        targets = [list(endpoints[name][:2]) for name in listeners]
        bodies[dialer] = {
            "targets": targets,
            "limit": DIAL_LIMIT,
            "sizes": list(RETRIES),
        }
    outcomes: dict[Pair, str] = {}
    answers = fanout.ask("dial", bodies, DIAL_LIMIT + ANSWER_MARGIN)
    for dialer, answer in answers.items():
        if isinstance(answer, LinkLost):
            continue
        rows = as_list(answer.get("dials"))
        tries = [listener for listener in listeners_by_dialer[dialer] for _ in RETRIES]
        for listener, row in zip(tries, rows, strict=False):
            if not isinstance(row, list) or not row:
                continue
            outcome = str(row[0])
            if outcomes.get((dialer, listener)) != "ok":
                outcomes[dialer, listener] = outcome[:40]
    return outcomes


def _measure_round(
    fanout: Fanout, endpoints: Endpoints, pairs: Sequence[Pair], pings: int, size: int
) -> list[MeasuredPair]:
    """Measure disjoint pairs at the same time: `pings` small messages, `size` bytes each way."""
    bodies: dict[str, dict[str, Any]] = {}
    for dialer, listener in pairs:
        arguments = [*endpoints[listener], pings, size]
        read = ["stream", arguments, PAIR_LIMIT]
        bodies[dialer] = {"reads": [read]}
    answers = fanout.ask("look", bodies, PAIR_LIMIT + ANSWER_MARGIN)
    neighbour_nodes = neighbours(fanout.inventory.nodes)
    local = {node.name for node in neighbour_nodes}
    round_of_pairs: list[MeasuredPair] = []
    for dialer, listener in pairs:
        answer = answers.get(dialer)
        measured = _parse_answer(dialer, listener, answer)
        same_machine = local.issuperset((dialer, listener))
        round_of_pairs.append(replace(measured, same_machine=same_machine))
    return round_of_pairs


def _parse_answer(dialer: str, listener: str, answer: Any) -> MeasuredPair:
    """Return the answer of an agent; without a valid one the pair was not measured."""
    if isinstance(answer, LinkLost):
        return MeasuredPair(dialer, listener, "lost", shortened(answer.message))
    try:
        outcome, *values = answer["answers"][0]
        if outcome == "ok":
            (measured,) = values
            return _parse_measured(dialer, listener, measured)
        reason, why = values
        reason = shortened(reason, 40)
        return MeasuredPair(dialer, listener, reason, shortened(why))
    except (TypeError, ValueError, LookupError):
        return MeasuredPair(dialer, listener, "garbled", "no answer that can be read")


def _parse_measured(dialer: str, listener: str, answer: Any) -> MeasuredPair:
    """Return what the agent measured. Raises TypeError, ValueError or LookupError if it is none."""
    connect = require_number(answer["connect"])
    rtt = require_number(answer["rtt"])
    worst = require_number(answer["worst"])
    out = require_number(answer["out"])
    back = require_number(answer["back"])
    resent = require_integer(answer["resent"])
    pings = require_integer(answer["pings"])
    return MeasuredPair(
        dialer,
        listener,
        "ok",
        connect=connect,
        rtt=rtt,
        worst=worst,
        out=out,
        back=back,
        resent=resent,
        pings=pings,
    )
