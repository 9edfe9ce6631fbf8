"""Topology files as clouds provide them, and texts that are none."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.topology_file import TopologyFile
from tests.support.fleet import learned

# Azure/azhpc-images, topology/ndv5-topo.xml, its first switch.
AZURE = """<system version="1">
  <cpu numaid="0" affinity="ffffffff,ffff0000,00000000" arch="x86_64" vendor="GenuineIntel">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0001:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0101:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
  </cpu>
</system>"""
# aws/aws-ofi-nccl, topology/p4d-24xl-topo.xml: comments behind the devices.
P4D = """<system version="1">
  <cpu numaid="0" arch="x86_64">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="8 GT/s">  <!-- Switch 0 begins -->
        <pci busid="0000:10:1c.0" class="0x030200" link_width="16"/> <!-- GPU 0 -->
        <pci busid="0000:10:1d.0" class="0x030200" link_width="16"/> <!-- GPU 1 -->
        <pci busid="0000:10:1b.0" class="0x020000" link_width="16"/> <!-- NIC 0 -->
    </pci> <!-- Switch 0 ends -->
  </cpu>
</system>"""
# aws/aws-ofi-nccl#466: addresses alone.
G5 = '<system version="1"><cpu numaid="0"><pci busid="0000:00:1b.0"/></cpu></system>'
# aws/aws-ofi-nccl, topology/p5.48xl-topo.xml: devices with children.
P5 = """<system version="1"><cpu numaid="0">
<pci busid="0000:00:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
  <pci busid="0000:4f:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
    <gpu dev="0" sm="90" rank="0" gdr="1"/>
  </pci>
  <pci busid="0000:50:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="8">
    <nic><net name="rdmap79s0" dev="0" speed="100000" port="1"/></nic>
  </pci>
</pci></cpu></system>"""


@pytest.mark.parametrize(
    ("text", "gpus", "nics", "others"),
    [
        pytest.param(AZURE, ("0001:00:00.0",), ("0101:00:00.0",), (), id="azure-ndv5"),
        pytest.param(P4D, ("0000:10:1c.0", "0000:10:1d.0"), ("0000:10:1b.0",), (), id="aws-p4d"),
        pytest.param(G5, (), (), ("0000:00:1b.0",), id="aws-g5"),
        pytest.param(P5, ("0000:4f:00.0",), ("0000:50:00.0",), (), id="aws-p5"),
    ],
)
def test_topology_files_of_clouds(text: str, gpus: Any, nics: Any, others: Any) -> None:
    found = learned("nccl.topology", ["ok", {"path": "/t.xml", "text": text}])
    assert found == TopologyFile("/t.xml", True, gpus, nics, others)


@pytest.mark.parametrize("text", ["", "<html>", '<system><pci busid="10:1c" class="0x03"/>'])
def test_a_text_that_is_no_topology_is_garbled(text: str) -> None:
    assert learned("nccl.topology", ["ok", {"path": "/t", "text": text}]).reason == "garbled"


def test_no_topology_file() -> None:
    assert learned("nccl.topology", ["ok", None]) is None
    missing = {"path": "/t.xml", "text": None}
    assert learned("nccl.topology", ["ok", missing]) == TopologyFile("/t.xml", False)
