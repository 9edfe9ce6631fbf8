"""The nearest package that brings a sufficient kernel, from apt's output on Ubuntu and Debian."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.boot_default import BootDefault
from clusterprep.changes.resources import NoPlan, PlanContext
from clusterprep.changes.resources.kernel import (
    RESOURCE,
    KernelCandidate,
    parse_answer,
    parse_answers,
    parse_candidates,
)
from clusterprep.facts.apt import MISSING
from clusterprep.model import Absent, Fleet, Inventory, Node
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.model.packages import PackageChange, Simulation
from clusterprep.nccl.environment import Environment

EMPTY = Inventory("test", ())
NOTHING = "0 upgraded, 0 newly installed, 0 to remove and 4 not upgraded."

# Ubuntu 22.04 with its first kernel and NVIDIA's modules from the archive, as apt 2.4 prints it.
UBUNTU = f"""\
== candidate linux-generic linux-modules-nvidia-550-server-generic
Reading package lists...
{NOTHING}
== 0

== candidate linux-generic-hwe-22.04 linux-modules-nvidia-550-server-generic-hwe-22.04
Reading package lists...
Building dependency tree...
4 upgraded, 5 newly installed, 0 to remove and 0 not upgraded.
Inst linux-firmware [20220329.git681281e4-0ubuntu3.29] \
(20220329.git681281e4-0ubuntu3.31 Ubuntu:22.04/jammy [all])
Inst linux-modules-6.8.0-45-generic \
(6.8.0-45.45~22.04.1 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy [amd64])
Inst linux-image-6.8.0-45-generic \
(6.8.0-45.45~22.04.1 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy [amd64])
Inst linux-modules-extra-6.8.0-45-generic (6.8.0-45.45~22.04.1 Ubuntu:22.04/jammy-updates [amd64])
Inst linux-image-generic-hwe-22.04 \
(6.8.0-45.45~22.04.1 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy [amd64])
Inst linux-generic-hwe-22.04 \
(6.8.0-45.45~22.04.1 Ubuntu:22.04/jammy-updates, Ubuntu:22.04/jammy [amd64])
Inst linux-modules-nvidia-550-server-generic-hwe-22.04 \
(6.8.0-45.45~22.04.1 Ubuntu:22.04/jammy-updates [amd64])
== 0
installed install linux-firmware 20220329.git681281e4-0ubuntu3.29
==
linux-firmware:
  Installed: 20220329.git681281e4-0ubuntu3.29
  Candidate: 20220329.git681281e4-0ubuntu3.31
  Version table:
     20220329.git681281e4-0ubuntu3.31 500
        500 http://archive.example.org/ubuntu jammy-updates/main amd64 Packages
 *** 20220329.git681281e4-0ubuntu3.29 100
        100 /var/lib/dpkg/status

"""
DEBIAN = """\
== candidate linux-image-amd64 linux-headers-amd64
Inst linux-image-6.1.0-25-amd64 (6.1.106-3 Debian:12.7/stable [amd64])
Inst linux-image-amd64 [6.1.90-1] (6.1.106-3 Debian:12.7/stable [amd64])
Inst linux-headers-amd64 [6.1.90-1] (6.1.106-3 Debian:12.7/stable [amd64])
== 0
==
linux-image-amd64:
  Version table:
 *** 6.1.90-1 500
        500 http://deb.example.org/debian bookworm/main amd64 Packages
linux-headers-amd64:
  Version table:
 *** 6.1.90-1 500
        500 http://deb.example.org/debian bookworm/main amd64 Packages

== candidate linux-image-amd64/bookworm-backports linux-headers-amd64/bookworm-backports
Inst linux-image-6.10.6+bpo-amd64 (6.10.6-1~bpo12+1 Debian Backports:stable-backports [amd64])
Inst linux-image-amd64 [6.1.90-1] (6.10.6-1~bpo12+1 Debian Backports:stable-backports [amd64])
Inst linux-headers-amd64 [6.1.90-1] (6.10.6-1~bpo12+1 Debian Backports:stable-backports [amd64])
== 0
==

