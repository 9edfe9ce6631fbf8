"""Errors of PCI Express links: fatal, not corrected, corrected too often, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.counters import Earlier, Sample
from tests.support.fleet import absent, findings, fleet, learned, told
from tests.support.kernel_lines import facts_of, ring_answer
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


GONE = "nvme 0000:e1:00.0"
PORT = "pcieport 0000:00:03.0: "
# Forms of drivers/pci/pcie/aer.c, err.c and dpc.c. Of kernel 5.4 on: the log of
# github.com/rwth-i6/returnn/issues/1500, shortened. Of 6.8 on: that of
# github.com/minisforum-docs/MS-02-Ultra/issues/10. Others are composed with other addresses.
FATAL_LINES = (
    "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)",
    f"{PORT}AER: device recovery failed",
    f"{PORT}AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0",
    f"{PORT}PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
    f"{PORT}  device [8086:6f08] error status/mask=00004020/00000000",
    f"{PORT}   [14] CmpltTO                (First)",
)
NEWER = (
    "thunderbolt 0000:84:00.0: AER: can't recover (no error_detected callback)",
    "pcieport 0000:80:1b.4: AER: device recovery failed",
    "pcieport 0000:80:1b.4: AER: Correctable error message received from 0000:80:1b.4",
    (
        "pcieport 0000:80:1b.4: AER: Uncorrectable (Non-Fatal) error message received from "
        "0000:80:1b.4"
    ),
    (
        "pcieport 0000:80:1b.4: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), "
        "type=Transaction Layer, (Receiver ID)"
    ),
)
CORRECTED = (
    f"{PORT}AER: Corrected error received: 0000:03:00.0",
    f"{PORT}AER: Multiple Correctable error message received from 0000:03:00.0",
    "nvidia 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "nvidia 0000:03:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    "nvidia 0000:03:00.0:   device [10de:2330] error status/mask=00000001/0000a000",
    f"{PORT}AER: enabled with IRQ 40",
    f"{PORT}DPC: enabled with IRQ 40",
    f"{PORT}AER: device recovery successful",
)
DAY = 86400.0


def logged(*lines: str, age: float = 600.0, counted: Any = QUIET) -> Any:
    facts = facts_of(ring_answer(*lines, age=age))
    sample = Sample(HOUR, {}, QUIET)
    earlier = Earlier(sample, sample)
    return fleet(n1=node(**{**facts, "pci.errors": counted, "counters.earlier": earlier}))


@pytest.mark.parametrize(
    ("lines", "age", "expected"),
    [
        pytest.param(
            FATAL_LINES, 600.0,
            "0000:00:03.0 fatal error, not recovered; 0000:03:00.0 not recovered", id="fatal",
        ),
        pytest.param(
            FATAL_LINES, 9 * DAY,
            "0000:00:03.0 fatal error, not recovered; 0000:03:00.0 not recovered",
            id="fatal-days-ago",
        ),
        pytest.param(
            NEWER, 600.0,
            "0000:80:1b.4 not recovered, error that was not corrected; 0000:84:00.0 not recovered",
            id="kernel-6.8",
        ),
        pytest.param(
            (f"{PORT}AER: Uncorrected (Fatal) error received: 0000:e1:00.0",
             f"{PORT}AER: Uncorrected (Fatal) error received: 0000:e2:00.0"), 600.0,
            "0000:e1:00.0 fatal error; 0000:e2:00.0 fatal error", id="two-below-one-port",
        ),
        pytest.param(
            (f"{GONE}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible",), 600.0,
            "0000:e1:00.0 fatal error", id="gone",
        ),
        pytest.param(
            (f"{PORT}AER: Device recovery failed",), 600.0, "0000:00:03.0 not recovered",
            id="kernel-4.18",
        ),
        pytest.param(
            (f"{PORT}DPC: containment event, status:0x1f01 source:0x0000",), 600.0,
            "0000:00:03.0 cut off what is below it (DPC)", id="contained",
        ),
        pytest.param(
            ("dpc 0000:00:03.0:pcie010: DPC containment event, status:0x1f01",), 600.0,
            "0000:00:03.0 cut off what is below it (DPC)", id="contained-kernel-4.18",
        ),
        pytest.param(
            (f"{PORT}AER: Uncorrected (Non-Fatal) error received: 0000:e1:00.0",), DAY - 60,
            "0000:e1:00.0 error that was not corrected", id="not-fatal",
        ),
    ],
)  # fmt: skip
def test_what_the_log_says_of_errors_is_told_once(
    lines: tuple[str, ...], age: float, expected: str
) -> None:
    for counted in (QUIET, {}):
        (found,) = findings(logged(*lines, age=age, counted=counted), "pcie.aer")
        assert (found.verdict, found.seen) == ("fail", expected)
    assert told(logged(*lines, age=age), "log.kernel") == {"n1": "pass"}


def test_what_is_counted_and_in_the_log_is_one_finding() -> None:
    line = f"nvidia {GPU}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer"
    lost = f"nvidia {GPU}: AER: can't recover (no error_detected callback)"
    (found,) = findings(logged(line, lost, counted=with_error(GPU, "fatal SDES", 1)), "pcie.aer")
    assert found.seen == f"GPU {GPU} fatal SDES 1, not recovered"


@pytest.mark.parametrize(
    ("lines", "age"),
    [
        pytest.param(CORRECTED, 600.0, id="corrected"),
        pytest.param(
            (f"{PORT}AER: Uncorrected (Non-Fatal) error received: 0000:e1:00.0",), DAY + 60,
            id="not-fatal-long-ago",
        ),
    ],
)  # fmt: skip
def test_what_the_log_says_and_is_no_failure(lines: tuple[str, ...], age: float) -> None:
    assert told(logged(*lines, age=age), "pcie.aer") == {"n1": "pass"}


def test_answers_to_probes_are_harmless_in_the_log_too() -> None:
    line = f"nvidia {GPU}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer"
    probing = with_error(GPU, "nonfatal UnsupReq", 9)
    sample = Sample(HOUR, {}, probing)
    assert told(logged(line), "pcie.aer") == {"n1": "fail warning"}
    facts = facts_of(ring_answer(line))
    facts |= {"pci.errors": probing, "counters.earlier": Earlier(sample, sample)}
    assert told(fleet(n1=node(**facts)), "pcie.aer") == {"n1": "pass"}


def test_many_functions_are_named_up_to_a_bound() -> None:
    lines = [
        f"nvme 0000:e{n}:00.0: AER: can't recover (no error_detected callback)" for n in range(9)
    ]
    (found,) = findings(logged(*lines), "pcie.aer")
    assert found.seen.endswith("0000:e7:00.0 not recovered; and 1 more")
