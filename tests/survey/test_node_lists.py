"""Which nodes pass, fail and are unknown, and which of those that pass are chosen."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.model import (
    Culprit,
    Finding,
    Inventory,
    Node,
    NodeLists,
    Stage,
    VerifyResult,
)
from clusterprep.survey.node_lists import pick, sort_nodes, warnings_of
from tests.support.fleet import fleet, refusing, silent


def finding(verdict: str, *nodes: str, severity: str = "error", **more: Any) -> Finding:
    return Finding("eth.mtu", verdict, severity, nodes, "why", **more)  # type: ignore[arg-type]


def verified(verdict: str, *culprits: str, ran: bool = True) -> VerifyResult:
    blamed = tuple(Culprit("node", (name,), 0.9, "why") for name in culprits)
    result = VerifyResult(verdict, "gloo", 3, 1, "n1:1", culprits=blamed)  # type: ignore[arg-type]
    return replace(result, stages=(Stage("start", 1.0, "pass"),)) if ran else result


THREE = fleet(n1={}, n2={}, n3={})


@pytest.mark.parametrize(
    ("findings", "verify", "strict", "expected"),
    [
        pytest.param([], None, False, ("n1 n2 n3", "", ""), id="all-pass"),
        pytest.param([finding("fail", "n2")], None, False, ("n1 n3", "n2", ""), id="fails"),
        pytest.param([finding("unknown", "n2")], None, False, ("n1 n3", "", "n2"), id="unknown"),
        pytest.param(
            [finding("unknown", "n2"), finding("fail", "n2")],
            None,
            False,
            ("n1 n3", "n2", ""),
            id="fail-outranks-unknown",
        ),
        pytest.param(
            [finding("fail", "n2", severity="warning")],
            None,
            False,
            ("n1 n2 n3", "", ""),
            id="a-warning-passes",
        ),
        pytest.param(
            [finding("fail", "n2", severity="warning")],
            None,
            True,
            ("n1 n3", "n2", ""),
            id="unless-strict",
        ),
        pytest.param(
            [finding("fail", "n2", silenced="ticket")],
            None,
            False,
            ("n1 n2 n3", "", ""),
            id="silenced",
        ),
        pytest.param(
            [finding("fail", "n2", fixed=True)], None, False, ("n1 n2 n3", "", ""), id="fixed"
        ),
        pytest.param([], verified("pass"), False, ("n1 n2 n3", "", ""), id="verified"),
        pytest.param([], verified("skip"), False, ("n1 n2 n3", "", ""), id="nothing-to-verify"),
        pytest.param([], verified("fail", "n3"), False, ("n1 n2", "n3", ""), id="culprit"),
        pytest.param(
            [], verified("fail", "n3", ran=False), False, ("", "n3", "n1 n2"), id="not-started"
        ),
        pytest.param([], verified("fail"), False, ("", "", "n1 n2 n3"), id="failed-by-no-node"),
        pytest.param([], verified("unknown"), False, ("", "", "n1 n2 n3"), id="not-verified"),
    ],
)
def test_nodes_are_sorted_by_what_is_known(
    findings: list[Finding],
    verify: VerifyResult | None,
    strict: bool,
    expected: tuple[str, str, str],
) -> None:
    lists = sort_nodes(THREE, findings, verify, strict)
    assert lists == NodeLists(*(tuple(names.split()) for names in expected))


def test_a_node_that_gave_no_answer_is_unknown_whatever_the_findings_say() -> None:
    seen = fleet(n1={}, n2=silent("n2"), n3=refusing("n3"))
    lists = sort_nodes(seen, [finding("fail", "n3")])
    assert lists == NodeLists(("n1",), ("n3",), ("n2",))


# ---------------------------------------------------------------- N of M


def inventory(**groups: str) -> Inventory:
    """Return eight nodes n1 to n8 in groups such as a="1 2 3"."""
    nodes = tuple(Node(f"n{at}", f"10.0.0.{at}", at - 1) for at in range(1, 9))
    named = {name: tuple(f"n{at}" for at in members.split()) for name, members in groups.items()}
    return Inventory("test", nodes, named)


def picked(stock: Inventory, passing: str, number: int, **warnings: int) -> str:
    names = [f"n{at}" for at in passing.split()]
    return " ".join(name[1:] for name in pick(stock, names, number, warnings))


RACKS = inventory(a="1 3 5 7", b="2 4 6 8", all="1 2 3 4 5 6 7 8")
ALL = "1 2 3 4 5 6 7 8"


@pytest.mark.parametrize(
    ("stock", "passing", "number", "expected"),
    [
        pytest.param(inventory(), ALL, 3, "1 2 3", id="no-groups"),
        pytest.param(inventory(), "8 2 5", 2, "2 5", id="in-the-order-of-the-inventory"),
        pytest.param(RACKS, ALL, 4, "1 3 5 7", id="one-whole-rack"),
        pytest.param(RACKS, "1 2 3 4 6 7 8", 4, "2 4 6 8", id="the-rack-that-is-whole"),
        pytest.param(RACKS, "1 2 3 4 6 7 8", 3, "1 3 7", id="the-rack-that-just-suffices"),
        pytest.param(RACKS, "1 2 3 4 6 7 8", 6, "1 2 3 4 6 8", id="a-whole-rack-and-a-part"),
        pytest.param(RACKS, ALL, 8, ALL, id="all"),
        pytest.param(RACKS, "1 2", 4, "1 2", id="fewer-than-wanted"),
        pytest.param(
            inventory(dc1="1 2 3 4 5", dc2="6 7 8", r1="1 3", r2="2 4 5"),
            ALL,
            5,
            "1 2 3 4 5",
            id="a-group-of-groups",
        ),
        pytest.param(
            inventory(dc1="1 2 3 4 5", dc2="6 7 8", r1="1 3", r2="2 4 5"),
            "1 2 3 4 5",
            3,
            "2 4 5",
            id="a-group-in-a-group",
        ),
        pytest.param(
            inventory(dc1="1 2 3 4 5 6", dc2="7 8", r1="1 3", r2="2 4", r3="5 6"),
            ALL,
            4,
            "1 2 3 4",
            id="whole-racks-within-the-group",
        ),
        pytest.param(inventory(a="1 2"), ALL, 4, "3 4 5 6", id="nodes-of-no-group-are-one"),
        pytest.param(
            inventory(a="1 2 3 4", b="5 6 7 8"), "1 2 3 5 6 7 8", 4, "5 6 7 8", id="exact-fit"
        ),
    ],
)
def test_as_few_groups_as_possible_are_used(
    stock: Inventory, passing: str, number: int, expected: str
) -> None:
    assert picked(stock, passing, number) == expected


def test_nodes_with_fewer_warnings_come_first() -> None:
    assert picked(inventory(), ALL, 3, n1=2, n3=1) == "2 4 5"
    assert picked(RACKS, ALL, 4, n1=1) == "2 4 6 8"
    assert picked(RACKS, ALL, 5, n1=1, n2=1) == "1 3 4 5 7"


def test_warnings_are_those_that_count() -> None:
    found = [
        finding("fail", "n1", "n2", severity="warning"),
        finding("fail", "n2", severity="warning"),
        finding("fail", "n3", silenced="ticket"),
        finding("unknown", "n3"),
    ]
    assert warnings_of(found) == {"n1": 1, "n2": 2}


def test_any_groups_give_so_many_of_the_passing_nodes_and_always_the_same() -> None:
    draw = random.Random(7)
    for _ in range(300):
        groups = {
            f"g{number}": " ".join(map(str, draw.sample(range(1, 9), draw.randint(1, 8))))
            for number in range(draw.randint(0, 4))
        }
        stock = inventory(**groups)
        passing = draw.sample([f"n{at}" for at in range(1, 9)], draw.randint(0, 8))
        number = draw.randint(1, 9)
        chosen = pick(stock, passing, number)
        assert len(chosen) == len(set(chosen)) == min(number, len(passing))
        assert set(chosen) <= set(passing)
        assert chosen == pick(stock, sorted(passing), number)
