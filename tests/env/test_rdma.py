"""RDMA on all nodes, on none, on some, declared and not known: one answer for the whole job."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.env import Basis
from clusterprep.env.rdma import derive
from clusterprep.model import Interfaces
from clusterprep.network import Choice
from tests.fleet import absent, fleet, hca, same

DOWN = hca("mlx5_0", active=False)


def derived(*ports: Any, **options: Any) -> list[tuple[str, str | None, tuple[str, ...]]]:
    seen = fleet(**options, **same("rdma.ports", *ports))
    return [(d.name, d.value, d.nodes) for d in derive(Basis(seen, Choice()))]


def declared(*devices: str) -> dict[str, Any]:
    return {"interfaces": Interfaces(rdma=devices)}


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        pytest.param(
            [(hca("mlx5_0"), hca("mlx5_1"))] * 2, [("NCCL_IB_HCA", "mlx5_0,mlx5_1", ("n1", "n2"))], id="on-all-nodes"
        ),
        pytest.param(
            [(hca("mlx5_0"),), (hca("mlx5_3"),)],
            [("NCCL_IB_HCA", "mlx5_0", ("n1",)), ("NCCL_IB_HCA", "mlx5_3", ("n2",))],
            id="other-devices-on-other-nodes",
        ),
        pytest.param([(), ()], [("NCCL_IB_DISABLE", "1", ("n1", "n2"))], id="on-no-node"),
        pytest.param([(DOWN,), (DOWN,)], [("NCCL_IB_DISABLE", "1", ("n1", "n2"))], id="present-and-down-on-all"),
        pytest.param([(DOWN,), ()], [("NCCL_IB_DISABLE", "1", ("n1", "n2"))], id="present-and-down-on-one"),
        pytest.param([(hca(),), ()], [], id="on-one-of-two"),
        pytest.param([(hca(),), (hca(),), (DOWN,)], [], id="down-on-one-of-three"),
    ],
)
def test_the_whole_job_uses_rdma_or_none_of_it(ports: list[Any], expected: list[Any]) -> None:
    assert derived(*ports) == expected


@pytest.mark.parametrize(
    ("ports", "value"),
    [
        pytest.param((hca("mlx5_1"), hca("mlx5_10", active=False)), "=mlx5_1", id="mlx5_10-is-down"),
        pytest.param((hca("mlx5_1"), hca("mlx5_10")), "mlx5_1,mlx5_10", id="both-are-used"),
        pytest.param((hca("mlx5_1"), hca("mlx5_2", active=False)), "mlx5_1", id="another-name"),
        pytest.param((hca("mlx5_10"), hca("mlx5_1", active=False)), "mlx5_10", id="the-shorter-one-is-down"),
    ],
)
def test_an_equals_sign_stands_in_front_where_a_prefix_would_take_a_device_that_is_not_used(
    ports: Any, value: str
) -> None:
    assert derived(ports)[0][1] == value


def test_a_declared_list_is_taken_in_its_order() -> None:
    found = derived((hca("mlx5_0"), hca("mlx5_1"), hca("mlx5_10")), each=declared("mlx5_1", "mlx5_0"))
    assert found == [("NCCL_IB_HCA", "=mlx5_1,mlx5_0", ("n1",))]


def test_a_declared_list_is_exact_where_nobody_could_look_at_the_ports() -> None:
    assert derived(absent("hung"), each=declared("mlx5_0")) == [("NCCL_IB_HCA", "=mlx5_0", ("n1",))]


def test_each_value_says_whether_it_was_declared() -> None:
    seen = fleet(some={"n1": declared("mlx5_0")}, **same("rdma.ports", (hca(),), (hca(),)))
    assert {d.nodes: d.why for d in derive(Basis(seen, Choice()))} == {
        ("n1",): "declared as interfaces.rdma",
        ("n2",): "the devices with an active port",
    }


def test_declared_as_none_means_none_with_that_reason() -> None:
    seen = fleet(each=declared(), **same("rdma.ports", (hca(),), (hca(),)))
    (found,) = derive(Basis(seen, Choice()))
    assert (found.name, found.value, found.nodes) == ("NCCL_IB_DISABLE", "1", ("n1", "n2"))
    assert "declared" in found.why


def test_declared_as_none_on_one_node_is_a_mix() -> None:
    assert derived((hca(),), (hca(),), some={"n2": declared()}) == []


def test_ports_that_are_not_known_are_a_gap_on_every_such_node_and_nothing_is_decided() -> None:
    found = derived((), absent("hung"), absent("hung"), absent("denied"))
    assert found == [("NCCL_IB_HCA", None, ("n2", "n3")), ("NCCL_IB_HCA", None, ("n4",))]
