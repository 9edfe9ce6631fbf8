"""Which interface is chosen on machines that people have, and what is said where none can be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.facts.network import Interface
from clusterprep.model import Absent, EnvSetting, Fleet, Interfaces
from clusterprep.nccl.environment import planned_environment
from clusterprep.nccl.interfaces import (
    candidates,
    choose,
    common_networks,
    has_rdma,
    list_admits,
    may_have_rdma,
)
from tests.support.fleet import LOOPBACK, absent, env, eth, fleet, rdma_device, silent, with_facts
from tests.support.rails import roce


def nets(**nodes: tuple[Interface, ...]) -> dict[str, dict[str, Any]]:
    return {name: {"net.interfaces": (LOOPBACK, *interfaces)} for name, interfaces in nodes.items()}


def names(seen: Fleet) -> dict[str, str]:
    return {node: pick.name for node, pick in choose(seen).picks.items()}


def test_networks_that_all_nodes_share_are_those_where_each_has_an_address_of_its_own() -> None:
    seen = fleet(
        **nets(
            n1=(
                eth("eth0", "10.0.0.1/24"),
                eth("eth1", "10.1.0.1/24"),
                eth("eth10", "10.2.0.1/24"),
                DOCKER,
            ),
            n2=(
                eth("eth0", "10.0.0.2/24"),
                eth("ens5", "10.1.0.2/24"),
                eth("ens6", "10.3.0.2/24"),
                DOCKER,
            ),
        )
    )
    assert common_networks(seen) == ({"n1": "eth0", "n2": "eth0"}, {"n1": "=eth1", "n2": "ens5"})
    same = fleet(**nets(n1=(eth("eth0", "10.0.0.1/24"),), n2=(eth("eth0", "10.0.0.1/24"),)))
    assert common_networks(same) == ()


# ---------------------------------------------------------------- what is never chosen

DOCKER = eth("docker0", "172.17.0.1/16", physical=False, bridge=True)
NEVER = {
    "docker": DOCKER,
    "docker-under-another-driver": eth("docker0", "172.17.0.1/16", physical=False),
    "docker-network": eth("br-1a2b3c4d5e6f", "172.18.0.1/16", physical=False, bridge=True),
    "veth": eth("veth1a2b3c4", "172.17.0.2/16", physical=False),
    "libvirt": eth("virbr0", "192.168.122.1/24", physical=False, bridge=True),
    "cni": eth("cni0", "10.244.0.1/24", physical=False, bridge=True),
    "flannel": eth("flannel.1", "10.244.0.0/32", physical=False),
    "calico": eth("cali1234", "169.254.1.1/32", physical=False),
    "cilium": eth("cilium_host", "10.0.1.7/32", physical=False),
    "podman": eth("podman0", "10.88.0.1/16", physical=False, bridge=True),
    "lxd": eth("lxdbr0", "10.55.0.1/24", physical=False, bridge=True),
    "openvpn": eth("tun0", "10.8.0.7/24", physical=False),
    "tap": eth("tap0", "10.8.0.7/24", physical=False),
    "wireguard": eth("wg0", "10.9.0.7/24", physical=False),
    "tailscale": eth("tailscale0", "100.64.0.7/32", physical=False),
    "zerotier": eth("ztabcdef12", "10.147.0.7/24", physical=False),
    "board-management": eth("usb0", "169.254.3.1/24"),
    "loopback": eth("lo", "127.0.0.1/8", loopback=True),
    "loopback-under-another-name": eth("dummy0", "10.7.7.7/24", physical=False),
    "a-bridge-without-a-way-out": eth("br0", "10.55.0.1/24", physical=False, bridge=True),
    "enslaved": eth("eno1", "10.0.0.9/24", master="bond0"),
    "down": eth("eth9", "10.0.0.9/24", up=False),
    "no-carrier": eth("eth9", "10.0.0.9/24", running=False),
    "no-address": eth("eth9"),
    "processor-of-a-bluefield": eth("tmfifo_net0", "192.168.100.2/30", physical=False),
    "gre": eth("gre1", "10.66.0.1/24", physical=False),
    "geneve": eth("genev_sys_6081", "10.66.0.1/24", physical=False),
    "ip-in-ip": eth("tunl0", "10.66.0.1/24", physical=False),
    "tunnel-under-any-name": eth("corp", "10.66.0.1/24", physical=False, tunnel=True),
    "link-local-before-a-global-address": eth("eth9", "10.0.0.9/24", first="169.254.7.7/16"),
}


@pytest.mark.parametrize("interface", NEVER.values(), ids=NEVER)
def test_what_leads_nowhere_is_no_candidate(interface: Interface) -> None:
    assert candidates((LOOPBACK, interface)) == ()


@pytest.mark.parametrize("interface", NEVER.values(), ids=NEVER)
def test_what_leads_nowhere_is_not_chosen_even_where_all_have_it_and_it_is_faster(
    interface: Interface,
) -> None:
    fast = replace(interface, speed=400_000)
    seen = fleet(
        **nets(
            n1=(fast, eth("zeth0", "10.3.0.1/24", speed=1000)),
            n2=(fast, eth("zeth0", "10.3.0.2/24")),
        )
    )
    assert names(seen) == {"n1": "zeth0", "n2": "zeth0"}


def test_a_bridge_of_container_ends_leads_nowhere() -> None:
    ends = (eth("veth1", physical=False, master="br0"), eth("veth2", physical=False, master="br0"))
    assert (
        candidates(
            (
                eth("br0", "10.0.0.1/24", physical=False, bridge=True),
                *ends,
                eth("eno1", master="bond7"),
            )
        )
        == ()
    )


BRIDGED = (
    eth("br0", "10.0.0.1/24", physical=False, bridge=True),
    eth("eno1", master="br0"),
    eth("vnet0", master="br0", physical=False),
)
OVER_A_BOND = (
    eth("vmbr0", "10.0.0.1/24", physical=False, bridge=True),
    eth("bond0", physical=False, master="vmbr0"),
    eth("eno1", master="bond0"),
)


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        pytest.param((eth("eth0", "10.0.0.1/24"),), "eth0", id="card"),
        pytest.param(
            (eth("bond0", "10.0.0.1/24", physical=False), eth("eno1", master="bond0")),
            "bond0",
            id="bond",
        ),
        pytest.param(
            (eth("eth0"), eth("eth0.100", "10.0.0.1/24", physical=False)), "eth0.100", id="vlan"
        ),
        pytest.param((eth("ib0", "10.0.0.1/24", infiniband=True),), "ib0", id="ip-over-infiniband"),
        pytest.param(
            (eth("eth0", "10.0.0.1/24", physical=False),),
            "eth0",
            id="veth-of-a-container-named-eth0",
        ),
        pytest.param(BRIDGED, "br0", id="a-hypervisors-bridge-over-its-card"),
        pytest.param(OVER_A_BOND, "vmbr0", id="a-bridge-over-a-bond"),
    ],
)
def test_what_leads_out_is_a_candidate(interfaces: tuple[Interface, ...], expected: str) -> None:
    assert [interface.name for interface in candidates(interfaces)] == [expected]
    assert names(fleet(**nets(n1=interfaces))) == {"n1": expected}


# ---------------------------------------------------------------- the network


def test_one_common_network_is_chosen_whatever_its_interface_is_called() -> None:
    seen = fleet(
        **nets(
            n1=(eth("eth0", "10.0.0.1/24"),),
            n2=(eth("ens34", "10.0.0.2/24"),),
            n3=(eth("bond0", "10.0.0.3/24"),),
        )
    )
    choice = choose(seen)
    assert names(seen) == {"n1": "eth0", "n2": "ens34", "n3": "bond0"}
    assert choice.network == "10.0.0.0/24"
    assert choice.picks["n2"].address == "10.0.0.2"
    assert {pick.why for pick in choice.picks.values()} == {
        "10.0.0.0/24 is the network that reaches all nodes"
    }


def test_a_network_reaches_only_those_that_are_known() -> None:
    seen = fleet(
        **nets(n1=(eth("eth0", "10.0.0.1/24"),), n2=(eth("eth0", "10.0.0.2/24"),)),
        n3=silent("n3"),
    )
    why = "10.0.0.0/24 is the network that reaches all nodes whose interfaces are known"
    assert choose(seen).why == why


def two(number: int, slow: int | None, fast: int | None) -> tuple[Interface, ...]:
    return (
        eth("eth0", f"10.0.0.{number}/24", speed=slow),
        eth("ib0", f"10.1.0.{number}/24", speed=fast, infiniband=True),
    )


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        pytest.param((1000, 400_000), "ib0", id="the-fastest"),
        pytest.param((1000, 10), "eth0", id="as-slow-as-its-slowest-link"),
        pytest.param((1000, None), "eth0", id="a-known-speed-before-an-unknown-one"),
    ],
)
def test_of_several_common_networks_the_fastest_is_chosen(
    second: tuple[Any, Any], expected: str
) -> None:
    seen = fleet(**nets(n1=two(1, 1000, 400_000), n2=two(2, *second)))
    assert set(names(seen).values()) == {expected}


def test_of_equally_fast_networks_the_one_of_the_login_is_chosen() -> None:
    for number in (0, 1):
        peers = {f"n{n}": {"ssh.peer": f"10.{number}.0.{n}"} for n in (1, 2)}
        facts = nets(n1=two(1, 1, 1), n2=two(2, 1, 1))
        seen = fleet(
            each={"address": "gpu.example"},
            **{n: {**mine, **peers[n]} for n, mine in facts.items()},
        )
        assert choose(seen).network == f"10.{number}.0.0/24"


# ---------------------------------------------------------------- networks of the training ports


def with_rails(*front: int, master: str | None = None, **settings: Any) -> Fleet:
    """A front end where `front` has its speed, and two rails of RoCE, or bonds of them."""
    nodes = {}
    for number in (1, 2):
        facts = roce(number, count=2)
        cards = facts["net.interfaces"]
        if master:
            cards = tuple(replace(card, ipv4=(), master=f"bond{card.name[-1]}") for card in cards)
            bonds = (
                eth(f"bond{rail}", f"192.168.{rail}.{number}/24", physical=False) for rail in (0, 1)
            )
            cards = (*cards, *(replace(bond, speed=400_000) for bond in bonds))
        ends = tuple(eth("eth0", f"10.0.0.{number}/24", speed=speed) for speed in front)
        nodes[f"n{number}"] = {**facts, "net.interfaces": (LOOPBACK, *ends, *cards)}
    return fleet(each=settings, **nodes)


@pytest.mark.parametrize("master", [None, "bond"])
def test_with_rdma_the_front_end_carries_sockets(master: str | None) -> None:
    choice = choose(with_rails(1000, master=master))
    assert {pick.name for pick in choice.picks.values()} == {"eth0"}
    assert choice.why.endswith("reaches all nodes; those of the training ports are left to RDMA")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"env": env(NCCL_IB_DISABLE="1")}, id="switched-off"),
        pytest.param({"env": env(NCCL_NET="Socket")}, id="sockets-asked-for"),
        pytest.param({"interfaces": Interfaces(rdma=())}, id="none-declared"),
    ],
)
def test_without_rdma_sockets_carry_the_data_and_the_fastest_is_chosen(
    settings: dict[str, Any],
) -> None:
    assert set(names(with_rails(1000, **settings)).values()) == {"rail0"}


def test_where_rails_are_all_there_is_they_carry_sockets_too() -> None:
    choice = choose(with_rails())
    assert {pick.name for pick in choice.picks.values()} == {"rail0"}
    assert choice.why == "192.168.0.0/24 is the network that reaches all nodes"


def test_the_front_end_must_reach_all_to_go_before_a_rail() -> None:
    seen = with_rails(25_000)
    only = {
        ("n2", "net.interfaces"): tuple(
            i for i in seen.fact("n2", "net.interfaces") if i.name != "eth0"
        )
    }
    assert set(names(with_facts(seen, only)).values()) == {"rail0"}


def test_a_network_that_reaches_all_goes_before_a_faster_one_that_does_not() -> None:
    seen = fleet(
        **nets(
            n1=two(1, 1000, 400_000),
            n2=two(2, 1000, 400_000),
            n3=(eth("eth0", "10.0.0.3/24", speed=1000),),
        )
    )
    assert set(names(seen).values()) == {"eth0"}


def test_a_network_in_which_all_have_one_address_joins_no_nodes() -> None:
    """Such as the link to a card's own processor, or a bridge for containers."""
    own = eth("enp0s20u1", "192.168.100.1/24", speed=100_000)
    seen = fleet(
        **nets(**{f"n{n}": (own, eth("eth0", f"10.0.0.{n}/24", speed=1000)) for n in (1, 2, 3)})
    )
    assert set(names(seen).values()) == {"eth0"}
    assert choose(seen).why == "10.0.0.0/24 is the network that reaches all nodes"
    alone = choose(fleet(**nets(n1=(own,), n2=(own,))))
    assert (dict(alone.picks), set(alone.problems)) == ({}, {"n1", "n2"})


