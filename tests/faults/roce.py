"""Two RoCE rails: real interfaces with addresses and routes, RDMA devices as files over /sys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.faults.row import Row
from tests.machines import tree
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault

RAILS = {"mlx5_0": ("eth1", "10.88", "0000:19:00.0"), "mlx5_1": ("eth2", "10.89", "0000:1a:00.0")}
_PORT = "/sys/class/infiniband/mlx5_1/ports/1"


def rails(lab: Lab) -> Iterator[Fault]:
    """Every host with both of them; 10.77.0.2 is 10.88.0.2 and 10.89.0.2 there."""
    for interface, network, _ in RAILS.values():
        yield faults.second_veth(lab.hosts, network, interface)
        for host in lab.hosts:
            yield faults.mtu(host, 9000, interface)
    for host in lab.hosts:
        yield faults.sys_tree(host, *_devices(host))
        yield faults.sys_tree(host, _congestion_control(), {})
        for number in range(len(RAILS)):
            yield faults.written(host, f"/dev/infiniband/uverbs{number}", "", 0o666)


def _devices(host: Host) -> tree.Grown:
    cards = [
        {"at": pci, "class": "0x020000", "vendor": "0x15b3", "device": "0x101d", "numa_node": 0}
        for _, _, pci in RAILS.values()
    ]
    files, links = tree.pci(cards)
    described = {name: _device(host, *rail) for name, rail in RAILS.items()}
    more_files, more_links = tree.rdma(described, links)
    nets = {
        f"{links[f'/sys/bus/pci/devices/{pci}']}/net/{name}/.there": ""
        for name, _, pci in RAILS.values()
    }
    verbs = {
        f"/sys/class/infiniband_verbs/uverbs{n}/ibdev": f"{name}\n" for n, name in enumerate(RAILS)
    }
    return {**files, **more_files, **nets, **verbs}, {**links, **more_links}


def _congestion_control() -> dict[str, str]:
    """What mlx5 shows of it for each interface."""
    files = {}
    for interface, _, _ in RAILS.values():
        for side in ("np", "rp"):
            files[f"/sys/class/net/{interface}/ecn/roce_{side}/enable/3"] = "1\n"
    return files


def _device(host: Host, interface: str, network: str, pci: str) -> Mapping[str, Any]:
    tail = [int(part) for part in host.address.split(".")[2:]]
    first, second = (int(part) for part in network.split("."))
    mapped = f"0000:0000:0000:0000:0000:ffff:{first:02x}{second:02x}:{tail[0]:02x}{tail[1]:02x}"
    local = "fe80:0000:0000:0000:0242:acff:fe11:0002"
    port = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "100 Gb/sec (2X HDR)",
        "link_layer": "Ethernet",
        "gids": {0: local, 1: local, 2: mapped, 3: mapped},
        "types": {0: "IB/RoCE v1", 1: "RoCE v2", 2: "IB/RoCE v1", 3: "RoCE v2"},
        "ndevs": dict.fromkeys(range(4), interface),
    }
    own = {
        "fw_ver": "22.39.1002",
        "board_id": "MT_0000000359",
        "hca_type": "MT4125",
        "node_type": "1: CA",
    }
    guid = f"0242:acff:fe11:{second:02x}{host.index:02x}"
    return {"pci": pci, "node_guid": guid, **own, "ports": {1: port}}


def inventory(lab: Lab) -> dict[str, Any]:
    """What the user declares."""
    return {"interfaces": {"nccl": "eth0", "rdma": list(RAILS)}}


def _same_network(host: Host, lab: Lab) -> Fault:
    """Both rails in one network, as when a switch is one for all.

    The kernel sends all by the first.
    """
    given = f"10.88.100.{host.index}/16"
    before = faults.no_address(host, "eth2")
    host.run(["ip", "address", "add", given, "dev", "eth2"])
    return faults.together(
        before, Fault(lambda: host.run(["ip", "address", "del", given, "dev", "eth2"]))
    )


def _without_ecn(host: Host, lab: Lab) -> Fault:
    """One rail does not slow down when the network asks for it."""
    return faults.file_over(host, "/sys/class/net/eth2/ecn/roce_rp/enable/3", "0\n")


ROWS = (
    Row("a rail without congestion control", "roce.qos", _without_ecn, "laid over", several=True),
    Row(
        "a rail that sends small packets",
        "eth.mtu",
        lambda host, lab: faults.mtu(host, 1500, "eth2"),
        several=True,
    ),
    Row(
        "a rail without its address",
        "roce.gid",
        lambda host, lab: faults.no_address(host, "eth2"),
        several=True,
    ),
    Row(
        "a port without RoCE v2",
        "roce.gid",
        lambda host, lab: faults.file_over(host, f"{_PORT}/gid_attrs/types/3", "IB/RoCE v1\n"),
        "laid over",
        several=True,
    ),
    Row(
        "two rails in one network",
        "roce.route",
        _same_network,
        also={"roce.gid": "the table of addresses is laid over, and still has the old one"},
        several=True,
    ),
    Row(
        "a forgotten index of a GID that is link-local",
        "roce.gid_choice",
        lambda host, lab: faults.session_environment(host, {"NCCL_IB_GID_INDEX": "1"}),
        several=True,
    ),
)
