"""Which names a node is asked for, and what its resolver's answers may look like."""

from __future__ import annotations

import pytest

from clusterprep.facts.names import FULL_MESH_LIMIT, names_for
from clusterprep.model import Absent, EnvSetting, Inventory, Node
from tests.support.fleet import learned


def inventory(count: int) -> Inventory:
    return Inventory(
        "test", tuple(Node(f"n{number}", f"n{number}", number) for number in range(count))
    )


@pytest.mark.parametrize("count", [1, 2, FULL_MESH_LIMIT])
def test_in_a_small_fleet_every_node_is_asked_for_every_name(count: int) -> None:
    fleet = inventory(count)
    assert {names_for(node, fleet) for node in fleet.nodes} == {
        tuple(node.name for node in fleet.nodes)
    }


def test_in_a_large_fleet_all_are_asked_for_the_same_sample_the_first_and_themselves() -> None:
    fleet = inventory(500)
    asked = {node.name: set(names_for(node, fleet)) for node in fleet.nodes}
    shared = set.intersection(*asked.values())
    assert "n0" in shared
    assert len(shared) >= FULL_MESH_LIMIT - 2
    assert all(name in names and len(names) <= FULL_MESH_LIMIT for name, names in asked.items())


def test_nobody_is_asked_what_nodes_of_one_machine_are_called() -> None:
    env = {name: {"NCCL_HOSTID": EnvSetting(name, "node")} for name in "ab"}
    shared = tuple(Node(name, "127.0.0.1", 0, transport="local", env=env[name]) for name in "ab")
    assert [names_for(node, Inventory("test", shared)) for node in shared] == [(), ()]


def test_answers_are_addresses_or_none() -> None:
    answer = {"n1": ["10.0.0.1", "fe80::1"], "n2": None, "n3": []}
    expected = {"n1": ("10.0.0.1", "fe80::1"), "n2": None, "n3": None}
    assert learned("names.resolved", ["ok", answer]) == expected


@pytest.mark.parametrize(
    "answer", [None, [], "n1", {"n1": "10.0.0.1"}, {"n1": [10]}, {"n1": {"10.0.0.1": 1}}]
)
def test_other_shapes_are_garbled(answer: object) -> None:
    assert learned("names.resolved", ["ok", answer]).reason == "garbled"


def test_the_own_name_comes_with_its_addresses() -> None:
    assert learned("names.own", ["ok", "n1\n"], ["ok", ["127.0.1.1"]]) == ("n1", ("127.0.1.1",))
    assert learned("names.own", ["ok", "n1\n"], ["ok", None]) == ("n1", None)


@pytest.mark.parametrize(
    ("name", "answers", "reason"),
    [
        pytest.param(
            ["ok", "n1\n"], ["no", "timed_out", "n1"], "timed_out", id="resolver-timed-out"
        ),
        pytest.param(["no", "denied", ""], ["ok", ["10.0.0.1"]], "denied", id="name-denied"),
        pytest.param(["no", "missing", ""], ["ok", ["10.0.0.1"]], "garbled", id="no-name"),
        pytest.param(["ok", "n1\n"], ["ok", "10.0.0.1"], "garbled", id="text-for-a-list"),
    ],
)
def test_half_an_own_name_is_none(name: list[str], answers: list[object], reason: str) -> None:
    found = learned("names.own", name, answers)
    assert isinstance(found, Absent)
    assert found.reason == reason