def test_two_interfaces_of_one_node_in_a_network_count_once() -> None:
    more = (eth("eth1", "10.0.0.7/24"), eth("eth2", "10.0.0.8/24"))
    both = {
        f"n{n}": (eth("eth0", f"10.0.0.{n}/24"), eth("ib0", f"10.1.0.{n}/24", speed=400_000))
        for n in (1, 2)
    }
    seen = fleet(**nets(n1=(*both["n1"], *more), n2=both["n2"]))
    assert set(names(seen).values()) == {"ib0"}


SECOND = eth(
    "eth0", "192.168.7.1/24", "10.0.0.1/24"
)  # NCCL binds the first address of an interface, whatever the rest


@pytest.mark.parametrize("first", ["192.168.7.1/24", None])
def test_an_interface_is_in_a_network_by_its_first_address(first: str | None) -> None:
    choice = choose(
        fleet(**nets(n1=(replace(SECOND, first=first),), n2=(eth("eth0", "10.0.0.2/24"),)))
    )
    assert set(choice.picks) == {"n2"}
    words = "eth0 has 10.0.0.1 in 10.0.0.0/24, but NCCL binds its first address, 192.168.7.1"
    assert choice.problems == {"n1": words}


def test_another_interface_is_taken_where_the_first_address_of_one_is_elsewhere() -> None:
    more = eth("eth1", "10.0.0.3/24", speed=1000)
    choice = choose(fleet(**nets(n1=(SECOND, more), n2=(eth("eth0", "10.0.0.2/24"),))))
    assert (choice.picks["n1"].name, choice.picks["n1"].address) == ("eth1", "10.0.0.3")


