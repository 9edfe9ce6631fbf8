"""The driver's packages in what dpkg, rpm and their update services have."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.packages import DriverPackages
from tests.support.fleet import learned

# As dpkg-query answers on Ubuntu 22.04 with the driver of its restricted repository: the package
# names and versions of nvidia-graphics-drivers-550, in the format that is asked for.
DPKG = """\
installed install libnvidia-compute-550:amd64 550.120-0ubuntu0.22.04.1
installed install nvidia-dkms-550 550.120-0ubuntu0.22.04.1
installed install nvidia-driver-550 550.120-0ubuntu0.22.04.1
config-files deinstall nvidia-dkms-535 535.183.01-0ubuntu0.22.04.1
not-installed unknown nvidia-driver-535 <none>
"""
HELD = DPKG.replace("installed install nvidia", "installed hold nvidia").replace(
    "installed install lib", "installed hold lib"
)
# As Ubuntu installs them.
PERIODIC = 'APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "1";\n'
UPGRADES = """\
Unattended-Upgrade::Allowed-Origins {
\t"${distro_id}:${distro_codename}-security";
};
// Python regular expressions, matching packages to exclude from upgrading
Unattended-Upgrade::Package-Blacklist {
    // The following matches all packages starting with linux-
//  "linux-";
    WANTED
};
"""
NOT_THERE = ["no", "missing_tool", "not there"]
NO_FILES: Any = ["ok", {}]


def dpkg(out: str, code: int = 1) -> Any:
    return ["ok", {"code": code, "out": out, "err": "dpkg-query: no packages found matching x\n"}]


def conf(wanted: str = "", periodic: str = PERIODIC) -> Any:
    folder = "/etc/apt/apt.conf.d"
    upgrades = UPGRADES.replace("WANTED", wanted)
    files = {f"{folder}/20auto-upgrades": periodic, f"{folder}/50unattended-upgrades": upgrades}
    return ["ok", files]


NAMES = ("libnvidia-compute-550", "nvidia-dkms-550", "nvidia-driver-550")


@pytest.mark.parametrize(
    ("states", "files", "expected"),
    [
        (DPKG, conf(), DriverPackages("apt", (), NAMES, automatic=True)),
        (HELD, conf(), DriverPackages("apt", NAMES, (), automatic=True)),
        (DPKG, conf('"nvidia";\n    "libnvidia";'), DriverPackages("apt", (), (), automatic=True)),
        (DPKG, conf('"nvidia-driver-550$";'), DriverPackages("apt", (), NAMES[:2], automatic=True)),
        (
            DPKG,
            conf(periodic='APT::Periodic::Unattended-Upgrade "0";\n'),
            DriverPackages("apt", (), NAMES, automatic=False),
        ),
        (DPKG, NO_FILES, DriverPackages("apt", (), NAMES, automatic=False)),
    ],
)
def test_packages_of_dpkg(states: str, files: Any, expected: DriverPackages) -> None:
    assert learned("nv.packages", dpkg(states), files, NOT_THERE, NO_FILES) == expected


LOCK = {"/etc/dnf/plugins/versionlock.list": "nvidia-driver-cuda-3:550.54.15-1.el9.*\n"}
# dnf5 writes TOML.
LOCK_5 = {"/etc/dnf/versionlock.toml": '[[packages]]\nname = "nvidia-driver-cuda"\n'}
TIMER = {"/etc/systemd/system/timers.target.wants/dnf-automatic.timer": "[Timer]\n"}
APPLY = {"/etc/dnf/automatic.conf": "[commands]\nupgrade_type = default\napply_updates = yes\n"}
INSTALL = {"/etc/systemd/system/timers.target.wants/dnf-automatic-install.timer": "[Timer]\n"}


@pytest.mark.parametrize(
    ("files", "held", "automatic"),
    [
        ({}, False, False),
        (LOCK, True, False),
        (LOCK_5, True, False),
        (TIMER, False, False),
        ({**TIMER, **APPLY}, False, True),
        (APPLY, False, False),
        (INSTALL, False, True),
        ({**INSTALL, **LOCK}, True, True),
    ],
)
def test_packages_of_rpm(files: dict[str, str], held: bool, automatic: bool) -> None:
    name = ("nvidia-driver-cuda",)
    owner = ["ok", {"code": 0, "out": "nvidia-driver-cuda", "err": ""}]
    found = learned("nv.packages", NOT_THERE, NO_FILES, owner, ["ok", files])
    assert found == DriverPackages("dnf", name if held else (), () if held else name, automatic)


def test_a_driver_of_the_installer_is_in_no_package() -> None:
    owner = [
        "ok",
        {"code": 1, "out": "file /usr/bin/nvidia-smi is not owned by any package", "err": ""},
    ]
    for states in (NOT_THERE, dpkg("")):
        for answer in (NOT_THERE, owner):
            found = learned("nv.packages", states, NO_FILES, answer, NO_FILES)
            assert found.reason == "not_applicable"


@pytest.mark.parametrize("place", range(4))
def test_an_answer_that_is_missing_is_the_reason(place: int) -> None:
    given = [dpkg(DPKG), conf(), NOT_THERE, NO_FILES]
    given[place] = ["no", "hung", "no answer"]
    assert learned("nv.packages", *given).reason == "hung"


def test_an_error_of_dpkg_is_garbled() -> None:
    assert learned("nv.packages", dpkg("", 2), NO_FILES, NOT_THERE, NO_FILES).reason == "garbled"
