"""Machines put together from parts.

What hangs where, in few lines, grown into PCI, RDMA, network and GPU devices.

    slots:  - {numa: 0, switch: broadcom,
               holds: {"0000:18:00.0": cx7-ndr mlx5_0 ibp24s0, "0000:1b:00.0": h200}}

A slot is one root port (`port:` names its part, `root:` its address), below it a PCIe switch where
`switch:` names one (`below:` is its first bus), below that what it holds: by address a part of
tests/machines/parts.yaml, with the names that its RDMA device and its interface have. Without a
root port (`port: none`) the devices are on the bus itself, as a virtual machine shows them.
Addresses of ports and switches are inferred where they are not given: no check uses them. `but:`
changes what the slot's devices show on the bus, `gpu:` what its GPUs say.

`iommu: identity` puts every device into an IOMMU group of this type.
`nvlinks: {"0-1": 4}` joins GPUs without a switch.
`rdma:` and `net:` of the machine are merged over what its parts bring.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

PORT = {"class": "0x060400", "acs": 0}
LINK = ("max_link_width", "current_link_width", "max_link_speed", "current_link_speed")


@functools.cache
def parts() -> dict[str, dict[str, Any]]:
    """The parts by name: each with `pci`, and `rdma`, `net`, `gpu` where it shows such a device."""
    text: dict[str, dict[str, Any]] = yaml.safe_load(
        (Path(__file__).parent / "parts.yaml").read_text()
    )
    return {name: {**part, "pci": {**part.get("pci", {})}} for name, part in text.items()}


def assembled(described: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the description with its slots grown.

    `index` is the machine's, from 1, and enters GUIDs and UUIDs.
    """
    from tests.machines import merged

    pci: list[dict[str, Any]] = []
    rdma: dict[str, Any] = {}
    net: dict[str, Any] = {}
    gpus: list[dict[str, Any]] = []
    for slot in described.get("slots", ()):
        bridges, above = _bridges(slot)
        pci += bridges
        for at, words in slot.get("holds", {}).items():
            name, *names = str(words).split()
            part = parts()[name]
            place = {
                "at": at,
                **({"parent": above(at)} if above(at) else {}),
                "numa_node": slot.get("numa", -1),
            }
            pci.append({**place, **part["pci"], **slot.get("but", {})})
            if "rdma" in part:
                rdma[names[0]] = {"pci": at, **part["rdma"]}
            if "net" in part:
                net[names[-1]] = {"pci": at, **part["net"]}
            if "gpu" in part:
                gpus.append(
                    {"pci": at, "numa": slot.get("numa", 0), **part["gpu"], **slot.get("gpu", {})}
                )
    grown = dict(described)
    through = {"iommu": described["iommu"]} if "iommu" in described else {}
    grown["pci"] = [{**device, **through} for device in [*pci, *described.get("pci", ())]]
    grown["net"] = _filled_in(merged(net, described.get("net", {})), index)
    grown["rdma"] = _with_identity(merged(rdma, described.get("rdma", {})), grown["net"], index)
    linked = _linked(_numbered(gpus, index), described.get("nvlinks", {}))
    grown["gpus"] = [*linked, *described.get("gpus", ())]
    return {key: value for key, value in grown.items() if value}