def test_a_network_of_first_addresses_goes_before_one_of_second_addresses() -> None:
    """The login goes through the second address on both, and NCCL does not."""
    both = {f"n{n}": (eth("eth0", f"192.168.7.{n}/24", f"10.0.0.{n}/24"),) for n in (1, 2)}
    choice = choose(fleet(**nets(**both)))
    assert choice.network == "192.168.7.0/24"
    assert [pick.address for pick in choice.picks.values()] == ["192.168.7.1", "192.168.7.2"]


def test_the_mtu_is_that_of_the_interface() -> None:
    assert choose(fleet(**nets(n1=(eth("eth0", "10.0.0.1/24", mtu=9000),)))).picks["n1"].mtu == 9000


# ---------------------------------------------------------------- several networks


def routed(prefix: int, peers: bool = True) -> Fleet:
    """Every node in a network of its own, as in leaf-spine fabrics and some clouds."""
    facts = nets(**{f"n{n}": (eth("ens4", f"10.128.{n}.0/{prefix}"), DOCKER) for n in (1, 2, 3)})
    return fleet(
        **{
            n: {**f, **({"ssh.peer": f"10.128.{n[1]}.0"} if peers else {})}
            for n, f in facts.items()
        }
    )


@pytest.mark.parametrize("prefix", [31, 32, 24])
def test_nodes_in_networks_of_their_own_use_the_interface_of_the_login(prefix: int) -> None:
    choice = choose(routed(prefix))
    assert {node: (pick.name, pick.address) for node, pick in choice.picks.items()} == {
        f"n{n}": ("ens4", f"10.128.{n}.0") for n in (1, 2, 3)
    }
    assert choice.network is None
    assert "a network of its own" in choice.why


def test_nodes_in_networks_of_their_own_reached_through_another_address_have_no_choice() -> None:
    """Behind address translation it is not known which interface reaches the others.

    All of them are blamed.
    """
    choice = choose(routed(31, peers=False))
    assert set(choice.problems) == {"n1", "n2", "n3"}
    assert choice.picks == {}


def racks(*sizes: int, blind: str = "") -> Fleet:
    """Racks of so many nodes, each with a network of its own.

    The login to `blind` goes through another address.
    """
    places = [(rack, n) for rack, size in enumerate(sizes, 1) for n in range(1, size + 1)]
    facts = nets(**{f"r{rack}n{n}": (eth("eth0", f"10.{rack}.0.{n}/24"),) for rack, n in places})
    peers = {
        name: {} if name == blind else {"ssh.peer": f"10.{name[1]}.0.{name[3]}"} for name in facts
    }
    return fleet(
        each={"address": "x"}, **{name: {**mine, **peers[name]} for name, mine in facts.items()}
    )


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (2, 2, 2), (1, 1)])
def test_racks_with_networks_of_their_own_use_the_interface_of_the_login(
    sizes: tuple[int, ...],
) -> None:
    choice = choose(racks(*sizes))
    assert (len(choice.picks), choice.network) == (sum(sizes), None)


