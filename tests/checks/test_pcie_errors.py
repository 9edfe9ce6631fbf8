"""Errors of PCI Express links: fatal, not corrected, corrected too often, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.counters import Earlier, Sample
from tests.support.fleet import absent, findings, fleet, learned, told
from tests.support.rails import above, gpu_at, nic_at, node

GPU, NIC, BRIDGE = gpu_at(0), nic_at(0), above(0, 0)[1]
QUIET: dict[str, dict[str, int]] = {GPU: {}, NIC: {}, BRIDGE: {}}
HOUR = 3600.0


def seen(now: Any, before: Any = QUIET, seconds: float = HOUR) -> Any:
    sample = Sample(seconds, {}, before)
    return fleet(n1=node(**{"pci.errors": now, "counters.earlier": Earlier(sample, sample)}))


def with_error(at: str, name: str, count: int) -> dict[str, dict[str, int]]:
    return {**QUIET, at: {name: count}}


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        pytest.param(QUIET, QUIET, "pass", id="none"),
        pytest.param(with_error(GPU, "fatal MalfTLP", 1), QUIET, "fail warning", id="fatal"),
        pytest.param(
            with_error(NIC, "fatal DLP", 1), with_error(NIC, "fatal DLP", 1), "fail warning",
            id="fatal-long-ago",
        ),
        pytest.param(with_error(NIC, "nonfatal CmpltTO", 1), QUIET, "fail warning", id="nonfatal"),
        pytest.param(
            with_error(NIC, "nonfatal CmpltTO", 1), with_error(NIC, "nonfatal CmpltTO", 1), "pass",
            id="nonfatal-before-the-earlier-run",
        ),
        pytest.param(with_error(GPU, "nonfatal UnsupReq", 9), QUIET, "pass", id="probing"),
        pytest.param(
            with_error(GPU, "nonfatal Unsupported Request", 9), QUIET, "pass", id="older-kernel"
        ),
        pytest.param(with_error(BRIDGE, "correctable BadTLP", 3600), QUIET, "pass", id="slow"),
        pytest.param(
            with_error(BRIDGE, "correctable BadTLP", 3601), QUIET, "fail warning", id="more"
        ),
        pytest.param(
            with_error(BRIDGE, "correctable RxErr", 10**6), {GPU: {}, NIC: {}}, "pass",
            id="first-seen-now",
        ),
        pytest.param({GPU: {}, NIC: {}}, QUIET, "unknown warning garbled", id="one-is-silent-now"),
        pytest.param(QUIET, None, "skip first_sample", id="not-asked-then"),
        pytest.param({}, {}, "skip not_applicable", id="not-counted"),
        pytest.param(absent("hung"), QUIET, "unknown warning hung", id="not-known"),
    ],
)  # fmt: skip
def test_errors_of_links(now: Any, before: Any, expected: str) -> None:
    assert told(seen(now, before), "pcie.aer") == {"n1": expected}


def test_without_an_earlier_run() -> None:
    facts = {"pci.errors": QUIET, "counters.earlier": None}
    assert told(fleet(n1=node(**facts)), "pcie.aer") == {"n1": "skip first_sample"}
    fatal = {**facts, "pci.errors": with_error(GPU, "fatal MalfTLP", 1)}
    assert told(fleet(n1=node(**fatal)), "pcie.aer") == {"n1": "fail warning"}


def test_the_function_is_named() -> None:
    (found,) = findings(seen(with_error(GPU, "fatal MalfTLP", 2)), "pcie.aer")
    assert found.seen == f"GPU {GPU} fatal MalfTLP 2"
    assert f"lspci -s {GPU}" in found.remedy
    (found,) = findings(seen(with_error(BRIDGE, "fatal DLP", 1)), "pcie.aer")
    assert found.seen == f"the bridge {BRIDGE} above {GPU}, {NIC} fatal DLP 1"


# Documentation/ABI/testing/sysfs-bus-pci-devices-aer: the example of aer_dev_correctable.
DOCUMENTED = (
    "Receiver Error 2\nBad TLP 0\nBad DLLP 0\nRELAY_NUM Rollover 0\nReplay Timer Timeout 0\n"
    "Advisory Non-Fatal 0\nCorrected Internal Error 0\nHeader Log Overflow 0\nTOTAL_ERR_COR 2"
)


def test_texts_of_the_kernel() -> None:
    raw = {GPU: {"fatal": "", "correctable": DOCUMENTED}, NIC: {"fatal": "", "nonfatal": "TLP 1"}}
    found = learned("pci.errors", ["ok", raw])
    assert {name: n for name, n in found[GPU].items() if n} == {"correctable Receiver Error": 2}
    assert found[NIC] == {"nonfatal TLP": 1}
    assert learned("pci.errors", ["no", "missing", "/sys/bus/pci"]) == {}


@pytest.mark.parametrize("text", ["RxErr", "RxErr many", "RxErr 1.5"])
def test_a_text_without_a_count_is_garbled(text: str) -> None:
    assert learned("pci.errors", ["ok", {GPU: {"fatal": text}}]).reason == "garbled"
