"""What the files of ports say of subnet managers, subnets and partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from clusterprep.facts.ib_fabric import FabricDevice, FabricPort
from tests.support.fleet import learned

IB = "/sys/class/infiniband"
# deepseek-ai/DeepEP#303, `ibstat` of an H20 node: mlx5_0 has GUID 0xa088c2030074cfda, SM lid 1.
H20 = {
    f"{IB}/mlx5_0/node_guid": "a088:c203:0074:cfda",
    f"{IB}/mlx5_0/ports/1/link_layer": "InfiniBand",
    f"{IB}/mlx5_0/ports/1/sm_lid": "0x1",
    f"{IB}/mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:a088:c203:0074:cfda",
    f"{IB}/mlx5_0/ports/1/pkeys/0": "0xffff",
    f"{IB}/mlx5_0/ports/1/pkeys/1": "0x0000",
}
# Azure/azhpc-diagnostics#59: a virtual function of a partitioned fabric.
AZURE = {
    f"{IB}/mlx5_ib0/node_guid": "0015:5dff:fe33:ff34",
    f"{IB}/mlx5_ib0/ports/1/pkeys/0": "0x8021",
    f"{IB}/mlx5_ib0/ports/1/pkeys/1": "0x7fff",
}


GUID = "a088:c203:0074:cfda"
PORT = FabricPort(1, "fe80:0000:0000:0000", GUID, {0: 0xFFFF})


def test_a_port_of_an_ordinary_fabric() -> None:
    assert learned("ib.fabric", ["ok", H20]) == {"mlx5_0": FabricDevice(GUID, {1: PORT})}


def test_a_partitioned_fabric() -> None:
    found = learned("ib.fabric", ["ok", AZURE])
    assert found["mlx5_ib0"].ports[1].pkeys == {0: 0x8021, 1: 0x7FFF}


def test_efa_has_no_guid() -> None:
    """linux-rdma/rdma-core#884: EFA answers zeros."""
    files = {f"{IB}/rdmap79s0/node_guid": "0000:0000:0000:0000"}
    assert learned("ib.fabric", ["ok", files]) == {"rdmap79s0": FabricDevice(None, {})}


def test_an_ethernet_port_has_no_guid_of_its_own() -> None:
    """Composed: the GID of an Ethernet port is made of its MAC address."""
    files = {**H20, f"{IB}/mlx5_0/ports/1/link_layer": "Ethernet"}
    assert learned("ib.fabric", ["ok", files])["mlx5_0"].ports[1].guid is None


ODD = ("", "-1", "255", "Unknown", "one", "0x1ffff", "fe80::1", "a088c2030074cfda", "9" * 40, "\0")
TWO = {**H20, **{path.replace("mlx5_0", "mlx5_1"): text for path, text in H20.items()}}


@pytest.mark.parametrize("file", [path.partition("mlx5_0/")[2] for path in H20])
@given(text=st.sampled_from(ODD) | st.text(max_size=20) | st.none())
def test_an_odd_file_of_one_device_costs_that_device_alone(file: str, text: str | None) -> None:
    """None stands for a file that is not there."""
    path = f"{IB}/mlx5_0/{file}"
    files = {**TWO, path: text}
    if text is None:
        del files[path]
    found = learned("ib.fabric", ["ok", files])
    assert found["mlx5_1"] == learned("ib.fabric", ["ok", TWO])["mlx5_1"]


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("node_guid", "", FabricDevice(None, {1: PORT}, ("node_guid",))),
        ("node_guid", "a088c2030074cfda", FabricDevice(None, {1: PORT}, ("node_guid",))),
        ("ports/1/sm_lid", "one", FabricDevice(GUID, {1: replace(PORT, sm_lid=None)})),
        (
            "ports/1/gids/0",
            "fe80::1",
            FabricDevice(GUID, {1: replace(PORT, subnet=None, guid=None)}, ("GUID of port 1",)),
        ),
        ("ports/1/pkeys/0", "0x1ffff", FabricDevice(GUID, {1: replace(PORT, pkeys=None)})),
        ("ports/1/pkeys/1", "full", FabricDevice(GUID, {1: replace(PORT, pkeys=None)})),
    ],
)
def test_a_text_that_is_no_value(file: str, text: str, expected: FabricDevice) -> None:
    found = learned("ib.fabric", ["ok", {**H20, f"{IB}/mlx5_0/{file}": text}])
    assert found == {"mlx5_0": expected}


def test_a_file_of_something_else_is_garbled() -> None:
    files = {**H20, f"{IB}/mlx5_0/ports/1/rate": "400"}
    assert learned("ib.fabric", ["ok", files]).reason == "garbled"


def test_without_devices() -> None:
    assert learned("ib.fabric", ["ok", {}]) == {}