@pytest.mark.parametrize("sizes", [(2, 1), (4, 2), (5, 1)])
def test_a_few_outside_the_network_of_two_thirds_are_strays_and_no_rack(
    sizes: tuple[int, ...],
) -> None:
    choice = choose(racks(*sizes))
    assert choice.network == "10.1.0.0/24"
    assert set(choice.problems) == {f"r2n{n}" for n in range(1, sizes[1] + 1)}


def test_racks_are_not_assumed_where_one_login_says_nothing() -> None:
    choice = choose(racks(2, 2, blind="r2n1"))
    assert choice.network == "10.1.0.0/24"
    assert set(choice.problems) == {"r2n1", "r2n2"}


def test_one_node_in_a_foreign_network_is_blamed_alone() -> None:
    rows = {"n1": "10.0.0.1/24", "n2": "10.0.0.2/24", "n3": "10.0.0.3/24", "n4": "192.168.9.4/24"}
    facts = nets(**{node: (eth("eth0", address),) for node, address in rows.items()})
    seen = fleet(**{n: {**f, "ssh.peer": rows[n].split("/")[0]} for n, f in facts.items()})
    choice = choose(seen)
    assert set(choice.picks) == {"n1", "n2", "n3"}
    assert choice.problems == {"n4": "no interface in 10.0.0.0/24 (there is: eth0 192.168.9.4/24)"}


# ---------------------------------------------------------------- nodes without any


def test_a_node_without_any_does_not_stop_the_others() -> None:
    choice = choose(
        fleet(**nets(n1=(eth("eth0", "10.0.0.1/24"),), n2=(), n3=(eth("eth0", "10.0.0.3/24"),)))
    )
    assert set(choice.picks) == {"n1", "n3"}
    assert choice.problems == {"n2": "no interface is up with a global address"}


# ---------------------------------------------------------------- IPv6


def over_ipv6(number: int, *more: Any) -> tuple[Any, ...]:
    return (eth("eth0", ipv6=(f"fd00::{number}/64",)), *more)


def dual(number: int) -> tuple[Any, ...]:
    return (eth("eth0", f"10.0.0.{number}/24", ipv6=(f"fd00::{number}/64",)),)


def derived(seen: Fleet, name: str) -> dict[str, str]:
    """The value of a variable, by node."""
    values = {node.name: planned_environment(seen).of(node.name) for node in seen.reached}
    return {node: own[name].value for node, own in values.items() if name in own}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="derived"),
        pytest.param({"interfaces": Interfaces(nccl="eth0")}, id="declared"),
        pytest.param({"env": {"NCCL_SOCKET_IFNAME": EnvSetting("eth", "env")}}, id="by-variable"),
    ],
)
def test_nodes_with_ipv6_alone_have_their_network(settings: dict[str, Any]) -> None:
    seen = fleet(each=settings, **nets(n1=over_ipv6(1), n2=over_ipv6(2)))
    choice = choose(seen)
    assert (choice.family, choice.problems) == ("AF_INET6", {})
    addresses = {name: pick.address for name, pick in choice.picks.items()}
    assert addresses == {"n1": "fd00::1", "n2": "fd00::2"}
    assert derived(seen, "GLOO_SOCKET_IFNAME") == {"n1": "eth0", "n2": "eth0"}
    assert derived(seen, "NCCL_SOCKET_FAMILY") == {}  # NCCL binds IPv6 there by itself


def test_of_two_families_that_reach_all_ipv4_is_taken_as_nccl_does() -> None:
    seen = fleet(**nets(n1=dual(1), n2=dual(2)))
    assert (choose(seen).family, choose(seen).network) == ("AF_INET", "10.0.0.0/24")
    assert derived(seen, "NCCL_SOCKET_FAMILY") == {}


def test_where_ipv6_alone_reaches_all_nccl_is_told_so() -> None:
    seen = fleet(**nets(n1=dual(1), n2=dual(2), n3=over_ipv6(3)))
    choice = choose(seen)
    assert (choice.network, set(choice.picks)) == ("fd00::/64", {"n1", "n2", "n3"})
    assert derived(seen, "NCCL_SOCKET_FAMILY") == dict.fromkeys(("n1", "n2", "n3"), "AF_INET6")
    # gloo has no such variable: on n1 and n2 it would bind the IPv4 address of eth0.
    assert derived(seen, "GLOO_SOCKET_IFNAME") == {"n3": "eth0"}
    assert common_networks(seen) == ({"n1": "eth0", "n2": "eth0", "n3": "eth0"},)


def test_an_ipv4_address_that_is_the_same_on_all_nodes_does_not_hide_ipv6() -> None:
    def nat(number: int) -> Interface:
        return eth("eth0", "10.0.2.15/24", ipv6=(f"fd00::{number}/64",))

    seen = fleet(**nets(n1=(nat(1),), n2=(nat(2),), n3=(nat(3),)))
    assert (choose(seen).network, choose(seen).problems) == ("fd00::/64", {})


@pytest.mark.parametrize(
    ("declared", "network"), [("AF_INET6", "fd00::/64"), ("AF_INET", "10.0.0.0/24")]
)
def test_the_declared_family_is_taken(declared: str, network: str) -> None:
    settings = {"env": {"NCCL_SOCKET_FAMILY": EnvSetting(declared, "env")}}
    choice = choose(fleet(each=settings, **nets(n1=dual(1), n2=dual(2))))
    assert (choice.family, choice.network) == (declared, network)


