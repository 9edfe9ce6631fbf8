"""Which package manager a distribution has, by its os-release and the programs that are there.

The lines of os-release are those of the distributions' own files.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from clusterprep.facts.package_manager import NOT_MINE, only_for

MANAGERS = ("apt", "dnf", "zypper", "apk")


def managers(folder: Path, system: str, programs: tuple[str, ...]) -> list[str]:
    """Those that run on a node with this os-release and these programs."""
    release = folder / "os-release"
    release.write_text(system)
    tools = folder / "bin"
    tools.mkdir()
    for program in programs:
        (tools / program).write_text("#!/bin/sh\n")
        (tools / program).chmod(0o755)
    shell = shutil.which("sh") or "/bin/sh"
    chosen = []
    for name in MANAGERS:
        script = only_for(name).replace("/etc/os-release", str(release))
        result = subprocess.run([shell, "-c", script], env={"PATH": str(tools)}, check=False)
        assert result.returncode in (0, NOT_MINE)
        if result.returncode == 0:
            chosen.append(name)
    return chosen


@pytest.mark.parametrize(
    ("system", "programs", "expected"),
    [
        ('ID=debian\nVERSION_ID="12"\n', ("apt-get", "dnf"), ["apt"]),
        ("ID=ubuntu\nID_LIKE=debian\n", (), ["apt"]),
        ('ID="rhel"\nID_LIKE="fedora"\n', ("dnf",), ["dnf"]),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', ("apt-get", "dnf"), ["dnf"]),
        ('ID="amzn"\nID_LIKE="fedora"\n', ("dnf",), ["dnf"]),
        ('ID="sles"\nID_LIKE="suse"\n', ("zypper", "dnf"), ["zypper"]),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', (), ["zypper"]),
        ("ID=alpine\n", ("apk",), ["apk"]),
        ('ID="openEuler"\n', ("dnf", "yum"), ["dnf"]),
        ("ID=unheard-of\n", ("yum",), ["dnf"]),
        ("ID=unheard-of\n", (), []),
        ("", ("zypper",), ["zypper"]),
    ],
)
def test_the_distribution_decides_and_then_what_is_there(
    system: str, programs: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    assert managers(tmp_path, system, programs) == expected


RECORDED = Path(__file__).parent / "distributions" / "os-release"
# The programs that a minimal installation of each family has.
PROGRAMS = {
    "apt": ("apt-get",),
    "dnf": ("yum", "dnf"),
    "zypper": ("rpm", "zypper"),
    "apk": ("apk",),
}
BEGINNINGS = {
    "apt": ("debian", "dgx", "ubuntu"),
    "dnf": (
        *("alma", "amazon-2023", "azurelinux", "centos", "hce", "openeuler"),
        *("oracle", "rhel", "rocky"),
    ),
    "zypper": ("opensuse", "sles"),
    "apk": ("alpine",),
}


@pytest.mark.parametrize("manager", PROGRAMS)
def test_every_recorded_distribution_has_its_manager(manager: str, tmp_path: Path) -> None:
    recorded = [path for path in RECORDED.iterdir() if path.name.startswith(BEGINNINGS[manager])]
    assert recorded
    for path in recorded:
        folder = tmp_path / path.name
        folder.mkdir()
        assert managers(folder, path.read_text(), PROGRAMS[manager]) == [manager], path.name


def test_amazon_linux_2_is_of_the_family_of_dnf_and_has_yum(tmp_path: Path) -> None:
    assert managers(tmp_path, (RECORDED / "amazon-2").read_text(), ("yum",)) == ["dnf"]


def test_no_recorded_distribution_is_left_out() -> None:
    known = tuple(beginning for each in BEGINNINGS.values() for beginning in each)
    left = {path.name for path in RECORDED.iterdir() if not path.name.startswith(known)}
    assert left == {"amazon-2"}
