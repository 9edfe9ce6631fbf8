"""GPUs, network cards and the bridges above them on the PCI bus, and the speeds of their links."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from clusterprep.facts import Fact, Needs, file
from clusterprep.model import Absent, Read

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

Number = TypeVar("Number", int, float)
FUNCTIONS_TO_NVSWITCHES = 4  # siderolabs/extensions#893: mlx5_8 to mlx5_11 of an HGX B200
MOST_NUMA_NODES = 1024  # CONFIG_NODES_SHIFT of the kernel is 10 at most
PASSTHROUGH = {"iommu=pt", "iommu=off", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off"}


class PciLink(Struct, frozen=True):
    """Lanes and GT/s of a link, now and at most; None where the kernel does not say.

    `unread` has the files whose text is no value of this kind, as in «current_link_width 63».
    """

    width: int | None
    max_width: int | None
    speed: float | None
    max_speed: float | None
    unread: tuple[str, ...] = ()

    def cannot_tell(self, what: str) -> bool:
        """Return whether a file about `what`, "width" or "speed", holds no value."""
        return any(f"link_{what} " in text for text in self.unread)


class PciDevice(Struct, frozen=True):
    """One function; `above` are the bridges from the root port down.

    `iommu` is the type of its IOMMU domain, None where no IOMMU translates for the device and ""
    where the kernel does not report the type. `physical` is set for a virtual function: the
    function that it is a share of. `device` is the vendor's number of the chip, «0x1021». `unread`
    has the files beside those of the link whose text is no value, as in «numa_node zero».
    `manages_nvswitches`: NVIDIA's fabric manager reaches the NVSwitches by it, and no job does.
    """

    at: str
    gpu: bool
    vendor: str
    link: PciLink
    above: tuple[str, ...] = ()
    numa: int | None = None
    physical: str | None = None
    driver: str | None = None
    iommu: str | None = None
    device: str | None = None
    unread: tuple[str, ...] = ()
    manages_nvswitches: bool = False

    @property
    def card(self) -> str:
        """The address without the function: the ports of one card share it."""
        return self.at.rpartition(".")[0]

    def under_one_switch(self, other: PciDevice) -> bool:
        """Return whether the path between the two does not pass the root of the tree."""
        if not self.above or not other.above:
            return False
        return self.above[0] == other.above[0]


class PciTree(Struct, frozen=True, dict=True):
    """The devices and the links of the bridges above them.

    `virtual`: whether this is a virtual machine, if known.
    """

    devices: tuple[PciDevice, ...]
    bridges: Mapping[str, PciLink]
    virtual: bool | None = None
    iommus: tuple[str, ...] = ()

    @functools.cached_property
    def gpus(self) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.devices if device.gpu)

    def device(self, at: str | None) -> PciDevice | None:
        if at is None:
            return None
        return self._by_address.get(at)

    @functools.cached_property
    def _by_address(self) -> Mapping[str, PciDevice]:
        return {device.at: device for device in reversed(self.devices)}

    def link_above(self, device: PciDevice) -> PciLink | None:
        """Return the link of the port that the device is plugged into."""
        if not device.above:
            return None
        port = device.above[-1]
        return self.bridges[port]


def parse_tree(answer: dict[str, Any] | None) -> PciTree:
    """Return the tree.

    Without /sys/bus/pci there is no bus, as in a sandbox: that is an empty tree. A file of a device
    that holds no value of its kind costs that value alone: what is said of the others stays true.
    """
    if answer is None:
        return PciTree((), {})
    virtual = answer["virtual"]
    if virtual not in (True, False, None):
        raise ValueError("whether this is a virtual machine is not understood")
    bridges = {}
    for address, row in answer["bridges"].items():
        bridges[_address(address)] = parse_link(row)
    managers = _nvswitch_managers(answer["devices"])
    devices = tuple(_device(row, bridges, managers) for row in answer["devices"])
    iommus = tuple(map(str, answer["iommu"]))
    return PciTree(devices, bridges, virtual, iommus)


def _nvswitch_managers(rows: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the addresses of the functions that lead to NVSwitches, as on HGX B200 and B300.

    Root can read what a function is for (`sw_mng`). Where it could not be read, four InfiniBand
    functions of one ConnectX-7 tell: HGX boards have such a card, and none is sold with more than
    two InfiniBand ports.
    """
    managers = set()
    silent = Counter[str]()
    for row in rows:
        if row.get("sw_mng") is True:
            managers.add(row["at"])
        elif "sw_mng" in row and row["sw_mng"] is None:
            silent[_card(row)] += 1
    for row in rows:
        if silent[_card(row)] >= FUNCTIONS_TO_NVSWITCHES:
            managers.add(row["at"])
    return frozenset(managers)


