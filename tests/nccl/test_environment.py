"""The environment: what is derived, what is declared over it, and what cannot be known."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.model import EnvSetting, Fleet, Gpus
from clusterprep.nccl.environment import Environment, render
from tests.support.fleet import absent, env, fleet, healthy, silent, with_facts


def values(environment: Environment, node: str) -> dict[str, str]:
    return {name: value.value for name, value in environment.of(node).items()}


def with_env(seen: Fleet, **nodes: dict[str, EnvSetting]) -> Fleet:
    return fleet(
        each={"gpus": Gpus(8)},
        some={name: {"env": declared} for name, declared in nodes.items()},
        **{name: snapshot.facts for name, snapshot in seen.snapshots.items()},
    )


def test_a_healthy_fleet_has_one_environment() -> None:
    environment = render(healthy())
    assert environment.gaps == {}
    assert {tuple(values(environment, node).items()) for node in ("n1", "n2", "n3", "n4")} == {
        (
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            ("GLOO_SOCKET_IFNAME", "eth0"),
            ("NCCL_DEBUG", "WARN"),
            ("NCCL_IB_HCA", "mlx5_0,mlx5_1"),
            ("NCCL_SOCKET_IFNAME", "eth0"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        )
    }
    assert all(value.why for value in environment.values)


def test_what_is_declared_wins_over_what_is_derived_and_says_where() -> None:
    seen = with_env(
        healthy(2), n1=env(NCCL_DEBUG="INFO"), n2={"NCCL_DEBUG": EnvSetting("TRACE", "node n2")}
    )
    environment = render(seen)
    assert values(environment, "n1")["NCCL_DEBUG"] == "INFO"
    assert values(environment, "n2")["NCCL_DEBUG"] == "TRACE"
    assert environment.of("n1")["NCCL_DEBUG"].why == "declared under env"
    assert environment.of("n2")["NCCL_DEBUG"].why == "declared under node n2"
    assert all(value.declared for value in environment.values if value.name == "NCCL_DEBUG")


def test_a_name_appears_once_per_node() -> None:
    environment = render(with_env(healthy(), n1=env(NCCL_DEBUG="INFO", NCCL_IB_TC="106")))
    for node in ("n1", "n2"):
        names = [value.name for value in environment.values if node in value.nodes]
        assert len(names) == len(set(names))


def test_a_declared_device_list_also_answers_whether_to_use_rdma() -> None:
    seen = with_facts(healthy(2), {(node, "rdma.devices"): () for node in ("n1", "n2")})
    assert values(render(seen), "n1")["NCCL_IB_DISABLE"] == "1"
    for name, value in (("NCCL_IB_HCA", "mlx5_0"), ("NCCL_IB_DISABLE", "0")):
        found = values(
            render(with_env(seen, n1=env(**{name: value}), n2=env(**{name: value}))), "n1"
        )
        assert found[name] == value
        assert found.get("NCCL_IB_DISABLE", "0") == "0"


def test_rdma_on_some_nodes_only_writes_neither_variable_anywhere() -> None:
    environment = render(with_facts(healthy(), {("n3", "rdma.devices"): ()}))
    assert not [value for value in environment.values if value.name.startswith("NCCL_IB_")]
    assert environment.gaps == {}


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        pytest.param("net.interfaces", "NCCL_SOCKET_IFNAME: denied", id="interfaces"),
        pytest.param("rdma.devices", "NCCL_IB_HCA: RDMA ports are not known: denied", id="rdma"),
    ],
)
def test_what_cannot_be_derived_is_a_gap_of_that_node_with_its_reason(
    fact: str, words: str
) -> None:
    environment = render(with_facts(healthy(), {("n3", fact): absent()}))
    assert set(environment.gaps) == {"n3"}
    assert environment.gaps["n3"].startswith(words)


def test_what_is_declared_leaves_no_gap() -> None:
    said = env(NCCL_SOCKET_IFNAME="eth7", GLOO_SOCKET_IFNAME="eth7")
    seen = with_facts(with_env(healthy(2), n2=said), {("n2", "net.interfaces"): absent()})
    environment = render(seen)
    assert environment.gaps == {}
    assert values(environment, "n2")["NCCL_SOCKET_IFNAME"] == "eth7"


def test_a_gap_remains_where_only_half_is_declared() -> None:
    seen = with_facts(
        with_env(healthy(2), n2=env(NCCL_SOCKET_IFNAME="eth7")),
        {("n2", "net.interfaces"): absent()},
    )
    assert render(seen).gaps["n2"].startswith("GLOO_SOCKET_IFNAME")


def test_a_node_that_was_not_reached_has_no_environment() -> None:
    facts: dict[str, Any] = {
        name: snapshot.facts for name, snapshot in healthy(2).snapshots.items()
    }
    environment = render(fleet(each={"env": env(NCCL_IB_TC="106")}, **facts, n3=silent("n3")))
    assert environment.of("n3") == {}
    assert "n3" not in environment.gaps


def test_variables_of_a_node_are_sorted() -> None:
    found = list(render(with_env(healthy(1), n1=env(ZZZ="1", AAA="2"))).of("n1"))
    assert found == sorted(found)
