"""What a node tried of its endpoints, and answers that are none."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.endpoints import Attempt, Reached, Way, parse_reached, split_endpoint
from clusterprep.model import Absent, Inventory, Node
from clusterprep.survey import registry
from tests.support.fleet import learned

HUB = "https://hub.example"
BOTH = ["login shell", "ssh command"]


def answer(*tries: Any, **fields: Any) -> dict[str, Any]:
    way = {"paths": BOTH, "http": "", "https": "http://proxy:3128", "no_proxy": "localhost"}
    return {"endpoints": [HUB], "ways": [way], "unasked": {}, "tries": list(tries), **fields}


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://hub.example", ("https", "hub.example", 443, "")),
        ("http://[2001:db8::1]:8080/v2/", ("http", "2001:db8::1", 8080, "/v2/")),
        ("tcp://licences:27000", ("tcp", "licences", 27000, "")),
    ],
)
def test_a_url_has_four_parts(url: str, parts: tuple[str, str, int, str]) -> None:
    assert split_endpoint(url) == parts


def test_every_try_says_what_came_of_it() -> None:
    tried = parse_reached(
        answer(
            [0, 0, ["ok", 200, "http://proxy:3128"]], unasked={"login shell": ["hung", "line 3"]}
        )
    )
    assert tried == Reached(
        (Attempt(HUB, tuple(BOTH), status=200, proxy="http://proxy:3128"),),
        (Way(tuple(BOTH), "", "http://proxy:3128", "localhost"),),
        {"login shell": Absent("hung", "line 3")},
    )
    failed = parse_reached(answer([0, 0, ["failed", "TCP", "refused", ""]]))
    assert failed is not None
    assert failed.attempts == (Attempt(HUB, tuple(BOTH), "TCP", "refused"),)
    untried = parse_reached(answer([0, 0, ["no", "missing_tool", "no ssl"]]))
    assert untried is not None
    assert untried.attempts[0].untried == Absent("missing_tool", "no ssl")


@pytest.mark.parametrize(
    "spoilt",
    [
        answer(),
        answer([0, 0, ["ok", None, ""]]),
        answer([0, 0, ["ok", True, ""]]),
        answer([0, 0, ["failed", "prayer", "", ""]]),
        answer([0, 3, ["ok", 200, ""]]),
        answer([0, 0, ["ok", 200, ""]], ways=[]),
        answer(ways=[], endpoints=[]),
        {},
    ],
)
def test_what_cannot_be_read_is_garbled(spoilt: Any) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError)):
        parse_reached(spoilt)


def test_nothing_is_asked_where_nothing_is_declared() -> None:
    assert learned("net.reached") is None
    fact = registry.facts()["net.reached"]
    node = Node("n1", "10.0.0.1", 0, job_user="alice", endpoints=(HUB,))
    (read,) = fact.reads(node, Inventory("test", (node,)))
    assert read.args == ("alice", True, (HUB, "https", "hub.example", 443, ""))
