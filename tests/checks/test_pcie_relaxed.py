"""Ordering and size of reads of network cards, as lspci shows them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.pci import DeviceControl
from tests.support.fleet import absent, findings, fleet, learned, told
from tests.support.rails import nic_at, node

# NVIDIA/l2fwd-nv, README: `setpci -s b5:00.0 68.w` says 2930, and 5930 is set; lspci of such a card
# (issue #6) then shows RlxdOrd+, MaxPayload 256 bytes, MaxReadReq 4096 bytes.
USUAL = DeviceControl(relaxed_ordering=True, max_read=512, max_payload=256)
TUNED = replace(USUAL, max_read=4096)
STRICT = replace(USUAL, relaxed_ordering=False)
SMALL = replace(USUAL, max_read=128)


def cards(first: Any = USUAL, others: Any = USUAL) -> dict[str, Any]:
    return {nic_at(number): first if number == 0 else others for number in range(4)}


def seen(*controls: Any, each: Any = None) -> Any:
    nodes = {f"n{n}": node(**{"pci.device_control": c}) for n, c in enumerate(controls, 1)}
    return fleet(each=each, **nodes)


@pytest.mark.parametrize(
    ("controls", "expected"),
    [
        pytest.param(cards(), "pass", id="as-firmware-leaves-it"),
        pytest.param(cards(TUNED, TUNED), "fail warning", id="unlike-the-others"),
        pytest.param(cards(STRICT), "fail warning", id="strict-order"),
        pytest.param(cards(SMALL), "fail warning", id="small-reads"),
        pytest.param(cards(None), "unknown warning denied", id="one-not-shown"),
        pytest.param({}, "skip not_applicable", id="virtual-functions"),
        pytest.param(absent("denied"), "unknown warning denied", id="ordinary-user"),
        pytest.param(absent("not_applicable"), "skip not_applicable", id="virtual-machine"),
    ],
)
def test_one_node_of_three(controls: Any, expected: str) -> None:
    assert told(seen(cards(), controls, cards()), "pcie.relaxed") == {
        "n1": "pass",
        "n2": expected,
        "n3": "pass",
    }


def test_all_tuned() -> None:
    assert told(seen(cards(TUNED, TUNED)), "pcie.relaxed") == {"n1": "pass"}


def test_all_small() -> None:
    (found,) = findings(seen(cards(SMALL, SMALL)), "pcie.relaxed")
    assert found.verdict == "fail"
    assert f"setpci -s {nic_at(0)} CAP_EXP+8.w=2000:7000" in found.remedy


def test_what_is_required() -> None:
    wanted = {"require": {"pcie.relaxed": "4096"}}
    assert told(seen(cards(TUNED, TUNED), each=wanted), "pcie.relaxed") == {"n1": "pass"}
    (found,) = findings(seen(cards(), each=wanted), "pcie.relaxed")
    assert (found.verdict, found.severity) == ("fail", "error")
    assert "CAP_EXP+8.w=5000:7000" in found.remedy


def test_half_and_half_has_no_right_size() -> None:
    halves = {**cards(), nic_at(0): TUNED, nic_at(1): TUNED}
    assert told(seen(halves), "pcie.relaxed") == {"n1": "fail warning"}


# ---------------------------------------------------------------- the register


def row(word: Any, **fields: Any) -> dict[str, Any]:
    return {"at": "0000:b5:00.0", "devctl": word, "physfn": None, **fields}


def control(*rows: dict[str, Any], virtual: bool = False) -> Any:
    return learned("pci.device_control", ["ok", {"devices": list(rows), "virtual": virtual}])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0x2930, USUAL),
        (0x5930, TUNED),
        (0x5936, TUNED),  # the errors that are reported are other bits
        (0x2920, STRICT),
        (0x0000, DeviceControl(relaxed_ordering=False, max_read=128, max_payload=128)),
    ],
)
def test_words_of_device_control(word: int, expected: DeviceControl) -> None:
    assert control(row(word)) == {"0000:b5:00.0": expected}


@pytest.mark.parametrize("word", [0x7930, -1, 1 << 16, "2930"])
def test_a_word_that_is_none_is_garbled(word: Any) -> None:
    assert control(row(word)).reason == "garbled"


def test_what_is_not_shown() -> None:
    shown = row(0x2930, at="0000:b6:00.0")
    assert control(row("denied"), shown) == {"0000:b5:00.0": None, "0000:b6:00.0": USUAL}
    assert control(row("denied")).reason == "denied"
    assert control(row(None), row(0x2930, physfn="0000:b5:00.0")) == {}
    assert control(row(0x2930), virtual=True).reason == "not_applicable"
