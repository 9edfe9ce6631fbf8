"""Tables of neighbours that are full, too small for the fleet, crowded, or large enough."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.neighbours import NeighbourTable
from clusterprep.model import EnvSetting, Fleet
from tests.support.fleet import LOOPBACK, absent, eth, findings, fleet, told

DEFAULT = NeighbourTable(128, 512, 1024, 18, 0)
FULL = NeighbourTable(128, 512, 1024, 1017, 5127)


def network(count: int, table: Any, rails: int = 1) -> Fleet:
    """Nodes with some networks in common; the first has this table, the others the default."""
    nodes = {}
    for number in range(1, count + 1):
        address = f"{number // 256}.{number % 256}"
        cards = [eth(f"eth{rail}", f"10.{rail}.{address}/16") for rail in range(rails)]
        nodes[f"n{number}"] = {
            "net.neighbours": table if number == 1 else DEFAULT,
            "net.interfaces": (LOOPBACK, *cards),
        }
    return fleet(**nodes)


@pytest.mark.parametrize(
    ("count", "rails", "table", "expected"),
    [
        pytest.param(4, 1, DEFAULT, "pass", id="few"),
        pytest.param(64, 8, DEFAULT, "pass", id="504-neighbours"),
        pytest.param(66, 8, DEFAULT, "fail warning", id="520-neighbours-are-crowded"),
        pytest.param(130, 8, DEFAULT, "fail warning", id="1032-have-no-place"),
        pytest.param(130, 8, NeighbourTable(1024, 4096, 8192, 18, 0), "pass", id="raised"),
        pytest.param(64, 1, NeighbourTable(128, 512, 1024, 1017, 5127), "fail warning", id="full"),
        pytest.param(4, 1, NeighbourTable(128, 512, 1024, 922, 0), "fail warning", id="nearly"),
        pytest.param(4, 1, NeighbourTable(128, 512, 1024, 921, 0), "pass", id="not-yet"),
        pytest.param(4, 1, NeighbourTable(128, 512, 1024, 1120, 0), "pass", id="permanent-ones"),
        pytest.param(4, 1, NeighbourTable(128, 512, 1024, 1120, 9), "fail warning", id="and-full"),
        pytest.param(4, 1, NeighbourTable(128, 512, 1024, 513, 9), "fail warning", id="was-full"),
        pytest.param(4, 1, NeighbourTable(128, 512, 1024, 18, 9), "pass", id="was-full-long-ago"),
        pytest.param(
            4, 1, absent("not_applicable"), "skip not_applicable", id="a-container-does-not-see-it"
        ),
        pytest.param(4, 1, absent("denied"), "unknown warning denied", id="denied"),
    ],
)
def test_there_is_a_place_for_every_node(count: int, rails: int, table: Any, expected: str) -> None:
    assert told(network(count, table, rails), "net.neigh")["n1"] == expected


def ipv6_network(count: int, table: Any, family: str = "", ipv4: bool = False) -> Fleet:
    """Nodes with one IPv6 network in common; the first has this table of IPv6 neighbours.

    With `ipv4` they have such addresses too; `family` is what NCCL_SOCKET_FAMILY declares.
    """
    nodes = {}
    for number in range(1, count + 1):
        addresses = (f"10.7.{number // 256}.{number % 256}/16",) if ipv4 else ()
        card = eth("eth0", *addresses, ipv6=(f"fd00:77::{number:x}/64",))
        nodes[f"n{number}"] = {
            "net.neighbours": DEFAULT,
            "net.neighbours6": table if number == 1 else DEFAULT,
            "net.interfaces": (LOOPBACK, card),
        }
    env = {"NCCL_SOCKET_FAMILY": EnvSetting(family, "env")} if family else {}
    return fleet(each={"env": env}, **nodes)


@pytest.mark.parametrize(
    ("count", "table", "expected"),
    [
        pytest.param(4, DEFAULT, "pass", id="few"),
        pytest.param(600, DEFAULT, "fail warning", id="599-neighbours-are-crowded"),
        pytest.param(1026, DEFAULT, "fail warning", id="1025-have-no-place"),
        pytest.param(4, FULL, "fail warning", id="full"),
        pytest.param(4, absent("denied"), "unknown warning denied", id="denied"),
    ],
)
def test_where_nodes_have_ipv6_alone_its_table_is_judged(
    count: int, table: Any, expected: str
) -> None:
    assert told(ipv6_network(count, table), "net.neigh")["n1"] == expected


@pytest.mark.parametrize(
    ("table", "family", "expected"),
    [
        pytest.param(DEFAULT, "", "pass", id="the-job-speaks-ipv4"),
        pytest.param(DEFAULT, "AF_INET6", "fail warning", id="the-job-speaks-ipv6"),
        pytest.param(absent("not_applicable"), "", "pass", id="a-kernel-without-ipv6"),
        pytest.param(absent("denied"), "", "pass", id="not-known-and-not-needed"),
        pytest.param(FULL, "", "fail warning", id="full"),
    ],
)
def test_with_both_families_ipv6_needs_places_where_the_job_speaks_it(
    table: Any, family: str, expected: str
) -> None:
    # Raised for IPv4, so that its table has place for all.
    seen = ipv6_network(600, table, family, ipv4=True)
    raised = NeighbourTable(1024, 4096, 8192, 18, 0)
    seen = seen.with_facts({name: {"net.neighbours": raised} for name in seen.snapshots})
    assert told(seen, "net.neigh")["n1"] == expected


def test_a_table_that_refused_nothing_yet_is_nearly_full() -> None:
    found = findings(network(4, NeighbourTable(128, 512, 1024, 1000, 0)), "net.neigh")
    failed = next(finding for finding in found if finding.verdict == "fail")
    assert failed.message == (
        "the kernel's table of neighbours is nearly full: then connections to others fail"
    )


def test_the_remedy_raises_the_limits_of_ipv6() -> None:
    found = findings(ipv6_network(4, FULL), "net.neigh")
    failed = next(finding for finding in found if finding.verdict == "fail")
    assert failed.message == (
        "the kernel's table of IPv6 neighbours is full: connections to other nodes fail"
    )
    assert failed.remedy == (
        "sysctl -w net.ipv6.neigh.default.gc_thresh1=512 net.ipv6.neigh.default.gc_thresh2=2048 "
        "net.ipv6.neigh.default.gc_thresh3=4096"
    )
    assert "net.ipv6.neigh.default.gc_thresh3" in str(failed.fix)


def test_nodes_that_pass_say_the_places_of_both_tables() -> None:
    (finding,) = findings(ipv6_network(64, DEFAULT), "net.neigh")
    assert finding.seen == (
        "1024 places, 0 neighbours of this fleet; IPv6: 1024 places, 63 neighbours"
    )


def test_nodes_that_pass_are_one_finding() -> None:
    (finding,) = findings(network(64, DEFAULT), "net.neigh")
    assert len(finding.nodes) == 64
    assert finding.seen == "1024 places, 63 neighbours of this fleet"


def test_a_full_table_says_so_with_a_line_that_helps() -> None:
    found = findings(network(64, NeighbourTable(128, 512, 1024, 1017, 5127)), "net.neigh")
    failed = next(finding for finding in found if finding.verdict == "fail")
    assert failed.nodes == ("n1",)
    assert failed.message == (
        "the kernel's table of neighbours is full: connections to other nodes fail"
    )
    assert failed.seen == "gc_thresh3 1024, entries now 1,017, no place 5,127 times since boot"
    assert failed.remedy == (
        "sysctl -w net.ipv4.neigh.default.gc_thresh1=512 net.ipv4.neigh.default.gc_thresh2=2048 "
        "net.ipv4.neigh.default.gc_thresh3=4096"
    )


def test_without_interfaces_the_counts_are_judged_alone() -> None:
    nodes = {"n1": {"net.neighbours": DEFAULT, "net.interfaces": absent("denied")}}
    assert told(fleet(**nodes), "net.neigh") == {"n1": "pass"}
