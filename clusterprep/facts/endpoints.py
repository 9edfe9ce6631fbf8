"""What the job needs from elsewhere, as each launch path of the job's user reaches it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.facts import JOB_USER, Fact, user_of_job
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.remote.agent import proxies

# Seconds: three shells of four seconds each, ten for the tries, and some for a busy machine.
LIMIT = 26.0
_URL = re.compile(r"(https?|tcp)://(\[[^\]]+\]|[^/:]+)(?::(\d+))?(/.*)?")
_STEPS = ("name", "TCP", "proxy", "TLS", "TLS chain", "TLS time", "TLS name", "status")


class Attempt(Struct, frozen=True):
    """One endpoint, tried as some launch paths would.

    `step` is the one that failed, "" if none did; `seen` says how. `status` is HTTP's, None for
    TCP. `proxy` is the one that was used, "" for none. `untried` says why there was no attempt.
    """

    endpoint: str
    paths: tuple[str, ...]
    step: str = ""
    seen: str = ""
    status: int | None = None
    proxy: str = ""
    untried: Absent | None = None


class Way(Struct, frozen=True):
    """The proxies of some launch paths, "" for none, without the passwords in them."""

    paths: tuple[str, ...]
    http: str = ""
    https: str = ""
    no_proxy: str = ""


class Reached(Struct, frozen=True):
    """All that was tried on a node. `unasked` has the launch paths whose variables are unknown."""

    attempts: tuple[Attempt, ...]
    ways: tuple[Way, ...]
    unasked: Mapping[str, Absent]


def split_endpoint(url: str) -> tuple[str, str, int, str]:
    """Return scheme, host, port and path of an endpoint. Raises ValueError for another text."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError(f"no endpoint: {url!r:.80}")
    scheme, host, port, path = match.groups()
    number = int(port) if port else proxies.PORTS[scheme]
    return scheme, host.strip("[]"), number, path or ""


def parse_reached(answer: Any = None) -> Reached | None:
    """Return what the node tried, None where nothing was asked because nothing is declared."""
    if answer is None:
        return None
    endpoints = [_text(endpoint) for endpoint in answer["endpoints"]]
    ways = []
    for row in answer["ways"]:
        paths = tuple(map(_text, row["paths"]))
        ways.append(Way(paths, _text(row["http"]), _text(row["https"]), _text(row["no_proxy"])))
    attempts = []
    for way, number, result in answer["tries"]:
        attempts.append(_attempt(endpoints[number], ways[way].paths, result))
    unasked = {}
    for path, (reason, why) in answer["unasked"].items():
        unasked[_text(path)] = Absent(_text(reason), _text(why))
    if len(attempts) != len(ways) * len(endpoints) or not (ways or unasked):
        raise ValueError("not every endpoint was tried")
    return Reached(tuple(attempts), tuple(ways), unasked)


def _attempt(endpoint: str, paths: tuple[str, ...], result: Sequence[Any]) -> Attempt:
    if result[0] == "no":
        untried = Absent(_text(result[1]), _text(result[2]))
        return Attempt(endpoint, paths, untried=untried)
    if result[0] == "failed":
        _, step, seen, proxy = result
        if step not in _STEPS:
            raise ValueError(f"no step: {step!r:.40}")
        return Attempt(endpoint, paths, step, _text(seen), proxy=_text(proxy))
    word, status, proxy = result
    is_status = type(status) is int and 100 <= status <= 999
    is_tcp = status is None and endpoint.startswith("tcp:")
    if word != "ok" or not (is_status or is_tcp):
        raise ValueError(f"no result: {result!r:.80}")
    return Attempt(endpoint, paths, status=status, proxy=_text(proxy))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, seen {value!r:.40}")  # noqa: TRY004 - as every parse
    return value


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return one read for all endpoints of a node, none where it declares none."""
    if not node.endpoints:
        return ()
    parts = [(url, *split_endpoint(url)) for url in node.endpoints]
    by_ssh = node.transport == "ssh"
    return (Read("endpoints", (user_of_job(node), by_ssh, *parts), limit=LIMIT),)


REACHED = Fact("net.reached", _reads, parse_reached, deep=True, needs=JOB_USER, moves=True)
