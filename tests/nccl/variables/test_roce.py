"""NCCL_IB_GID_INDEX: only for RoCE and an NCCL that needs it, one per node, never a guess."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.nccl.interfaces import Choice
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.roce import derive
from tests.support import rails
from tests.support.fleet import NO_TORCH, absent, env, eth, fleet, torch
from tests.support.rails import gid, roce

NEEDS, FINDS = torch("2.4.1+cu121", "12.1", "2.20.5"), torch("2.6.0+cu124", "12.4", "2.21.5")


def node(number: int, build: Any = NEEDS, **change: Any) -> dict[str, Any]:
    return {**roce(number, **change), "torch.build": build}


def derived(*nodes: dict[str, Any]) -> list[tuple[str | None, tuple[str, ...]]]:
    seen = fleet(**{f"n{number}": facts for number, facts in enumerate(nodes, 1)})
    found = list(derive(Basis(seen, Choice())))
    assert {d.name for d in found} <= {"NCCL_IB_GID_INDEX"}
    return [(d.value, d.nodes) for d in found]


def over_ipv6(number: int, build: Any) -> dict[str, Any]:
    """A node of which each rail has a global IPv6 address at index 3, and none of IPv4."""

    def change(rail: int, port: Any) -> Any:
        address = f"fd02:0:0:{number}{rail}::1"
        return replace(port, gids=(*port.gids[:2], gid(3, address, interface=f"rail{rail}")))

    interfaces = [eth(f"rail{rail}", ipv6=(f"fd02:0:0:{number}{rail}::1/64",)) for rail in range(4)]
    return {**node(number, build, change=change), "net.interfaces": tuple(interfaces)}


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        pytest.param(FINDS, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, id="a-new-nccl"),
        pytest.param(
            NEEDS,
            {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_ADDR_FAMILY": "AF_INET6"},
            id="an-old-nccl-needs-the-index",
        ),
        pytest.param(NO_TORCH, {}, id="no-torch"),
    ],
)
def test_a_fabric_with_ipv6_alone_is_told_to_every_node(
    build: Any, expected: dict[str, str]
) -> None:
    seen = fleet(n1=over_ipv6(1, build), n2=over_ipv6(2, build))
    found = list(derive(Basis(seen, Choice())))
    assert {d.name: d.value for d in found} == expected
    assert all(d.nodes == ("n1", "n2") for d in found)


def test_a_node_that_has_lost_ipv4_is_told_no_family() -> None:
    """The others speak IPv4, and roce.gid fails on this node."""
    assert derived(node(1, FINDS), over_ipv6(2, FINDS)) == []


def at(index: int) -> Any:
    """Every rail has its good entry at this index."""

    def change(rail: int, port: Any) -> Any:
        return replace(port, gids=(*port.gids[:3], replace(port.gids[3], index=index)))

    return change


def test_an_old_nccl_is_told_and_a_new_one_is_not() -> None:
    assert derived(node(1), node(2)) == [("3", ("n1", "n2"))]
    assert derived(node(1, FINDS), node(2, FINDS)) == []
    assert derived(node(1), node(2, FINDS)) == [("3", ("n1",))]


@pytest.mark.parametrize(
    ("version", "told"),
    [("2.20.5", True), ("2.21.0", False), ("2.3.5", True), ("2.100", False), ("3.0", False)],
)
def test_versions_are_compared_as_numbers(version: str, told: bool) -> None:
    assert bool(derived(node(1, replace(NEEDS, nccl=version)))) is told


@pytest.mark.parametrize("variables", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}], ids=str)
def test_where_the_inventory_switches_rdma_off_nobody_needs_it(variables: dict[str, str]) -> None:
    assert (
        list(derive(Basis(fleet(each={"env": env(**variables)}, n1=node(1), n2=node(2)), Choice())))
        == []
    )


def test_indices_that_differ_between_nodes_are_told_to_each() -> None:
    assert derived(node(1), node(2, change=at(5))) == [("3", ("n1",)), ("5", ("n2",))]


def test_indices_that_differ_between_ports_are_told_to_nobody() -> None:
    """One value holds for all ports of a node; roce.gid fails there."""
    odd = node(1, change=lambda rail, port: at(5)(rail, port) if rail == 2 else port)
    assert derived(odd) == []


def test_a_port_without_a_good_entry_does_not_change_the_others() -> None:
    lost = node(
        1, change=lambda rail, port: replace(port, gids=port.gids[:2]) if rail == 2 else port
    )
    assert derived(lost) == [("3", ("n1",))]


def test_the_entry_is_v2_and_of_an_address_that_its_interface_has() -> None:
    def change(rail: int, port: Any) -> Any:
        stale = gid(4, "192.0.2.1", "RoCE v2", f"rail{rail}")
        return replace(port, gids=(stale, *port.gids[:3], replace(port.gids[3], index=6)))

    assert derived(node(1, change=change)) == [("6", ("n1",))]


@pytest.mark.parametrize(
    ("build", "told"),
    [
        pytest.param(absent("hung"), True, id="torch-not-known"),
        pytest.param(torch("2.4.1", "12.1", None), True, id="an-nccl-inside-of-torch"),
        pytest.param(NO_TORCH, False, id="no-torch"),
        pytest.param(torch("2.4.1+cpu", None, None), False, id="torch-for-cpus"),
    ],
)
def test_an_nccl_that_is_not_known_is_a_gap_and_one_that_is_not_there_is_none(
    build: Any, told: bool
) -> None:
    assert derived(node(1, build)) == ([(None, ("n1",))] if told else [])


def test_addresses_that_are_not_known_are_a_gap() -> None:
    assert derived({**node(1), "net.interfaces": absent("hung")}) == [(None, ("n1",))]


def test_infiniband_and_what_is_not_known_of_the_cards_say_nothing() -> None:
    assert derived({**rails.node(), "torch.build": NEEDS}) == []
    assert derived({**rails.node(absent("hung")), "torch.build": NEEDS}) == []