def test_one_node_with_ipv6_alone_is_the_fault_where_the_others_have_none() -> None:
    two = {f"n{number}": (eth("eth0", f"10.0.0.{number}/24"),) for number in (1, 2)}
    choice = choose(fleet(**nets(**two, n3=over_ipv6(3))))
    assert set(choice.picks) == {"n1", "n2"}
    words = "no interface is up with a global IPv4 address (eth0 fd00::3/64)"
    assert choice.problems == {"n3": words}
    assert choice.why == "10.0.0.0/24 is the network that reaches 2 of 3 nodes"


def test_an_address_that_another_machine_has_too_is_named() -> None:
    """The kernel found it by duplicate address detection, and refuses to bind it."""
    taken = eth("eth0", link_local="fe80::2/64", duplicates=("fd00::1/64",))
    choice = choose(fleet(**nets(n1=over_ipv6(1), n2=(taken,), n3=over_ipv6(3))))
    assert choice.family == "AF_INET6"
    assert choice.problems == {
        "n2": "no interface is up with a global IPv6 address (eth0 fd00::1/64, which another "
        "machine has too, so the kernel does not use it)"
    }


LINK_LOCAL = eth("eth0", link_local="fe80::7/64")
ONE_CABLE = "which is link-local: it holds on one cable only, and other nodes cannot tell which"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(
            {},
            f"no interface is up with a global IPv4 address (eth0 fe80::7, {ONE_CABLE})",
            id="derived",
        ),
        pytest.param(
            {"env": {"NCCL_SOCKET_FAMILY": EnvSetting("AF_INET6", "env")}},
            f"no interface is up with a global IPv6 address (eth0 fe80::7, {ONE_CABLE})",
            id="family",
        ),
        pytest.param(
            {"interfaces": Interfaces(nccl="eth0")},
            f"eth0 has fe80::7 alone, {ONE_CABLE}",
            id="declared",
        ),
        pytest.param(
            {
                "env": {
                    "NCCL_SOCKET_IFNAME": EnvSetting("eth", "env"),
                }
            },
            f"NCCL_SOCKET_IFNAME=eth lets eth0 in, whose fe80::7 {ONE_CABLE[6:]}",
            id="by-variable",
        ),
    ],
)
def test_a_link_local_address_is_refused_with_the_reason(
    settings: dict[str, Any], words: str
) -> None:
    choice = choose(fleet(each=settings, **nets(n1=(LINK_LOCAL,), n2=(LINK_LOCAL,))))
    assert (choice.picks, choice.problems) == ({}, {"n1": words, "n2": words})


def test_addresses_without_a_network_leave_the_interface_of_the_login() -> None:
    """Clouds give each node an IPv6 address with the prefix 128."""
    facts = {}
    for number in (1, 2, 3):
        own = (eth("ens5", ipv6=(f"2001:db8::{number}/128",)),)
        facts[f"n{number}"] = {"net.interfaces": own, "ssh.peer": f"2001:db8::{number}"}
    choice = choose(fleet(**facts))
    assert {pick.name for pick in choice.picks.values()} == {"ens5"}
    assert (choice.network, choice.problems) == (None, {})


@pytest.mark.parametrize(
    ("interface", "words"),
    [
        pytest.param(
            eth("docker0", ipv6=("fd00::1/64",), bridge=True),
            "no interface is up with a global address",
            id="a-bridge",
        ),
        pytest.param(
            eth("eth0", ipv6=("fd00::1/64",), running=False),
            "no interface is up with a global address",
            id="no-carrier",
        ),
        pytest.param(eth("eth0"), "no interface is up with a global address", id="no-address"),
        pytest.param(
            eth("eth0", ipv6=("fd00::1/64",), first="169.254.0.1/16"),
            "no interface is up with a global IPv4 address (eth0 fd00::1/64)",
            id="link-local-comes-first",
        ),
    ],
)
def test_of_two_nodes_the_one_without_ipv4_is_the_fault(interface: Any, words: str) -> None:
    choice = choose(fleet(**nets(n1=(interface,), n2=(eth("eth0", "10.0.0.2/24"),))))
    assert choice.problems == {"n1": words}


def test_the_only_other_node_is_chosen_although_its_login_is_not_known() -> None:
    choice = choose(fleet(**nets(n1=(eth("eth0", "192.168.9.4/24"),), n2=())))
    assert (set(choice.picks), set(choice.problems)) == ({"n1"}, {"n2"})


def test_a_single_machine_may_use_loopback() -> None:
    choice = choose(fleet(**nets(n1=(DOCKER,))))
    assert (choice.picks["n1"].name, choice.picks["n1"].address) == ("lo", "127.0.0.1")
    assert "only node" in choice.picks["n1"].why


@pytest.mark.parametrize(
    ("settings", "family", "address"),
    [
        pytest.param({}, "AF_INET6", "fd00::1", id="derived"),
        pytest.param(
            {"env": {"NCCL_SOCKET_FAMILY": EnvSetting("AF_INET", "env")}},
            "AF_INET",
            "127.0.0.1",
            id="ipv4-is-declared",
        ),
    ],
)
def test_a_single_machine_with_ipv6_needs_no_loopback(
    settings: dict[str, Any], family: str, address: str
) -> None:
    choice = choose(fleet(each=settings, **nets(n1=over_ipv6(1))))
    assert (choice.family, choice.picks["n1"].address) == (family, address)


