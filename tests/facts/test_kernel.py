"""Command lines as boot loaders write them, and lists of installed kernels."""

from __future__ import annotations

import pytest

from clusterprep.model import Absent
from tests.support.fleet import learned

UBUNTU = "BOOT_IMAGE=/boot/vmlinuz-5.15.0-107-generic root=UUID=0b6f4a4e-9f3d ro quiet iommu=pt\n"
RHEL = (
    "BOOT_IMAGE=(hd0,gpt2)/vmlinuz-5.14.0-427.13.1.el9_4.x86_64 "
    "root=/dev/mapper/rhel-root ro crashkernel=1G-4G:192M\n"
)
QUOTED = 'ro dyndbg="file drivers/usb/* +p" "isolcpus=1-3" quiet\n'
FOR_INIT = "mitigations=auto rdinit=/init -- --addr 0.0.0.0:2024 iommu=off\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            UBUNTU,
            (
                "BOOT_IMAGE=/boot/vmlinuz-5.15.0-107-generic",
                "root=UUID=0b6f4a4e-9f3d",
                "ro",
                "quiet",
                "iommu=pt",
            ),
            id="ubuntu",
        ),
        pytest.param(RHEL, tuple(RHEL.split()), id="rhel"),
        pytest.param(
            QUOTED, ("ro", "dyndbg=file drivers/usb/* +p", "isolcpus=1-3", "quiet"), id="quotes"
        ),
        pytest.param(
            FOR_INIT,
            ("mitigations=auto", "rdinit=/init"),
            id="what-follows-two-dashes-is-not-the-kernels",
        ),
    ],
)
def test_a_command_line_is_its_words(text: str, expected: tuple[str, ...]) -> None:
    assert learned("kernel.cmdline", ["ok", text]) == expected


@pytest.mark.parametrize(
    "answer", [["ok", ""], ["ok", " \n"], ["ok", ["ro"]], ["no", "missing", ""]]
)
def test_an_empty_command_line_is_garbled(answer: object) -> None:
    found = learned("kernel.cmdline", answer)
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


@pytest.mark.parametrize("releases", [[], ["5.15.0-105-generic", "5.15.0-107-generic"]])
def test_installed_kernels_are_a_list(releases: list[str]) -> None:
    assert learned("kernel.installed", ["ok", releases]) == tuple(releases)


@pytest.mark.parametrize(
    "answer", [["ok", None], ["ok", "5.15.0"], ["ok", [5]], ["ok", {"a": 1}], "cut"]
)
def test_what_is_no_list_of_kernels_is_garbled(answer: object) -> None:
    found = learned("kernel.installed", answer)
    assert isinstance(found, Absent)
    assert found.reason == "garbled"


@pytest.mark.parametrize("fact", ["kernel.cmdline", "kernel.installed"])
def test_a_reason_survives(fact: str) -> None:
    assert learned(fact, ["no", "denied", "EACCES"]) == Absent("denied", "EACCES")
