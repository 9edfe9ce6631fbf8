"""NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME.

One interface, two ways to name it, and a gap where there is none.
"""

from __future__ import annotations

from clusterprep.model import Interfaces
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.sockets import derive
from tests.support.fleet import LOOPBACK, absent, env, eth, fleet


def derived(seen):
    return {
        (d.name, node): (d.value, d.why)
        for d in derive(Basis(seen, choose(seen)))
        for node in d.nodes
    }


def test_variables_of_nccl_and_gloo_name_the_chosen_interface() -> None:
    seen = fleet(
        n1={"net.interfaces": (eth("eth0", "10.0.0.1/24"),)},
        n2={"net.interfaces": (eth("ens34", "10.0.0.2/24"),)},
    )
    found = derived(seen)
    assert {key: value for key, (value, _) in found.items()} == {
        ("NCCL_SOCKET_IFNAME", "n1"): "eth0",
        ("NCCL_SOCKET_IFNAME", "n2"): "ens34",
        ("GLOO_SOCKET_IFNAME", "n1"): "eth0",
        ("GLOO_SOCKET_IFNAME", "n2"): "ens34",
    }
    assert "reaches all nodes" in found["NCCL_SOCKET_IFNAME", "n1"][1]


def test_gloo_knows_no_equals_sign() -> None:
    seen = fleet(n1={"net.interfaces": (eth("eth1", "10.0.0.1/24"), eth("eth10"))})
    found = derived(seen)
    assert found["NCCL_SOCKET_IFNAME", "n1"][0] == "=eth1"
    assert "same letters" in found["NCCL_SOCKET_IFNAME", "n1"][1]
    assert found["GLOO_SOCKET_IFNAME", "n1"][0] == "eth1"


def test_each_node_has_its_own_reason() -> None:
    one = {"net.interfaces": (eth("eth0", "10.0.0.1/24"),)}
    seen = fleet(
        some={"n1": {"interfaces": Interfaces(nccl="eth0")}},
        n1=one,
        n2={"net.interfaces": (eth("eth0", "10.0.0.2/24"),)},
    )
    found = derived(seen)
    assert found["NCCL_SOCKET_IFNAME", "n1"] == ("eth0", "declared as interfaces.nccl")
    assert "reaches all nodes" in found["NCCL_SOCKET_IFNAME", "n2"][1]


def test_no_interface_is_a_gap_with_its_reason() -> None:
    seen = fleet(
        n1={"net.interfaces": (eth("eth0", "10.0.0.1/24"),)},
        n2={"net.interfaces": (LOOPBACK,)},
        n3={"net.interfaces": absent("hung", "netlink")},
    )
    found = derived(seen)
    assert found["NCCL_SOCKET_IFNAME", "n2"] == (None, "no interface is up with a global address")
    assert found["GLOO_SOCKET_IFNAME", "n3"] == (None, "hung: netlink")


def test_gloo_follows_the_variable_that_the_inventory_sets_for_nccl() -> None:
    two = {"net.interfaces": (eth("eth0", "10.0.0.1/24"), eth("eth1", "10.1.0.1/24", speed=1))}
    for value in ("eth1", "=eth1"):
        found = derived(fleet(some={"n1": {"env": env(NCCL_SOCKET_IFNAME=value)}}, n1=two))
        assert found["NCCL_SOCKET_IFNAME", "n1"] == (value, "declared as NCCL_SOCKET_IFNAME")
        assert found["GLOO_SOCKET_IFNAME", "n1"][0] == "eth1"


def test_gloo_has_no_interface_where_the_variable_names_none() -> None:
    seen = fleet(
        some={"n1": {"env": env(NCCL_SOCKET_IFNAME="eth9")}},
        n1={"net.interfaces": (eth("eth0", "10.0.0.1/24"),)},
    )
    value, why = derived(seen)["GLOO_SOCKET_IFNAME", "n1"]
    assert value is None
    assert why.startswith("NCCL_SOCKET_IFNAME=eth9 matches no interface")
