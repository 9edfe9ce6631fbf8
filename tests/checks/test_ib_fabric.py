"""Subnet managers, partitions and GUIDs: what is right, what is not, and what cannot be known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.ib_fabric import FabricDevice, FabricPort
from tests.support.fleet import absent, env, findings, fleet, told
from tests.support.rails import UP, hcas, node

SUBNET = "fe80:0000:0000:0000"
OTHER = "fec0:0000:0000:0001"


def fabric(number: int = 1, count: int = 4, **ports: Any) -> dict[str, FabricDevice]:
    """The devices of `hcas`; `ports` has fields of single ones, by the device's name."""
    devices = {}
    for rail in range(count):
        name, guid = f"mlx5_{rail}", f"a088:c203:{number:04x}:{rail:04x}"
        port = replace(FabricPort(1, SUBNET, guid, {0: 0xFFFF}), **ports.get(name, {}))
        devices[name] = FabricDevice(guid, {1: port})
    return devices


def seen(*fabrics: Any, each: Any = None, **facts: Any) -> Any:
    nodes = {f"n{n}": node(**{"ib.fabric": f}, **facts) for n, f in enumerate(fabrics, 1)}
    return fleet(each=each, **nodes)


def three(check: str, **ports: Any) -> dict[str, str]:
    return told(seen(fabric(1), fabric(2, **ports), fabric(3)), check)


GOOD = {"n1": "pass", "n2": "pass", "n3": "pass"}
BAD = {"n1": "pass", "n2": "fail warning", "n3": "pass"}


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        pytest.param({}, GOOD, id="one-subnet"),
        pytest.param({"mlx5_2": {"sm_lid": 0}}, BAD, id="no-manager"),
        pytest.param({"mlx5_2": {"subnet": OTHER}}, BAD, id="another-subnet"),
        pytest.param({"mlx5_2": {"sm_lid": 7}}, BAD, id="another-manager"),
        pytest.param(
            {"mlx5_2": {"sm_lid": None}}, {**GOOD, "n2": "unknown warning garbled"}, id="not-read"
        ),
    ],
)
def test_subnet_managers(ports: Any, expected: dict[str, str]) -> None:
    assert three("ib.sm", **ports) == expected


def test_rails_may_be_subnets_of_their_own() -> None:
    rails = {f"mlx5_{n}": {"subnet": f"fec0:0000:0000:000{n}", "sm_lid": n + 1} for n in range(4)}
    assert told(seen(fabric(1, **rails), fabric(2, **rails)), "ib.sm") == {
        "n1": "pass",
        "n2": "pass",
    }
    swapped = {**rails, "mlx5_0": rails["mlx5_1"], "mlx5_1": rails["mlx5_0"]}
    fabrics = (fabric(1, **rails), fabric(2, **swapped), fabric(3, **rails))
    assert told(seen(*fabrics), "ib.sm") == BAD


def test_one_node_has_its_manager() -> None:
    assert told(seen(fabric()), "ib.sm") == {"n1": "pass"}


@pytest.mark.parametrize("check", ["ib.sm", "ib.pkey"])
def test_ports_of_another_kind_are_not_judged(check: str) -> None:
    ethernet = replace(UP, link_layer="Ethernet")
    devices = hcas(4, **{f"mlx5_{n}": ethernet for n in range(4)})
    assert told(fleet(n1=node(devices, **{"ib.fabric": fabric()})), check) == {
        "n1": "skip not_applicable"
    }
    assert told(fleet(n1=node((), **{"ib.fabric": {}})), check) == {"n1": "skip not_applicable"}


@pytest.mark.parametrize("check", ["ib.sm", "ib.pkey", "ib.guid_dup"])
def test_what_is_not_known_is_unknown(check: str) -> None:
    assert told(seen(absent("denied"), fabric(2)), check)["n1"] == "unknown warning denied"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param({0: 0xFFFF}, "pass", id="the-default-partition"),
        pytest.param({0: 0x7FFF}, "fail warning", id="limited-member"),
        pytest.param({1: 0xFFFF}, "fail warning", id="empty-row"),
        pytest.param({0: 0x8021}, "fail warning", id="another-partition"),
        pytest.param(None, "unknown warning garbled", id="no-table"),
    ],
)
def test_partition_keys(keys: dict[int, int] | None, expected: str) -> None:
    assert three("ib.pkey", mlx5_1={"pkeys": keys}) == {**GOOD, "n2": expected}


def test_all_in_a_partition_of_their_own() -> None:
    """Azure/azhpc-diagnostics#59: 0x8021 first, and limited membership in the default partition."""
    keys = {f"mlx5_{n}": {"pkeys": {0: 0x8021, 1: 0x7FFF}} for n in range(4)}
    own = (fabric(1, **keys), fabric(2, **keys))
    assert told(seen(*own), "ib.pkey") == {"n1": "pass", "n2": "pass"}
    wanted = {"require": {"ib.pkey": "0x8021"}}
    assert told(seen(*own, each=wanted), "ib.pkey") == {"n1": "pass", "n2": "pass"}
    other = {"require": {"ib.pkey": "0x8022"}}
    assert told(seen(*own, each=other), "ib.pkey")["n1"] == "fail error"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [("1", "fail warning"), ("0", "pass"), ("9", "unknown warning not_applicable")],
)
def test_the_row_that_the_environment_names(declared: str, expected: str) -> None:
    keys = {f"mlx5_{n}": {"pkeys": {0: 0x8021, 1: 0x7FFF}} for n in range(4)}
    settings = {"env": env(NCCL_IB_PKEY=declared)}
    assert told(seen(fabric(**keys), each=settings), "ib.pkey")["n1"] == expected


def test_guids_of_their_own() -> None:
    assert three("ib.guid_dup") == GOOD


def test_a_guid_that_two_nodes_have() -> None:
    found = seen(fabric(1), fabric(1), fabric(3))
    assert told(found, "ib.guid_dup") == {"n1": "fail warning", "n2": "fail warning", "n3": "pass"}
    assert "mlx5_0 of n1, mlx5_0 of n2" in findings(found, "ib.guid_dup")[0].seen


def test_a_guid_that_two_devices_of_a_node_have() -> None:
    devices = fabric(2)
    devices["mlx5_1"] = devices["mlx5_0"]
    assert told(seen(fabric(1), devices, fabric(3)), "ib.guid_dup") == BAD


def test_containers_of_one_machine_share_its_devices() -> None:
    facts = {"host.boot_id": "7f0c1a52-0000-4000-8000-000000000001"}
    assert told(seen(fabric(1), fabric(1), **facts), "ib.guid_dup") == {"n1": "pass", "n2": "pass"}


def test_a_guid_that_cannot_be_read_is_not_known() -> None:
    devices = fabric(2)
    devices["mlx5_1"] = replace(devices["mlx5_1"], guid=None, unread=("node_guid",))
    found = told(seen(fabric(1), devices), "ib.guid_dup")
    assert found == {"n1": "pass", "n2": "unknown warning garbled"}


def test_devices_without_guids() -> None:
    efa = {"rdmap79s0": FabricDevice(None, {})}
    assert told(seen(efa, efa), "ib.guid_dup") == dict.fromkeys(("n1", "n2"), "skip not_applicable")