def test_loopback_is_no_way_where_ipv6_is_declared() -> None:
    """NCCL skips ::1 whatever it is told."""
    settings = {"env": {"NCCL_SOCKET_FAMILY": EnvSetting("AF_INET6", "env")}}
    choice = choose(fleet(each=settings, **nets(n1=(eth("eth0", "10.0.0.1/24"),))))
    words = "no interface is up with a global IPv6 address (eth0 10.0.0.1/24)"
    assert (choice.picks, choice.problems) == ({}, {"n1": words})


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(fleet(**nets(n1=()), n2=silent("n2")), id="the-other-is-not-reached"),
        pytest.param(
            fleet(**nets(n1=()), n2={"net.interfaces": absent()}), id="the-other-is-not-known"
        ),
        pytest.param(
            fleet(
                some={"n2": {"interfaces": Interfaces(nccl="eth0")}},
                **nets(n1=(), n2=(eth("eth0", "10.0.0.2/24"),)),
            ),
            id="the-other-declares-its-own",
        ),
    ],
)
def test_loopback_is_never_chosen_in_a_fleet(seen: Fleet) -> None:
    assert set(choose(seen).problems) == {"n1"}


def test_interfaces_that_are_not_known_stay_unknown() -> None:
    seen = fleet(
        **nets(n1=(eth("eth0", "10.0.0.1/24"),)),
        n2={"net.interfaces": absent("hung", "netlink")},
        n3={},
    )
    choice = choose(seen)
    assert set(choice.picks) == {"n1"}
    assert choice.unknown == {"n2": Absent("hung", "netlink"), "n3": Absent("not_asked")}


# ---------------------------------------------------------------- declared

THREE = nets(
    **{
        f"n{n}": (eth("eth0", f"10.0.0.{n}/24"), eth("eth1", f"10.1.0.{n}/24", speed=1))
        for n in (1, 2, 3)
    }
)


def test_a_declared_interface_is_taken_as_it_is() -> None:
    for name, address in (("eth1", "10.1.0.1"), ("docker0", "172.17.0.1")):
        seen = fleet(
            each={"interfaces": Interfaces(nccl=name)},
            **nets(n1=(*THREE["n1"]["net.interfaces"], DOCKER)),
        )
        pick = choose(seen).picks["n1"]
        assert (pick.name, pick.address, pick.why) == (name, address, "declared as interfaces.nccl")


@pytest.mark.parametrize(
    ("interfaces", "words"),
    [
        pytest.param(
            (eth("ens3", "10.0.0.1/24"),), "eth9 does not exist (there is: ens3)", id="missing"
        ),
        pytest.param(
            (),
            "eth9 does not exist (there is: none that is up with a global address)",
            id="nothing-else",
        ),
        pytest.param((eth("eth9", "10.0.0.1/24", up=False),), "eth9 is down", id="off"),
        pytest.param((eth("eth9", "10.0.0.1/24", running=False),), "eth9 is down", id="no-carrier"),
        pytest.param((eth("eth9"),), "eth9 has no IPv4 address", id="without-address"),
        pytest.param(
            (eth("eth9", "10.0.0.1/24", first="169.254.7.7/16"),),
            "eth9 has 169.254.7.7 before 10.0.0.1, and NCCL binds the first address",
            id="link-local-first",
        ),
        pytest.param(
            (eth("eth99", "10.0.0.1/24"),),
            "eth9 does not exist (there is: eth99)",
            id="longer-name",
        ),
    ],
)
def test_a_declared_interface_that_cannot_be_used_is_a_problem_and_not_replaced(
    interfaces: tuple[Interface, ...], words: str
) -> None:
    choice = choose(fleet(each={"interfaces": Interfaces(nccl="eth9")}, **nets(n1=interfaces)))
    assert (choice.picks, choice.problems) == ({}, {"n1": words})


def test_nodes_that_declare_nothing_follow_those_that_do() -> None:
    seen = fleet(some={"n1": {"interfaces": Interfaces(nccl="eth1")}}, **THREE)
    assert names(seen) == {"n1": "eth1", "n2": "eth1", "n3": "eth1"}
    picks = choose(seen).picks
    assert picks["n1"].why == "declared as interfaces.nccl"
    assert picks["n2"].why == "10.1.0.0/24 is the network that reaches all nodes"


# ---------------------------------------------------------------- declared as the variable itself


def said(value: str, **interfaces: tuple[Interface, ...]) -> Fleet:
    """Nodes of which n1 has the variable in its environment."""
    return fleet(some={"n1": {"env": env(NCCL_SOCKET_IFNAME=value)}}, **nets(**interfaces))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("=eth1", "eth1", id="exact"),
        pytest.param("eth1", "eth1", id="plain"),
        pytest.param("eth1:0", "eth1", id="a-port-is-ignored"),
        pytest.param("docker", "docker0", id="what-is-never-derived"),
        pytest.param("eth", "eth0", id="the-first-of-several"),
        pytest.param("=eth1,eth0", "eth0", id="the-order-of-a-list-has-no-effect"),
        pytest.param("=eth1,=eth0", "eth1", id="only-the-first-sign-counts"),
        pytest.param("^eth0", "eth1", id="all-but-one"),
        pytest.param("^=eth", "eth0", id="all-but-none"),
        pytest.param("^eth", "docker0", id="all-that-lead-out-are-left-out"),
    ],
)
def test_the_variable_decides_for_everybody_who_asks(value: str, expected: str) -> None:
    eth0, eth1 = (replace(i, index=n) for n, i in enumerate(THREE["n1"]["net.interfaces"][1:], 2))
    pick = choose(said(value, n1=(eth1, replace(DOCKER, index=9), eth0))).picks["n1"]
    assert (pick.name, pick.value, pick.why) == (expected, value, "declared as NCCL_SOCKET_IFNAME")


def test_a_value_of_one_character_is_none() -> None:
    assert choose(said("e", n1=THREE["n1"]["net.interfaces"])).picks["n1"].value == "eth0"


