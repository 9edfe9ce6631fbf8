"""Nodes with GPUs and RDMA cards in pairs, each pair under its own PCIe switch, as facts."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any

from msgspec.structs import replace

from clusterprep.facts.network import Interface
from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.facts.rdma import Gid, Port, RdmaDevice
from tests.support.fleet import eth

GEN5 = PciLink(16, 16, 32.0, 32.0)
UP = Port(1, "ACTIVE", "LinkUp", "InfiniBand", 400.0, 7)
DOWN = Port(1, "DOWN", "Polling", "InfiniBand", 10.0, 0)
INIT = Port(1, "INIT", "LinkUp", "InfiniBand", 400.0, 0)  # no subnet manager has seen it
BOARD = "MT_0000000838"


def gpu_at(number: int) -> str:
    return f"0000:{16 * (number + 1) + 3:02x}:00.0"


def nic_at(number: int) -> str:
    return f"0000:{16 * (number + 1) + 4:02x}:00.0"


def above(number: int, port: int) -> tuple[str, str, str]:
    """Root port, the switch's port up, and one of its ports down."""
    bus = 16 * (number + 1)
    return (f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0", f"0000:{bus + 2:02x}:{port:02x}.0")


def tree(pairs: int = 4, *others: PciDevice, **fields: Any) -> PciTree:
    """Half of the pairs on each NUMA node; `others` are devices besides."""
    devices: list[PciDevice] = []
    for number in range(pairs):
        numa = 2 * number // pairs
        devices.append(PciDevice(gpu_at(number), True, "0x10de", GEN5, above(number, 0), numa))
        devices.append(PciDevice(nic_at(number), False, "0x15b3", GEN5, above(number, 1), numa))
    bridges = {at: GEN5 for device in (*devices, *others) for at in device.above}
    return replace(PciTree((*devices, *others), bridges), **fields)


def flat(gpus: int = 2, nics: int = 2, **fields: Any) -> PciTree:
    """A virtual machine: all devices on the bus itself, nothing above them."""
    gpu = [
        PciDevice(gpu_at(n), True, "0x10de", PciLink(None, None, None, None)) for n in range(gpus)
    ]
    nic = [
        PciDevice(nic_at(n), False, "0x15b3", PciLink(None, None, None, None)) for n in range(nics)
    ]
    return replace(PciTree((*gpu, *nic), {}, virtual=True), **fields)


def card(at: str, numa: int = 0, root: str = "0000:f0:01.0", **fields: Any) -> PciDevice:
    """A network card without a GPU beside it."""
    return replace(PciDevice(at, False, "0x15b3", GEN5, (root,), numa), **fields)


def hca(name: str, pci: str | None, port: Port = UP, *more: Port, **fields: Any) -> RdmaDevice:
    return replace(
        RdmaDevice(name, pci, "28.39.1002", BOARD, "MT4129", (), (port, *more)), **fields
    )


def hcas(count: int = 4, **ports: Port) -> tuple[RdmaDevice, ...]:
    """mlx5_0, … on the cards of the pairs, all up where `ports` does not say otherwise."""
    return tuple(hca(f"mlx5_{n}", nic_at(n), ports.get(f"mlx5_{n}", UP)) for n in range(count))


def node(devices: Any = None, pci: Any = None, **facts: Any) -> dict[str, Any]:
    """A node's facts; everything else that the checks of RDMA need is healthy."""
    return {
        "rdma.devices": hcas() if devices is None else devices,
        "pci.tree": tree() if pci is None else pci,
        **facts,
    }


# ---------------------------------------------------------------- RoCE


def gid(index: int, address: str, kind: str = "RoCE v2", interface: str | None = "rail0") -> Gid:
    text = f"::ffff:{address}" if "." in address else address
    return Gid(index, IPv6Address(text), kind, interface)


def roce_port(rail: int, node_number: int, *gids: Gid) -> Port:
    """A port with the usual four entries: link-local and IPv4, v1 and v2 of each."""
    name, address = f"rail{rail}", f"192.168.{rail}.{node_number}"
    link = f"fe80::{rail}:{node_number}"
    usual = tuple(
        gid(index, text, kind, name)
        for index, (text, kind) in enumerate(
            (text, kind) for text in (link, address) for kind in ("IB/RoCE v1", "RoCE v2")
        )
    )
    return Port(1, "ACTIVE", "LinkUp", "Ethernet", 400.0, None, gids or usual)


def roce(
    number: int, change: Callable[[int, Port], Port] = lambda rail, port: port, count: int = 4
) -> dict[str, Any]:
    """A node with one network for each rail."""
    devices = tuple(
        hca(
            f"mlx5_{rail}",
            nic_at(rail),
            change(rail, roce_port(rail, number)),
            interfaces=(f"rail{rail}",),
        )
        for rail in range(count)
    )
    return {**node(devices), "net.interfaces": rail_interfaces(number, count)}


def rail_interfaces(number: int, count: int = 4) -> tuple[Interface, ...]:
    return tuple(eth(f"rail{rail}", f"192.168.{rail}.{number}/24") for rail in range(count))


def roce_over_ipv6(number: int, count: int = 4, *more: str) -> dict[str, Any]:
    """A node with one network of IPv6 for each rail.

    `more` are addresses that each rail has besides, with RAIL for its number.
    """
    devices = []
    interfaces = []
    for rail in range(count):
        name = f"rail{rail}"
        addresses = [f"fd02:0:0:a{rail}::{number}"]
        addresses += [text.replace("RAIL", str(rail)) for text in more]
        gids = [gid(1, f"fe80::{rail}:{number}", interface=name)]
        for place, address in enumerate(addresses):
            gids.append(gid(2 * place + 3, address, interface=name))
        port = roce_port(rail, number, *gids)
        devices.append(hca(f"mlx5_{rail}", nic_at(rail), port, interfaces=(name,)))
        interfaces.append(eth(name, ipv6=tuple(f"{address}/64" for address in addresses)))
    return {**node(tuple(devices)), "net.interfaces": tuple(interfaces)}
