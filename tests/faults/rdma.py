"""RDMA cards and the PCI links to them, which the lab has as a tree of files over /sys."""

from __future__ import annotations

from tests.faults.hgx import machine
from tests.faults.row import Plant, Row
from tests.machines import tree
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

_IB = "/sys/class/infiniband"
_PCI = "/sys/bus/pci/devices"
_GPU = f"{_PCI}/0000:2a:00.0"
_DRIVER = "/proc/driver/nvidia/version"


def _file(path: str, text: str) -> Plant:
    return lambda host, lab: faults.file_over(host, path, f"{text}\n")


def _down(host: Host, names: list[str]) -> Fault:
    ports = [f"{_IB}/{name}/ports/1" for name in names]
    states = [faults.file_over(host, f"{port}/state", "1: DOWN\n") for port in ports]
    return faults.together(
        *states, *(faults.file_over(host, f"{port}/phys_state", "2: Polling\n") for port in ports)
    )


def _all_down(host: Host, lab: Lab) -> Fault:
    names = {path.split("/")[4] for path in machine(host).files if path.startswith(_IB + "/")}
    return _down(host, sorted(names))


def _translating(host: Host, lab: Lab) -> Fault:
    """The GPU is in a group of the IOMMU whose addresses are translated."""
    group = "/sys/kernel/iommu_groups/17"
    named = faults.written(host, f"{group}/type", "DMA-FQ\n")
    host.run(["ln", "-s", group, f"{_GPU}/iommu_group"])
    return faults.together(named, Fault(lambda: host.run(["rm", f"{_GPU}/iommu_group"])))


def _closed_driver(host: Host, lab: Lab) -> Fault:
    """NVIDIA's closed module, which has no DMA-BUF, and no nvidia_peermem either."""
    return faults.file_over(
        host, _DRIVER, host.read(_DRIVER).replace("Open Kernel Module for x86_64", "Kernel Module")
    )


def _same_guid(host: Host, lab: Lab) -> Fault:
    """One card has the GUID of another one of the same host."""
    return faults.file_over(host, f"{_IB}/mlx5_0/node_guid", host.read(f"{_IB}/mlx5_3/node_guid"))


def _strange_topology(host: Host, lab: Lab) -> Fault:
    """Where virtual machines have it, a file with the addresses of Azure's ND96isr_H100_v5."""
    function = '<pci busid="0001:00:00.0" class="0x030200"/>'
    text = f'<system version="1"><cpu numaid="0">{function}</cpu></system>\n'
    return faults.written(host, "/var/run/nvidia-topologyd/virtualTopology.xml", text)


ROWS = (
    Row(
        "an RDMA card missing",
        "ib.present",
        lambda host, lab: faults.without(host, f"{_IB}/mlx5_4"),
        "laid over",
        also={"numa.gpu_nic": "the GPU beside it is now far from every card"},
    ),
    Row("a port without link", "ib.state", lambda host, lab: _down(host, ["mlx5_3"]), "laid over"),
    Row(
        "a port at a quarter of its rate",
        "ib.rate",
        _file(f"{_IB}/mlx5_5/ports/1/rate", "100 Gb/sec (4X EDR)"),
        "laid over",
    ),
    Row(
        "a port set to Ethernet",
        "ib.link_layer",
        _file(f"{_IB}/mlx5_6/ports/1/link_layer", "Ethernet"),
        "laid over",
    ),
    Row("no port of any card up", "ib.configured", _all_down, "laid over"),
    Row(
        "verbs not there",
        "ib.chardev",
        lambda host, lab: faults.without(host, "/dev/infiniband"),
        "laid over",
    ),
    Row(
        "other firmware on a card",
        "fw.nic",
        _file(f"{_IB}/mlx5_9/fw_ver", "28.36.1010"),
        "laid over",
    ),
    Row(
        "other RDMA driver",
        "ofed.version",
        _file("/sys/module/mlx5_core/version", "5.8-3.0.7"),
        "laid over",
    ),
    Row(
        "a GPU with eight lanes of sixteen",
        "pcie.width",
        _file(f"{_GPU}/current_link_width", "8"),
        "laid over",
    ),
    Row(
        "a link of 1 Gbit/s",
        "eth.speed",
        _file("/sys/class/net/eth0/speed", "1000"),
        "laid over",
        several=True,
    ),
    Row(
        "half duplex",
        "eth.speed",
        _file("/sys/class/net/eth0/duplex", "half"),
        "laid over",
        several=True,
    ),
    Row(
        "a switch above a GPU with eight lanes of sixteen",
        "pcie.parent",
        _file(f"{_PCI}/0000:38:00.0/current_link_width", "8"),
        "laid over",
    ),
    Row(
        "a card at 8 GT/s",
        "pcie.gen",
        _file(f"{_PCI}/0000:3b:00.0/current_link_speed", "8.0 GT/s PCIe"),
        "laid over",
    ),
    Row(
        "switches that redirect peer traffic",
        "pcie.acs",
        lambda host, lab: faults.file_over(host, f"{_PCI}/0000:17:00.0/config", tree.config(0x1D)),
        "laid over",
    ),
    Row(
        "a fatal error on the link of a GPU",
        "pcie.aer",
        _file(f"{_GPU}/aer_dev_fatal", "MalfTLP 1\nTOTAL_ERR_FATAL 1"),
        "laid over",
    ),
    Row(
        "a card that reads 128 bytes at a time",
        "pcie.relaxed",
        lambda host, lab: faults.file_over(
            host, f"{_PCI}/0000:5c:00.0/config", tree.endpoint_config(0x0930)
        ),
        "laid over",
    ),
    Row(
        "a port that no subnet manager knows",
        "ib.sm",
        _file(f"{_IB}/mlx5_9/ports/1/sm_lid", "0x0"),
        "laid over",
    ),
    Row(
        "a limited member of the partition",
        "ib.pkey",
        _file(f"{_IB}/mlx5_10/ports/1/pkeys/0", "0x7fff"),
        "laid over",
    ),
    Row("two cards with one GUID", "ib.guid_dup", _same_guid, "laid over"),
    Row("a topology file of another machine", "fabric.topology", _strange_topology, "laid over"),
    Row("an IOMMU that translates", "pcie.iommu", _translating, "laid over"),
    Row("no way for RDMA into the GPUs' memory", "rdma.peermem", _closed_driver, "laid over"),
)
