"""Packages on real hosts by the real dnf and zypper, from a repository that the test builds.

n1 is a host of dnf, and n2 one of zypper.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.test_cut_off import quiet
from tests.hosts.test_playbook import said
from tests.hosts.test_steps import apply, run
from tests.support import rpms
from tests.support.command import Answer, finished, started
from tests.support.lab import Lab

pytestmark = pytest.mark.hosts

CONF = "/etc/lab-tool.conf"
LONG = "lab-a-package-of-a-very-long-name-indeed-that-no-column-of-a-table-can-hold"
BASE = "lab-base"
BOTH = ("--limit", "n[1-2]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rpms.require_tools()
    return tmp_path_factory.mktemp("rpms")


@pytest.fixture(scope="module")
def lab(lab4: Lab, folder: Path) -> Iterator[Lab]:
    # zypper takes an empty list of packages for a damaged one.
    rpms.build(folder, BASE, "1.0", Provides="/bin/sh")
    for version in ("1.0", "2.0"):
        rpms.build(folder, "lab-lib", version, {"/usr/share/lab-lib": version})
        rpms.build(
            folder,
            "lab-tool",
            version,
            {CONF: f"of {version}\n"},
            Requires=f"lab-lib >= {version}",
        )
    rpms.build(folder, "lab-old", "1.0")
    rpms.build(folder, "lab-user", "1.0", Requires="lab-tool")
    rpms.build(folder, "lab-foe", "1.0", Conflicts="lab-old")
    rpms.build(folder, LONG, "1.0")
    rpms.build(folder, "lab-arch", "1.0", native=True)
    rpms.build(folder, "lab-arch", "2.0")
    rpms.build(folder, "lab-bad", "1.0", scripts="%pre\necho no room; exit 3\n")
    hangs = "%post\ntouch /run/lab-hangs; sleep 600\n"
    rpms.build(folder, "lab-old", "2.0", scripts=hangs)
    lay(lab4, folder)
    for host in lab4.hosts[:2]:
        host.run(["rpm", "-i", f"{rpms.PLACE}/noarch/{BASE}-1.0-1.noarch.rpm"])
    yield lab4
    quiet(lab4)


def lay(lab: Lab, folder: Path) -> None:
    for host, manager in zip(lab.hosts, ("dnf", "zypper"), strict=False):
        rpms.lay(folder, host, manager)


def state(lab: Lab) -> list[list[str]]:
    return [rpms.packages(host) for host in lab.hosts[:2]]


def installed(*packages: str) -> list[list[str]]:
    """The state in which both hosts have these packages and no others."""
    return [sorted(f"{package}-1.noarch" for package in (f"{BASE}-1.0", *packages))] * 2


def diffs(found: Answer) -> set[tuple[str, str]]:
    """Targets and diffs, once where they are the same on both hosts."""
    return {(target, diff) for _, target, _, diff in said(found)}


def undone(lab: Lab) -> None:
    """Roll back the newest run."""
    back = run(lab, "rollback", "")
    assert (back.code, back.outcomes()) == (0, {"undone"}), (back.report, back.stderr)


def clear(lab: Lab) -> None:
    script = f"set -- $(rpm -qa | grep -v {BASE}); [ $# -eq 0 ] || rpm -e --noscripts $*"
    for host in lab.hosts[:2]:
        host.run(["sh", "-c", script])


BOOK = f"""
- package: {{name: [lab-tool, {LONG}]}}
- package: {{name: no-such-thing, state: absent}}
"""


def test_packages_are_predicted_installed_once_and_gone_after_a_rollback(lab: Lab) -> None:
    clear(lab)
    predicted = run(lab, "plan", BOOK, *BOTH)
    assert predicted.code == 0, predicted.report
    assert state(lab) == installed()
    assert diffs(predicted) == {
        (
            f"lab-tool, {LONG}",
            f"install {LONG} 1.0-1\ninstall lab-tool 2.0-1\ninstall lab-lib 2.0-1",
        ),
        ("no-such-thing", ""),
    }
    done = apply(lab, BOOK, *BOTH)
    assert (done.code, done.outcomes()) == (0, {"done", "unchanged"}), done.report
    assert diffs(done) == diffs(predicted)
    assert state(lab) == installed(f"{LONG}-1.0", "lab-lib-2.0", "lab-tool-2.0")
    again = apply(lab, BOOK, *BOTH)
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    back = run(lab, "rollback", "")
    assert (back.code, back.outcomes()) == (0, {"undone"}), back.report
    assert state(lab) == installed()


LATEST = """
- package: {name: lab-tool, state: latest}
- package: {name: lab-user}
"""
FORMER = "- package: {name: lab-tool, version: 1.*}\n"


@pytest.mark.slow
def test_an_upgrade_keeps_settings_and_goes_back_to_the_version_before(lab: Lab) -> None:
    clear(lab)
    assert apply(lab, FORMER, *BOTH).code == 0
    before = state(lab)
    # dnf and zypper take the newest of what the step does not name.
    assert before == installed("lab-lib-2.0", "lab-tool-1.0")
    for host in lab.hosts[:2]:
        host.write(CONF, "by hand\n")
    predicted = run(lab, "plan", LATEST, *BOTH)
    assert diffs(predicted) == {
        ("lab-tool", "change lab-tool 1.0-1 to 2.0-1"),
        ("lab-user", "install lab-user 1.0-1"),
    }
    done = apply(lab, LATEST, *BOTH)
    assert (done.code, said(done)) == (0, said(predicted)), done.report
    assert state(lab) == installed("lab-lib-2.0", "lab-tool-2.0", "lab-user-1.0")
    assert apply(lab, LATEST, *BOTH).outcomes() == {"unchanged"}
    undone(lab)
    assert state(lab) == before
    assert {host.read(CONF) for host in lab.hosts[:2]} == {"by hand\n"}


@pytest.mark.slow
def test_a_package_that_comes_for_all_architectures_goes_back_to_its_own(lab: Lab) -> None:
    clear(lab)
    assert apply(lab, "- package: {name: lab-arch, version: 1.*}\n", *BOTH).code == 0
    before = state(lab)
    done = apply(lab, "- package: {name: lab-arch, state: latest}\n", *BOTH)
    assert done.code == 0, done.report
    assert diffs(done) == {("lab-arch", "change lab-arch 1.0-1 to 2.0-1")}
    assert state(lab) == installed("lab-arch-2.0")
    undone(lab)
    assert state(lab) == before
    assert before != installed("lab-arch-1.0")  # it was for one architecture


@pytest.mark.slow
def test_a_removal_says_what_goes_with_it_and_comes_back(lab: Lab) -> None:
    clear(lab)
    assert apply(lab, "- package: {name: [lab-tool, lab-user]}\n", *BOTH).code == 0
    before = state(lab)
    book = "- package: {name: lab-tool, state: absent}\n"
    done = apply(lab, book, *BOTH)
    assert done.code == 0, done.report
    assert diffs(done) == {("lab-tool", "remove lab-tool 2.0-1\nremove lab-user 1.0-1")}
    assert state(lab) == installed("lab-lib-2.0")
    assert apply(lab, book, *BOTH).outcomes() == {"unchanged"}
    undone(lab)
    assert state(lab) == before


def test_what_no_repository_has_is_said_before_anything_is_done(lab: Lab) -> None:
    clear(lab)
    found = apply(lab, "- package: {name: [lab-tool, lab-nothing]}\n", *BOTH)
    assert (found.code, found.outcomes()) == (1, {"not-started"}), str(found.report["changes"])
    told = str(found.report["changes"])
    assert "Unable to find a match: lab-nothing" in told
    assert "No provider of 'lab-nothing' found" in told
    found = run(lab, "plan", "- package: {name: lab-tool, version: 3.*}\n", *BOTH)
    assert found.code == 1
    assert "lab-tool-3.*" in str(found.report["changes"])
    assert "lab-tool=3.*" in str(found.report["changes"])
    assert state(lab) == installed()


@pytest.mark.slow
def test_a_package_that_cannot_be_set_up_leaves_its_node_as_it_was(lab: Lab) -> None:
    clear(lab)
    found = apply(lab, "- package: {name: lab-bad}\n", *BOTH)
    assert (found.code, found.outcomes()) == (1, {"failed"}), str(found.report["changes"])
    assert state(lab) == installed()


@pytest.mark.slow
def test_an_upgrade_that_hangs_and_is_interrupted_is_taken_back(lab: Lab) -> None:
    clear(lab)
    assert apply(lab, "- package: {name: lab-old, version: 1.*}\n", *BOTH).code == 0
    before = state(lab)
    book = lab.folder / "hangs.yaml"
    book.write_text("- package: {name: lab-old, state: latest}\n")
    words = ("--playbook", str(book), "--only", "ssh.", *BOTH, "--no-verify")
    process = started(lab, "apply", *words)
    for host in lab.hosts[:2]:
        host.run(["sh", "-c", "until [ -e /run/lab-hangs ]; do sleep 0.1; done"], timeout=60)
    process.send_signal(signal.SIGINT)
    assert finished(process).code == 130
    assert state(lab) == before


@pytest.mark.slow
def test_a_package_that_another_one_replaces_comes_back(lab: Lab, folder: Path) -> None:
    clear(lab)
    assert apply(lab, "- package: {name: lab-old, version: 1.*}\n", *BOTH).code == 0
    before = state(lab)
    rpms.build(folder, "lab-heir", "3.0", Obsoletes="lab-old < 3")
    lay(lab, folder)
    done = apply(lab, "- package: {name: lab-heir}\n", *BOTH)
    assert done.code == 0, done.report
    assert diffs(done) == {("lab-heir", "install lab-heir 3.0-1\nremove lab-old 1.0-1")}
    assert state(lab) == installed("lab-heir-3.0")
    undone(lab)
    assert state(lab) == before


@pytest.mark.slow
def test_a_lock_of_zypper_is_kept_and_refuses_a_change(lab: Lab) -> None:
    clear(lab)
    n2 = lab.host("n2")
    only = ("--limit", "n2")
    assert apply(lab, FORMER, *only).code == 0
    held = "- package: {name: lab-tool, hold: true}\n"
    assert diffs(apply(lab, held, *only)) == {("lab-tool", "hold lab-tool")}
    assert "lab-tool" in n2.read("/etc/zypp/locks")
    assert apply(lab, held, *only).outcomes() == {"unchanged"}
    refused = run(lab, "plan", LATEST, *only)
    assert refused.code == 1
    assert "`hold: false` in a step of its own" in str(refused.report["changes"])
    released = "- package: {name: lab-tool, hold: false}\n"
    assert diffs(apply(lab, released, *only)) == {("lab-tool", "no hold lab-tool")}
    latest = "- package: {name: lab-tool, state: latest, hold: true}\n"
    done = apply(lab, latest, *only)
    assert diffs(done) == {("lab-tool", "change lab-tool 1.0-1 to 2.0-1\nhold lab-tool")}
    assert "lab-tool" in n2.read("/etc/zypp/locks")
    undone(lab)
    assert "lab-tool-1.0-1.noarch" in rpms.packages(n2)
    assert "lab-tool" not in n2.read("/etc/zypp/locks")


@pytest.mark.slow
def test_another_process_with_the_lock_of_zypper_is_waited_for(lab: Lab) -> None:
    clear(lab)
    n2 = lab.host("n2")
    n2.run(["sh", "-c", "sleep 8 >/dev/null 2>&1 & echo $! > /run/zypp.pid"])
    done = apply(lab, "- package: {name: lab-lib}\n", "--limit", "n2")
    assert (done.code, done.outcomes()) == (0, {"done"}), done.report
