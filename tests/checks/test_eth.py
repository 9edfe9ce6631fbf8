"""The NCCL interface and its MTU: which nodes fail, how severely, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.model import Interfaces
from tests.support.fleet import (
    LOOPBACK,
    absent,
    env,
    eth,
    findings,
    fleet,
    rdma_device,
    silent,
    told,
)
from tests.support.rails import roce

NO_CHOICE = "unknown warning eth.iface_choice"
TOO_FEW = "unknown warning fewer than two nodes have a value to compare"


def net(number: int, mtu: int = 1500, ports: Any = (), name: str = "eth0") -> dict[str, Any]:
    return {
        "net.interfaces": (LOOPBACK, eth(name, f"10.0.0.{number}/24", mtu=mtu)),
        "rdma.devices": ports,
    }


def mtus(*values: int, **options: Any) -> Any:
    return fleet(
        **options, **{f"n{number}": net(number, value) for number, value in enumerate(values, 1)}
    )


# ---------------------------------------------------------------- the interface


@pytest.mark.parametrize("check", ["eth.iface_choice", "eth.mtu"])
def test_ipv6_alone_is_judged_like_ipv4(check: str) -> None:
    def facts(number: int) -> dict[str, Any]:
        own = eth("eth0", ipv6=(f"fd00::{number}/64",))
        return {"net.interfaces": (LOOPBACK, own), "rdma.devices": ()}

    assert told(fleet(n1=facts(1), n2=facts(2)), check) == {"n1": "pass", "n2": "pass"}


def test_a_link_local_address_alone_fails_with_the_reason() -> None:
    facts = {"net.interfaces": (LOOPBACK, eth("eth0", link_local="fe80::1/64"))}
    (found,) = findings(fleet(n1=facts, n2=facts), "eth.iface_choice")
    assert (found.verdict, found.nodes) == ("fail", ("n1", "n2"))
    assert "eth0 fe80::1, which is link-local" in found.seen


def in_families(*families: str, declared: str = "") -> Any:
    """The findings on nodes of which each has addresses of one family, «4» or «6»."""
    facts: dict[str, Any] = {}
    for number, family in enumerate(families, 1):
        own = eth("eth0", f"10.0.0.{number}/24")
        if family == "6":
            own = eth("eth0", ipv6=(f"fd00::{number}/64",))
        facts[f"n{number}"] = {"net.interfaces": (LOOPBACK, own)}
    settings = env(NCCL_SOCKET_FAMILY=declared) if declared else env()
    return findings(fleet(each={"env": settings}, **facts), "eth.iface_choice")


@pytest.mark.parametrize(
    ("families", "blamed", "message", "wanted"),
    [
        pytest.param("4466", ("n3", "n4"), "no IPv4 address", "10.0.0.0/24", id="as-many-of-each"),
        pytest.param("44466", ("n4", "n5"), "no IPv4 address", "10.0.0.0/24", id="few-of-ipv6"),
        pytest.param("46664", ("n1", "n5"), "no IPv6 address", "fd00::/64", id="few-of-ipv4"),
    ],
)
def test_nodes_of_another_family_than_the_others_are_one_finding(
    families: str, blamed: tuple[str, ...], message: str, wanted: str
) -> None:
    (bad,) = [found for found in in_families(*families) if found.verdict == "fail"]
    assert bad.nodes == blamed
    assert bad.message.startswith(message)
    assert bad.wanted.endswith(f"address in {wanted}")
    assert bad.seen.endswith("and the same on 1 other node")
    assert "a job speaks one of the two" in bad.remedy


def test_a_declared_family_that_no_node_has_is_to_be_taken_out() -> None:
    (bad,) = in_families("6", "6", declared="AF_INET")
    assert (bad.verdict, bad.nodes) == ("fail", ("n1", "n2"))
    assert "NCCL_SOCKET_FAMILY" in bad.remedy


def test_a_node_with_the_address_of_another_one_gets_one_of_its_own() -> None:
    nodes = {
        f"n{number}": {"net.interfaces": (eth("eth0", ipv6=(f"fd00::{number}/64",)),)}
        for number in (1, 2)
    }
    taken = eth("eth0", link_local="fe80::3/64", duplicates=("fd00::1/64",))
    seen = fleet(**nodes, n3={"net.interfaces": (taken,)})
    (bad,) = [found for found in findings(seen, "eth.iface_choice") if found.verdict == "fail"]
    assert bad.nodes == ("n3",)
    assert "fd00::1/64, which another machine has too" in bad.seen
    assert "an address that no other machine has" in bad.remedy


def test_one_reason_on_several_nodes_is_one_finding() -> None:
    """Their addresses differ, and the reason is the same."""
    far = {number: eth("eth0", f"192.168.7.{number}/24") for number in (4, 5)}
    nodes = {f"n{number}": {"net.interfaces": (LOOPBACK, own)} for number, own in far.items()}
    seen = fleet(n1=net(1), n2=net(2), n3=net(3), **nodes)
    (bad,) = [found for found in findings(seen, "eth.iface_choice") if found.verdict == "fail"]
    assert bad.nodes == ("n4", "n5")
    assert bad.seen == (
        "n4: no interface in 10.0.0.0/24 (there is: eth0 192.168.7.4/24); "
        "and the same on 1 other node"
    )


def test_one_network_on_all_nodes_passes_with_its_reason() -> None:
    (found,) = findings(mtus(1500, 1500, 1500), "eth.iface_choice")
    assert (found.verdict, found.nodes, found.seen, found.wanted) == (
        "pass",
        ("n1", "n2", "n3"),
        "eth0",
        "10.0.0.0/24",
    )
    assert "reaches all nodes" in found.message


def test_names_may_differ_where_the_network_does_not() -> None:
    seen = fleet(n1=net(1), n2=net(2, name="ens34"), n3=net(3))
    assert told(seen, "eth.iface_choice") == {"n1": "pass", "n2": "pass", "n3": "pass"}
    assert {(f.seen, f.nodes) for f in findings(seen, "eth.iface_choice")} == {
        ("eth0", ("n1", "n3")), ("ens34", ("n2",))
    }  # fmt: skip


@pytest.mark.parametrize(
    ("interfaces", "words"),
    [
        pytest.param((), "no interface is up", id="none"),
        pytest.param((LOOPBACK,), "no interface is up", id="only-loopback"),
        pytest.param((eth("eth0", "10.0.0.2/24", up=False),), "no interface is up", id="down"),
        pytest.param(
            (eth("eth0", "10.0.0.2/24", running=False),), "no interface is up", id="no-carrier"
        ),
        pytest.param((eth("eth0"),), "no interface is up", id="no-address"),
        pytest.param(
            (eth("eth0", "192.168.7.2/24"),), "no interface in 10.0.0.0/24", id="another-network"
        ),
    ],
)
def test_a_node_without_a_usable_interface_is_blamed_alone(interfaces: Any, words: str) -> None:
    seen = fleet(n1=net(1), n2={"net.interfaces": interfaces}, n3=net(3))
    assert told(seen, "eth.iface_choice") == {"n1": "pass", "n2": "fail error", "n3": "pass"}
    (bad,) = [f for f in findings(seen, "eth.iface_choice") if f.verdict == "fail"]
    assert words in bad.seen
    assert "interfaces" in bad.remedy


@pytest.mark.parametrize("declared", ["eth0", "eth7"])
def test_a_declared_interface_must_be_there(declared: str) -> None:
    seen = fleet(
        some={"n2": {"interfaces": Interfaces(nccl=declared)}}, n1=net(1), n2=net(2), n3=net(3)
    )
    expected = "pass" if declared == "eth0" else "fail error"
    assert told(seen, "eth.iface_choice") == {"n1": "pass", "n2": expected, "n3": "pass"}


def test_a_node_whose_interfaces_are_not_known_is_unknown() -> None:
    seen = fleet(n1=net(1), n2={"net.interfaces": absent("timed_out")}, n3=net(3))
    assert told(seen, "eth.iface_choice") == {
        "n1": "pass",
        "n2": "unknown error timed_out",
        "n3": "pass",
    }


def test_a_single_machine_without_a_network_uses_loopback() -> None:
    assert told(fleet(n1={"net.interfaces": (LOOPBACK,)}), "eth.iface_choice") == {"n1": "pass"}


def test_the_only_node_that_answers_is_not_a_single_machine() -> None:
    seen = fleet(n1={"net.interfaces": (LOOPBACK,)}, n2=silent("n2"))
    assert told(seen, "eth.iface_choice") == {"n1": "fail error"}


# ---------------------------------------------------------------- its MTU


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([9000] * 3, ["pass"] * 3, id="equal"),
        pytest.param([1500, 1400, 1500], ["pass", "fail warning", "pass"], id="one-odd"),
        pytest.param([9000, 1500], ["fail warning"] * 2, id="two-nodes"),
        pytest.param([9000, 9000, 1500, 1500], ["fail warning"] * 4, id="two-against-two"),
        pytest.param([1500], ["skip not_applicable"], id="one-node"),
    ],
)
def test_the_mtu_is_equal_on_all_nodes(values: list[int], expected: list[str]) -> None:
    assert list(told(mtus(*values), "eth.mtu").values()) == expected


def test_the_cure_names_the_interface_of_the_odd_node() -> None:
    seen = fleet(n1=net(1, 9000), n2=net(2, 1500, name="ens34"), n3=net(3, 9000))
    (bad,) = [f for f in findings(seen, "eth.mtu") if f.verdict == "fail"]
    assert bad.remedy.startswith("ip link set dev ens34 mtu 9000")


def test_without_a_majority_no_mtu_is_offered_as_the_right_one() -> None:
    (bad,) = findings(mtus(9000, 1500), "eth.mtu")
    assert bad.wanted == "equal on all nodes"
    assert bad.remedy == (
        "choose one MTU for eth0 of all nodes: 9000 if the switches carry it, else 1500"
    )
    assert bad.fix is None


@pytest.mark.parametrize(
    ("ports", "settings", "grade"),
    [
        pytest.param((), {}, "warning", id="sockets-only"),
        pytest.param((rdma_device(),), {}, "error", id="rdma-on-one-of-them"),
        pytest.param((), {"interfaces": Interfaces(rdma=("mlx5_0",))}, "error", id="rdma-declared"),
    ],
)
def test_a_difference_is_an_error_where_rdma_is(
    ports: Any, settings: dict[str, Any], grade: str
) -> None:
    seen = fleet(each=settings, n1=net(1), n2=net(2, 1400), n3=net(3, ports=ports))
    assert told(seen, "eth.mtu") == {"n1": "pass", "n2": f"fail {grade}", "n3": "pass"}


def test_rdma_counts_also_on_a_node_whose_interfaces_are_not_known() -> None:
    blind = {"net.interfaces": absent(), "rdma.devices": (rdma_device(),)}
    seen = fleet(n1=net(1), n2=net(2, 1400), n3=net(3), n4=blind)
    assert told(seen, "eth.mtu") == {
        "n1": "pass", "n2": "fail error", "n3": "pass", "n4": "unknown error denied"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([9000, 9000, 9000], ["pass"] * 3, id="as-required"),
        pytest.param(
            [1500, 1500, 9000], ["fail error", "fail error", "pass"], id="the-majority-is-wrong"
        ),
        pytest.param([1500], ["fail error"], id="one-node"),
        pytest.param(
            [9001, 8999, 9000], ["fail error", "fail error", "pass"], id="more-is-wrong-too"
        ),
    ],
)
def test_a_required_mtu_is_exact_and_an_error(values: list[int], expected: list[str]) -> None:
    assert (
        list(told(mtus(*values, each={"require": {"eth.mtu": "9000"}}), "eth.mtu").values())
        == expected
    )


def test_a_node_without_a_choice_has_no_mtu_to_judge() -> None:
    seen = fleet(n1=net(1), n2={"net.interfaces": (LOOPBACK,), "rdma.devices": ()}, n3=net(3))
    assert told(seen, "eth.mtu") == {"n1": "pass", "n2": NO_CHOICE, "n3": "pass"}


@pytest.mark.parametrize(
    ("missing", "grade"),
    [
        pytest.param("net.interfaces", "warning", id="interfaces"),
        pytest.param("rdma.devices", "error", id="rdma"),
    ],
)
def test_not_knowing_is_as_grave_as_failing_would_be(missing: str, grade: str) -> None:
    seen = fleet(n1=net(1), n2={**net(2), missing: absent("hung")}, n3=net(3))
    assert told(seen, "eth.mtu") == {"n1": "pass", "n2": f"unknown {grade} hung", "n3": "pass"}


def test_one_mtu_of_two_nodes_is_not_known_to_be_equal() -> None:
    assert told(fleet(n1=net(1), n2=silent("n2")), "eth.mtu") == {"n1": TOO_FEW}


# ---------------------------------------------------------------- the floor of RoCE


def roce_node(number: int, mtu: int, **fields: Any) -> dict[str, Any]:
    """A RoCE node whose first rail's interface has this MTU, the others 9000."""
    facts = roce(number)
    interfaces = [replace(i, mtu=9000) for i in facts["net.interfaces"]]
    interfaces[0] = replace(interfaces[0], mtu=mtu)
    front = eth("eth0", f"10.0.0.{number}/16", mtu=1500)
    return {**facts, "net.interfaces": (front, *interfaces), **fields}


