"""Short descriptions grown into what the kernel shows.

PCI, RDMA and network devices as files, links and answers.

    pci:   - {at: "0000:1b:00.0", parent: "0000:1a:00.0", class: "0x030200", vendor: "0x10de",
              device: "0x2330", current_link_width: 16, …}
           # every other key is a file of the device's folder, but `acs`: the ACS control word in a
           # bridge's configuration space, and `iommu`: the type of the device's IOMMU group,
           # identity or DMA
    rdma:  mlx5_0: {pci: "0000:18:00.0", fw_ver: 28.39.1002, board_id: MT_0000000838, node_guid: …,
              ports: {1: {state: "4: ACTIVE", phys_state: "5: LinkUp", rate: "400 Gb/sec (4X NDR)",
                          link_layer: InfiniBand, gids: {0: "fe80:…"}, types: {0: "RoCE v2"},
                          ndevs: {0: eth2}}}}
    net:   bond0: {members: [eth0, eth1], …}       # an 802.3ad bond
           eth0: {ipv4: [10.0.0.1/16], mtu: 9000, speed: 10000, pci: "0000:02:00.0",
                  master: bond0, …}

The same trees are laid over /sys of a lab host (tests.support.lab.faults.sys_tree).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.machines.hosts import bonding, host

Grown = tuple[dict[str, str], dict[str, str]]  # files and links by path
NET = {
    "operstate": "up",
    "carrier": 1,
    "carrier_changes": 1,
    "type": 1,
    "flags": "0x1003",
    "mtu": 1500,
    "duplex": "full",
}


def grown(described: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """Files, links and answers of whole readers for one machine."""
    files, links = pci(described.get("pci", []))
    files.update(host(described["host"]) if "host" in described else {})
    more_files, more_links = rdma(described.get("rdma", {}), links)
    net_files, net_links = net(described.get("net", {}), links)
    answers = {}
    if "net" in described:
        answers = {"interfaces": interfaces(described["net"])}
        if "/proc/interrupts" not in described.get("files", {}):
            answers["interrupts"] = interrupts(described)
    return {**files, **more_files, **net_files}, {**links, **more_links, **net_links}, answers


def pci(devices: list[Mapping[str, Any]]) -> Grown:
    """Return each device below its parent in /sys/devices, and its link in /sys/bus/pci/devices."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    parents = {str(device["at"]): device.get("parent") for device in devices}
    for device in devices:
        at = str(device["at"])
        chain = [at]
        while (above := parents.get(chain[0])) is not None:
            chain.insert(0, str(above))
        folder = "/sys/devices/" + "/".join([f"pci{chain[0][:7]}", *chain])
        links[f"/sys/bus/pci/devices/{at}"] = folder
        for key, value in device.items():
            if key == "iommu":  # every function in a group of its own
                links[f"{folder}/iommu_group"] = f"/sys/kernel/iommu_groups/{len(links)}"
                files[f"/sys/kernel/iommu_groups/{len(links) - 1}/type"] = f"{value}\n"
            elif key not in ("at", "parent", "acs"):
                files[f"{folder}/{key}"] = f"{value}\n"
        kind = str(device.get("class", ""))
        if kind.startswith("0x0604"):
            files[f"{folder}/config"] = config(device.get("acs"))
        elif kind.startswith("0x02"):
            files.setdefault(f"{folder}/config", endpoint_config())
        if kind.startswith("0x0604") or (kind.startswith(("0x02", "0x03")) and parents.get(at)):
            for name, text in NO_ERRORS.items():
                files.setdefault(f"{folder}/aer_dev_{name}", text)
    return files, links


def config(acs: int | None) -> str:
    """Return 4 KiB of configuration space whose only extended capability is ACS.

    `acs` is its control word, below 0x80.
    """
    capability = "" if acs is None else f"\x0d\0\x01\0\0\0{chr(acs)}\0"
    return ("\0" * 0x100 + capability).ljust(4096, "\0")


def endpoint_config(control: int = 0x2930) -> str:
    """Return 4 KiB of configuration space of a PCI Express endpoint with this Device Control.

    0x2930 is what a ConnectX shows where nothing set it up: 512 bytes a read, 256 a packet, relaxed
    ordering (NVIDIA/l2fwd-nv, README). Bytes of the word are below 0x80.
    """
    space = ["\0"] * 4096
    space[6], space[0x34] = "\x10", "\x60"
    space[0x60] = "\x10"
    space[0x68], space[0x69] = chr(control & 0xFF), chr(control >> 8)
    return "".join(space)


# Names as in Documentation/ABI/testing/sysfs-bus-pci-devices-aer; the first and the last ones.
NO_ERRORS = {
    "correctable": "RxErr 0\nBadTLP 0\nBadDLLP 0\nRollover 0\nTimeout 0\nTOTAL_ERR_COR 0\n",
    "nonfatal": "Undefined 0\nDLP 0\nMalfTLP 0\nUnsupReq 0\nTOTAL_ERR_NONFATAL 0\n",
    "fatal": "Undefined 0\nDLP 0\nMalfTLP 0\nUnsupReq 0\nTOTAL_ERR_FATAL 0\n",
}

