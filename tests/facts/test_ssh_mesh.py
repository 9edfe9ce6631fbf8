"""Which nodes a node tries by ssh, and answers that are none."""

from __future__ import annotations

import pytest

from clusterprep.facts.ssh_mesh import Failure, Reached, parse_mesh, peers
from clusterprep.model import Inventory, Node
from clusterprep.model.pair_schedule import ALL_PAIRS

DENIED = "Permission denied (publickey)."


def many(count: int) -> Inventory:
    require = {"ssh.mesh": "yes"}
    made = [Node(f"n{at}", f"10.0.{at}", at, require=require) for at in range(count)]
    return Inventory("c", (Node("login", "l", 0), *(made)))


def test_above_64_nodes_each_tries_a_share_and_is_tried_as_often() -> None:
    few = many(ALL_PAIRS)
    assert len(peers(few.nodes[5], few)) == ALL_PAIRS - 1
    fleet_of = many(1000)
    tried = {name: peers(node, fleet_of) for name, node in enumerate(fleet_of.nodes[1:])}
    assert {len(others) for others in tried.values()} == {20}
    into: dict[str, int] = {}
    for name, others in tried.items():
        assert fleet_of.nodes[1 + name] not in others
        for other in others:
            into[other.name] = into.get(other.name, 0) + 1
    assert set(into.values()) == {20}


def test_an_answer_is_read() -> None:
    answer = {
        "user": "root",
        "tried": 2,
        "failed": [["no key", DENIED, ["10.0.0.2"]]],
        "untried": ["10.0.0.3"],
    }
    assert parse_mesh(answer) == Reached(
        "root", 2, (Failure("no key", DENIED, ("10.0.0.2",)),), ("10.0.0.3",)
    )
    for wrong in ({"tried": "2"}, {"failed": [["luck", "", ["a"]]]}, {"user": 5}):
        with pytest.raises(ValueError, match=r"\w"):
            parse_mesh({**answer, **wrong})