def _bridges(slot: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """The ports above the devices of a slot, and which of them is the parent of an address."""
    if slot.get("port") == "none":
        return [], lambda at: None
    holds = list(slot.get("holds", {}).items())
    first = min(at for at, _ in holds)
    domain, bus = first[:5], int(first[5:7], 16)
    root = slot.get("root") or f"{domain}{bus - (3 if 'switch' in slot else 1):02x}:01.0"
    link = _widest(holds)
    shared = {**PORT, **link, "numa_node": slot.get("numa", -1)}
    ports = [{"at": root, **shared, **parts()[slot.get("port", "intel-port")]["pci"]}]
    if "switch" not in slot:
        return ports, lambda at: root
    switch = {**shared, **parts()[slot["switch"]]["pci"]}
    below = int(slot.get("below") or f"{int(root[5:7], 16) + 1:x}", 16)
    upstream = f"{domain}{below:02x}:00.0"
    ports.append({"at": upstream, "parent": root, **switch})
    buses = list(dict.fromkeys(at[:7] for at, _ in holds))
    downstream = {at: f"{domain}{below + 1:02x}:{number:02x}.0" for number, at in enumerate(buses)}
    ports += [{"at": at, "parent": upstream, **switch} for at in downstream.values()]
    return ports, lambda at: downstream[at[:7]]


def _widest(holds: list[tuple[str, Any]]) -> dict[str, Any]:
    """The link of the ports of a slot: that of the fastest device that it holds."""
    devices = [parts()[str(words).split()[0]]["pci"] for _, words in holds]
    best = max(devices, key=lambda d: float(str(d.get("max_link_speed", "0")).split()[0]))
    return {key: best[key.replace("current", "max")] for key in LINK if key in best}


def _filled_in(net: Mapping[str, Any], index: int) -> dict[str, Any]:
    filled = {}
    for number, (name, interface) in enumerate(net.items(), 1):
        hardware = {} if name == "lo" else {"address": f"02:00:00:00:{index:02x}:{number:02x}"}
        filled[name] = {**hardware, **interface}
    return filled


def _with_identity(rdma: Mapping[str, Any], net: Mapping[str, Any], index: int) -> dict[str, Any]:
    """GUIDs, GIDs and names of interfaces, which differ from device to device."""
    told = {}
    for number, (name, device) in enumerate(rdma.items(), 1):
        guid = f"a088:c203:{index:04x}:{number:02x}00"
        ports = device.get("ports", {})
        netdevs = [key for key, value in net.items() if value.get("pci") == device.get("pci")]
        ports = {port: _port(values, guid, netdevs, net) for port, values in ports.items()}
        told[name] = {"node_guid": guid, "sys_image_guid": guid, **device, "ports": ports}
    return told


def _port(
    values: Mapping[str, Any], guid: str, netdevs: list[str], net: Mapping[str, Any]
) -> dict[str, Any]:
    if "gids" in values:
        return dict(values)
    local = f"fe80:0000:0000:0000:{guid}"
    if values.get("link_layer") != "Ethernet" or not netdevs:
        return {**values, "gids": {0: local}, "gid_attrs": {"types": {0: "IB/RoCE v1"}}}
    netdev = net[netdevs[0]].get("master") or netdevs[0]
    gids = [local, local]
    for text in net[netdev].get("ipv4", ()):
        a, b, c, d = (int(part) for part in text.split("/")[0].split("."))
        gids += [f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"] * 2
    kinds = {number: "RoCE v2" if number % 2 else "IB/RoCE v1" for number in range(len(gids))}
    attributes = {"types": kinds, "ndevs": dict.fromkeys(range(len(gids)), netdev)}
    return {**values, "gids": dict(enumerate(gids)), "gid_attrs": attributes}


def _numbered(gpus: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """In the order of their addresses, as the management library counts them."""
    ordered = sorted(gpus, key=lambda gpu: gpu["pci"])
    return [
        {"uuid": f"GPU-{index:08x}-0000-4000-8000-{n:012x}", "minor": n, **gpu}
        for n, gpu in enumerate(ordered)
    ]


def _linked(gpus: list[dict[str, Any]], pairs: Mapping[str, int]) -> list[dict[str, Any]]:
    """GPUs that are joined among themselves: {"0-1": 4} is four NVLinks between the first two."""
    ends: dict[int, list[dict[str, str]]] = {}
    for pair, count in pairs.items():
        one, other = (int(number) for number in pair.split("-"))
        for here, there in ((one, other), (other, one)):
            ends.setdefault(here, []).extend([{"type": "gpu", "pci": gpus[there]["pci"]}] * count)
    apart = {
        n: {
            m: {"nvlink": 5}
            for m in range(len(gpus))
            if m != n and f"{min(n, m)}-{max(n, m)}" not in pairs
        }
        for n in ends
    }
    return [
        {**gpu, "nvlink": ends[n], "p2p": apart[n]} if n in ends else gpu
        for n, gpu in enumerate(gpus)
    ]
