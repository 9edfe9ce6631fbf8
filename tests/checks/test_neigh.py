"""Tables of neighbours that are full, too small for the fleet, crowded, or large enough."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.neighbours import NeighbourTable
from clusterprep.model import Fleet
from tests.support.fleet import LOOPBACK, absent, eth, findings, fleet, told

DEFAULT = NeighbourTable(128, 512, 1024, 18, 0)


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
