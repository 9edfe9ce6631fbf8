"""Kernels by the real dnf and zypper: beside the running one, and away again.

The hosts say that they run an old kernel of a package that the test builds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.test_cut_off import quiet
from tests.hosts.test_playbook import said
from tests.hosts.test_steps import apply, run
from tests.support import rpms
from tests.support.lab import Lab
from tests.support.lab.faults.files import file_over

pytestmark = pytest.mark.hosts

RUNNING = {"n1": "8.1.0-1.noarch", "n2": "8.1.0-1-default"}
NEXT = {"n1": "9.1.0-1.noarch", "n2": "9.1.0-1-default"}
BOTH = ("--limit", "n[1-2]")


@pytest.fixture(scope="module")
def lab(lab4: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    rpms.require_tools()
    folder = tmp_path_factory.mktemp("rpms")
    for version in ("8.1.0", "9.1.0"):
        # dnf and zypper keep several of what provides this.
        rhel = {"Provides": "installonlypkg(kernel)"}
        rpms.build_kernel(folder, "kernel-core", version, f"{version}-1.noarch", **rhel)
        rpms.build(folder, "kernel", version, Requires=f"kernel-core = {version}")
        suse = {"Provides": "multiversion(kernel)"}
        rpms.build_kernel(folder, "kernel-default", version, f"{version}-1-default", **suse)
    n1, n2 = lab4.hosts[:2]
    n2.write("/etc/zypp/zypp.conf", "[main]\nmultiversion = provides:multiversion(kernel)\n")
    for host, manager in ((n1, "dnf"), (n2, "zypper")):
        rpms.lay(folder, host, manager)
    n1.run(["dnf", "-q", "-y", "install", "kernel-8.1.0", "kernel-core-8.1.0"])
    n2.run(["zypper", "--non-interactive", "install", "kernel-default=8.1.0"])
    for host in (n1, n2):
        file_over(host, "/proc/sys/kernel/osrelease", f"{RUNNING[host.name]}\n")
    yield lab4
    quiet(lab4)


def test_a_kernel_comes_beside_the_running_one_and_goes_again(lab: Lab) -> None:
    before = [rpms.packages(host) for host in lab.hosts[:2]]
    book = "- kernel: {at_least: '9.0'}\n"
    predicted = run(lab, "plan", book, *BOTH)
    assert predicted.code == 0, str(predicted.report["changes"])
    diffs = {node: diff.split("\n") for node, _, _, diff in said(predicted)}
    assert diffs == {
        "n1": [
            "install kernel 9.1.0-1",
            "install kernel-core 9.1.0-1",
            f"{NEXT['n1']} runs from the next boot on",
        ],
        "n2": ["install kernel-default 9.1.0-1", f"{NEXT['n2']} runs from the next boot on"],
    }
    done = apply(lab, book, *BOTH)
    assert (done.code, said(done)) == (0, said(predicted)), done.report
    for host in lab.hosts[:2]:
        for release in (RUNNING[host.name], NEXT[host.name]):
            assert host.read(f"/boot/vmlinuz-{release}") == "no kernel\n"
    assert apply(lab, book, *BOTH).outcomes() == {"unchanged"}
    assert run(lab, "rollback", "").outcomes() == {"undone"}
    assert [rpms.packages(host) for host in lab.hosts[:2]] == before
