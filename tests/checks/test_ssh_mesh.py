"""Who gets where by ssh, who is at fault where not, and what is not asked at all."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.ssh_mesh import Failure, Reached, peers
from clusterprep.model import Finding, Fleet, Inventory, Node
from tests.support.fleet import absent, findings, fleet, learned, told

ASKED = {"require": {"ssh.mesh": "yes"}}
DENIED = "Permission denied (publickey)."
UNKNOWN = "No ED25519 host key is known for 10.0.0.4 and you have requested strict checking."


def reached(*failures: Failure, tried: int = 3, **fields: Any) -> Reached:
    return Reached("trainer", tried, failures, **fields)


def failing(meaning: str, said: str, *addresses: str) -> Reached:
    return reached(Failure(meaning, said, addresses))


def nodes(*values: Any, each: Any = ASKED) -> Fleet:
    facts = {f"n{number}": {"ssh.mesh": value} for number, value in enumerate(values, 1)}
    return fleet(each=each, **facts)


def address(made: Fleet, name: str) -> str:
    return next(node.address for node in made.inventory.nodes if node.name == name)


def failures(made: Fleet) -> list[Finding]:
    return [found for found in findings(made, "ssh.mesh") if found.verdict == "fail"]


WELL = reached()


def test_it_is_asked_only_where_the_job_needs_it() -> None:
    assert told(nodes(None, None, each={}), "ssh.mesh") == {
        "n1": "skip not_applicable",
        "n2": "skip not_applicable",
    }
    inventory = Inventory("c", (Node("n1", "a", 0), Node("n2", "b", 1)))
    assert learned("ssh.mesh") is None
    assert peers(inventory.nodes[0], inventory) == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (WELL, "pass"),
        (reached(untried=("10.0.0.9",)), "unknown error timed_out"),
        (absent("missing_tool"), "unknown error missing_tool"),
        (absent("denied"), "unknown error denied"),
    ],
)
def test_what_one_node_says(value: Any, expected: str) -> None:
    assert told(nodes(value, WELL, WELL, WELL), "ssh.mesh")["n1"] == expected


def test_a_node_that_gets_nowhere_is_named_alone() -> None:
    made = nodes(WELL, WELL, WELL, WELL)
    others = [address(made, name) for name in ("n1", "n2", "n3")]
    made = nodes(WELL, WELL, WELL, failing("no key", DENIED, *others))
    (bad,) = failures(made)
    assert bad.nodes == ("n4",)
    assert bad.message == "trainer does not get from node to node by ssh: no key"
    assert "n4 to n1: Permission denied" in str(bad.seen)


def test_a_node_that_no_other_gets_to_is_named_alone() -> None:
    made = nodes(WELL, WELL, WELL, WELL)
    lost = failing("refused", "connect to host: Connection refused", address(made, "n4"))
    made = nodes(lost, lost, lost, WELL)
    (bad,) = failures(made)
    assert bad.nodes == ("n4",)
    assert "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes" in str(bad.remedy)


def test_one_pair_names_both_and_no_key_anywhere_names_all() -> None:
    made = nodes(WELL, WELL, WELL, WELL)
    pair = nodes(WELL, failing("host key not known", UNKNOWN, address(made, "n3")), WELL, WELL)
    (bad,) = failures(pair)
    assert bad.nodes == ("n2", "n3")
    all_of = {name: address(made, name) for name in ("n1", "n2", "n3", "n4")}
    denied = [
        failing("no key", DENIED, *(a for other, a in all_of.items() if other != name))
        for name in all_of
    ]
    (bad,) = failures(nodes(*denied))
    assert bad.nodes == ("n1", "n2", "n3", "n4")
    assert str(bad.seen).endswith("and 8 more")
