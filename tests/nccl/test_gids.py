"""Which entry of a port's GID table NCCL takes, and which one leads to other nodes.

The tables are those of real machines, as show_gids or ibv_devinfo printed them; the sources are
with each. What NCCL takes was compared with ncclIbGetGidIndex of its release 2.30.7, compiled by
itself.
"""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from msgspec.structs import replace

from clusterprep.facts.rdma import Gid, Port
from clusterprep.nccl.gids import (
    addresses_of,
    entry_taken,
    gid_rules,
    leads_to_others,
    roce_family,
    usable_gid,
)
from tests.support.fleet import absent, env, eth, fleet
from tests.support.rails import hca, nic_at, node

# A worker with ConnectX-7 at DigitalOcean, a fabric of IPv6 alone with a network for each port.
IPV6_FABRIC = """
0 fe80:0000:0000:0000:4cbb:47ff:fe67:f96a v1 fabric0
1 fe80:0000:0000:0000:4cbb:47ff:fe67:f96a v2 fabric0
2 fd02:0000:0000:0058:0000:0000:0000:0001 v1 fabric0
3 fd02:0000:0000:0058:0000:0000:0000:0001 v2 fabric0
"""
# github.com/IBM/SpectrumScale_NETWORK_READINESS/pull/4: two link-local addresses.
TWO_LINK_LOCAL = """
0 fe80:0000:0000:0000:0e42:a1ff:fe5d:4db8 v1 ens1f0
1 fe80:0000:0000:0000:0e42:a1ff:fe5d:4db8 v2 ens1f0
2 fe80:0000:0000:0000:1186:a6b1:3f0b:c441 v1 ens1f0
3 fe80:0000:0000:0000:1186:a6b1:3f0b:c441 v2 ens1f0
4 0000:0000:0000:0000:0000:ffff:ac13:003c v1 ens1f0
5 0000:0000:0000:0000:0000:ffff:ac13:003c v2 ens1f0
"""
# github.com/NVIDIA/nccl/issues/1573: a pod, whose first entries are those of another namespace.
POD = """
4 fe80:0000:0000:0000:a4ed:ccff:fe8b:1994 v1 net1
5 fe80:0000:0000:0000:a4ed:ccff:fe8b:1994 v2 net1
6 0000:0000:0000:0000:0000:ffff:0a98:000c v1 net1
7 0000:0000:0000:0000:0000:ffff:0a98:000c v2 net1
"""
# A bond of Huawei's hiroce3, which has no RoCE v1.
WITHOUT_V1 = """
0 fe80:0000:0000:0000:aedc:caff:fe6c:9312 v2 bond0
1 0000:0000:0000:0000:0000:ffff:1b69:b403 v2 bond0
"""
# A ConnectX-5 whose interface has no address but its link-local one.
LINK_LOCAL_ALONE = """
0 fe80:0000:0000:0000:0e42:a1ff:fe2d:9c3b v1 enp4s0f1
1 fe80:0000:0000:0000:0e42:a1ff:fe2d:9c3b v2 enp4s0f1
"""
KINDS = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}  # as gid_attrs/types has them


def port_of(table: str) -> Port:
    gids = []
    for line in table.split("\n"):
        if line:
            index, address, version, interface = line.split()
            gids.append(Gid(int(index), IPv6Address(address), KINDS[version], interface))
    return Port(1, "ACTIVE", "LinkUp", "Ethernet", 400.0, None, tuple(gids))


