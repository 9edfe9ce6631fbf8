"""The environment of every described machine is the one written by hand in environments.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from clusterprep.model import Fleet
from clusterprep.nccl.environment import FACTS, render
from clusterprep.nccl.variables.variables import registry
from tests import machines as fleets
from tests.machines import play
from tests.support.fleet import absent, with_facts

pytestmark = [
    pytest.mark.machine,
    play.needs_chroot,
]

EXPECTED: Mapping[str, Any] = yaml.safe_load((fleets.HERE / "environments.yaml").read_text())
ALWAYS = {
    "NCCL_DEBUG": "WARN",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}


def values(fleet: Fleet) -> dict[str, dict[str, str]]:
    environment = render(fleet)
    return {
        n.name: {name: value.value for name, value in environment.of(n.name).items()}
        for n in fleet.reached
    }


def whys(fleet: Fleet, name: str) -> set[str]:
    return {value.why for value in render(fleet).values if value.name == name}


def changed(fleet: Fleet, fact: str, change: Any, *nodes: str) -> Fleet:
    """The fleet with another value of a fact on some nodes, or on all."""
    names = nodes or tuple(node.name for node in fleet.reached)
    return with_facts(fleet, {(name, fact): change(fleet.fact(name, fact)) for name in names})


def test_every_kind_is_written_out() -> None:
    assert sorted(EXPECTED) == fleets.names()


@pytest.mark.parametrize("kind", fleets.names())
def test_the_environment_is_the_expected_one(kind: str) -> None:
    fleet = play.world(kind).fleet
    said = EXPECTED[kind]
    assert values(fleet) == {
        n.name: {**ALWAYS, **said["all"], **said.get(n.name, {})} for n in fleet.reached
    }
    assert render(fleet).gaps == {}


@pytest.mark.parametrize("kind", fleets.names())
def test_every_value_has_its_reason_and_a_name_that_somebody_reads(kind: str) -> None:
    for value in render(play.world(kind).fleet).values:
        assert len(value.why) > 20 or value.why.startswith("declared"), value
        assert value.name in registry()


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize(
    "kind", ["hgx-h100-ib", "hgx-h100-roce", "cpu-only", "gcp-a3-vm", "v100-dgx1"]
)
def test_a_fact_that_is_missing_is_a_gap_or_changes_nothing(kind: str, fact: str) -> None:
    """Never another value: what was not seen is not taken for something else."""
    fleet = play.world(kind).fleet
    without = changed(fleet, fact, lambda _: absent("hung"), "n2")
    assert "n2" in render(without).gaps or values(without)["n2"] == values(fleet)["n2"]


# ------------------------------------------------------ faults of one node, and other versions


def down(devices: Any, *names: str) -> Any:
    return tuple(
        replace(d, ports=tuple(replace(p, state="DOWN", phys_state="Polling") for p in d.ports))
        if d.name in names or not names
        else d
        for d in devices
    )


def test_a_dead_port_changes_nothing_for_it_is_a_fault_of_its_node() -> None:
    fleet = play.world("hgx-h100-ib").fleet
    assert values(
        changed(fleet, "rdma.devices", lambda devices: down(devices, "mlx5_4"), "n3")
    ) == values(fleet)


def test_a_node_whose_only_port_is_dead_does_not_switch_rdma_off() -> None:
    fleet = play.world("gh200").fleet
    assert values(changed(fleet, "rdma.devices", down, "n3")) == values(fleet)


def test_ports_that_are_dead_on_all_nodes_switch_it_off_on_all() -> None:
    found = values(changed(play.world("gh200").fleet, "rdma.devices", down))
    said = {
        name: (mine.get("NCCL_IB_DISABLE"), mine.get("NCCL_IB_HCA")) for name, mine in found.items()
    }
    assert said == dict.fromkeys(("n1", "n2", "n3"), ("1", None))


def test_storage_and_front_end_are_left_out_with_their_reasons() -> None:
    (why,) = whys(play.world("storage-hcas").fleet, "NCCL_IB_HCA")
    assert "under one PCIe switch with a GPU; left out: " in why
    assert "mlx5_1, mlx5_7 (no GPU under its PCIe switch, while other cards have one)" in why
    (why,) = whys(play.world("azure-nd-h100").fleet, "NCCL_IB_HCA")
    assert "mlx5_an0 (Ethernet at 40 Gbit/s beside InfiniBand at 400)" in why


@pytest.mark.parametrize(("nccl", "index"), [("2.20.5", "3"), ("2.21.5", None), ("2.9.1", "3")])
@pytest.mark.parametrize("kind", ["hgx-h100-roce", "roce-lag", "l40s-pcie"])
def test_before_2_21_the_gid_is_told(kind: str, nccl: str, index: str | None) -> None:
    fleet = changed(play.world(kind).fleet, "torch.build", lambda build: replace(build, nccl=nccl))
    assert {mine.get("NCCL_IB_GID_INDEX") for mine in values(fleet).values()} == {index}


def test_infiniband_needs_no_gid_index() -> None:
    fleet = changed(
        play.world("hgx-h100-ib").fleet, "torch.build", lambda build: replace(build, nccl="2.18.1")
    )
    assert not whys(fleet, "NCCL_IB_GID_INDEX")


@pytest.mark.parametrize(("router", "value"), [(False, "0"), (True, None), (None, None)])
@pytest.mark.parametrize("kind", ["hgx-h100-roce", "roce-lag"])
def test_rings_stay_on_rails_that_no_router_joins(
    kind: str, router: bool | None, value: str | None
) -> None:
    shown = changed(
        play.world(kind).fleet,
        "rdma.rails",
        lambda rails: tuple(replace(rail, router=router) for rail in rails),
    )
    assert {mine.get("NCCL_CROSS_NIC") for mine in values(shown).values()} == {value}


@pytest.mark.parametrize("kind", ["hgx-h100-ib", "a6000-bridged", "v100-dgx1"])
@pytest.mark.parametrize("status", [4, 5])
def test_peers_that_nvlink_joins_and_that_are_refused_go_through_the_host(
    kind: str, status: int
) -> None:
    """GPUs 0 and 3 have NVLinks to each other on all of these."""
    fleet = play.world(kind).fleet
    broken = changed(
        fleet, "nvlink.pairs", lambda pairs: {**pairs, 0: {**pairs[0], 3: status}}, "n2"
    )
    found = values(broken)
    assert found.pop("n2") == {**values(fleet)["n2"], "NCCL_P2P_DISABLE": "1"}
    assert found == {name: mine for name, mine in values(fleet).items() if name != "n2"}
    (why,) = whys(broken, "NCCL_P2P_DISABLE")
    assert "between GPUs 0 and 3" in why
