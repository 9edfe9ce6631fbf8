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
