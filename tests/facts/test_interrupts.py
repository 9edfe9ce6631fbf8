"""Interrupts as they are counted, and what lies below a bond or a VLAN."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.interrupts import InterruptDevice, Interrupts
from clusterprep.model import Absent
from tests.support.fleet import learned

CARD = {
    "name": "eth0",
    "gpu": False,
    "irqs": ["40", "41"],
    "queues": 2,
    "lines": {"40": {"CPU0": 12}},
}
GPU = {"name": "0000:1b:00.0", "gpu": True, "irqs": ["90"], "queues": 1, "lines": {}}


def answer(**changed: Any) -> list[Any]:
    return ["ok", {"seconds": 0.3, "devices": [CARD, GPU], "lower": {"bond0": ["eth0"]}, **changed}]


def test_devices_have_lines_and_counts() -> None:
    found = learned("irq.counts", answer())
    assert found.devices[0] == InterruptDevice("eth0", False, ("40", "41"), 2, {"40": {"CPU0": 12}})
    assert [device.name for device in found.gpus] == ["0000:1b:00.0"]


def device(name: str) -> InterruptDevice:
    return InterruptDevice(name, False, (), 1, {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("eth2", ["eth2"], id="a-card"),
        pytest.param("bond0", ["eth0", "eth1"], id="a-bond"),
        pytest.param("bond0.100", ["eth0", "eth1"], id="a-vlan-on-a-bond"),
        pytest.param("loop", [], id="a-circle"),
        pytest.param("veth0", [], id="nothing-below"),
    ],
)
def test_what_carries_an_interface_are_its_cards(name: str, expected: list[str]) -> None:
    lower = {"bond0": ("eth0", "eth1"), "bond0.100": ("bond0",), "loop": ("loop",)}
    seen = Interrupts(0.3, (device("eth0"), device("eth1"), device("eth2")), lower)
    assert [found.name for found in seen.under(name)] == expected


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(answer(seconds=0), id="no-window"),
        pytest.param(answer(seconds="soon"), id="no-number"),
        pytest.param(answer(seconds=float("nan")), id="not-a-number"),
        pytest.param(answer(devices=None), id="no-devices"),
        pytest.param(answer(devices=[{"name": "eth0"}]), id="half-a-device"),
        pytest.param(answer(devices=[{**CARD, "lines": {"40": {"CPU0": "many"}}}]), id="no-count"),
        pytest.param(["ok", {}], id="empty"),
        pytest.param(["ok", None], id="nothing"),
        pytest.param(["no", "missing", "/proc/interrupts"], id="no-file"),
    ],
)
def test_what_are_no_interrupts_is_garbled_and_not_at_rest(given: list[Any]) -> None:
    found = learned("irq.counts", given)
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


def test_a_reason_survives() -> None:
    assert learned("irq.counts", ["no", "hung", "5 s"]) == Absent("hung", "5 s")
