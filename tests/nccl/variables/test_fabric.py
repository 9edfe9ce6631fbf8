"""NCCL_CROSS_NIC=0 if rails are shown not to lead to each other, on all nodes or on none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.rdma import Rail
from clusterprep.nccl.interfaces import Choice
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.fabric import derive
from tests.support import rails
from tests.support.fleet import absent, env, fleet
from tests.support.rails import roce, roce_over_ipv6


def routes(number: int, count: int = 4, **fields: Any) -> tuple[Rail, ...]:
    every = {"router": False, **fields}
    return tuple(
        replace(Rail(f"rail{n}", f"192.168.{n}.{number}", 24, f"rail{n}", 0, 1, 2), **every)
        for n in range(count)
    )


def node(number: int, known: Any = None, **options: Any) -> dict[str, Any]:
    return {**roce(number, **options), "rdma.rails": routes(number) if known is None else known}


def derived(
    *nodes: dict[str, Any], **options: Any
) -> list[tuple[str, str | None, tuple[str, ...]]]:
    seen = fleet(**options, **{f"n{number}": facts for number, facts in enumerate(nodes, 1)})
    return [(d.name, d.value, d.nodes) for d in derive(Basis(seen, Choice()))]


WRITTEN = [("NCCL_CROSS_NIC", "0", ("n1", "n2"))]


def test_rails_apart_on_all_nodes_stay_apart() -> None:
    assert derived(node(1), node(2)) == WRITTEN


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(node(2, routes(2, router=True)), id="a-router-joins-them"),
        pytest.param(
            node(2, (*routes(2)[:3], replace(routes(2)[3], router=True))), id="a-router-for-one"
        ),
        pytest.param(node(2, routes(2, router=None)), id="not-told"),
        pytest.param(node(2, routes(2)[:3]), id="a-rail-without-a-route"),
        pytest.param(node(2, routes(2, prefix=16)), id="one-network-for-all"),
        pytest.param(node(2, routes(2, prefix=25)), id="other-networks-than-its-peer"),
        pytest.param(node(2, routes(2, 3), count=3), id="fewer-rails-than-its-peer"),
        pytest.param({**rails.node(), "rdma.rails": (), "net.interfaces": ()}, id="infiniband"),
    ],
)
def test_what_one_node_does_not_show_is_written_on_none(second: dict[str, Any]) -> None:
    assert derived(node(1), second) == []


@pytest.mark.parametrize("fact", ["rdma.rails", "rdma.devices", "net.interfaces"])
def test_what_is_not_known_of_one_node_is_its_gap_where_the_others_show_it(fact: str) -> None:
    """The value would come and go with a read that hangs now and then."""
    blind = {**node(2), fact: absent("hung")}
    assert derived(node(1), blind) == [("NCCL_CROSS_NIC", None, ("n2",))]
    assert derived(node(1, routes(1, router=True)), blind) == []
    assert derived(blind, blind) == []


def test_one_rail_and_one_node_have_nothing_to_cross() -> None:
    assert derived(node(1, routes(1, 1), count=1), node(2, routes(2, 1), count=1)) == []
    assert derived(node(1)) == []


@pytest.mark.parametrize("value", ["0", "1", "2"])
def test_what_one_node_declares_is_left_to_the_inventory_for_all(value: str) -> None:
    assert derived(node(1), node(2), some={"n1": {"env": env(NCCL_CROSS_NIC=value)}}) == []


def over_ipv6(number: int, *more: str, **fields: Any) -> dict[str, Any]:
    known = []
    for rail in range(4):
        address = f"fd02:0:0:a{rail}::{number}"
        known.append(
            replace(Rail(f"rail{rail}", address, 64, f"rail{rail}", router=False), **fields)
        )
    return {**roce_over_ipv6(number, 4, *more), "rdma.rails": tuple(known)}


def test_rails_of_ipv6_stay_apart_too() -> None:
    assert derived(over_ipv6(1), over_ipv6(2)) == WRITTEN


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(over_ipv6(2, router=True), id="a-router-joins-them"),
        pytest.param(over_ipv6(2, router=None), id="not-told"),
        pytest.param(over_ipv6(2, prefix=48), id="one-network-for-all"),
        pytest.param(over_ipv6(2, prefix=80), id="other-networks-than-its-peer"),
        pytest.param(node(2), id="a-peer-with-ipv4-alone"),
    ],
)
def test_what_one_node_of_ipv6_does_not_show_is_written_on_none(second: dict[str, Any]) -> None:
    assert derived(over_ipv6(1), second) == []


def test_the_address_that_nccl_takes_decides() -> None:
    """A rail may have addresses of several networks; the inventory's range says which is meant."""
    nodes = [over_ipv6(number, "2001:db8::RAIL") for number in (1, 2)]
    own = {"env": env(NCCL_IB_ADDR_FAMILY="AF_INET6", NCCL_IB_ADDR_RANGE="fd02::/16")}
    other = {"env": env(NCCL_IB_ADDR_FAMILY="AF_INET6", NCCL_IB_ADDR_RANGE="2001:db8::/32")}
    assert derived(*nodes, each=own) == WRITTEN
    assert derived(*nodes, each=other) == []
