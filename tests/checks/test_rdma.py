"""The way to GPU memory, firmware and drivers: equal, different, not known, and not to be had."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.gpu import Gpu
from tests.support.fleet import absent, findings, fleet, nvml, same, told
from tests.support.rails import DOWN, UP, card, hca, hcas, nic_at, node, tree


def peer(
    module: str | None, open_driver: bool = False, kernel: str = "5.15.0-107-generic", **more: Any
) -> dict[str, Any]:
    facts = {"rdma.peermem": module, "nv.open_driver": open_driver, "kernel.release": kernel}
    return {**node(), **facts, **more}


GEFORCE = replace(nvml(1), gpus=(Gpu(0, "NVIDIA GeForce RTX 4090", "GPU-0", "0000:13:00.0"),))
EFA = (hca("rdmap0s6", nic_at(0), replace(UP, link_layer="Unspecified")),)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(peer("nvidia_peermem"), "pass", id="module"),
        pytest.param(peer("nv_peer_mem"), "pass", id="older-module"),
        pytest.param(peer(None), "fail warning", id="neither"),
        pytest.param(peer(None, True), "pass", id="dma-buf"),
        pytest.param(peer(None, True, "5.12.0"), "pass", id="dma-buf-on-the-first-kernel"),
        pytest.param(
            peer(None, True, "5.11.22-generic"), "fail warning", id="dma-buf-and-an-older-kernel"
        ),
        pytest.param(
            peer(None, True, "4.18.0-477.el8"), "fail warning", id="dma-buf-and-a-much-older-kernel"
        ),
        pytest.param(peer(None, False, "6.8.0-45-generic"), "fail warning", id="closed-driver"),
        pytest.param(peer(None, **node((), tree())), "skip not_applicable", id="no-rdma"),
        pytest.param(
            peer(None, **node(hcas(1), tree(0, card(nic_at(0))))),
            "skip not_applicable",
            id="no-gpu",
        ),
        pytest.param(
            peer(None, **node(hcas(1, mlx5_0=DOWN))), "skip not_applicable", id="no-port-in-use"
        ),
        pytest.param(peer(None, **node(EFA)), "skip not_applicable", id="efa"),
        pytest.param(peer(None, **{"gpu.nvml": GEFORCE}), "skip not_applicable", id="geforce"),
        pytest.param(
            peer(None, **{"gpu.nvml": absent("hung")}), "fail warning", id="gpus-not-asked"
        ),
        pytest.param(peer(absent("denied")), "unknown warning denied", id="denied"),
        pytest.param(
            peer(None, **{"nv.open_driver": absent("garbled")}),
            "unknown warning garbled",
            id="garbled",
        ),
        pytest.param(
            peer(None, **{"kernel.release": absent("timed_out")}),
            "unknown warning timed_out",
            id="timed-out",
        ),
        pytest.param(
            peer(None, **{"rdma.devices": absent("hung")}), "unknown warning hung", id="hung"
        ),
    ],
)
def test_cards_reach_the_memory_of_gpus(facts: Any, expected: str) -> None:
    assert told(fleet(n1=facts), "rdma.peermem") == {"n1": expected}


def test_what_is_missing_is_said() -> None:
    (bad,) = findings(fleet(n1=peer(None, True, "5.4.0")), "rdma.peermem")
    assert bad.seen == "no nvidia_peermem, kernel 5.4.0, NVIDIA's open driver"


# ---------------------------------------------------------------- fw.nic


def flashed(version: str = "28.39.1002", **others: str) -> Any:
    return tuple(replace(d, firmware=others.get(d.name, version)) for d in hcas())


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param([flashed()] * 3, ["pass"] * 3, id="equal"),
        pytest.param(
            [flashed(mlx5_2="28.36.1010"), flashed(), flashed()],
            ["fail warning", "pass", "pass"],
            id="one-card",
        ),
        pytest.param(
            [flashed(), flashed("28.36.1010"), flashed()],
            ["pass", "fail warning", "pass"],
            id="one-node",
        ),
        pytest.param([flashed(), flashed("28.36.1010")], ["fail warning"] * 2, id="no-majority"),
        pytest.param([flashed(mlx5_2="28.36.1010")], ["fail warning"], id="within-one-node"),
        pytest.param([hcas(1)], ["skip not_applicable"], id="one-card-in-all"),
        pytest.param([()], ["skip not_applicable"], id="no-card"),
        pytest.param([flashed(), absent("hung")], ["pass", "unknown warning hung"], id="hung"),
    ],
)
def test_cards_of_one_make_have_one_firmware(devices: list[Any], expected: list[str]) -> None:
    seen = fleet(**{f"n{n}": node(d) for n, d in enumerate(devices, 1)})
    assert list(told(seen, "fw.nic").values()) == expected


def test_makes_have_firmware_of_their_own() -> None:
    mixed = tuple(replace(d, board=f"MT_{n}", firmware=f"28.{n}.0") for n, d in enumerate(hcas()))
    assert told(fleet(n1=node(mixed), n2=node(mixed)), "fw.nic") == {"n1": "pass", "n2": "pass"}


def test_a_card_that_does_not_say_its_firmware_is_no_witness() -> None:
    mute = (*flashed()[:3], replace(hcas()[3], firmware=None))
    assert told(fleet(n1=node(mute), n2=node(flashed())), "fw.nic") == {"n1": "pass", "n2": "pass"}


def test_a_guest_cannot_flash_its_host() -> None:
    guest = node(flashed("28.36.1010"), tree(virtual=True))
    assert told(fleet(n1=node(), n2=guest), "fw.nic") == {
        "n1": "fail warning",
        "n2": "skip not_applicable",
    }


def test_the_odd_card_is_named_with_what_its_like_have() -> None:
    (bad,) = [
        f
        for f in findings(fleet(n1=node(flashed(mlx5_2="28.36.1010")), n2=node()), "fw.nic")
        if f.verdict == "fail"
    ]
    assert (bad.seen, bad.wanted) == ("mlx5_2 28.36.1010", "MT_0000000838: 28.39.1002")


# ---------------------------------------------------------------- ofed.version

OFED, INBOX = "mlx5_core 23.10-0.5.5", "mlx5_core of the kernel"


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        pytest.param([OFED] * 3, ["pass"] * 3, id="equal"),
        pytest.param([INBOX] * 3, ["pass"] * 3, id="all-of-the-kernel"),
        pytest.param([OFED, INBOX, OFED], ["pass", "fail warning", "pass"], id="one-of-the-kernel"),
        pytest.param([OFED, "mlx5_core 5.8-3.0.7"], ["fail warning"] * 2, id="no-majority"),
        pytest.param(
            [None, OFED, OFED], ["skip not_applicable", "pass", "pass"], id="one-without-a-driver"
        ),
        pytest.param([None, None], ["skip not_applicable"] * 2, id="none"),
        pytest.param([OFED], ["skip not_applicable"], id="one-node"),
        pytest.param(
            [OFED, OFED, absent("denied")], ["pass", "pass", "unknown warning denied"], id="denied"
        ),
    ],
)
def test_the_drivers_are_equal(stacks: list[Any], expected: list[str]) -> None:
    assert list(told(fleet(**same("rdma.stack", *stacks)), "ofed.version").values()) == expected


@pytest.mark.parametrize(("wanted", "expected"), [("23.10-0.5.5", "pass"), ("23.10", "fail error")])
def test_a_driver_that_is_required(wanted: str, expected: str) -> None:
    seen = fleet(each={"require": {"ofed.version": wanted}}, **same("rdma.stack", OFED))
    assert told(seen, "ofed.version") == {"n1": expected}
