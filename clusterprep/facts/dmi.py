"""What the firmware says of the machine: vendor, product, board and BIOS."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Absent, Read

DMI = "/sys/class/dmi/id"  # Linux, Documentation/ABI/testing/sysfs-firmware-dmi-tables
_FILES = ("sys_vendor", "product_name", "board_name", "bios_version", "bios_date")
# Vendors and products by which virtual machines call themselves: their firmware is the host's
# affair, and differs from host to host.
_VIRTUAL_VENDORS = (
    "QEMU",
    "Google",
    "VMware, Inc.",
    "Xen",
    "OpenStack Foundation",
    "innotek GmbH",
    "DigitalOcean",
    "Alibaba Cloud",
)
_VIRTUAL_PRODUCTS = (
    "Virtual Machine",
    "KVM",
    "Google Compute Engine",
    "HVM domU",
    "OpenStack Nova",
)


class Bios(Struct, frozen=True):
    """A machine and its firmware; `product` has the vendor, `board` may be empty."""

    product: str
    board: str
    version: str
    date: str
    virtual: bool


def parse_bios(files: Mapping[str, str]) -> Bios | Absent:
    """Return the machine as SMBIOS describes it. Absent where the firmware has no SMBIOS."""
    if not files:
        return Absent("not_applicable", "the firmware has no SMBIOS tables")
    texts = {path.rpartition("/")[2]: " ".join(text.split()) for path, text in files.items()}
    version = texts["bios_version"]
    if not version:
        raise ValueError("the firmware does not say its version")
    vendor = texts.get("sys_vendor", "")
    name = texts.get("product_name", "")
    # Amazon calls virtual machines «Amazon EC2» with the type of instance, bare metal «….metal».
    is_instance = vendor == "Amazon EC2" and ".metal" not in name
    is_virtual = vendor in _VIRTUAL_VENDORS or name.startswith(_VIRTUAL_PRODUCTS) or is_instance
    return Bios(
        f"{vendor} {name}".strip(),
        texts.get("board_name", ""),
        version,
        texts.get("bios_date", ""),
        is_virtual,
    )


BIOS = Fact(
    "host.bios",
    lambda node, inventory: (Read("files", tuple(f"{DMI}/{name}" for name in _FILES)),),
    parse_bios,
)