@pytest.mark.parametrize(
    "value", ["eth9", "=eth", "eth0 ", "=x,=eth0", "eth*", "10.0.0.1", '"eth0"', "^eth,lo,docker"]
)
def test_a_variable_that_lets_nothing_in_is_a_problem(value: str) -> None:
    choice = choose(said(value, n1=(eth("eth0", "10.0.0.1/24"), DOCKER)))
    words = "matches no interface that is up with an IPv4 address (there is: eth0)"
    assert (choice.picks, choice.problems) == ({}, {"n1": f"NCCL_SOCKET_IFNAME={value} {words}"})


@pytest.mark.parametrize("value", ["^docker", "^=docker0", "=eth0,lo", "lo"])
def test_a_variable_that_lets_loopback_in_is_a_problem_of_more_than_one_node(value: str) -> None:
    """Tested with the real NCCL: loopback is first in the kernel's order."""
    first = replace(LOOPBACK, first="127.0.0.1/8", index=1)
    one = (first, eth("eth0", "10.0.0.1/24", index=2))
    some = {"n1": {"env": env(NCCL_SOCKET_IFNAME=value)}}
    choice = choose(
        fleet(some=some, n1={"net.interfaces": one}, **nets(n2=(eth("eth0", "10.0.0.2/24"),)))
    )
    problem = (
        f"NCCL_SOCKET_IFNAME={value} lets lo in, which NCCL then takes, "
        "and which leads to no other node"
    )
    assert choice.problems == {"n1": problem}
    assert set(choice.picks) == {"n2"}
    assert choose(fleet(some=some, n1={"net.interfaces": one})).picks["n1"].address == "127.0.0.1"


def test_nodes_without_the_variable_follow_those_that_have_it() -> None:
    seen = fleet(some={"n1": {"env": env(NCCL_SOCKET_IFNAME="eth1")}}, **THREE)
    assert names(seen) == {"n1": "eth1", "n2": "eth1", "n3": "eth1"}


def test_the_variable_goes_before_the_declared_interface_for_it_is_what_is_written() -> None:
    both = {"interfaces": Interfaces(nccl="eth0"), "env": env(NCCL_SOCKET_IFNAME="eth1")}
    assert names(fleet(some={"n1": both}, n1=THREE["n1"])) == {"n1": "eth1"}


# ---------------------------------------------------------------- the value of NCCL_SOCKET_IFNAME


@pytest.mark.parametrize(
    ("others", "value"),
    [
        pytest.param((), "eth1", id="alone"),
        pytest.param((eth("eth10", "10.9.0.1/24"),), "=eth1", id="eth10"),
        pytest.param((eth("eth10", up=False, running=False),), "=eth1", id="eth10-down-today"),
        pytest.param((eth("eth1.100", physical=False),), "=eth1", id="a-vlan-on-it"),
        pytest.param((eth("eth2", "10.9.0.1/24"), eth("eth", "10.8.0.1/24")), "eth1", id="others"),
        pytest.param((eth("Eth10"),), "eth1", id="case-matters"),
    ],
)
@pytest.mark.parametrize("declared", [None, "eth1"])
def test_an_equals_sign_stands_in_front_only_where_a_prefix_would_take_another_too(
    declared: str | None, others: tuple[Interface, ...], value: str
) -> None:
    facts = nets(
        n1=(eth("eth1", "10.0.0.1/24", speed=400_000), *others), n2=(eth("eth1", "10.0.0.2/24"),)
    )
    picks = choose(fleet(each={"interfaces": Interfaces(nccl=declared)}, **facts)).picks
    assert (picks["n1"].value, picks["n1"].name) == (value, "eth1")
    assert picks["n2"].value == "eth1"


# ---------------------------------------------------------------- any fleet at all

PREFIXES = st.integers(8, 32)
ADDRESSES = st.builds("10.{}.0.{}/{}".format, st.integers(0, 2), st.integers(0, 9), PREFIXES)
INTERFACES = st.builds(
    Interface,
    name=st.sampled_from(["eth0", "eth1", "eth10", "docker0", "br0", "lo", "e", "ib0"]),
    up=st.booleans(),
    running=st.booleans(),
    loopback=st.booleans(),
    physical=st.booleans(),
    bridge=st.booleans(),
    master=st.sampled_from([None, None, None, "br0", "eth0"]),
    mtu=st.integers(68, 65535),
    speed=st.one_of(st.none(), st.integers(1, 400_000)),
    infiniband=st.booleans(),
    ipv4=st.lists(ADDRESSES, max_size=3).map(tuple),
)
NODE_FACTS = st.fixed_dictionaries(
    {"net.interfaces": st.one_of(st.lists(INTERFACES, max_size=4).map(tuple), st.just(absent()))},
    optional={"ssh.peer": st.sampled_from(["10.0.0.1", "10.1.0.2", "host.name"])},
)


@settings(deadline=None)
@given(
    st.lists(NODE_FACTS, min_size=1, max_size=4),
    st.lists(st.sampled_from([None, None, "eth0", "docker0", "nope"]), min_size=4, max_size=4),
)
def test_every_node_has_exactly_one_answer(
    facts: list[dict[str, Any]], declared: list[str | None]
) -> None:
    some = {f"n{n}": {"interfaces": Interfaces(nccl=name)} for n, name in enumerate(declared, 1)}
    seen = fleet(some=some, **{f"n{n}": mine for n, mine in enumerate(facts, 1)})
    choice = choose(seen)
    answered = [*choice.picks, *choice.problems, *choice.unknown]
    assert sorted(answered) == sorted(node.name for node in seen.reached)
    for name, pick in choice.picks.items():
        there = seen.fact(name, "net.interfaces")
        taken = [
            i
            for i in there
            if (i.name == pick.name if pick.value[0] == "=" else i.name.startswith(pick.value))
        ]
        assert {i.name for i in taken} == {pick.name}
        assert len(seen.inventory.nodes) == 1 or pick.address != "127.0.0.1"


