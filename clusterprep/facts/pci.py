"""GPUs, network cards and the bridges above them: where they sit and how wide and fast their links are."""

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
    """One function; `above` are the bridges from the root port down, `iommu` the type of its IOMMU domain.

    `iommu` is None where no IOMMU translates for the device and "" where the kernel does not say how.
    """

    at: str
    gpu: bool
    vendor: str
    link: PciLink
    above: tuple[str, ...] = ()
    numa: int | None = None
    physical: str | None = None  # of a virtual function: the function that it is a share of
    driver: str | None = None
    iommu: str | None = None

    @property
    def card(self) -> str:
        """The address without the function: the ports of one card share it."""
        return self.at.rpartition(".")[0]

    def under_one_switch(self, other: PciDevice) -> bool:
        """Whether the way between them does not pass the root of the tree."""
        return bool(self.above and other.above) and self.above[0] == other.above[0]


@dataclass(frozen=True)
class PciTree:
    """The devices and the links of the bridges above them. `virtual`: whether this is a virtual machine, if known."""

    devices: tuple[PciDevice, ...]
    bridges: Mapping[str, PciLink]
    virtual: bool | None = None
    iommus: tuple[str, ...] = ()

    @functools.cached_property
    def gpus(self) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.devices if device.gpu)

    def device(self, at: str | None) -> PciDevice | None:
        return None if at is None else self._by_address.get(at)

    @functools.cached_property
    def _by_address(self) -> Mapping[str, PciDevice]:
        return {device.at: device for device in reversed(self.devices)}

    def link_above(self, device: PciDevice) -> PciLink | None:
        """The port that the device is plugged into."""
        return self.bridges[device.above[-1]] if device.above else None


def parse_tree(answer: dict[str, Any] | None) -> PciTree:
    """Without /sys/bus/pci there is no bus, as in a sandbox: that is an empty tree."""
    if answer is None:
        return PciTree((), {})
    virtual = answer["virtual"]
    if virtual not in (True, False, None):
        raise ValueError("whether this is a virtual machine is not understood")
    bridges = {_address(at): _link(row) for at, row in answer["bridges"].items()}
    devices = tuple(_device(row, bridges) for row in answer["devices"])
    return PciTree(devices, bridges, virtual, tuple(map(str, answer["iommu"])))


def _device(row: Mapping[str, Any], bridges: Mapping[str, PciLink]) -> PciDevice:
    above = tuple(_address(at) for at in row["above"])
    if unseen := [at for at in above if at not in bridges]:
        raise ValueError(f"nothing is said of the bridge {unseen[0]}")
    numa = None if row["numa_node"] is None else int(row["numa_node"])
    return PciDevice(
        at=_address(row["at"]),
        gpu=_class(row["class"]).startswith("0x03"),
        vendor=row["vendor"],
        link=_link(row),
        above=above,
        numa=None if numa is None or numa < 0 else numa,
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


def _link(row: Mapping[str, Any]) -> PciLink:
    return PciLink(
        _width(row["current_link_width"]),
        _width(row["max_link_width"]),
        _speed(row["current_link_speed"]),
        _speed(row["max_link_speed"]),
    )


def _width(text: str | None) -> int | None:
    """Lanes; 0 and 255 stand for a link that the device does not describe, as inside a processor or a guest."""
    if text is None:
        return None
    lanes = int(text)
    if lanes in (0, 255):
        return None
    if lanes not in (1, 2, 4, 8, 12, 16, 32):  # PCI Express 6.0, 7.5.3.6
        raise ValueError(f"a link of {lanes} lanes")
    return lanes


def _speed(text: str | None) -> float | None:
    """GT/s of «32.0 GT/s PCIe», «8 GT/s», «Unknown»."""
    if text is None or text.startswith("Unknown"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) GT/s(?: PCIe)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no link speed")
    return float(match[1])


def parse_acs(answer: dict[str, Any] | None) -> dict[str, int] | Absent:
    """The ACS control words of the switch ports above GPUs and network cards; root ports are none.

    Only those who may read the whole configuration space see them.
    """
    if answer is None:
        return Absent("not_applicable", "no PCI bus is visible here")
    if answer["virtual"]:
        return Absent("not_applicable", "a virtual machine: the host decides about its switches")
    inside = {at for row in answer["devices"] for at in row["above"][1:]}
    words = {at: answer["bridges"][at]["acs"] for at in sorted(inside)}
    if not words:
        return Absent("not_applicable", "no PCIe switch above a GPU or network card")
    if any(word == "denied" for word in words.values()):
        return Absent("denied", "ACS is shown to root alone: set `ssh: {become: true}`")
    if not all(word is None or isinstance(word, int) for word in words.values()):
        raise ValueError("an ACS control word that is no number")
    return {at: word for at, word in words.items() if word is not None}


def parse_passthrough(text: str | None) -> bool:
    """Whether the kernel was started with its IOMMU off or passing through (admin-guide/kernel-parameters.txt)."""
    if not text or not text.strip():
        raise ValueError("an empty kernel command line")
    return bool(set(text.split()) & PASSTHROUGH)


_TREE = Read("pci_tree")
NEEDS = Needs(
    "root",
    "of the configuration space of a PCI device the kernel shows 64 bytes to others, and ACS lies behind",
)

TREE = Fact("pci.tree", lambda node, inventory: (_TREE,), parse_tree)
ACS = Fact("pci.acs", lambda node, inventory: (_TREE,), parse_acs, needs=NEEDS)
IOMMU = Fact("pci.passthrough", file("/proc/cmdline"), parse_passthrough)
