"""Endpoints that every node reaches, that some do not, and proxies between nodes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.endpoints import Attempt, Reached, Way
from clusterprep.model import Absent, Fleet
from tests.support.fleet import absent, findings, fleet, told

HUB = "https://hub.example/v2/"
LICENCES = "tcp://licences:27000"
PATHS = ("login shell", "ssh command")
PROXY = "http://proxy:3128"


def reached(*attempts: Attempt, **fields: Any) -> Reached:
    return Reached(attempts, (Way(PATHS, **fields),), {})


def hub(status: int = 200) -> Attempt:
    return Attempt(HUB, PATHS, status=status)


def lost(step: str, seen: str) -> Attempt:
    return Attempt(HUB, PATHS, step, seen)


def nodes(*values: Any, endpoints: tuple[str, ...] = (HUB,)) -> Fleet:
    facts = {f"n{number}": {"net.reached": value} for number, value in enumerate(values, 1)}
    return fleet(each={"endpoints": endpoints}, **facts)


WELL = reached(hub())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(WELL, "pass", id="reached"),
        pytest.param(reached(hub(302)), "pass", id="another-status"),
        pytest.param(reached(hub(429)), "pass", id="too-many-requests"),
        pytest.param(reached(hub(503)), "fail warning", id="unavailable"),
        pytest.param(reached(hub(403)), "fail warning", id="refused-here-alone"),
        pytest.param(reached(hub(407)), "fail warning", id="proxy-wants-a-password"),
        pytest.param(reached(lost("name", "no name")), "fail warning", id="no-name"),
        pytest.param(
            reached(Attempt(HUB, PATHS, untried=Absent("missing_tool", "no ssl"))),
            "unknown warning missing_tool",
            id="not-tried",
        ),
        pytest.param(
            Reached((), (), {"login shell": Absent("hung", "")}),
            "unknown warning hung",
            id="shell-hangs",
        ),
        pytest.param(reached(), "unknown warning garbled", id="answer-lacks-it"),
        pytest.param(absent("denied"), "unknown warning denied", id="no-right"),
        pytest.param(None, "skip not_applicable", id="nothing-declared"),
    ],
)
def test_one_node_of_four(value: Any, expected: str) -> None:
    said = told(nodes(WELL, value, WELL, WELL), "net.endpoints")
    assert said == {"n1": "pass", "n2": expected, "n3": "pass", "n4": "pass"}


def test_a_registry_that_wants_a_login_is_health() -> None:
    refused = reached(hub(401))
    assert set(told(nodes(*[refused] * 4), "net.endpoints").values()) == {"pass"}


def test_a_failure_names_node_endpoint_step_and_what_was_seen() -> None:
    seen = nodes(WELL, reached(lost("TLS time", "certificate has expired")), WELL)
    failed = next(f for f in findings(seen, "net.endpoints") if f.verdict == "fail")
    assert failed.nodes == ("n2",)
    assert failed.message == f"{HUB} is not reached: it fails at the certificate's time"
    assert failed.seen == "TLS time: certificate has expired"
    assert failed.wanted == "reached, as from n[1,3]"
    assert failed.remedy == "date -u; timedatectl"


def test_an_endpoint_that_nobody_reaches_is_one_finding() -> None:
    down = reached(lost("TCP", "10.9.9.9 port 443: Connection refused"))
    (failed,) = findings(nodes(down, down, down), "net.endpoints")
    assert failed.nodes == ("n1", "n2", "n3")
    assert failed.message.endswith("and no node that tried reaches it")


def test_a_launch_path_that_lacks_the_proxy_is_named() -> None:
    ways = (Way(("login shell",), https=PROXY, no_proxy="10.0.0.0/8"), Way(("ssh command",)))
    attempts = (
        Attempt(HUB, ("login shell",), status=200, proxy=PROXY),
        Attempt(HUB, ("ssh command",), "TCP", "no answer within 3 s"),
    )
    (failed,) = findings(nodes(Reached(attempts, ways, {})), "net.endpoints")
    assert failed.message.startswith(f"{HUB} is not reached in the environment of ssh command:")


@pytest.mark.parametrize(
    ("no_proxy", "expected"),
    [
        ("10.0.0.1,10.0.0.2,10.0.0.3", "pass"),
        ("localhost, 10.0.0.0/24", "pass"),
        ("*", "pass"),
        ("10.0.0.2,10.0.0.3", "pass"),  # it lacks the node itself only
        ("localhost,127.0.0.1", "fail warning"),
        ("", "fail warning"),
        ("n1,n2,n3", "fail warning"),  # ranks are given addresses
        ("10.0.0.1,10.0.0.2", "fail warning"),
        ("10.0.0.0/33", "fail warning"),
    ],
)
def test_no_proxy_must_hold_the_other_nodes(no_proxy: str, expected: str) -> None:
    value = reached(hub(), https=PROXY, no_proxy=no_proxy)
    assert told(nodes(value, WELL, WELL), "net.endpoints")["n1"] == expected


def test_what_no_proxy_lacks_is_named_once_for_all_nodes() -> None:
    values = [reached(hub(), http=PROXY, no_proxy=f"n{number}") for number in (1, 2, 3)]
    (failed,) = findings(nodes(*values), "net.endpoints")
    assert failed.nodes == ("n1", "n2", "n3")
    assert failed.seen == "3 of 3 addresses missing: 10.0.0.[1-3]"
    assert failed.remedy == (
        "add to no_proxy and NO_PROXY of the job's environment: 10.0.0.1,10.0.0.2,10.0.0.3"
    )


def test_names_of_an_inventory_without_addresses_count() -> None:
    value = reached(hub(), https=PROXY, no_proxy=".cluster.example")
    some = {"n1": {"address": "n1.cluster.example"}, "n2": {"address": "n2.elsewhere"}}
    facts = {name: {"net.reached": value} for name in ("n1", "n2")}
    seen = fleet(each={"endpoints": (HUB,)}, some=some, **facts)
    assert told(seen, "net.endpoints") == {"n1": "fail warning", "n2": "pass"}