"""


def planned(
    params: dict[str, Any],
    running: str,
    candidates: Any,
    installed: tuple[str, ...] = (),
    default: BootDefault = BootDefault(),  # noqa: B008 - frozen
    **require: str,
) -> StepAction:
    names = [fact.name for fact in RESOURCE.facts(params, EMPTY)]
    facts = dict(zip(names, (running, installed, candidates, default), strict=True))
    node = Node(
        "n1", "n1", 0, require={key.replace("_", "."): value for key, value in require.items()}
    )
    (step_action,) = RESOURCE.plan(
        params, PlanContext(Fleet(EMPTY, {}), node, {}, facts, Environment((), {}))
    )
    return step_action


def installs(step_action: StepAction) -> list[str]:
    (run,) = step_action.operations
    assert isinstance(run, RunCommand)
    assert "--no-remove" in run.argv
    return list(run.argv[run.argv.index("--") + 1 :])


def test_the_releases_that_would_come() -> None:
    assert [one.release for one in parse_candidates(UBUNTU)] == [None, "6.8.0-45-generic"]
    assert [one.release for one in parse_candidates(DEBIAN)] == [
        "6.1.0-25-amd64",
        "6.10.6+bpo-amd64",
    ]


def test_ubuntu_has_it_in_its_newer_line_with_the_modules_of_the_driver() -> None:
    step_action = planned(
        {"at_least": "6.5"}, "5.15.0-119-generic", parse_candidates(UBUNTU), ("5.15.0-119-generic",)
    )
    version = "6.8.0-45.45~22.04.1"
    assert installs(step_action) == [
        f"linux-generic-hwe-22.04={version}",
        f"linux-modules-nvidia-550-server-generic-hwe-22.04={version}",
    ]  # fmt: skip
    lines = step_action.diff.split("\n")
    assert f"install linux-image-6.8.0-45-generic {version}" in lines
    assert lines[-1] == "6.8.0-45-generic runs from the next boot on"
    assert "no way back: linux-firmware 20220329.git681281e4-0ubuntu3.29 is in no source" in lines


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("6.1", ["linux-image-amd64=6.1.106-3", "linux-headers-amd64=6.1.106-3"]),
        ("6.6", ["linux-image-amd64=6.10.6-1~bpo12+1", "linux-headers-amd64=6.10.6-1~bpo12+1"]),
    ],
)
def test_debian_has_it_or_its_backports_have(wanted: str, names: list[str]) -> None:
    assert (
        installs(planned({"at_least": wanted}, "5.10.0-32-amd64", parse_candidates(DEBIAN)))
        == names
    )


@pytest.mark.parametrize(
    ("params", "running", "installed", "require", "says"),
    [
        ({"at_least": "5.15"}, "5.15.0-1-generic", (), {}, "5.15.0-1-generic runs"),
        ({}, "5.5.1", (), {}, "5.5.1 runs"),
        ({}, "6.8.0-1-generic", (), {"kernel_version": ">=6.8,<7"}, "6.8.0-1-generic runs"),
        (
            {"at_least": "6.5"},
            "6.2.0-1-generic",
            ("6.2.0-1-generic", "6.8.0-9-generic", "6.9.0-1-lowlatency"),
            {},
            "6.8.0-9-generic is installed, and runs from the next boot on",
        ),
        ({"at_least": "6.5"}, "6.2.0", ("6.8.0-9-generic",), {}, "6.8.0-9-generic is installed"),
    ],
)
def test_nothing_is_to_be_installed(
    params: Any, running: str, installed: Any, require: Any, says: str
) -> None:
    step_action = planned(params, running, (), installed, **require)
    assert step_action.operations == ()
    assert says in step_action.diff


@pytest.mark.parametrize(
    ("params", "candidates", "installed", "require", "words"),
    [
        (
            {"at_least": "6.11"},
            parse_candidates(UBUNTU),
            (),
            {},
            ("linux-generic-hwe-22.04: kernel 6.8.0-45-generic",),
        ),
        (
            {"at_least": "6.11"},
            parse_candidates(UBUNTU),
            (),
            {},
            ("linux-generic: nothing newer", ">=6.11 is wanted"),
        ),
        (
            {},
            parse_candidates(UBUNTU),
            (),
            {"kernel_version": ">=6.2,<6.8"},
            (">=6.2,<6.8 is wanted",),
        ),
        (
            {"at_least": "6.5"},
            (),
            ("5.4.0-9", "6.6.0-1-other"),
            {},
            ("none of Debian's or Ubuntu's", "package:"),
        ),
        ({"at_least": "6.5"}, MISSING, (), {}, ("apt, dnf 4 and zypper are",)),
    ],
)
def test_what_cannot_be_had_is_said(
    params: Any, candidates: tuple[KernelCandidate, ...], installed: Any, require: Any, words: Any
) -> None:
    with pytest.raises(NoPlan) as told:
        planned(params, "5.4.0-9", candidates, installed, **require)
    assert told.value.absent.reason == "cannot"
    assert [word for word in words if word not in told.value.absent.detail] == []


def test_how_the_question_ended() -> None:
    assert parse_answer({"code": 127, "out": "", "err": ""}) == MISSING
    assert parse_answer(Absent("hung")) == Absent("hung")
    assert (
        parse_answer(
            {"code": 0, "out": "== candidate a\nsh: apt-get: not found\n== 127\n", "err": ""}
        )
        == MISSING
    )
    assert parse_answer({"code": 0, "out": "", "err": ""}) == ()


@pytest.mark.parametrize("version", ["new", ">=5"])
def test_a_version_that_is_none(version: str) -> None:
    assert [key for key, _ in RESOURCE.wrong({"at_least": version})] == ["at_least"]
    assert not list(RESOURCE.wrong({"at_least": "5.15.0-100"}))


# ---------------------------------------------------------------- dnf and zypper

EL9 = "5.14.0-427.13.1.el9_4"


def brought(manager: str, name: str, *moves: PackageChange) -> tuple[KernelCandidate, ...]:
    return (KernelCandidate((name,), Simulation(moves), manager),)


def new(name: str, version: str, architecture: str = "x86_64") -> PackageChange:
    return PackageChange(name, None, version, architecture)


@pytest.mark.parametrize(
    ("manager", "name", "moves", "expected"),
    [
        ("dnf", "kernel", (new("kernel", EL9), new("kernel-core", EL9)), f"{EL9}.x86_64"),
        ("dnf", "kernel-rt", (new("kernel-rt-core", EL9),), f"{EL9}.x86_64+rt"),
        ("dnf", "kernel-64k", (new("kernel-64k-core", EL9, "aarch64"),), f"{EL9}.aarch64+64k"),
        (
            "dnf",
            "kernel6.12",
            (new("kernel6.12", "1:6.12.5-7.amzn2023"),),
            "6.12.5-7.amzn2023.x86_64",
        ),
        (
            "zypper",
            "kernel-default",
            (new("kernel-default", "6.4.0-150600.23.25.1"),),
            "6.4.0-150600.23.25-default",
        ),
        ("dnf", "kernel", (), None),
    ],
)
def test_the_release_of_a_package_of_rpm(
    manager: str, name: str, moves: tuple[PackageChange, ...], expected: str | None
) -> None:
    assert brought(manager, name, *moves)[0].release == expected


def lines(step_action: StepAction) -> list[str]:
    runs = [run for run in step_action.operations if isinstance(run, RunCommand)]
    return [" ".join(run.argv) for run in runs]


def test_dnf_installs_the_kernel_and_grubby_starts_it_next() -> None:
    found = brought("dnf", "kernel", new("kernel", EL9), new("kernel-core", EL9))
    before = "/boot/vmlinuz-5.10.0-1.el9.x86_64"
    step_action = planned({"at_least": "5.14"}, "5.10.0-1.el9", found, (), BootDefault(before))
    assert lines(step_action) == [
        f"dnf -q -y --setopt=metadata_expire=-1 install --best kernel-{EL9}",
        f"grubby --set-default /boot/vmlinuz-{EL9}.x86_64",
    ]
    assert step_action.diff.endswith(f"{EL9}.x86_64 runs from the next boot on")


def test_a_kernel_that_waits_is_made_the_next_one() -> None:
    installed = ("5.10.0-1.el9.x86_64", f"{EL9}.x86_64")
    default = BootDefault(f"/boot/vmlinuz-{installed[0]}")
    step_action = planned({"at_least": "5.14"}, installed[0], (), installed, default)
    assert lines(step_action) == [f"grubby --set-default /boot/vmlinuz-{EL9}.x86_64"]
    done = BootDefault(f"/boot/vmlinuz-{installed[1]}")
    assert planned({"at_least": "5.14"}, installed[0], (), installed, done).operations == ()


def test_no_kernel_goes_for_another_one() -> None:
    old = PackageChange("kernel-core", "5.10.0-1.el9", None, "x86_64")
    found = brought("dnf", "kernel", new("kernel-core", EL9), old)
    with pytest.raises(NoPlan, match=r"would remove kernel-core: .*installonly_limit"):
        planned({"at_least": "5.14"}, "5.10.0-1.el9", found)


def test_the_manager_in_charge_is_read() -> None:
    other = {"code": 75, "out": "", "err": ""}
    none = {"code": 0, "out": "", "err": ""}
    text = "\n== kernel kernel\n\n== states\n\n== locks\n\n== end\n"
    assert parse_answers({"code": 127, "out": "", "err": ""}, other, other) == MISSING
    assert parse_answers(other, none, other) == ()
    answer = {"code": 0, "out": text, "err": ""}
    assert parse_answers(other, answer, other) == brought("dnf", "kernel")
    assert parse_answers(other, other, answer) == brought("zypper", "kernel")
    assert parse_answers(other, other, Absent("hung")) == Absent("hung")