# ---------------------------------------------------------------- RDMA


@pytest.mark.parametrize(
    ("ports", "rdma", "has", "may"),
    [
        pytest.param((), None, False, False, id="none"),
        pytest.param((rdma_device(active=False),), None, True, True, id="present-and-down"),
        pytest.param((), ("mlx5_0",), True, True, id="declared"),
        pytest.param((), (), False, False, id="declared-as-none"),
        pytest.param(absent(), None, False, True, id="not-known"),
    ],
)
def test_rdma_is_there_when_present_or_declared(
    ports: Any, rdma: Any, has: bool, may: bool
) -> None:
    seen = fleet(each={"interfaces": Interfaces(rdma=rdma)}, n1={"rdma.devices": ports})
    (node,) = seen.reached
    assert (has_rdma(seen, node), may_have_rdma(seen, node)) == (has, may)


@pytest.mark.parametrize(
    ("value", "name", "port", "expected"),
    [
        ("eth", "eth0", "", True),
        ("=eth", "eth0", "", False),
        ("=eth0,eth1", "eth1", "", True),
        ("^eth", "eth0", "", False),
        ("^=eth", "eth0", "", True),
        ("^docker,lo", "eth0", "", True),
        ("eth0:1", "eth0", "", True),  # interfaces have no port
        ("mlx5_1", "mlx5_10", "1", True),
        ("=mlx5_1", "mlx5_10", "1", False),
        ("mlx5_0:1", "mlx5_0", "1", True),
        ("mlx5_0:1", "mlx5_0", "2", False),
        ("mlx5_0:", "mlx5_0", "2", True),
        ("mlx5_0:1:0:3", "mlx5_0", "1", True),  # rail and plane, from 2.30
        ("^mlx5_0:1", "mlx5_0", "2", True),
        (",mlx5_0", "mlx5_1", "1", False),  # an empty item is none, and no prefix of everything
        ("", "eth0", "", False),
    ],
)
def test_a_list_lets_in_as_nccl_reads_it(value: str, name: str, port: str, expected: bool) -> None:
    assert list_admits(value, name, port) is expected


# ---------------------------------------------------------------- nodes that are this one machine

HERE = {name: {"transport": "local", "env": env(NCCL_HOSTID=name)} for name in ("n1", "n2", "n3")}
CARD = eth("eth0", "10.0.0.1/24")
BOUND = replace(LOOPBACK, first="127.0.0.1/8")


def here(*interfaces: Interface, **more: dict[str, Any]) -> Fleet:
    facts = {"net.interfaces": (BOUND, *interfaces)}
    some = {name: {**HERE[name], **more.get(name, {})} for name in ("n1", "n2")}
    return fleet(some=some, n1=facts, n2=facts)


def test_nodes_of_one_machine_meet_on_its_own_interface() -> None:
    seen = here(CARD, DOCKER)
    assert {name: pick.address for name, pick in choose(seen).picks.items()} == {
        "n1": "10.0.0.1",
        "n2": "10.0.0.1",
    }
    assert names(seen) == {"n1": "eth0", "n2": "eth0"}
    assert choose(seen).network == "10.0.0.0/24"
    assert common_networks(seen) == ({"n1": "eth0", "n2": "eth0"},)


def test_nodes_of_one_machine_without_a_network_meet_on_loopback() -> None:
    seen = here(DOCKER)
    assert {name: (pick.value, pick.address) for name, pick in choose(seen).picks.items()} == {
        "n1": ("lo", "127.0.0.1"),
        "n2": ("lo", "127.0.0.1"),
    }
    assert "this machine" in choose(seen).why


def test_nodes_of_one_machine_with_ipv6_alone_meet_on_its_own_interface() -> None:
    seen = here(*over_ipv6(1))
    assert {name: pick.address for name, pick in choose(seen).picks.items()} == {
        "n1": "fd00::1",
        "n2": "fd00::1",
    }


def test_two_machines_never_meet_on_loopback() -> None:
    one = {"net.interfaces": (BOUND,)}
    assert choose(fleet(n1=one, n2=one)).picks == {}
    assert choose(fleet(each={"transport": "local"}, n1=one, n2=one)).picks == {}
    assert (
        choose(fleet(some={"n1": HERE["n1"], "n2": HERE["n2"]}, n1=one, n2=one, n3=one)).picks == {}
    )


@pytest.mark.parametrize(
    "how",
    [{"interfaces": Interfaces("lo")}, {"env": env(NCCL_HOSTID="x", NCCL_SOCKET_IFNAME="lo")}],
)
def test_loopback_may_be_declared_for_nodes_of_one_machine_alone(how: dict[str, Any]) -> None:
    assert names(here(CARD, n1=how)) == {"n1": "lo", "n2": "eth0"}
    elsewhere = nets(n1=(CARD,), n2=(eth("eth0", "10.0.0.2/24"),))
    assert "n1" in choose(fleet(some={"n1": how}, **elsewhere)).problems


def test_nodes_of_one_machine_count_as_one_among_others() -> None:
    """Two of three are one machine.

    The network that reaches the third wins, though two have the faster one.
    """
    mine = (eth("eth0", "10.0.0.1/24", speed=1000), eth("eth1", "10.1.0.1/24", speed=400_000))
    seen = fleet(
        some={name: HERE[name] for name in ("n1", "n2")},
        **nets(n1=mine, n2=mine, n3=(other("10.0.0.3/24"),)),
    )
    assert names(seen) == {"n1": "eth0", "n2": "eth0", "n3": "eth0"}
    assert common_networks(seen) == ({"n1": "eth0", "n2": "eth0", "n3": "eth0"},)


def other(address: str) -> Interface:
    return eth("eth0", address)