def _card(row: Mapping[str, Any]) -> str:
    address: str = row["at"]
    return address.rpartition(".")[0]


def _device(
    row: Mapping[str, Any], bridges: Mapping[str, PciLink], managers: Collection[str]
) -> PciDevice:
    """Return the device of a row, which has texts of /sys/bus/pci."""
    above = tuple(map(_address, row["above"]))
    for bridge in above:
        if bridge not in bridges:
            raise ValueError(f"nothing is said of the bridge {bridge}")
    unread: list[str] = []
    numa = _read(_numa, row, "numa_node", unread)
    kind = row["class"]
    if not re.fullmatch(r"0x[0-9a-f]{6}", kind):
        unread.append(_shown("class", kind))
    return PciDevice(
        at=_address(row["at"]),
        gpu=kind.startswith("0x03"),
        vendor=row["vendor"],
        link=parse_link(row),
        above=above,
        numa=numa,
        physical=row["physfn"],
        driver=row["driver"],
        iommu=row["iommu"],
        device=row.get("device"),
        unread=tuple(unread),
        manages_nvswitches=row["at"] in managers,
    )


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is no PCI address")
    return text


def parse_link(row: Mapping[str, Any]) -> PciLink:
    """Return the link of a device whose row has the texts of its files in /sys."""
    unread: list[str] = []
    return PciLink(
        width=_read(_width, row, "current_link_width", unread),
        max_width=_read(_width, row, "max_link_width", unread),
        speed=_read(_speed, row, "current_link_speed", unread),
        max_speed=_read(_speed, row, "max_link_speed", unread),
        unread=tuple(unread),
    )


def _read(
    parse: Callable[[str], Number | None], row: Mapping[str, Any], key: str, unread: list[str]
) -> Number | None:
    """Return the value of one file; None, with a line in `unread`, for a text that is none."""
    text = row[key]
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError:
        unread.append(_shown(key, text))
        return None


def _shown(key: str, text: str) -> str:
    return f"{key} {text:.20}" if text else f"{key} empty"


def _width(text: str) -> int | None:
    """Return lanes. Raises ValueError for a number of lanes that no link has.

    0 and 255 stand for a link that the device does not describe, as inside a processor or a guest.
    A device that left the bus reads all ones, which makes 63 of the six bits of this field.
    """
    lanes = int(text)
    if lanes in (0, 255):
        return None
    if lanes not in (1, 2, 4, 8, 12, 16, 32):  # PCI Express 6.0, 7.5.3.6
        raise ValueError(f"a link of {lanes} lanes")
    return lanes


