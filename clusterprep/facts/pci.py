"""GPUs, network cards and the bridges above them on the PCI bus, and the speeds of their links."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact, Needs, file
from clusterprep.model import Absent, Read
from clusterprep.runtime.lazy_dataclass import dataclass

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

PASSTHROUGH = {"iommu=pt", "iommu=off", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off"}


@dataclass(frozen=True)
class PciLink:
    """Lanes and GT/s of a link, now and at most; None where the kernel does not say."""

    width: int | None
    max_width: int | None
    speed: float | None
    max_speed: float | None


@dataclass(frozen=True)
class PciDevice:
    """One function; `above` are the bridges from the root port down.

    `iommu` is the type of its IOMMU domain, None where no IOMMU translates for the device and ""
    where the kernel does not report the type. `physical` is set for a virtual function: the
    function that it is a share of.
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

    @property
    def card(self) -> str:
        """The address without the function: the ports of one card share it."""
        return self.at.rpartition(".")[0]

    def under_one_switch(self, other: PciDevice) -> bool:
        """Return whether the path between the two does not pass the root of the tree."""
        if not self.above or not other.above:
            return False
        return self.above[0] == other.above[0]


@dataclass(frozen=True)
class PciTree:
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

    Without /sys/bus/pci there is no bus, as in a sandbox: that is an empty tree.
    """
    if answer is None:
        return PciTree((), {})
    virtual = answer["virtual"]
    if virtual not in (True, False, None):
        raise ValueError("whether this is a virtual machine is not understood")
    bridges = {}
    for address, row in answer["bridges"].items():
        bridges[_address(address)] = parse_link(row)
    devices = tuple(_device(row, bridges) for row in answer["devices"])
    iommus = tuple(map(str, answer["iommu"]))
    return PciTree(devices, bridges, virtual, iommus)


def _device(row: Mapping[str, Any], bridges: Mapping[str, PciLink]) -> PciDevice:
    """Return the device of a row, which has texts of /sys/bus/pci."""
    above = tuple(map(_address, row["above"]))
    for bridge in above:
        if bridge not in bridges:
            raise ValueError(f"nothing is said of the bridge {bridge}")
    numa = None if row["numa_node"] is None else int(row["numa_node"])
    if numa is not None and numa < 0:  # the kernel writes -1 where the firmware names no node
        numa = None
    return PciDevice(
        at=_address(row["at"]),
        gpu=_class(row["class"]).startswith("0x03"),
        vendor=row["vendor"],
        link=parse_link(row),
        above=above,
        numa=numa,
        physical=row["physfn"],
        driver=row["driver"],
        iommu=row["iommu"],
    )


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is no PCI address")
    return text


def _class(text: str) -> str:
    if not re.fullmatch(r"0x[0-9a-f]{6}", text):
        raise ValueError(f"{text!r} is no PCI class")
    return text


def parse_link(row: Mapping[str, Any]) -> PciLink:
    """Return the link of a device whose row has the texts of its files in /sys."""
    return PciLink(
        width=_width(row["current_link_width"]),
        max_width=_width(row["max_link_width"]),
        speed=_speed(row["current_link_speed"]),
        max_speed=_speed(row["max_link_speed"]),
    )


def _width(text: str | None) -> int | None:
    """Return lanes.

    0 and 255 stand for a link that the device does not describe, as inside a processor or a guest.
    """
    if text is None:
        return None
    lanes = int(text)
    if lanes in (0, 255):
        return None
    if lanes not in (1, 2, 4, 8, 12, 16, 32):  # PCI Express 6.0, 7.5.3.6
        raise ValueError(f"a link of {lanes} lanes")
    return lanes


def _speed(text: str | None) -> float | None:
    """Return GT/s of «32.0 GT/s PCIe» or «8 GT/s», None for «Unknown»."""
    if text is None or text.startswith("Unknown"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) GT/s(?: PCIe)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no link speed")
    return float(match[1])


def parse_acs(answer: dict[str, Any] | None) -> dict[str, int] | Absent:
    """Return the ACS control words of the switch ports above GPUs and network cards, by address.

    Root ports are no switch ports. Only a user that may read the whole configuration space sees the
    words.
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
    control_words = {}
    for port in sorted(ports):
        control_word = answer["bridges"][port]["acs"]
        if control_word == "denied":
            return Absent("denied", "ACS is shown to root alone: set `ssh: {become: true}`")
        if control_word is None:  # the port has no ACS
            continue
        if not isinstance(control_word, int):
            raise ValueError("an ACS control word that is no number")  # noqa: TRY004 - garbled
        control_words[port] = control_word
    return control_words


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
IOMMU = Fact("pci.passthrough", file("/proc/cmdline"), parse_passthrough)
