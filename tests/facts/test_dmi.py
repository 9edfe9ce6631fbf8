"""What SMBIOS says of machines, real and virtual."""

from __future__ import annotations

import pytest

from clusterprep.facts.dmi import DMI, Bios
from tests.support.fleet import learned


def files(vendor: str, product: str, version: str = "1.05.03") -> dict[str, str]:
    return {
        f"{DMI}/sys_vendor": vendor,
        f"{DMI}/product_name": product,
        f"{DMI}/board_name": "X13",
        f"{DMI}/bios_version": version,
        f"{DMI}/bios_date": "05/21/2024",
    }


def test_a_machine_says_product_board_and_version() -> None:
    found = learned("host.bios", ["ok", files("Supermicro", "SYS-821GE-TNHR")])
    assert found == Bios("Supermicro SYS-821GE-TNHR", "X13", "1.05.03", "05/21/2024", virtual=False)


@pytest.mark.parametrize(
    ("vendor", "product", "virtual"),
    [
        ("Amazon EC2", "p5.48xlarge", True),
        ("Amazon EC2", "c5n.metal", False),
        ("Google", "Google Compute Engine", True),
        ("Microsoft Corporation", "Virtual Machine", True),
        ("Microsoft Corporation", "C2190", False),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", True),
        ("VMware, Inc.", "VMware20,1", True),
        ("Dell Inc.", "PowerEdge XE9680", False),
        ("HPE", "Cray XD670", False),
        ("NVIDIA", "DGXH100", False),
    ],
)
def test_virtual_machines_are_known_by_name(vendor: str, product: str, virtual: bool) -> None:
    assert learned("host.bios", ["ok", files(vendor, product)]).virtual is virtual


def test_no_smbios_does_not_apply_and_no_version_is_garbled() -> None:
    assert learned("host.bios", ["ok", {}]).reason == "not_applicable"
    assert learned("host.bios", ["ok", files("Dell Inc.", "R750", "")]).reason == "garbled"
    assert learned("host.bios", ["ok", {f"{DMI}/sys_vendor": "Dell"}]).reason == "garbled"
