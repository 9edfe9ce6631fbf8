"""What apt prints that it would do, on Debian and Ubuntu, and what cannot be understood."""

from __future__ import annotations

import pytest

from clusterprep.facts.apt import MISSING, parse_outlook, parse_states
from clusterprep.model.packages import GONE, Package, PackageChange, Simulation

UPGRADE = """\
Reading package lists...
Building dependency tree...
Reading state information...
The following additional packages will be installed:
  ibverbs-providers libc6 libibverbs1
The following held packages will be changed:
  libibverbs1 rdma-core
The following packages will be upgraded:
  libibverbs1 rdma-core
2 upgraded, 1 newly installed, 1 to remove and 0 not upgraded.
Remv old-verbs [1.2-3]
Inst libibverbs1 [39.0-1] (39.0-1ubuntu1 Ubuntu:22.04/jammy-updates, \
Ubuntu:22.04/jammy-security [amd64]) [x:amd64 ]
Inst libc6:i386 (2.35-0ubuntu3.8 Ubuntu:22.04/jammy-updates [i386])
Inst rdma-core [39.0-1] (39.0-1ubuntu1 Ubuntu:22.04/jammy-updates [amd64]) []
Conf libibverbs1 (39.0-1ubuntu1 Ubuntu:22.04/jammy-updates [amd64])
== 0
installed hold libibverbs1:amd64 39.0-1
installed hold rdma-core 39.0-1
config-files deinstall libc6:i386 2.35-0ubuntu3.7
installed install old-verbs 1.2-3
==
libibverbs1:
  Installed: 39.0-1
  Candidate: 39.0-1ubuntu1
  Version table:
     39.0-1ubuntu1 500
        500 http://archive.example.org/ubuntu jammy-updates/main amd64 Packages
 *** 39.0-1 500
        500 http://archive.example.org/ubuntu jammy/main amd64 Packages
        100 /var/lib/dpkg/status
rdma-core:
  Installed: 39.0-1
  Candidate: 39.0-1ubuntu1
  Version table:
     39.0-1ubuntu1 500
        500 http://archive.example.org/ubuntu jammy-updates/main amd64 Packages
 *** 39.0-1 100
        100 /var/lib/dpkg/status
"""
UNMET = """\
The following packages have unmet dependencies:
 tool : Depends: lib (>= 2) but 1.0 is to be installed
E: Unable to correct problems, you have held broken packages.
== 100
"""


def test_what_would_change_and_what_of_it_could_come_back() -> None:
    found = parse_outlook(UPGRADE)
    assert found.moves == (
        PackageChange("old-verbs", "1.2-3", None),
        PackageChange("libibverbs1", "39.0-1", "39.0-1ubuntu1"),
        PackageChange("libc6:i386", None, "2.35-0ubuntu3.8"),
        PackageChange("rdma-core", "39.0-1", "39.0-1ubuntu1"),
    )
    assert [found.returns(move) for move in found.moves] == [False, True, True, False]
    assert found.held == ("libibverbs1", "rdma-core")
    assert found.state("libc6:i386") == Package("config-files", "2.35-0ubuntu3.7")
    assert found.state("libibverbs1") == Package("installed", "39.0-1", held=True)
    assert (found.new("libc6"), found.new("bash")) == ("2.35-0ubuntu3.8", None)
    assert list(map(str, found.moves))[:2] == [
        "remove old-verbs 1.2-3",
        "change libibverbs1 39.0-1 to 39.0-1ubuntu1",
    ]


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        (
            "Reading package lists...\nE: Unable to locate package x\n== 100\n",
            ("Unable to locate package x",),
        ),
        (
            UNMET,
            (
                "Unable to correct problems, you have held broken packages.",
                "tool : Depends: lib (>= 2) but 1.0 is to be installed",
            ),
        ),
        ("sh: 4: apt-get: not found\n== 127\n", (MISSING,)),
        ("\n== 1\n", ("apt-get -s ended with 1",)),
        ("0 upgraded, 0 newly installed, 0 to remove and 3 not upgraded.\n== 0\n", ()),
    ],
)
def test_why_apt_would_not(text: str, failed: tuple[str, ...]) -> None:
    assert parse_outlook(text) == Simulation(failed=failed)


def test_nothing_asked_is_nothing_to_do() -> None:
    assert parse_outlook("") == Simulation()


@pytest.mark.parametrize(
    "text", ["Inst a (1.0 x [all])\n", "Inst a\n== 0\n", "Remv a\n== 0\n", "x\n== \n"]
)
def test_what_was_cut_off_is_not_known(text: str) -> None:
    with pytest.raises(ValueError, match="apt-get"):
        parse_outlook(text)


def test_states_by_name_with_and_without_architecture() -> None:
    found = parse_states(
        "installed hold libc6:amd64 2.36-9\n"
        "half-configured install libc6:i386 2.36-8\n"
        "not-installed unknown x \n"
    )
    assert found["libc6"] == found["libc6:amd64"] == Package("installed", "2.36-9", held=True)
    assert (found["libc6:i386"].there, found["libc6:i386"].gone) == (False, False)
    assert found["x"] == Package("not-installed", "")
    assert found["x"].gone
    assert GONE.gone