# As mlx5 counts; a healthy port has a few symbol errors from when its cable was plugged in.
COUNTED: Mapping[str, Any] = {
    "counters": {
        "symbol_error": 3,
        "link_error_recovery": 0,
        "link_downed": 1,
        "port_rcv_errors": 0,
        "port_xmit_discards": 0,
        "local_link_integrity_errors": 0,
        "excessive_buffer_overrun_errors": 0,
    },
    "hw_counters": {"local_ack_timeout_err": 0, "rnr_nak_retry_err": 0, "roce_slow_restart": 0},
}


# What a subnet manager gives to an InfiniBand port, and what an Ethernet port shows there.
GIVEN: Mapping[str, Mapping[str, Any]] = defaultdict(
    dict,
    InfiniBand={"sm_lid": "0x1", "pkeys": {0: "0xffff"}},
    Ethernet={"sm_lid": "0x0", "pkeys": {0: "0xffff"}},
)


def rdma(devices: Mapping[str, Mapping[str, Any]], places: Mapping[str, str]) -> Grown:
    """/sys/class/infiniband/NAME with its ports, and the links to its PCI device and its verbs."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for number, (name, device) in enumerate(devices.items()):
        folder = f"/sys/class/infiniband/{name}"
        files[f"/dev/infiniband/uverbs{number}"] = ""
        files[f"/sys/class/infiniband_verbs/uverbs{number}/ibdev"] = f"{name}\n"
        if "pci" in device:
            links[f"{folder}/device"] = places[f"/sys/bus/pci/devices/{device['pci']}"]
        files.update(
            _files(
                folder, {key: value for key, value in device.items() if key not in ("pci", "ports")}
            )
        )
        for index, port in device.get("ports", {}).items():
            values = {**GIVEN[str(port.get("link_layer"))], **port}
            attributes = {
                f"gid_attrs/{kind}": values.pop(kind)
                for kind in ("types", "ndevs")
                if kind in values
            }
            files.update(_files(f"{folder}/ports/{index}", {**COUNTED, **values, **attributes}))
    return files, links


def _files(folder: str, values: Mapping[str, Any]) -> dict[str, str]:
    """A nested mapping as files, one level of folders for each level.

    Null for what cannot be read.
    """
    files: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            files.update(_files(f"{folder}/{key}", value))
        elif value is not None:
            files[f"{folder}/{key}"] = f"{value}\n"
    return files


def net(described: Mapping[str, Mapping[str, Any]], places: Mapping[str, str]) -> Grown:
    """/sys/class/net/NAME, with the link to its PCI device for those that are cards."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for number, (name, interface) in enumerate(described.items(), 1):
        folder = f"/sys/class/net/{name}"
        files.update(_files(folder, {"ifindex": number, **NET, **_own(interface)}))
        if interface.get("master"):
            links[f"{folder}/master"] = f"/sys/class/net/{interface['master']}"
        if "members" in interface:
            files[f"/proc/net/bonding/{name}"] = bonding(name, interface)
        if "pci" in interface:
            links[f"{folder}/device"] = places[f"/sys/bus/pci/devices/{interface['pci']}"]
            files[f"{links[f'{folder}/device']}/net/{name}/ifindex"] = f"{number}\n"
    return files, links


def _own(interface: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in interface.items()
        if key not in ("ipv4", "ipv6", "pci", "master", "bridge", "members")
    }


def interfaces(described: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return the answer of the reader of interfaces, which asks the kernel over netlink.

    No tree of files can answer that.
    """
    rows = []
    for number, (name, interface) in enumerate(described.items(), 1):
        said = {**NET, **_own(interface)}
        row: dict[str, Any] = {
            key: None if value is None else str(value) for key, value in said.items()
        }
        row.update(
            name=name,
            ifindex=str(number),
            physical="pci" in interface,
            bridge=bool(interface.get("bridge")),
        )
        row.update(master=interface.get("master"), speed=row.get("speed"))
        row["addresses"] = [
            {
                "address": text.split("/")[0],
                "prefix": int(text.split("/")[1]),
                "scope": 254 if name == "lo" else 0,
            }
            for text in [*interface.get("ipv4", []), *interface.get("ipv6", [])]
        ]
        rows.append(row)
    return ["ok", rows]


def interrupts(described: Mapping[str, Any]) -> list[Any]:
    """Return the answer of the reader of interrupts on a machine at rest.

    The reader counts twice, and a tree of files does not change in between.
    """
    cards = [name for name, interface in described["net"].items() if "pci" in interface]
    gpus = [gpu["pci"] for gpu in described.get("gpus", ()) if "pci" in gpu]
    rows = [
        {"name": name, "gpu": False, "irqs": ["90"], "queues": 8, "lines": {}} for name in cards
    ]
    rows += [{"name": at, "gpu": True, "irqs": ["91"], "queues": 1, "lines": {}} for at in gpus]
    masters = {interface.get("master") for interface in described["net"].values()} - {None}
    lower = {
        m: [name for name, i in described["net"].items() if i.get("master") == m]
        for m in sorted(masters)
    }
    return ["ok", {"seconds": 0.3, "devices": rows, "lower": lower}]