def _speed(text: str) -> float | None:
    """Return GT/s of «32.0 GT/s PCIe» or «8 GT/s», None for «Unknown»."""
    if text.startswith("Unknown"):
        return None
    match = re.fullmatch(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no link speed")
    return float(match[1])


def _numa(text: str) -> int | None:
    """Return the number of the NUMA node; None for -1, where the firmware names none."""
    number = int(text)
    if number == -1:
        return None
    if not 0 <= number < MOST_NUMA_NODES:
        raise ValueError(f"NUMA node {number}")
    return number


def parse_acs(answer: dict[str, Any] | None) -> dict[str, int | None] | Absent:
    """Return the ACS control words of the switch ports above GPUs and network cards, by address.

    None for a port that did not show it while others did. Root ports are no switch ports. Only a
    user that may read the whole configuration space sees the words.
    """
    if answer is None:
        return Absent("not_applicable", "no PCI bus is visible here")
    if answer["virtual"]:
        return Absent("not_applicable", "a virtual machine: the host decides about its switches")
    ports = set()
    for device in answer["devices"]:
        ports.update(device["above"][1:])  # the first is the root port
    if not ports:
        return Absent("not_applicable", "no PCIe switch above a GPU or network card")
    said = {port: answer["bridges"][port]["acs"] for port in sorted(ports)}
    if all(word == "denied" for word in said.values()):
        return Absent("denied", "ACS is shown to root alone: set `ssh: {become: true}`")
    control_words: dict[str, int | None] = {}
    for port, word in said.items():
        if word is None:  # the port has no ACS
            continue
        if word != "denied" and not isinstance(word, int):
            raise ValueError("an ACS control word that is no number")
        control_words[port] = None if word == "denied" else word
    return control_words


class DeviceControl(Struct, frozen=True):
    """What the system set in a PCI Express function.

    `max_read` and `max_payload` are bytes: of one read request, and of one packet.
    """

    relaxed_ordering: bool
    max_read: int
    max_payload: int


def parse_device_control(
    answer: dict[str, Any] | None,
) -> dict[str, DeviceControl | None] | Absent:
    """Return the settings of network cards by address, None for one that did not show its own.

    Virtual functions are left out: they go by what their card has.
    """
    if answer is None:
        return Absent("not_applicable", "no PCI bus is visible here")
    if answer["virtual"]:
        return Absent("not_applicable", "a virtual machine: the host decides about its cards")
    said = {}
    for row in answer["devices"]:
        if row.get("devctl") is not None and row["physfn"] is None:
            said[row["at"]] = row["devctl"]
    if said and all(word == "denied" for word in said.values()):
        return Absent("denied", "these settings are shown to root alone: set `ssh: {become: true}`")
    return {at: None if word == "denied" else _control(word) for at, word in said.items()}


def _control(word: int) -> DeviceControl:
    """Return the fields of the register (PCI Express 6.0, 7.5.3.4)."""
    read, payload = word >> 12 & 7, word >> 5 & 7
    if not 0 <= word <= 0xFFFF or read > 5 or payload > 5:
        raise ValueError(f"{word:#x} is no Device Control")
    return DeviceControl(bool(word & 0x10), 128 << read, 128 << payload)


def parse_errors(answer: dict[str, Any] | None) -> dict[str, dict[str, int]]:
    """Return the errors since boot by address and kind, as in «fatal MalfTLP»: 1.

    Functions without errors have no kinds, those whose errors the kernel does not count are left
    out (Documentation/ABI/testing/sysfs-bus-pci-devices-aer).
    """
    errors: dict[str, dict[str, int]] = {}
    for address, texts in (answer or {}).items():
        counts = errors.setdefault(_address(address), {})
        for kind, text in texts.items():
            for line in text.splitlines():
                name, count = line.rsplit(" ", 1)
                if not name.startswith("TOTAL_ERR"):
                    counts[f"{kind} {name.strip()}"] = int(count)
    return errors


def parse_passthrough(text: str | None) -> bool:
    """Return whether the kernel was started with its IOMMU off or passing through.

    The words are those of admin-guide/kernel-parameters.txt.
    """
    if not text or not text.strip():
        raise ValueError("an empty kernel command line")
    words = set(text.split())
    return bool(words & PASSTHROUGH)


_TREE = Read("pci_tree")
NEEDS = Needs(
    "root",
    "of the configuration space of a PCI device the kernel shows 64 bytes to others, "
    "and ACS lies behind",
)

TREE = Fact("pci.tree", lambda node, inventory: (_TREE,), parse_tree)
ACS = Fact("pci.acs", lambda node, inventory: (_TREE,), parse_acs, needs=NEEDS)
CONTROL = Fact(
    "pci.device_control", lambda node, inventory: (_TREE,), parse_device_control, needs=NEEDS
)
ERRORS = Fact("pci.errors", lambda node, inventory: (Read("pci_errors"),), parse_errors, moves=True)
IOMMU = Fact("pci.passthrough", file("/proc/cmdline"), parse_passthrough)
