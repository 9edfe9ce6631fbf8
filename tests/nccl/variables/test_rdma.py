"""RDMA on all nodes, on none, on some, declared and not known: one answer for the whole job."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.pci import PciTree
from clusterprep.facts.rdma import RdmaDevice
from clusterprep.model import Fleet, Interfaces
from clusterprep.nccl.interfaces import Choice
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.rdma import derive
from tests.support import rails
from tests.support.fleet import absent, env, fleet, with_facts
from tests.support.fleet import rdma_device as hca
from tests.support.rails import UP

DOWN = hca("mlx5_0", active=False)
EFA = rails.hca("rdmap0s6", None, replace(UP, link_layer="Unspecified", rate=100.0, lid=None))
IWARP = replace(hca("irdma0"), iwarp=True)


def dual(name: str, first: bool = True, second: bool = True) -> RdmaDevice:
    """A device with two ports."""
    ports = tuple(
        replace(port, number=number)
        for number, active in ((1, first), (2, second))
        for port in hca(name, active).ports
    )
    return replace(hca(name), ports=ports)


def seen(*devices: Any, **options: Any) -> Fleet:
    facts = {
        f"n{n}": {"rdma.devices": mine, "pci.tree": PciTree((), {})}
        for n, mine in enumerate(devices, 1)
    }
    return fleet(**options, **facts)


def said(of: Fleet) -> list[tuple[str, str | None, tuple[str, ...]]]:
    return [(d.name, d.value, d.nodes) for d in derive(Basis(of, Choice()))]


def derived(*devices: Any, **options: Any) -> list[tuple[str, str | None, tuple[str, ...]]]:
    return said(seen(*devices, **options))


def declared(*devices: str) -> dict[str, Any]:
    return {"interfaces": Interfaces(rdma=devices)}


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        pytest.param(
            [(hca("mlx5_0"), hca("mlx5_1"))] * 2,
            [("NCCL_IB_HCA", "mlx5_0,mlx5_1", ("n1", "n2"))],
            id="on-all-nodes",
        ),
        pytest.param(
            [(hca("mlx5_0"),), (hca("mlx5_3"),)],
            [("NCCL_IB_HCA", "mlx5_0", ("n1",)), ("NCCL_IB_HCA", "mlx5_3", ("n2",))],
            id="other-devices-on-other-nodes",
        ),
        pytest.param([(), ()], [("NCCL_IB_DISABLE", "1", ("n1", "n2"))], id="on-no-node"),
        pytest.param(
            [(DOWN,), (DOWN,)],
            [("NCCL_IB_DISABLE", "1", ("n1", "n2"))],
            id="present-and-down-on-all",
        ),
        pytest.param(
            [(DOWN,), ()], [("NCCL_IB_DISABLE", "1", ("n1", "n2"))], id="present-and-down-on-one"
        ),
        pytest.param([(hca(),), ()], [], id="on-one-of-two"),
        pytest.param([(hca(),), (hca(),), ()], [], id="missing-on-one-of-three"),
        pytest.param(
            [(hca(),), (hca(),), (DOWN,)], [], id="a-share-of-a-card-down-on-one-of-three"
        ),
        pytest.param([(EFA,), (EFA,)], [], id="for-a-plug-in-on-all"),
        pytest.param([(EFA,), ()], [], id="for-a-plug-in-on-one"),
        pytest.param(
            [(IWARP,), (IWARP,)], [("NCCL_IB_DISABLE", "1", ("n1", "n2"))], id="iwarp-on-all"
        ),
    ],
)
def test_the_whole_job_uses_rdma_or_none_of_it(ports: list[Any], expected: list[Any]) -> None:
    assert derived(*ports) == expected


@pytest.mark.parametrize(
    ("ports", "value"),
    [
        pytest.param(
            (hca("mlx5_1"), hca("mlx5_10", active=False)), "=mlx5_1", id="mlx5_10-is-down"
        ),
        pytest.param((hca("mlx5_1"), hca("mlx5_10")), "mlx5_1,mlx5_10", id="both-are-used"),
        pytest.param((hca("mlx5_1"), hca("mlx5_2", active=False)), "mlx5_1", id="another-name"),
        pytest.param(
            (hca("mlx5_10"), hca("mlx5_1", active=False)), "mlx5_10", id="the-shorter-one-is-down"
        ),
        pytest.param((dual("mlx5_0", second=False),), "mlx5_0:1", id="one-of-two-ports"),
        pytest.param((dual("mlx5_0"),), "mlx5_0:1,mlx5_0:2", id="both-ports"),
        pytest.param(
            (dual("mlx5_1", second=False), dual("mlx5_10", first=False)),
            "=mlx5_1:1,mlx5_10:2",
            id="ports-of-a-prefix",
        ),
        pytest.param(
            (hca("mlx5_bond_0"), hca("mlx5_bond", active=False)),
            "mlx5_bond_0",
            id="longer-than-another",
        ),
    ],
)
def test_an_equals_sign_stands_in_front_where_a_prefix_would_take_a_device_that_is_not_used(
    ports: Any, value: str
) -> None:
    assert derived(ports)[0][1] == value


def test_a_declared_list_is_taken_in_its_order() -> None:
    found = derived(
        (hca("mlx5_0"), hca("mlx5_1"), hca("mlx5_10")), each=declared("mlx5_1", "mlx5_0")
    )
    assert found == [("NCCL_IB_HCA", "=mlx5_1,mlx5_0", ("n1",))]


def test_a_declared_list_is_exact_where_the_ports_are_not_known() -> None:
    assert derived(absent("hung"), each=declared("mlx5_0")) == [("NCCL_IB_HCA", "=mlx5_0", ("n1",))]


def test_each_value_says_why() -> None:
    of = seen((hca(),), (hca(), hca("mlx5_9", active=False)), some={"n1": declared("mlx5_0")})
    why_by_nodes = {d.nodes: d.why for d in derive(Basis(of, Choice()))}
    assert why_by_nodes.keys() == {("n1",), ("n2",)}
    assert why_by_nodes["n1",] == "declared as interfaces.rdma"
    assert why_by_nodes["n2",] == (
        "the only RDMA ports in use; left out: "
        "mlx5_9 (no PCI card of its own: software, or a share of a card)"
    )


def test_cards_far_from_any_gpu_are_left_out() -> None:
    far = rails.card("0000:f1:00.0")
    node = rails.node((*rails.hcas(), rails.hca("mlx5_4", far.at)), rails.tree(4, far))
    (found,) = derive(Basis(fleet(n1=node, n2=node), Choice()))
    assert (found.value, found.nodes) == ("mlx5_0,mlx5_1,mlx5_2,mlx5_3", ("n1", "n2"))
    assert found.why.endswith(
        "left out: mlx5_4 (no GPU under its PCIe switch, while other cards have one)"
    )


def test_a_card_that_is_down_on_one_node_is_a_fault_of_that_node() -> None:
    whole, dead = rails.node(), rails.node(rails.hcas(mlx5_1=rails.DOWN))
    assert said(fleet(n1=whole, n2=whole, n3=dead)) == [
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1,mlx5_2,mlx5_3", ("n1", "n2", "n3"))
    ]
    only = rails.node(rails.hcas(1, mlx5_0=rails.DOWN))
    assert said(fleet(n1=rails.node(rails.hcas(1)), n2=only)) == [
        ("NCCL_IB_HCA", "mlx5_0", ("n1", "n2"))
    ]


def test_a_fabric_without_its_subnet_manager_is_a_fault_and_no_reason_to_switch_rdma_off() -> None:
    waiting = rails.node(rails.hcas(2, mlx5_0=rails.INIT, mlx5_1=rails.INIT))
    assert said(fleet(n1=waiting, n2=waiting)) == [("NCCL_IB_HCA", "mlx5_0,mlx5_1", ("n1", "n2"))]


def test_two_kinds_of_ports_that_nothing_tells_apart_are_a_gap() -> None:
    ethernet = rails.hca(
        "mlx5_1", rails.nic_at(1), replace(UP, link_layer="Ethernet", lid=None), board="another"
    )
    node = rails.node((*rails.hcas(1), ethernet), rails.flat())
    (found,) = derive(Basis(fleet(n1=node), Choice()))
    assert (found.name, found.value) == ("NCCL_IB_HCA", None)
    assert "declare interfaces.rdma" in found.why


def test_where_there_is_no_device_the_bus_need_not_be_known() -> None:
    of = with_facts(seen((), ()), {("n2", "pci.tree"): absent("hung")})
    assert said(of) == [("NCCL_IB_DISABLE", "1", ("n1", "n2"))]


# ---------------------------------------------------------------- what one node declares


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({}, [("NCCL_IB_DISABLE", "1", ("n1", "n2"))], id="nothing"),
        pytest.param({"NCCL_IB_HCA": "mlx5_0"}, [], id="a-list-is-an-answer-for-all"),
        pytest.param({"NCCL_IB_DISABLE": "0"}, [], id="and-so-is-that-it-is-on"),
        pytest.param({"NCCL_IB_DISABLE": "true"}, [], id="text-is-0-for-nccl"),
        pytest.param(
            {"NCCL_IB_DISABLE": "1"},
            [("NCCL_IB_DISABLE", "1", ("n1", "n2"))],
            id="the-same-for-the-others",
        ),
        pytest.param(
            {"NCCL_IB_DISABLE": "2"},
            [("NCCL_IB_DISABLE", "1", ("n1", "n2"))],
            id="any-number-switches-off",
        ),
    ],
)
def test_whether_rdma_is_off_is_never_said_on_some_nodes_only(
    variables: dict[str, str], expected: list[Any]
) -> None:
    assert derived((), (), some={"n1": {"env": env(**variables)}}) == expected


@pytest.mark.parametrize(
    ("variables", "listed"),
    [
        ({"NCCL_IB_DISABLE": "1"}, False),
        ({"NCCL_NET": "socket"}, False),
        ({"NCCL_IB_DISABLE": "0"}, True),
        ({"NCCL_NET": "IB"}, True),
    ],
)
def test_no_list_is_written_that_nobody_would_read(variables: dict[str, str], listed: bool) -> None:
    found = derived((hca(),), (hca(),), each={"env": env(**variables)})
    assert found == ([("NCCL_IB_HCA", "mlx5_0", ("n1", "n2"))] if listed else [])


def test_a_list_in_the_environment_stands_for_ports_that_nobody_could_see() -> None:
    found = derived((hca(),), absent("hung"), some={"n2": {"env": env(NCCL_IB_HCA="mlx5_7")}})
    assert found == [("NCCL_IB_HCA", "mlx5_0", ("n1",)), ("NCCL_IB_HCA", "mlx5_7", ("n2",))]


# ---------------------------------------------------------------- declared as none


def test_declared_as_none_means_none_with_that_reason() -> None:
    (found,) = derive(Basis(seen((hca(),), (hca(),), each=declared()), Choice()))
    assert (found.name, found.value, found.nodes) == ("NCCL_IB_DISABLE", "1", ("n1", "n2"))
    assert "declared" in found.why


def test_declared_as_none_on_one_node_is_a_mix() -> None:
    assert derived((hca(),), (hca(),), some={"n2": declared()}) == []


def test_ports_that_are_not_known_are_a_gap_on_every_such_node_and_nothing_is_decided() -> None:
    found = derived((), absent("hung"), absent("hung"), absent("denied"))
    assert found == [("NCCL_IB_HCA", None, ("n2", "n3")), ("NCCL_IB_HCA", None, ("n4",))]
