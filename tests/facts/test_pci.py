"""The PCIe tree as /sys writes it: links, bridges, NUMA nodes, and texts that are none of these."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.model import Absent
from tests.support.fleet import learned

LINK = {
    "current_link_width": "16",
    "max_link_width": "16",
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
}
ABOVE = ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0"]
GPU = {
    **LINK,
    "at": "0000:18:00.0",
    "class": "0x030200",
    "vendor": "0x10de",
    "device": "0x2330",
    "numa_node": "0",
    "subsystem_vendor": "0x10de",
    "subsystem_device": "0x16c1",
    "above": ABOVE,
    "root": "pci0000:15",
    "physfn": None,
    "driver": "nvidia",
    "iommu": None,
}
NIC = {**GPU, "at": "0000:19:00.0", "class": "0x020700", "vendor": "0x15b3", "driver": "mlx5_core"}


def answer(*devices: dict[str, Any], acs: Any = 0, **fields: Any) -> list[Any]:
    bridges = {
        at: {**LINK, "acs": None if at.endswith("01.0") else acs}
        for d in devices
        for at in d["above"]
    }
    return [
        "ok",
        {"devices": list(devices), "bridges": bridges, "virtual": False, "iommu": [], **fields},
    ]


def one(**fields: Any) -> PciDevice:
    found = learned("pci.tree", answer({**GPU, **fields}))
    assert isinstance(found, PciTree), found
    return found.devices[0]


def test_a_gpu_below_a_switch() -> None:
    found = learned("pci.tree", answer(GPU, NIC))
    gpu, nic = found.devices
    assert gpu == PciDevice(
        "0000:18:00.0",
        True,
        "0x10de",
        PciLink(16, 16, 32.0, 32.0),
        tuple(ABOVE),
        0,
        driver="nvidia",
        device="0x2330",
    )
    assert found.gpus == (gpu,)
    assert found.device("0000:19:00.0") is nic
    assert found.device(None) is None
    assert gpu.under_one_switch(nic)
    assert found.link_above(gpu) == PciLink(16, 16, 32.0, 32.0)


def test_devices_on_the_bus_itself_share_no_switch() -> None:
    gpu, other = one(above=[]), one(above=[], at="0000:19:00.0")
    assert not gpu.under_one_switch(other)


@pytest.mark.parametrize(
    ("key", "text", "field", "expected"),
    [
        ("current_link_speed", "8 GT/s", "speed", 8.0),
        ("current_link_speed", "2.5 GT/s PCIe", "speed", 2.5),
        ("current_link_speed", "Unknown", "speed", None),
        ("current_link_speed", "Unknown speed", "speed", None),
        ("current_link_speed", None, "speed", None),
        ("max_link_speed", "64.0 GT/s PCIe", "max_speed", 64.0),
        ("current_link_width", "0", "width", None),
        ("current_link_width", "255", "width", None),
        ("current_link_width", None, "width", None),
        ("max_link_width", "8", "max_width", 8),
    ],
)
def test_texts_of_links(key: str, text: str | None, field: str, expected: float | None) -> None:
    assert getattr(one(**{key: text}).link, field) == expected


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("-1", None), (None, None)])
def test_a_numa_node_that_firmware_does_not_say_is_none(
    text: str | None, expected: int | None
) -> None:
    assert one(numa_node=text).numa == expected


def test_without_a_bus_there_are_no_devices() -> None:
    assert learned("pci.tree", ["no", "missing", "/sys/bus/pci"]) == PciTree((), {})


ODD = ("", "-1", "255", "63", "Unknown", "16 lanes", "3", "32,0 GT/s PCIe", "9" * 40, "\ufffd\0")
FILES = (*LINK, "class", "vendor", "device", "numa_node", "subsystem_vendor", "subsystem_device")
NAMES = ("physfn", "driver", "iommu")
SECOND = {**GPU, "at": "0000:2a:00.0", "above": ["0000:26:01.0", "0000:27:00.0", "0000:28:00.0"]}


@pytest.mark.parametrize("key", [*FILES, *NAMES])
@given(text=st.sampled_from(ODD) | st.text(max_size=30))
def test_an_odd_file_of_one_device_costs_that_device_alone(key: str, text: str) -> None:
    """Whatever a file of one device says, what is known of all others stays as it is."""
    sound = learned("pci.tree", answer(GPU, NIC, SECOND))
    for number, device in enumerate((GPU, NIC, SECOND)):
        rows = [GPU, NIC, SECOND]
        rows[number] = {**device, key: text}
        found = learned("pci.tree", answer(*rows))
        assert isinstance(found, PciTree), found
        assert found.bridges == sound.bridges
        others = [d for d in sound.devices if d.at != device["at"]]
        assert [d for d in found.devices if d.at != device["at"]] == others


@pytest.mark.parametrize("key", [*LINK])
@given(text=st.sampled_from(ODD) | st.text(max_size=30))
def test_an_odd_file_of_a_bridge_costs_its_link_alone(key: str, text: str) -> None:
    sound = learned("pci.tree", answer(GPU, NIC, SECOND))
    raw = answer(GPU, NIC, SECOND)
    raw[1]["bridges"][ABOVE[1]][key] = text
    found = learned("pci.tree", raw)
    assert isinstance(found, PciTree), found
    assert found.devices == sound.devices
    assert {**found.bridges, ABOVE[1]: None} == {**sound.bridges, ABOVE[1]: None}


def test_a_gpu_that_left_the_bus() -> None:
    """Composed of what all ones on the bus make of the registers.

    63 in the six bits of the width (PCI Express 6.0, 7.5.3.8), and Unknown as the speed.
    """
    gone = one(current_link_width="63", current_link_speed="Unknown")
    assert gone.link == PciLink(None, 16, None, 32.0, ("current_link_width 63",))
    assert gone.gpu


@pytest.mark.parametrize(
    ("fields", "unread"),
    [
        pytest.param({"current_link_width": "16 lanes"}, "current_link_width 16 lanes", id="words"),
        pytest.param({"current_link_width": "3"}, "current_link_width 3", id="no-such-width"),
        pytest.param({"current_link_width": ""}, "current_link_width empty", id="empty"),
        pytest.param({"max_link_width": "-1"}, "max_link_width -1", id="negative"),
        pytest.param(
            {"current_link_speed": "32,0 GT/s PCIe"},
            "current_link_speed 32,0 GT/s PCIe",
            id="comma",
        ),
        pytest.param({"max_link_speed": "32.0 GT"}, "max_link_speed 32.0 GT", id="cut"),
        pytest.param({"numa_node": "zero"}, "numa_node zero", id="numa-in-words"),
        pytest.param({"numa_node": "9" * 40}, "numa_node " + "9" * 20, id="numa-too-large"),
        pytest.param({"class": "0x03"}, "class 0x03", id="class-cut"),
    ],
)
def test_a_text_that_is_no_value_is_kept_as_it_is(fields: dict[str, Any], unread: str) -> None:
    found = one(**fields)
    assert (*found.link.unread, *found.unread) == (unread,)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"at": "18:00.0"}, id="address-without-domain"),
        pytest.param({"above": ["0000:zz:00.0"]}, id="bridge-that-is-none"),
    ],
)
def test_an_address_that_is_none_is_garbled(fields: dict[str, Any]) -> None:
    """Addresses are names of folders and no texts of files."""
    found = learned("pci.tree", answer({**GPU, **fields}))
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


@pytest.mark.parametrize(
    "raw", [None, [], {}, "text", {"devices": [GPU], "bridges": {}, "virtual": 3, "iommu": []}]
)
def test_another_shape_is_garbled(raw: Any) -> None:
    found = learned("pci.tree", ["ok", raw])
    assert (
        found == PciTree((), {})
        if raw is None
        else (isinstance(found, Absent) and found.reason == "garbled")
    )


def test_a_bridge_of_which_nothing_is_said_is_garbled() -> None:
    raw = answer(GPU)
    del raw[1]["bridges"][ABOVE[1]]
    assert learned("pci.tree", raw).reason == "garbled"


# ---------------------------------------------------------------- ACS


def test_control_words_of_switch_ports_and_of_no_root_port() -> None:
    assert learned("pci.acs", answer(GPU, acs=0x1D)) == {"0000:16:00.0": 0x1D, "0000:17:00.0": 0x1D}
    assert learned("pci.acs", answer(GPU, acs=None)) == {}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(answer(GPU, acs="denied"), "denied", id="ordinary-user"),
        pytest.param(
            answer(GPU, acs="denied", virtual=True), "not_applicable", id="virtual-machine"
        ),
        pytest.param(answer({**GPU, "above": ABOVE[:1]}), "not_applicable", id="no-switch"),
        pytest.param(answer(), "not_applicable", id="no-device"),
        pytest.param(["no", "missing", ""], "not_applicable", id="no-bus"),
        pytest.param(["no", "hung", ""], "hung", id="hung"),
        pytest.param(answer(GPU, acs="1d"), "garbled", id="text"),
    ],
)
def test_what_acs_cannot_say(raw: list[Any], reason: str) -> None:
    assert learned("pci.acs", raw).reason == reason


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro intel_iommu=on iommu=pt\n", True),
        ("ro amd_iommu=off", True),
        ("ro iommu.passthrough=1", True),
        ("ro iommu=on intel_iommu=on", False),
        ("ro xiommu=pt", False),
    ],
)
def test_passthrough_by_the_command_line(text: str, expected: bool) -> None:
    assert learned("pci.passthrough", ["ok", text]) is expected


@pytest.mark.parametrize("raw", [["ok", ""], ["ok", " \n"], ["no", "missing", ""]])
def test_no_command_line_is_no_answer(raw: list[Any]) -> None:
    assert learned("pci.passthrough", raw).reason == "garbled"


# ---------------------------------------------------------------- functions that lead to NVSwitches


def functions(count: int, **fields: Any) -> list[dict[str, Any]]:
    """InfiniBand functions of one card, as the agent tells them."""
    return [{**NIC, "at": f"0000:a0:00.{n}", **fields} for n in range(count)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(functions(4, sw_mng=True), 4, id="vpd-says-so"),
        pytest.param(functions(2, sw_mng=True), 2, id="two-of-them"),
        pytest.param(functions(4, sw_mng=None), 4, id="ordinary-user-four-functions"),
        pytest.param(functions(2, sw_mng=None), 0, id="ordinary-user-dual-port-card"),
        pytest.param(functions(4, sw_mng=False), 0, id="vpd-says-otherwise"),
        pytest.param(functions(1), 0, id="a-card-of-one-port"),
    ],
)
def test_functions_that_lead_to_nvswitches(rows: list[dict[str, Any]], expected: int) -> None:
    found = learned("pci.tree", answer(GPU, *rows))
    assert [d.manages_nvswitches for d in found.devices].count(True) == expected