@pytest.mark.parametrize(
    ("table", "variables", "index", "leads"),
    [
        pytest.param(IPV6_FABRIC, {}, 0, False, id="ipv6-alone-and-nothing-set"),
        pytest.param(IPV6_FABRIC, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 3, True, id="ipv6"),
        pytest.param(
            IPV6_FABRIC, {"NCCL_IB_ADDR_FAMILY": "inet6"}, 0, False, id="a-family-nccl-knows-not"
        ),
        pytest.param(
            IPV6_FABRIC,
            {"NCCL_IB_ADDR_FAMILY": "AF_INET6", "NCCL_IB_ADDR_RANGE": "fd02::/16"},
            3,
            True,
            id="in-the-range",
        ),
        pytest.param(
            IPV6_FABRIC,
            {"NCCL_IB_ADDR_FAMILY": "AF_INET6", "NCCL_IB_ADDR_RANGE": "2001:db8::/32"},
            0,
            False,
            id="not-in-the-range",
        ),
        pytest.param(
            IPV6_FABRIC,
            {"NCCL_IB_ADDR_FAMILY": "AF_INET6", "NCCL_IB_ADDR_RANGE": "10.0.0.0/8"},
            3,
            True,
            id="a-range-of-the-other-family-is-ignored",
        ),
        pytest.param(
            IPV6_FABRIC,
            {"NCCL_IB_ADDR_FAMILY": "AF_INET6", "NCCL_IB_ROCE_VERSION_NUM": "1"},
            2,
            True,
            id="version-1",
        ),
        pytest.param(IPV6_FABRIC, {"NCCL_IB_GID_INDEX": "3"}, 3, False, id="index-3-is-not-ipv4"),
        pytest.param(TWO_LINK_LOCAL, {}, 5, True, id="two-link-local-addresses"),
        pytest.param(
            TWO_LINK_LOCAL, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 0, False, id="no-global-ipv6"
        ),
        pytest.param(TWO_LINK_LOCAL, {"NCCL_IB_GID_INDEX": "3"}, 3, False, id="index-3-is-no-rule"),
        pytest.param(TWO_LINK_LOCAL, {"NCCL_IB_GID_INDEX": "-1"}, 5, True, id="index-by-itself"),
        pytest.param(TWO_LINK_LOCAL, {"NCCL_IB_GID_INDEX": ""}, 5, True, id="index-empty"),
        pytest.param(POD, {}, 7, True, id="a-pod"),
        pytest.param(POD, {"NCCL_IB_ADDR_RANGE": "10.152.0.0/24"}, 7, True, id="a-pod-in-range"),
        pytest.param(POD, {"NCCL_IB_ADDR_RANGE": "10.152.4.0/24"}, 0, False, id="a-pod-out-of-it"),
        pytest.param(WITHOUT_V1, {}, 1, True, id="no-roce-v1"),
        pytest.param(LINK_LOCAL_ALONE, {}, 0, False, id="link-local-alone"),
        pytest.param(
            LINK_LOCAL_ALONE, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 0, False, id="link-local-ipv6"
        ),
    ],
)
def test_the_entry_that_nccl_takes(
    table: str, variables: dict[str, str], index: int, leads: bool
) -> None:
    rules = gid_rules(variables)
    entry = entry_taken(port_of(table), rules)
    assert entry.index == index
    assert leads_to_others(entry, rules) is leads


def test_an_entry_counts_if_its_interface_has_the_address() -> None:
    port = port_of(IPV6_FABRIC)
    held = addresses_of((eth("fabric0", ipv6=("fd02:0:0:58::1/64",)),))
    found = usable_gid(port, held, "AF_INET6")
    assert found is not None
    assert found.index == 3
    assert usable_gid(port, held) is None
    assert usable_gid(port, addresses_of((eth("fabric0"),)), "AF_INET6") is None


def machine(table: str, *interfaces: object) -> dict[str, object]:
    card = hca("mlx5_0", nic_at(0), port_of(table), interfaces=("fabric0",))
    return {**node((card,)), "net.interfaces": interfaces}


FABRIC0 = eth("fabric0", ipv6=("fd02:0:0:58::1/64",))


def test_the_fabric_is_ipv6_where_no_port_has_ipv4() -> None:
    ipv6 = machine(IPV6_FABRIC, FABRIC0)
    ipv4 = machine(TWO_LINK_LOCAL, eth("ens1f0", "172.19.0.60/24"))
    assert roce_family(fleet(n1=ipv6, n2=ipv6)) == "AF_INET6"
    assert roce_family(fleet(n1=ipv4, n2=ipv4)) == "AF_INET"
    assert roce_family(fleet(n1=ipv6, n2=ipv4)) == "AF_INET"


def test_the_fabric_is_ipv6_where_that_is_declared_for_a_node() -> None:
    ipv4 = machine(TWO_LINK_LOCAL, eth("ens1f0", "172.19.0.60/24"))
    declared = {"n2": {"env": env(NCCL_IB_ADDR_FAMILY="AF_INET6")}}
    assert roce_family(fleet(some=declared, n1=ipv4, n2=ipv4)) == "AF_INET6"


def test_what_is_not_known_makes_no_fabric_ipv6() -> None:
    unknown = {**machine(IPV6_FABRIC), "net.interfaces": absent("denied")}
    unseen = {**machine(IPV6_FABRIC, FABRIC0), "rdma.devices": absent("denied")}
    down = machine(IPV6_FABRIC, FABRIC0)
    (card,) = down["rdma.devices"]  # type: ignore[misc]
    (port,) = card.ports
    down["rdma.devices"] = (replace(card, ports=(replace(port, state="DOWN"),)),)
    for facts in (unknown, unseen, down):
        assert roce_family(fleet(n1=facts)) == "AF_INET"
