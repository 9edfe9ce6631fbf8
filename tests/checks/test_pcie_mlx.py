"""What mlx5 adapters say of their slots."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import absent, findings, fleet, learned, told
from tests.support.kernel_lines import UP, facts_of, journal_answer, ring_answer

# github.com/leptonai/gpud/issues/348
POWER = (
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the "
    "PCIe slot (27W)."
)
# The print of pcie_print_link_status (drivers/pci/pci.c), as mlx5_core calls it; figures are those
# of a public dump of another device.
BANDWIDTH = (
    "mlx5_core 0000:63:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 "
    "link at 0000:60:01.0 (capable of 126.016 Gb/s with 8.0 GT/s PCIe x16 link)"
)
# A public report of a desktop: the bus says it of every slow device, also of GPUs at rest.
OF_THE_BUS = (
    "pci 0000:05:00.0: 4.000 Gb/s available PCIe bandwidth, limited by 5.0 GT/s PCIe x1 link at "
    "0000:00:1c.1 (capable of 7.876 Gb/s with 8.0 GT/s PCIe x1 link)"
)


def seen(*texts: str, age: float = 20 * 86400.0, **more: Any) -> Any:
    return fleet(n1={**facts_of(ring_answer(*texts, age=age)), **more})


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param((), "pass", id="none"),
        pytest.param((POWER,), "fail warning", id="power"),
        pytest.param((BANDWIDTH,), "fail warning", id="bandwidth"),
        pytest.param((POWER, BANDWIDTH), "fail warning", id="both"),
        pytest.param((OF_THE_BUS,), "pass", id="another-device"),
        pytest.param(
            (BANDWIDTH.replace("mlx5_core", "ixgbe"),), "pass", id="the-driver-of-another-card"
        ),
    ],
)
def test_what_the_slot_gives(texts: tuple[str, ...], expected: str) -> None:
    assert told(seen(*texts), "pcie.mlx_limited") == {"n1": expected}
    assert told(seen(*texts), "log.kernel") == {"n1": "pass"}, "it is told once"


def test_each_adapter_is_named() -> None:
    other = POWER.replace("0000:5c:00.0", "0000:ca:00.0").replace("268269", "11")
    (bad,) = findings(seen(POWER, other, POWER, BANDWIDTH), "pcie.mlx_limited")
    assert bad.seen == (
        "0000:ca:00.0 has 27 W of power; 0000:5c:00.0 has 27 W of power; "
        "0000:63:00.0 has 63.008 Gb/s (8.0 GT/s PCIe x8 at 0000:60:01.0) of 126.016 Gb/s "
        "(8.0 GT/s PCIe x16)"
    )
    assert bad.message == "network adapters have too little power and bandwidth of their slots"
    assert bad.remedy.startswith("lspci -vv -s 0000:ca:00.0 |")


def test_a_node_without_such_an_adapter_is_not_judged() -> None:
    cards = learned("pcie.mlx_cards", ["ok", []])
    assert told(seen(POWER, **{"pcie.mlx_cards": cards}), "pcie.mlx_limited") == {
        "n1": "skip not_applicable"
    }
    assert learned("pcie.mlx_cards", ["ok", [{"pci": "0000:5c:00.0", "class": "0x020000"}]]) == (
        "0000:5c:00.0",
    )


def test_what_is_not_known() -> None:
    refused = {**facts_of(ring_answer()), "log.records": absent("denied")}
    assert told(fleet(n1=refused), "pcie.mlx_limited") == {"n1": "unknown warning denied"}
    lost = facts_of(ring_answer(first=(7000, UP - 7200)))
    assert told(fleet(n1=lost), "pcie.mlx_limited") == {"n1": "unknown warning truncated"}
    week = facts_of(ring_answer(first=(7000, UP - 7200)), journal_answer())
    assert told(fleet(n1=week), "pcie.mlx_limited") == {"n1": "unknown warning truncated"}
    kept = facts_of(ring_answer(first=(7000, UP - 7200)), journal_answer((20 * 86400.0, POWER)))
    assert told(fleet(n1=kept), "pcie.mlx_limited") == {"n1": "fail warning"}
