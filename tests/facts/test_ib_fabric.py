"""What the files of ports say of subnet managers, subnets and partitions."""

from __future__ import annotations

import pytest

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


def test_a_port_of_an_ordinary_fabric() -> None:
    port = FabricPort(1, "fe80:0000:0000:0000", "a088:c203:0074:cfda", {0: 0xFFFF})
    assert learned("ib.fabric", ["ok", H20]) == {
        "mlx5_0": FabricDevice("a088:c203:0074:cfda", {1: port})
    }


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


@pytest.mark.parametrize("lost", ["node_guid", "ports/1/gids/0"])
def test_a_port_without_its_guid_is_garbled(lost: str) -> None:
    left = {path: text for path, text in H20.items() if not path.endswith(lost)}
    assert learned("ib.fabric", ["ok", left]).reason == "garbled"


def test_without_devices() -> None:
    assert learned("ib.fabric", ["ok", {}]) == {}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("node_guid", "a088c2030074cfda"),
        ("node_guid", ""),
        ("ports/1/sm_lid", "one"),
        ("ports/1/gids/0", "fe80::1"),
        ("ports/1/pkeys/0", "0x1ffff"),
        ("ports/1/pkeys/0", "full"),
        ("ports/1/rate", "400"),
    ],
)
def test_a_text_that_is_none_of_these_is_garbled(file: str, text: str) -> None:
    assert learned("ib.fabric", ["ok", {**H20, f"{IB}/mlx5_0/{file}": text}]).reason == "garbled"
