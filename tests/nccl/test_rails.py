"""Which ports carry the training.

By declaration, by what peers use, by where GPUs sit, and when it cannot be known.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.model import Absent, Gpus, Interfaces
from clusterprep.nccl.rails import FACTS, TO_NVSWITCHES, TrainingSet, training_sets
from tests import machines as fleets
from tests.machines import play
from tests.support.fleet import absent, fleet
from tests.support.rails import DOWN, INIT, UP, card, flat, hca, hcas, nic_at, node, tree

ETHERNET = replace(UP, link_layer="Ethernet", rate=25.0, lid=None)
XDR = replace(UP, link_layer="Ethernet", rate=800.0, lid=None)
OTHER = {"board": "MT_0000001046"}  # another make of card


def names(found: TrainingSet | Absent) -> list[str]:
    assert isinstance(found, TrainingSet), found
    return [rail.name for rail in found.rails]


def alone(devices: Any, pci: Any, **settings: Any) -> TrainingSet | Absent:
    return training_sets(fleet(each=settings, n1=node(devices, pci)))["n1"]


PAIRED = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
FAR = card("0000:f1:00.0")
FAR2 = card("0000:f1:00.1")
TO_SWITCHES = tuple(card(f"0000:a0:00.{number}", manages_nvswitches=True) for number in range(2))


@pytest.mark.parametrize(
    ("devices", "pci", "kept", "left"),
    [
        pytest.param(hcas(), tree(), PAIRED, {}, id="one-beside-each-gpu"),
        pytest.param(
            (*hcas(), hca("mlx5_4", FAR.at)),
            tree(4, FAR),
            PAIRED,
            {"mlx5_4": "no GPU under its PCIe switch, while other cards have one"},
            id="storage-of-the-same-make-and-speed",
        ),
        pytest.param(
            (*hcas(), hca("mlx5_4", FAR.at, UP, replace(DOWN, number=2))),
            tree(4, FAR),
            PAIRED,
            {
                "mlx5_4:1": "no GPU under its PCIe switch, while other cards have one",
                "mlx5_4:2": "not active, neither here nor on most nodes of this kind",
            },
            id="two-ports-of-one-device",
        ),
        pytest.param(
            hcas(4, mlx5_3=DOWN),
            tree(),
            PAIRED[:3],
            {"mlx5_3": "not active, neither here nor on most nodes of this kind"},
            id="down-and-no-other-node-to-ask",
        ),
        pytest.param(
            (*hcas(), hca("mlx5_bond_0", nic_at(9), ETHERNET, **OTHER)),
            tree(4, card(nic_at(9), root=tree().devices[0].above[0])),
            PAIRED,
            {"mlx5_bond_0": "Ethernet at 25 Gbit/s beside InfiniBand at 400"},
            id="front-end-under-the-switch-of-a-gpu",
        ),
        pytest.param(
            (*hcas(), hca("mlx5_4", nic_at(9), replace(UP, rate=100.0))),
            tree(4, card(nic_at(9), root=tree().devices[0].above[0])),
            [*PAIRED, "mlx5_4"],
            {},
            id="a-slow-one-of-the-same-make-lags-behind-and-belongs",
        ),
        pytest.param(
            (*hcas(2), hca("mlx5_2", nic_at(2), replace(ETHERNET, rate=100.0))),
            flat(2, 3),
            ["mlx5_0", "mlx5_1"],
            {"mlx5_2": "Ethernet at 100 Gbit/s beside InfiniBand at 400"},
            id="storage-of-the-same-make-over-ethernet",
        ),
        pytest.param(
            (*hcas(2), hca("mlx5_2", nic_at(2), replace(ETHERNET, rate=400.0))),
            flat(2, 3),
            ["mlx5_0", "mlx5_1", "mlx5_2"],
            {},
            id="one-of-the-same-make-and-rate-with-the-wrong-link-layer-belongs",
        ),
        pytest.param(
            (*hcas(2), hca("mlx5_2", nic_at(2), replace(UP, rate=200.0), **OTHER)),
            flat(2, 3),
            ["mlx5_0", "mlx5_1"],
            {"mlx5_2": "InfiniBand at 200 Gbit/s beside InfiniBand at 400"},
            id="another-make-at-half-the-rate-is-for-something-else",
        ),
        pytest.param(
            (*hcas(2), hca("mlx5_2", nic_at(2), replace(UP, rate=201.0), **OTHER)),
            flat(2, 3),
            ["mlx5_0", "mlx5_1", "mlx5_2"],
            {},
            id="another-make-at-more-than-half-the-rate-belongs",
        ),
        pytest.param(
            hcas(2, mlx5_0=INIT, mlx5_1=INIT),
            tree(2),
            ["mlx5_0", "mlx5_1"],
            {},
            id="no-subnet-manager",
        ),
        pytest.param(
            (
                *hcas(2, mlx5_0=INIT, mlx5_1=INIT),
                hca("mlx5_4", FAR.at, replace(ETHERNET, rate=100.0), **OTHER),
            ),
            tree(2, FAR),
            ["mlx5_0", "mlx5_1"],
            {"mlx5_4": "no GPU under its PCIe switch, while other cards have one"},
            id="no-subnet-manager-and-storage-that-works",
        ),
        pytest.param(
            (*hcas(), hca("mlx5_4", "0000:14:00.1", replace(ETHERNET, rate=400.0))),
            tree(4, card("0000:14:00.1", root=tree().devices[0].above[0])),
            PAIRED,
            {"mlx5_4": "Ethernet at 400 Gbit/s beside InfiniBand at 400"},
            id="second-port-of-a-card-as-ethernet",
        ),
        pytest.param(
            (*hcas(), hca("mlx5_4", "0000:14:00.2")),
            tree(4, card("0000:14:00.2", root=tree().devices[0].above[0], physical=nic_at(0))),
            PAIRED,
            {"mlx5_4": "a virtual function, whose card is here too"},
            id="virtual-function-on-the-host",
        ),
        pytest.param(
            (*hcas(), hca("rxe0", None, ETHERNET)),
            tree(),
            PAIRED,
            {"rxe0": "no PCI card of its own: software, or a share of a card"},
            id="rdma-in-software-beside-cards",
        ),
        pytest.param(
            (*hcas(1), hca("irdma0", nic_at(1), ETHERNET, iwarp=True)),
            flat(2, 2),
            ["mlx5_0"],
            {"irdma0": "iWARP, which NCCL cannot use"},
            id="iwarp",
        ),
        pytest.param(
            (hca("rxe0", None, ETHERNET),), tree(), ["rxe0"], {}, id="rdma-in-software-alone"
        ),
        pytest.param(
            (*hcas(2), hca("mlx5_an0", nic_at(2), replace(ETHERNET, rate=40.0), **OTHER)),
            flat(2, 3),
            ["mlx5_0", "mlx5_1"],
            {"mlx5_an0": "Ethernet at 40 Gbit/s beside InfiniBand at 400"},
            id="virtual-machine-with-a-front-end",
        ),
        pytest.param(
            (*hcas(2), hca("mlx5_8", "0000:a0:00.0"), hca("mlx5_9", "0000:a0:00.1", INIT)),
            replace(flat(2, 2), devices=(*flat(2, 2).devices, *TO_SWITCHES)),
            ["mlx5_0", "mlx5_1"],
            dict.fromkeys(("mlx5_8", "mlx5_9"), TO_NVSWITCHES),
            id="functions-that-lead-to-nvswitches",
        ),
        # AWS B300: ConnectX-8 with names by their place, and ibp198s0f0 to f3 to the NVSwitches.
        pytest.param(
            (
                hca("rocep26s0", nic_at(0), XDR, model="MT4131"),
                hca("rocep60s0", nic_at(1), XDR, model="MT4131"),
                *(hca(f"ibp198s0f{n}", f"0000:a0:00.{n}", INIT) for n in range(2)),
            ),
            tree(2, *TO_SWITCHES),
            ["rocep26s0", "rocep60s0"],
            {"ibp198s0f0": TO_NVSWITCHES, "ibp198s0f1": TO_NVSWITCHES},
            id="b300",
        ),
        pytest.param(hcas(1), tree(0, card(nic_at(0))), ["mlx5_0"], {}, id="no-gpu"),
        pytest.param(
            hcas(2), replace(flat(), devices=()), ["mlx5_0", "mlx5_1"], {}, id="no-view-of-the-bus"
        ),
        pytest.param((), tree(), [], {}, id="no-rdma"),
        pytest.param(
            (hca("mlx5_0", "0000:ee:00.0"),),
            tree(),
            [],
            {"mlx5_0": "not a network card on the PCI bus"},
            id="a-place-that-the-bus-does-not-have",
        ),
    ],
)
def test_one_node_by_itself(devices: Any, pci: Any, kept: list[str], left: dict[str, str]) -> None:
    found = alone(devices, pci)
    assert names(found) == kept
    assert isinstance(found, TrainingSet)
    assert found.left_out == left


@pytest.mark.parametrize(
    ("devices", "pci", "why"),
    [
        pytest.param(
            hcas(), tree(), "the cards under one PCIe switch with a GPU", id="beside-gpus"
        ),
        pytest.param(hcas(2), flat(), "the fastest RDMA ports that are in use", id="fastest"),
        pytest.param(
            (hca("rxe0", None, ETHERNET),), tree(), "the only RDMA ports in use", id="software"
        ),
        pytest.param((), tree(), "no RDMA port is in use here", id="none"),
    ],
)
def test_why_these_are_taken_is_said(devices: Any, pci: Any, why: str) -> None:
    found = alone(devices, pci)
    assert isinstance(found, TrainingSet)
    assert found.why == why


def test_equal_speed_and_number_of_both_link_layers_is_not_known() -> None:
    both = (*hcas(1), hca("mlx5_1", nic_at(1), replace(ETHERNET, rate=400.0), **OTHER))
    found = alone(both, flat())
    assert isinstance(found, Absent)
    assert "declare interfaces.rdma" in found.reason


def test_what_is_not_known_stays_not_known() -> None:
    seen = fleet(n1=node(absent("hung")), n2=node(pci=absent("denied")), n3=node())
    found = training_sets(seen)
    assert (found["n1"], found["n2"]) == (absent("hung"), absent("denied"))
    assert names(found["n3"]) == PAIRED


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        pytest.param([True, False, True, True], True, id="three-of-four-use-it"),
        pytest.param([True, False], True, id="one-of-two"),
        pytest.param([True, False, False], False, id="one-of-three"),
        pytest.param([False, False, False], False, id="none"),
    ],
)
def test_a_port_that_is_down_belongs_where_at_least_half_of_the_nodes_use_it(
    active: list[bool], expected: bool
) -> None:
    facts = {f"n{n}": node(hcas(4, mlx5_3=UP if up else DOWN)) for n, up in enumerate(active, 1)}
    assert ("mlx5_3" in names(training_sets(fleet(**facts))["n2"])) is expected


def test_a_port_is_known_by_its_place_and_not_by_its_name() -> None:
    """Where a card is missing, those behind it are called differently."""
    without_first = tuple(
        replace(d, name=f"mlx5_{n}") for n, d in enumerate(hcas(4, mlx5_3=DOWN)[1:])
    )
    seen = fleet(n1=node(), n2=node(without_first), n3=node())
    assert names(training_sets(seen)["n2"]) == ["mlx5_0", "mlx5_1", "mlx5_2"]


def test_nodes_of_another_kind_are_no_witnesses() -> None:
    others = {"n2": {"gpus": Gpus(8, "NVIDIA L40S")}, "n3": {"gpus": Gpus(8, "NVIDIA L40S")}}
    down = node(hcas(4, mlx5_3=DOWN))
    seen = fleet(each={"gpus": Gpus(8, "NVIDIA H100")}, some=others, n1=down, n2=node(), n3=node())
    assert names(training_sets(seen)["n1"]) == PAIRED[:3]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param(("mlx5_2", "mlx5_0"), ["mlx5_0", "mlx5_2"], id="names"),
        pytest.param(("mlx5_4:2",), ["mlx5_4:2"], id="one-port-of-a-device"),
        pytest.param(("mlx5_9",), [], id="not-there"),
        pytest.param((), [], id="none"),
    ],
)
def test_what_is_declared_is_not_derived(declared: tuple[str, ...], expected: list[str]) -> None:
    devices = (*hcas(), hca("mlx5_4", FAR.at, UP, replace(DOWN, number=2)))
    found = alone(devices, tree(4, FAR), interfaces=Interfaces(rdma=declared))
    assert names(found) == expected
    assert isinstance(found, TrainingSet)
    assert found.why == "declared as interfaces.rdma"
    assert len(found.rails) + len(found.left_out) == 6


def test_a_rail_that_came_up_as_ethernet_on_one_node_is_still_a_rail() -> None:
    odd = node(hcas(4, mlx5_1=replace(ETHERNET, rate=400.0)))
    assert names(training_sets(fleet(n1=node(), n2=odd, n3=node()))["n2"]) == PAIRED


# ---------------------------------------------------------------- described machines


@pytest.mark.machine
@play.needs_chroot
def test_an_hgx_b200_needs_no_declaration() -> None:
    """The functions that lead to its NVSwitches are recognised, as root and as an ordinary user."""
    world = play.world("hgx-b200")
    facts = {
        name: {fact: seen.facts[fact] for fact in FACTS}
        for name, seen in world.fleet.snapshots.items()
    }
    found = training_sets(fleet(**facts))["n1"]
    assert names(found) == [f"mlx5_{number}" for number in range(8)]
    assert isinstance(found, TrainingSet)
    managers = [f"mlx5_{number}" for number in range(8, 12)]
    assert {name: found.left_out[name] for name in managers} == dict.fromkeys(
        managers, TO_NVSWITCHES
    )


KNOWN = {
    "hgx-h100-ib": (
        "mlx5_0",
        "mlx5_3",
        "mlx5_4",
        "mlx5_5",
        "mlx5_6",
        "mlx5_9",
        "mlx5_10",
        "mlx5_11",
    ),
    "hgx-h100-roce": tuple(f"mlx5_{n}" for n in range(8)),
}


@pytest.mark.machine
@play.needs_chroot
@pytest.mark.parametrize("kind", fleets.names())
def test_what_people_declare_of_their_machines_is_what_is_derived(kind: str) -> None:
    world = play.world(kind)
    facts = {
        name: {fact: seen.facts[fact] for fact in FACTS}
        for name, seen in world.fleet.snapshots.items()
    }
    found = training_sets(fleet(**facts))
    assert all(isinstance(value, TrainingSet) for value in found.values())
    declared = {
        node.name: node.interfaces.rdma or KNOWN.get(kind) for node in world.inventory.nodes
    }
    told = {name: ports for name, ports in declared.items() if ports is not None}
    assert {name: tuple(names(found[name])) for name in told} == told
