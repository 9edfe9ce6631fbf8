"""Links of GPUs, cards and bridges, ACS and IOMMU: faults, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.gpu_load import GpuLoad
from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from tests.support.fleet import absent, findings, fleet, told
from tests.support.rails import GEN5, above, card, flat, hcas, tree

GEN4 = PciLink(16, 16, 16.0, 16.0)
HEALTHY = tree()
SWITCH_UP, SWITCH_DOWN = above(0, 0)[1:]


def linked(select: Callable[[PciDevice], bool], seen: PciTree = HEALTHY, **fields: Any) -> PciTree:
    """The tree with other values in the links of the devices selected."""
    return replace(
        seen,
        devices=tuple(
            replace(d, link=replace(d.link, **fields)) if select(d) else d for d in seen.devices
        ),
    )


def bridged(at: str, seen: PciTree = HEALTHY, **fields: Any) -> PciTree:
    return replace(seen, bridges={**seen.bridges, at: replace(seen.bridges[at], **fields)})


def first_gpu(device: PciDevice) -> bool:
    return device.at == HEALTHY.devices[0].at


def first_nic(device: PciDevice) -> bool:
    return device.at == HEALTHY.devices[1].at


def is_gpu(device: PciDevice) -> bool:
    return device.gpu


def anything(device: PciDevice) -> bool:
    return True


def said(check: str, *trees: Any, **facts: Any) -> list[str]:
    return list(
        told(
            fleet(**{f"n{n}": {"pci.tree": t, **facts} for n, t in enumerate(trees, 1)}), check
        ).values()
    )


NO_GPU = PciTree((card("0000:01:00.0", link=PciLink(1, 1, 2.5, 2.5)),), {"0000:f0:01.0": GEN5})
LENT = replace(HEALTHY, devices=tuple(replace(d, driver="vfio-pci") for d in HEALTHY.devices))
GUEST = card("0000:14:00.2", physical="0000:14:00.0", link=PciLink(0, 16, None, None))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(HEALTHY, "pass", id="full"),
        pytest.param(linked(first_gpu, width=8), "fail warning", id="gpu-at-half"),
        pytest.param(linked(first_nic, width=8), "fail warning", id="card-at-half"),
        pytest.param(linked(first_gpu, width=15), "fail warning", id="one-lane-short"),
        pytest.param(linked(first_nic, width=8, max_width=8), "pass", id="card-of-eight-lanes"),
        pytest.param(
            linked(first_gpu, bridged(SWITCH_DOWN, max_width=8), width=8),
            "pass",
            id="slot-of-eight-lanes",
        ),
        pytest.param(
            linked(first_gpu, width=None),
            "unknown warning no widths in /sys",
            id="one-does-not-say",
        ),
        pytest.param(
            linked(anything, width=None), "unknown warning no widths in /sys", id="none-says"
        ),
        pytest.param(linked(is_gpu, speed=2.5), "pass", id="gpus-at-rest-keep-their-lanes"),
        pytest.param(flat(), "skip not_applicable", id="virtual-machine"),
        pytest.param(
            linked(first_gpu, tree(virtual=True), width=16),
            "pass",
            id="virtual-machine-that-shows-slots",
        ),
        pytest.param(NO_GPU, "skip not_applicable", id="slow-management-card-alone"),
        pytest.param(linked(first_gpu, LENT, width=8), "skip not_applicable", id="lent-to-guests"),
        pytest.param(tree(4, GUEST), "pass", id="virtual-function"),
        pytest.param(PciTree((), {}), "skip not_applicable", id="no-bus"),
        pytest.param(absent("denied"), "unknown warning denied", id="denied"),
        pytest.param(absent("hung"), "unknown warning hung", id="hung"),
        pytest.param(absent("garbled"), "unknown warning garbled", id="garbled"),
    ],
)
def test_width(seen: Any, expected: str) -> None:
    assert said("pcie.width", seen) == [expected]


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (first_gpu, "GPU 0000:13:00.0 says no width"),
        (
            is_gpu,
            "GPU 0000:13:00.0, GPU 0000:23:00.0, GPU 0000:33:00.0, GPU 0000:43:00.0 say no width",
        ),
    ],
)
def test_devices_without_a_width_are_named(
    select: Callable[[PciDevice], bool], message: str
) -> None:
    seen = fleet(n1={"pci.tree": linked(select, width=None)})
    (finding,) = findings(seen, "pcie.width")
    assert finding.message == message


def test_the_narrow_one_is_named_with_both_widths() -> None:
    (bad,) = findings(fleet(n1={"pci.tree": linked(first_gpu, width=8)}), "pcie.width")
    assert bad.seen == "GPU 0000:13:00.0 x8 of x16"
    assert bad.remedy.startswith("lspci -s 0000:13:00.0 ")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(HEALTHY, "pass", id="full"),
        pytest.param(linked(is_gpu, speed=2.5), "skip at_rest", id="gpus-at-rest"),
        pytest.param(linked(first_gpu, speed=8.0), "skip at_rest", id="one-gpu-at-rest"),
        pytest.param(linked(first_nic, speed=16.0), "fail warning", id="card-one-generation-down"),
        pytest.param(
            linked(first_nic, linked(first_gpu, speed=2.5), speed=16.0),
            "fail warning",
            id="a-card-is-not-excused",
        ),
        pytest.param(
            linked(first_nic, bridged(above(0, 1)[2], max_speed=16.0), speed=16.0),
            "pass",
            id="slower-slot",
        ),
        pytest.param(linked(first_nic, speed=16.0, max_speed=16.0), "pass", id="older-card"),
        pytest.param(linked(anything, speed=None), "skip not_applicable", id="no-link-says"),
        pytest.param(flat(), "skip not_applicable", id="virtual-machine"),
        pytest.param(absent("timed_out"), "unknown warning timed_out", id="timed-out"),
    ],
)
def test_speed(seen: Any, expected: str) -> None:
    assert said("pcie.gen", seen) == [expected]


def at_work(*addresses: str) -> dict[int, GpuLoad]:
    return {number: GpuLoad(at, True, 97) for number, at in enumerate(addresses)}


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        pytest.param(at_work("0000:13:00.0"), "fail warning", id="it-works"),
        pytest.param(at_work("0000:23:00.0"), "skip at_rest", id="another-works"),
        pytest.param({0: GpuLoad("0000:13:00.0", False, 97)}, "skip at_rest", id="clocks-are-low"),
        pytest.param({0: absent("not_applicable")}, "skip at_rest", id="not-told"),
        pytest.param(absent("hung"), "skip at_rest", id="driver-hangs"),
    ],
)
def test_a_slow_gpu_fails_if_it_works(load: Any, expected: str) -> None:
    seen = fleet(n1={"pci.tree": linked(first_gpu, speed=2.5), "gpu.load": load})
    assert told(seen, "pcie.gen") == {"n1": expected}


def test_a_slow_gpu_that_works_is_named() -> None:
    tree = linked(first_gpu, speed=2.5)
    seen = fleet(n1={"pci.tree": tree, "gpu.load": at_work("0000:13:00.0")})
    (bad,) = findings(seen, "pcie.gen")
    assert bad.seen.startswith("GPU 0000:13:00.0 2.5 of ")


# ---------------------------------------------------------------- bridges

OLD_BOARD = replace(HEALTHY, bridges=dict.fromkeys(HEALTHY.bridges, GEN4))
NARROW = bridged(SWITCH_UP, bridged(above(0, 0)[0], max_width=8), width=8)


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        pytest.param([HEALTHY] * 3, ["pass"] * 3, id="full"),
        pytest.param([bridged(SWITCH_UP, width=8)], ["fail warning"], id="way-up-at-half"),
        pytest.param(
            [bridged(SWITCH_UP, speed=16.0)], ["fail warning"], id="way-up-a-generation-down"
        ),
        pytest.param([OLD_BOARD], ["pass"], id="an-older-board"),
        pytest.param([bridged(SWITCH_DOWN, width=8)], ["pass"], id="the-slot-is-for-pcie.width"),
        pytest.param(
            [bridged(above(0, 0)[0], width=8)], ["pass"], id="the-root-port-is-the-same-link"
        ),
        pytest.param(
            [HEALTHY, NARROW, HEALTHY],
            ["pass", "fail warning", "pass"],
            id="narrower-than-on-other-nodes",
        ),
        pytest.param([NARROW] * 3, ["pass"] * 3, id="narrow-by-design"),
        pytest.param([HEALTHY, NARROW], ["pass", "pass"], id="one-against-one"),
        pytest.param([bridged(SWITCH_UP, width=None)], ["pass"], id="one-does-not-say"),
        pytest.param([flat()], ["skip not_applicable"], id="virtual-machine"),
        pytest.param([tree(0, card("0000:01:00.0"))], ["skip not_applicable"], id="no-switch"),
        pytest.param([HEALTHY, absent("hung")], ["pass", "unknown warning hung"], id="hung"),
    ],
)
def test_bridges(trees: list[Any], expected: list[str]) -> None:
    assert said("pcie.parent", *trees) == expected


def test_devices_below_a_degraded_bridge_are_named() -> None:
    (bad,) = findings(fleet(n1={"pci.tree": bridged(SWITCH_UP, width=8)}), "pcie.parent")
    assert bad.message == "a bridge above GPU 0000:13:00.0, NIC 0000:14:00.0 is degraded"
    assert bad.seen == "0000:11:00.0 x8 of x16"


# ---------------------------------------------------------------- ACS and IOMMU

SMMU = replace(HEALTHY, iommus=("smmu3.0x0000000011000000",))


@pytest.mark.parametrize(
    ("seen", "words", "expected"),
    [
        pytest.param(HEALTHY, {SWITCH_DOWN: 0x00}, "pass", id="off"),
        pytest.param(HEALTHY, {}, "pass", id="switches-without-acs"),
        pytest.param(HEALTHY, {SWITCH_DOWN: 0x01}, "pass", id="source-validation-alone"),
        pytest.param(HEALTHY, {SWITCH_DOWN: 0x1D}, "fail warning", id="as-linux-sets-it"),
        pytest.param(HEALTHY, {SWITCH_DOWN: 0x04}, "fail warning", id="requests"),
        pytest.param(HEALTHY, {SWITCH_DOWN: 0x08}, "fail warning", id="completions"),
        pytest.param(HEALTHY, {SWITCH_DOWN: 0x10}, "fail warning", id="upstream"),
        pytest.param(SMMU, {SWITCH_DOWN: 0x1D}, "skip not_applicable", id="arm"),
        pytest.param(HEALTHY, absent("denied"), "unknown warning denied", id="ordinary-user"),
        pytest.param(
            HEALTHY, absent("not_applicable"), "skip not_applicable", id="virtual-machine"
        ),
        pytest.param(HEALTHY, absent("garbled"), "unknown warning garbled", id="garbled"),
    ],
)
def test_acs(seen: Any, words: Any, expected: str) -> None:
    assert said("pcie.acs", seen, **{"pci.acs": words}) == [expected]


def test_the_remedy_has_every_port() -> None:
    facts = {"pci.tree": HEALTHY, "pci.acs": {"0000:17:00.0": 0x1D, "0000:17:01.0": 0x05}}
    (bad,) = findings(fleet(n1=facts), "pcie.acs")
    assert bad.seen == "0000:17:00.0 ReqRedir CmpltRedir UpstreamFwd; 0000:17:01.0 ReqRedir"
    assert bad.remedy.startswith(
        "setpci -s 0000:17:00.0 ECAP_ACS+0x6.w=0000; setpci -s 0000:17:01.0 ECAP_ACS"
    )


def domain(kind: str | None, seen: PciTree = HEALTHY) -> PciTree:
    return replace(seen, devices=tuple(replace(d, iommu=kind) for d in seen.devices))


@pytest.mark.parametrize(
    ("seen", "passing", "expected"),
    [
        pytest.param(domain(None), False, "pass", id="off"),
        pytest.param(domain("identity"), True, "pass", id="passthrough"),
        pytest.param(domain("identity"), False, "pass", id="passthrough-by-the-kernels-default"),
        pytest.param(domain("DMA"), False, "fail warning", id="translates"),
        pytest.param(
            domain("DMA-FQ"), True, "fail warning", id="translates-whatever-the-command-line-says"
        ),
        pytest.param(domain(""), True, "pass", id="older-kernel-with-iommu=pt"),
        pytest.param(
            domain(""),
            False,
            "unknown warning no type in /sys/kernel/iommu_groups",
            id="older-kernel",
        ),
        pytest.param(
            domain("DMA", tree(virtual=True)), False, "skip not_applicable", id="virtual-machine"
        ),
        pytest.param(domain("DMA", SMMU), False, "skip not_applicable", id="arm"),
        pytest.param(domain("DMA", NO_GPU), False, "skip not_applicable", id="no-gpu"),
        pytest.param(domain("DMA", LENT), False, "skip not_applicable", id="lent-to-guests"),
        pytest.param(HEALTHY, absent("garbled"), "unknown warning garbled", id="no-command-line"),
    ],
)
def test_iommu(seen: Any, passing: Any, expected: str) -> None:
    assert said("pcie.iommu", seen, **{"pci.passthrough": passing}) == [expected]


# ---------------------------------------------------------------- texts that are no values


@pytest.mark.parametrize(
    ("check", "unread", "expected"),
    [
        ("pcie.width", "current_link_width 63", "unknown warning garbled"),
        ("pcie.width", "max_link_width -1", "unknown warning garbled"),
        ("pcie.gen", "current_link_speed 32 GT", "unknown warning garbled"),
        ("pcie.width", "current_link_speed 32 GT", "pass"),
        ("pcie.gen", "current_link_width 63", "pass"),
    ],
)
@pytest.mark.parametrize("select", [first_gpu, first_nic])
def test_a_link_that_cannot_be_read_is_not_known(
    check: str, unread: str, expected: str, select: Callable[[PciDevice], bool]
) -> None:
    what = "width" if "width" in unread else "speed"
    gone = {what: None, "unread": (unread,)}
    seen = linked(select, **gone)
    assert said(check, seen, HEALTHY) == [expected, "pass"]
    assert said(check, bridged(above(0, 0)[2], **gone))[0] == expected
    assert said("pcie.parent", bridged(SWITCH_UP, **gone)) == ["unknown warning garbled"]


def test_a_link_that_has_lost_lanes_is_told_beside_one_that_cannot_be_read() -> None:
    seen = linked(
        first_nic, linked(first_gpu, width=8), width=None, unread=("current_link_width 63",)
    )
    assert said("pcie.width", seen) == ["fail warning"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"0000:17:00.0": 0, "0000:17:01.0": None}, "unknown warning denied"),
        ({"0000:17:00.0": 0x1D, "0000:17:01.0": None}, "fail warning"),
    ],
)
def test_a_switch_port_that_did_not_show_its_access_control(
    words: dict[str, int | None], expected: str
) -> None:
    assert said("pcie.acs", HEALTHY, **{"pci.acs": words}) == [expected]


@pytest.mark.parametrize(
    "check",
    ["ib.state", "ib.rate", "ib.link_layer", "ib.present", "numa.gpu_nic", "pcie.parent"],
)
def test_a_gpu_that_left_the_bus_spoils_no_other_check(check: str) -> None:
    """As its /sys shows it: the width 63 and the speed Unknown."""
    left = linked(first_gpu, width=None, speed=None, unread=("current_link_width 63",))
    facts = {"rdma.devices": hcas(), "pci.tree": left}
    seen = fleet(n1=facts, n2={**facts, "pci.tree": HEALTHY})
    assert told(seen, check)["n1"] == told(seen, check)["n2"] == "pass"
