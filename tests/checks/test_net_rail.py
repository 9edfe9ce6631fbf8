"""Cables of rails: each at its own leaf, two swapped, switches for whole nodes, and silence."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.rail_neighbours import Neighbour
from tests.support.fleet import absent, findings, fleet, told
from tests.support.rails import hcas, node, roce, roce_over_ipv6


def leaves(*numbers: int | None, names: str = "mlx5_{}:1") -> dict[str, Neighbour]:
    """The leaf switch of each of the rails; None where it does not say who it is."""
    return {
        names.format(rail): Neighbour(f"leaf{number}", str(rail))
        for rail, number in enumerate(numbers)
        if number is not None
    }


OWN = leaves(0, 1, 2, 3)


def seen(*neighbours: Any) -> Any:
    nodes = {
        f"n{n}": node(hcas(4), **{"net.rail_neighbours": known})
        for n, known in enumerate(neighbours, 1)
    }
    return fleet(**nodes)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(OWN, "pass", id="each-at-its-own"),
        pytest.param(leaves(1, 0, 2, 3), "fail warning", id="two-swapped"),
        pytest.param(leaves(0, 0, 2, 3), "fail warning", id="one-at-anothers"),
        pytest.param(leaves(4, 5, 6, 7), "skip not_applicable", id="the-next-group-of-leaves"),
        pytest.param(leaves(0, 1, 2, None), "unknown warning no_banner", id="one-is-silent"),
        pytest.param({}, "skip not_applicable", id="all-are-silent"),
        pytest.param(absent("hung"), "unknown warning hung", id="not-known"),
    ],
)
def test_one_node_of_three(known: Any, expected: str) -> None:
    assert told(seen(OWN, known, OWN), "net.rail") == {"n1": "pass", "n2": expected, "n3": "pass"}


def test_the_cable_and_the_rail_are_named() -> None:
    swapped = findings(seen(OWN, leaves(1, 0, 2, 3), OWN), "net.rail")
    (bad,) = [found for found in swapped if found.verdict == "fail"]
    assert bad.seen == (
        "mlx5_0 is at port 0 of leaf1, which serves mlx5_1; "
        "mlx5_1 is at port 1 of leaf0, which serves mlx5_0"
    )


def test_a_switch_for_whole_nodes_is_not_judged() -> None:
    rack = leaves(9, 9, 9, 9)
    assert set(told(seen(rack, rack, rack), "net.rail").values()) == {"skip not_applicable"}
    halves = leaves(8, 8, 9, 9)
    assert set(told(seen(halves, halves), "net.rail").values()) == {"skip not_applicable"}


def test_two_groups_of_nodes_with_leaves_of_their_own() -> None:
    other = leaves(4, 5, 6, 7)
    found = told(seen(OWN, OWN, other, other), "net.rail")
    assert set(found.values()) == {"pass"}


def test_roce_ports_are_known_by_their_interfaces() -> None:
    known = leaves(0, 1, 2, 3, names="rail{}")
    swapped = leaves(0, 1, 3, 2, names="rail{}")
    nodes = {
        f"n{n}": {**roce(n), "net.rail_neighbours": one}
        for n, one in enumerate((known, swapped, known), 1)
    }
    assert told(fleet(**nodes), "net.rail")["n2"] == "fail warning"


def test_one_rail_has_nothing_to_be_swapped() -> None:
    one = node(hcas(1), **{"net.rail_neighbours": leaves(0)})
    assert told(fleet(n1=one, n2=one), "net.rail")["n1"] == "skip not_applicable"


def test_rails_of_ipv6_alone_are_judged_by_their_switches_too() -> None:
    known = leaves(0, 1, 2, 3, names="rail{}")
    swapped = leaves(1, 0, 2, 3, names="rail{}")
    nodes = {
        f"n{n}": {**roce_over_ipv6(n), "net.rail_neighbours": rails}
        for n, rails in enumerate((known, swapped, known), 1)
    }
    expected = {"n1": "pass", "n2": "fail warning", "n3": "pass"}
    assert told(fleet(**nodes), "net.rail") == expected