@pytest.mark.parametrize(
    ("mtu", "expected"),
    [(9000, "pass"), (4200, "pass"), (4199, "fail warning"), (1500, "fail warning")],
)
def test_interfaces_of_roce_ports_have_a_floor(mtu: int, expected: str) -> None:
    seen = fleet(n1=roce_node(1, 9000), n2=roce_node(2, mtu), n3=roce_node(3, 9000))
    assert told(seen, "eth.mtu") == {"n1": "pass", "n2": expected, "n3": "pass"}


def test_roce_ports_that_the_job_does_not_use_have_no_floor() -> None:
    nodes = {"n1": roce_node(1, 1500), "n2": roce_node(2, 1500)}
    others = {"interfaces": Interfaces(rdma=("mlx5_1", "mlx5_2"))}
    assert told(fleet(each=others, **nodes), "eth.mtu") == {"n1": "pass", "n2": "pass"}
    without = {"env": env(NCCL_IB_DISABLE="1")}
    assert told(fleet(each=without, **nodes), "eth.mtu") == {"n1": "pass", "n2": "pass"}


def test_roce_ports_of_which_it_is_not_known_whether_the_job_uses_them() -> None:
    lost = roce_node(2, 9000, **{"pci.tree": absent("hung")})
    seen = fleet(n1=roce_node(1, 9000), n2=lost, n3=roce_node(3, 9000))
    assert told(seen, "eth.mtu")["n2"] == "unknown warning hung"
