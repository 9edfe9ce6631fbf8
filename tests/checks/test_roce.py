"""RoCE addresses and routes: as they should be, lost, of another index, by another device."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.rdma import Port, Rail
from tests.support.fleet import absent, env, eth, findings, fleet, told, torch
from tests.support.rails import (
    DOWN,
    gid,
    hca,
    hcas,
    nic_at,
    node,
    rail_interfaces,
    roce,
    roce_over_ipv6,
    roce_port,
)


def change(rail: int, *gids: Any) -> Any:
    """A change for one rail: its table of addresses."""
    return lambda number, port: replace(port, gids=gids) if number == rail else port


V1, OTHER = gid(2, "192.168.1.1", "IB/RoCE v1", "rail1"), gid(3, "10.9.9.9", interface="rail1")
LATE = gid(5, "192.168.1.1", interface="rail1")
V6 = gid(3, "2001:db8::1", interface="rail1")
UNNAMED, BOND = gid(3, "192.168.1.1", interface=None), gid(3, "192.168.1.1", interface="bond7")


@pytest.mark.parametrize(
    ("gids", "settings", "expected"),
    [
        pytest.param(None, {}, "pass", id="index-3-everywhere"),
        pytest.param([LATE], {}, "pass", id="another-index"),
        pytest.param([UNNAMED], {}, "pass", id="its-interface-is-not-said"),
        pytest.param([gid(1, "fe80::1")], {}, "fail error", id="link-local-only"),
        pytest.param([V1], {}, "fail error", id="v1-only"),
        pytest.param([OTHER], {}, "fail error", id="an-address-that-the-interface-has-not"),
        pytest.param([BOND], {}, "fail error", id="an-interface-that-is-not-there"),
        pytest.param([V6], {}, "fail error", id="ipv6-and-nothing-declared"),
        pytest.param([], {}, "fail error", id="none"),
        pytest.param(None, {"NCCL_IB_GID_INDEX": "3"}, "pass", id="declared-index"),
        pytest.param(
            [LATE], {"NCCL_IB_GID_INDEX": "3"}, "fail error", id="declared-index-that-is-empty"
        ),
        pytest.param(
            None, {"NCCL_IB_GID_INDEX": "1"}, "fail error", id="declared-index-that-is-link-local"
        ),
    ],
)
def test_each_rail_has_an_address_to_be_found_by(
    gids: Any, settings: dict[str, str], expected: str
) -> None:
    facts = roce(1) if gids is None else roce(1, change(1, *gids))
    seen = fleet(each={"env": env(**settings)}, n1=facts)
    assert told(seen, "roce.gid") == {"n1": expected}


def ipv6_fabric(number: int, *gids: Any) -> Any:
    """A node of which each rail has a link-local address and a global one, or these for rail 1."""
    rails = []
    interfaces = []
    for rail in range(4):
        name = f"rail{rail}"
        address = f"fd02:0:0:{number}{rail}::1"
        texts = (f"fe80::{rail + 1}", address)
        usual = [gid(2 * place + 1, text, interface=name) for place, text in enumerate(texts)]
        port = roce_port(rail, number, *(gids if gids and rail == 1 else usual))
        rails.append(hca(f"mlx5_{rail}", nic_at(rail), port, interfaces=(name,)))
        interfaces.append(eth(name, ipv6=(f"{address}/64",)))
    return {**node(tuple(rails)), "net.interfaces": tuple(interfaces)}


def test_a_fabric_with_ipv6_alone_is_reached_by_global_addresses() -> None:
    """None of its ports has lost an address, and to add one of IPv4 would be no repair."""
    (found,) = findings(fleet(n1=ipv6_fabric(1), n2=ipv6_fabric(2)), "roce.gid")
    assert (found.verdict, found.seen) == ("pass", "index 3")
    assert "NCCL_IB_ADDR_FAMILY=AF_INET6" in found.message
    assert "IPv6" in found.wanted


def test_a_port_of_it_that_is_link_local_alone_is_named() -> None:
    facts = {"n1": ipv6_fabric(1), "n2": ipv6_fabric(2, gid(1, "fe80::2", interface="rail1"))}
    assert told(fleet(**facts), "roce.gid") == {"n1": "pass", "n2": "fail error"}
    (bad,) = [found for found in findings(fleet(**facts), "roce.gid") if found.verdict == "fail"]
    assert bad.message.startswith("mlx5_1: no GID")
    assert "IPv6" in bad.wanted


def test_a_node_without_ipv4_beside_others_has_lost_it() -> None:
    found = told(fleet(n1=roce(1), n2=ipv6_fabric(2), n3=roce(3)), "roce.gid")
    assert found == {"n1": "pass", "n2": "fail error", "n3": "pass"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, "pass", id="declared"),
        pytest.param({"NCCL_IB_ADDR_FAMILY": "AF_INET"}, "fail error", id="the-other-declared"),
        pytest.param({"NCCL_IB_GID_INDEX": "3"}, "pass", id="its-index"),
        pytest.param({"NCCL_IB_GID_INDEX": "-1"}, "pass", id="no-index"),
        pytest.param({"NCCL_IB_GID_INDEX": "1"}, "fail error", id="the-link-local-index"),
        pytest.param({"NCCL_IB_ADDR_RANGE": "fd02::/16"}, "pass", id="its-range"),
        pytest.param({"NCCL_IB_ADDR_RANGE": "fd03::/16"}, "fail error", id="another-range"),
    ],
)
def test_what_is_declared_decides_on_ipv6(variables: dict[str, str], expected: str) -> None:
    seen = fleet(each={"env": env(**variables)}, n1=ipv6_fabric(1))
    assert told(seen, "roce.gid") == {"n1": expected}


def test_a_range_that_leaves_the_good_entry_out_says_what_nccl_takes() -> None:
    seen = fleet(each={"env": env(NCCL_IB_ADDR_RANGE="fd03::/16")}, n1=ipv6_fabric(1))
    (bad,) = findings(seen, "roce.gid")
    assert bad.seen == "mlx5_0: an empty entry"
    assert "NCCL_IB_ADDR_RANGE" in bad.remedy


def test_the_port_and_its_table_are_named() -> None:
    (bad,) = findings(fleet(n1=roce(1, change(1, gid(1, "fe80::1")))), "roce.gid")
    assert bad.message.startswith("mlx5_1: no GID")
    assert bad.seen == "mlx5_1: 1 fe80::1 RoCE v2"
    assert "dev rail1" in bad.remedy


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.20.5", "fail error"), ("2.21.5", "pass"), ("2.27.3", "pass"), (None, "pass")],
)
def test_an_index_that_differs_between_ports_needs_nccl_2_21(
    version: str | None, expected: str
) -> None:
    facts = {**roce(1, change(1, LATE)), "torch.build": torch(nccl=version)}
    assert told(fleet(n1=facts), "roce.gid") == {"n1": expected}


def test_an_index_that_differs_between_nodes_is_said() -> None:
    late = roce(
        2,
        lambda rail, port: replace(
            port, gids=(gid(5, f"192.168.{rail}.2", interface=f"rail{rail}"),)
        ),
    )
    found = findings(fleet(n1=roce(1), n2=late), "roce.gid")
    assert {f.verdict for f in found} == {"pass"}
    assert all("the index differs" in f.message for f in found)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({**node(), "net.interfaces": ()}, "skip not_applicable", id="infiniband"),
        pytest.param({**node(()), "net.interfaces": ()}, "skip not_applicable", id="no-rdma"),
        pytest.param(
            roce(1, lambda rail, port: replace(port, gids=())),
            "skip not_applicable",
            id="no-address-is-for-ib.configured",
        ),
        pytest.param(
            {**roce(1), "net.interfaces": absent("denied")}, "unknown error denied", id="denied"
        ),
        pytest.param(
            {**roce(1), "rdma.devices": absent("garbled")}, "unknown error garbled", id="garbled"
        ),
        pytest.param({**roce(1), "pci.tree": absent("hung")}, "unknown error hung", id="hung"),
    ],
)
def test_where_there_is_nothing_to_judge(facts: Any, expected: str) -> None:
    assert told(fleet(n1=facts), "roce.gid") == {"n1": expected}


def test_one_port_as_ethernet_among_infiniband_is_not_roce() -> None:
    odd = (
        *hcas(3),
        hca(
            "mlx5_3",
            nic_at(3),
            Port(1, "ACTIVE", "LinkUp", "Ethernet", 400.0, None, (gid(1, "fe80::1"),)),
        ),
    )
    assert told(fleet(n1={**node(odd), "net.interfaces": ()}), "roce.gid") == {
        "n1": "skip not_applicable"
    }


def test_a_rail_that_is_down_needs_no_address() -> None:
    down = replace(DOWN, link_layer="Ethernet")
    facts = {f"n{n}": roce(n, lambda rail, port: down if rail == 1 else port) for n in (1,)}
    assert told(fleet(**facts, n2=roce(2), n3=roce(3)), "roce.gid") == dict.fromkeys(
        ("n1", "n2", "n3"), "pass"
    )


def test_a_bond_has_the_addresses_of_its_ports() -> None:
    port = roce_port(0, 1, gid(3, "192.168.0.1", interface="bond0"))
    facts = {**node((hca("mlx5_bond_0", nic_at(0), port, interfaces=("eth0", "eth1")),))}
    interfaces = (
        eth("eth0", master="bond0"),
        eth("eth1", master="bond0"),
        eth("bond0", "192.168.0.1/24"),
    )
    assert told(fleet(n1={**facts, "net.interfaces": interfaces}), "roce.gid") == {"n1": "pass"}


# ---------------------------------------------------------------- routes


def rail(number: int, leaves: str | None = "", network: int | None = None, **settings: int) -> Rail:
    own = f"rail{number}"
    values = {"rp_filter": 2, "arp_ignore": 0, "arp_announce": 0, **settings}
    address = f"192.168.{number if network is None else network}.{number + 1}"
    return Rail(own, address, 24, own if leaves == "" else leaves, **values)


def routed(*rails: Rail) -> str:
    return told(fleet(n1={**roce(1), "rdma.rails": rails}), "roce.route")["n1"]


TIDY = {"arp_ignore": 1, "arp_announce": 2}


@pytest.mark.parametrize(
    ("rails", "expected"),
    [
        pytest.param([rail(0), rail(1)], "pass", id="one-network-each"),
        pytest.param([rail(0), rail(1, leaves="rail0")], "fail warning", id="by-another-device"),
        pytest.param([rail(0), rail(1, leaves="bond0")], "fail warning", id="by-the-front-end"),
        pytest.param(
            [rail(0, network=5), rail(1, network=5)],
            "fail warning",
            id="shared-and-every-card-answers",
        ),
        pytest.param(
            [rail(0, network=5, **TIDY), rail(1, network=5, **TIDY)], "pass", id="shared-and-tidy"
        ),
        pytest.param(
            [rail(0, network=5, **TIDY), rail(1, network=5, arp_ignore=1, arp_announce=1)],
            "fail warning",
            id="announce-1",
        ),
        pytest.param([rail(0, network=5), rail(1)], "pass", id="alone-in-its-network"),
        pytest.param([rail(0, leaves=None), rail(1, leaves=None)], "pass", id="point-to-point"),
        pytest.param([rail(0)], "skip not_applicable", id="one-rail"),
        pytest.param([], "skip not_applicable", id="none"),
    ],
)
def test_packets_leave_by_their_own_rail(rails: list[Rail], expected: str) -> None:
    assert routed(*rails) == expected


def test_no_route_at_all_is_a_fault() -> None:
    bad = replace(rail(1), leaves="")
    assert routed(rail(0), bad) == "fail warning"


def test_addresses_of_other_cards_are_not_judged() -> None:
    """The front end has RDMA too, and shares its network with a second port."""
    front = [replace(rail(7, network=9), interface=name) for name in ("eno1", "eno2")]
    assert routed(rail(0), rail(1), *front) == "pass"


def test_the_remedy_names_address_network_and_device() -> None:
    bad = replace(rail(1), leaves="rail0", rp_filter=1)
    (found,) = findings(fleet(n1={**roce(1), "rdma.rails": (rail(0), bad)}), "roce.route")
    assert found.remedy.startswith(
        "ip route add 192.168.1.0/24 dev rail1 src 192.168.1.2 table 101"
    )
    assert found.seen == "192.168.1.2 of rail1 leaves by rail0; rp_filter is strict on rail1"


@pytest.mark.parametrize("reason", ["denied", "hung", "timed_out", "garbled"])
def test_routes_that_were_not_learned(reason: str) -> None:
    assert told(fleet(n1={**roce(1), "rdma.rails": absent(reason)}), "roce.route") == {
        "n1": f"unknown warning {reason}"
    }


def test_infiniband_has_no_routes() -> None:
    facts = {**node(), "net.interfaces": rail_interfaces(1), "rdma.rails": (rail(0), rail(1))}
    assert told(fleet(n1=facts), "roce.route") == {"n1": "skip not_applicable"}


def test_two_addresses_of_one_rail_share_a_network_with_no_other() -> None:
    """A second address is no second card, which would answer ARP for it."""
    second = replace(rail(0), address="192.168.0.200")
    assert routed(rail(0), second, rail(1)) == "pass"
    assert routed(rail(0), second) == "skip not_applicable"


def six(number: int, address: str = "", leaves: str = "") -> Rail:
    own = f"rail{number}"
    return Rail(own, address or f"fd02:0:0:a{number}::1", 64, leaves or own)


RAILS = (six(0), six(1), six(2), six(3))
SHARED = tuple(six(n, f"fd02::{n + 1}") for n in range(4))
BY_FIRST = (six(0), six(1, leaves="rail0"), *RAILS[2:])


def routed_ipv6(*rails: Rail, others: tuple[str, ...] = ()) -> Any:
    facts = {**roce_over_ipv6(1, 4, *others), "rdma.rails": rails}
    (found,) = findings(fleet(n1=facts), "roce.route")
    return found


@pytest.mark.parametrize(
    ("rails", "expected"),
    [
        pytest.param(RAILS, "pass", id="one-network-each"),
        pytest.param(BY_FIRST, "fail", id="by-another-device"),
        pytest.param((*RAILS[:3], replace(six(3), leaves="")), "fail", id="no-route"),
        pytest.param(SHARED, "pass", id="shared-and-each-by-its-own"),
        pytest.param(RAILS[:1], "skip", id="one-rail"),
        pytest.param((), "skip", id="none"),
    ],
)
def test_rails_of_ipv6_are_judged_as_those_of_ipv4(rails: Any, expected: str) -> None:
    assert routed_ipv6(*rails).verdict == expected


def test_the_remedy_for_ipv6_is_one_of_ipv6() -> None:
    found = routed_ipv6(*BY_FIRST)
    assert found.seen == "fd02:0:0:a1::1 of rail1 leaves by rail0"
    assert found.remedy == (
        "ip -6 route add fd02:0:0:a1::/64 dev rail1 table 101 "
        "&& ip -6 rule add from fd02:0:0:a1::1 table 101"
    )
    assert found.wanted == "own device"


def test_an_address_that_nccl_does_not_take_is_not_judged() -> None:
    """As routers announce prefixes, or a privacy extension adds addresses that change."""
    others = ("2001:db8::RAIL",)
    announced = [six(n, f"2001:db8::{n}", leaves="rail0") for n in range(4)]
    assert routed_ipv6(*RAILS, *announced, others=others).verdict == "pass"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param({}, "pass", id="nccl-takes-ipv4"),
        pytest.param({"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, "fail warning", id="declared-ipv6"),
    ],
)
def test_of_two_families_that_of_the_job_is_judged(declared: dict[str, str], expected: str) -> None:
    by_ipv4, by_ipv6 = roce(1), roce_over_ipv6(1)
    devices = []
    interfaces = []
    for device, more in zip(by_ipv4["rdma.devices"], by_ipv6["rdma.devices"], strict=True):
        (port,) = device.ports
        (other,) = more.ports
        gids = (*port.gids, replace(other.gids[-1], index=5))
        devices.append(replace(device, ports=(replace(port, gids=gids),)))
    for one, more in zip(by_ipv4["net.interfaces"], by_ipv6["net.interfaces"], strict=True):
        interfaces.append(replace(one, ipv6=more.ipv6))
    facts = {
        **by_ipv4,
        "rdma.devices": tuple(devices),
        "net.interfaces": tuple(interfaces),
        "rdma.rails": (*map(rail, range(4)), *BY_FIRST),
    }
    seen = fleet(each={"env": env(**declared)}, n1=facts)
    assert told(seen, "roce.route") == {"n1": expected}


def test_rails_with_link_local_addresses_alone_are_named() -> None:
    """The kernel of each node gives them, and no other node can tell the cable."""
    facts = {**roce_over_ipv6(1), "rdma.rails": ()}
    first, *rest = facts["net.interfaces"]
    local = [replace(each, ipv6=(), link_local="fe80::1/64") for each in rest]
    (found,) = findings(fleet(n1={**facts, "net.interfaces": (first, *local)}), "roce.route")
    assert found.verdict == "skip"
    assert "rail1, rail2, rail3 has no other" in found.message
