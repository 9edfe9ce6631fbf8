"""Packages and kernels on real hosts, with real apt and dpkg and packages that the test builds."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.hosts.test_cut_off import quiet
from tests.hosts.test_playbook import said
from tests.hosts.test_steps import apply, outcomes, run
from tests.support import debs, systemd
from tests.support.command import Answer, clusterprep, finished, started
from tests.support.lab import Host, Lab
from tests.support.lab.faults.files import file_over

pytestmark = pytest.mark.hosts

CONF = "/etc/lab-tool.conf"
NAMES = (
    "lab-tool",
    "lab-lib",
    "lab-old",
    "lab-foe",
    "lab-bad",
    "linux-image-lab",
    "linux-image-9.1.0-2-lab",
)
LIMIT = ("--limit", "n[1-2]")


@pytest.fixture(scope="module")
def lab(lab4: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("debs")
    for version in ("1.0", "2.0"):
        debs.build(folder, "lab-lib", version, {"/usr/share/lab-lib": version})
        debs.build(
            folder,
            "lab-tool",
            version,
            {CONF: f"of {version}\n"},
            Depends=f"lab-lib (>= {version})",
        )
    debs.build(folder, "lab-old", "1.0")
    debs.build(folder, "lab-foe", "1.0", Conflicts="lab-old")
    fails = "#!/bin/sh\necho no room; exit 3\n"
    debs.build(folder, "lab-bad", "1.0", {"/usr/share/lab-lib": "mine", "/DEBIAN/postinst": fails})
    debs.build(
        folder, "linux-image-9.1.0-2-lab", "9.1.1-1", {"/boot/vmlinuz-9.1.0-2-lab": "no kernel\n"}
    )
    debs.build(folder, "linux-image-lab", "9.1.1-1", Depends="linux-image-9.1.0-2-lab (= 9.1.1-1)")
    hangs = "#!/bin/sh\ntouch /run/lab-hangs; sleep 600\n"
    debs.build(folder, "lab-old", "2.0", {"/DEBIAN/postinst": hangs}, Depends="lab-lib")
    for name in ("rdma-core", "ibverbs-utils", "infiniband-diags"):
        debs.build(folder, name, "50.0-2", {f"/usr/share/doc/{name}/lab": ""})
    debs.lay(folder, *lab4.hosts[:2])
    lab4.host("n2").run(
        ["apt-get", "-q", "-y", "install", "lab-tool=1.0", "lab-lib=1.0", "lab-old=1.0"]
    )
    yield lab4
    quiet(lab4)


def state(lab: Lab) -> list[list[str]]:
    return [debs.packages(host, *NAMES) for host in lab.hosts[:2]]


def diffs(found: object) -> dict[tuple[str, str], str]:
    return {(node, target): diff for node, target, _, diff in said(found)}  # type: ignore[arg-type]


BOOK = """
- package: {name: [lab-tool, bash]}
- package: {name: lab-lib, hold: true}
- package: {name: lab-old, state: absent}
- package: {name: no-such-thing, state: absent}
"""


def test_packages_are_predicted_installed_once_and_as_they_were_after_a_rollback(lab: Lab) -> None:
    lab.host("n2").write(CONF, "by hand\n")
    before = state(lab)
    assert before[0] == []
    predicted = run(lab, "plan", BOOK, *LIMIT)
    assert predicted.code == 0, predicted.report
    assert state(lab) == before
    assert diffs(predicted) == {
        ("n1", "lab-tool, bash"): "install lab-tool 2.0\ninstall lab-lib 2.0",
        ("n1", "lab-lib"): "install lab-lib 2.0\nhold lab-lib",
        ("n2", "lab-tool, bash"): "",
        ("n2", "lab-lib"): "hold lab-lib",
        ("n1", "lab-old"): "",
        ("n2", "lab-old"): "remove lab-old 1.0",
        ("n1", "no-such-thing"): "",
        ("n2", "no-such-thing"): "",
    }
    done = apply(lab, BOOK, *LIMIT)
    assert (done.code, done.outcomes()) == (0, {"done", "unchanged"}), done.report
    # What came with an earlier step is not to be done again.
    assert diffs(done) == {**diffs(predicted), ("n1", "lab-lib"): "hold lab-lib"}
    assert state(lab) == [
        ["hold installed lab-lib 2.0", "install installed lab-tool 2.0"],
        ["hold installed lab-lib 1.0", "install installed lab-tool 1.0"],
    ]
    again = apply(lab, BOOK, *LIMIT)
    assert (again.code, again.outcomes()) == (0, {"unchanged"}), said(again)
    back = run(lab, "rollback", "")
    assert (back.code, back.outcomes()) == (0, {"undone"}), back.report
    assert state(lab) == before
    assert lab.host("n1").run(["test", "-e", CONF], check=False).returncode == 1
    assert lab.host("n2").read(CONF) == "by hand\n"


LATEST = """
- package: {name: lab-tool, state: latest}
- package: {name: lab-foe}
"""


def test_an_upgrade_keeps_settings_and_goes_back_to_the_version_before(lab: Lab) -> None:
    n2 = lab.host("n2")
    before = state(lab)
    n2.run(["apt-mark", "hold", "lab-tool"])
    refused = run(lab, "plan", LATEST, "--limit", "n2")
    assert refused.code == 1
    assert "lab-tool" in str(refused.report["changes"])
    assert "hold: false" in str(refused.report["changes"])
    n2.run(["apt-mark", "unhold", "lab-tool"])
    predicted = run(lab, "plan", LATEST, "--limit", "n2")
    assert list(diffs(predicted).values()) == [
        "change lab-tool 1.0 to 2.0\nchange lab-lib 1.0 to 2.0",
        "install lab-foe 1.0\nremove lab-old 1.0",
    ]
    done = apply(lab, LATEST, "--limit", "n2")
    assert (done.code, said(done)) == (0, said(predicted)), done.report
    assert n2.read(CONF) == "by hand\n"
    assert apply(lab, LATEST, "--limit", "n2").outcomes() == {"unchanged"}
    assert run(lab, "rollback", "").outcomes() == {"undone"}
    assert state(lab) == before
    assert n2.read(CONF) == "by hand\n"


def test_what_no_source_has_is_said_before_anything_is_done(lab: Lab) -> None:
    book = (
        "- command: {run: touch /run/lab-read, unless: 'true'}\n"
        "- package: {name: [lab-tool, lab-nothing]}\n"
    )
    found = apply(lab, book, *LIMIT)
    assert (found.code, found.outcomes()) == (1, {"not-started", "unchanged"}), found.report
    assert "Unable to locate package lab-nothing" in str(found.report["changes"])
    found = run(lab, "plan", "- package: {name: lab-tool, version: 3.*}\n", *LIMIT)
    assert found.code == 1
    assert "Version '3.*' for 'lab-tool' was not found" in str(found.report["changes"])


def test_a_package_that_cannot_be_unpacked_or_set_up_leaves_its_node_as_it_was(lab: Lab) -> None:
    before = state(lab)
    found = apply(
        lab, "- package: {name: lab-old, version: 1.0}\n- package: {name: lab-bad}\n", *LIMIT
    )
    assert found.code == 1, found.report
    bad = {
        row["nodes"][0]: row["detail"]
        for row in found.report["changes"]
        if row["outcome"] == "failed"
    }
    assert list(bad) == ["n1", "n2"]
    assert "no room" in bad["n1"]
    assert "trying to overwrite '/usr/share/lab-lib'" in bad["n2"]
    assert state(lab) == before


def test_an_upgrade_that_hangs_and_is_interrupted_is_taken_back(lab: Lab) -> None:
    host, before = lab.host("n2"), state(lab)
    book = lab.folder / "hangs.yaml"
    book.write_text("- package: {name: lab-old, state: latest}\n")
    words = ("--playbook", str(book), "--only", "ssh.", "--limit", "n2", "--no-verify")
    process = started(lab, "apply", *words)
    host.run(["sh", "-c", "until [ -e /run/lab-hangs ]; do sleep 0.1; done"], timeout=60)
    process.send_signal(signal.SIGINT)
    assert finished(process).code == 130
    assert state(lab) == before


def kernel(version: str, more: str = "") -> str:
    return f"- kernel: {{at_least: '{version}'{more}}}\n"


def test_a_kernel_is_installed_beside_the_others_and_runs_from_the_next_boot_on(lab: Lab) -> None:
    host: Host = lab.host("n1")
    running = host.read("/proc/sys/kernel/osrelease").strip()
    book = kernel("9.1", ", package: linux-image-lab")
    predicted = run(lab, "plan", book, "--limit", "n1")
    assert diffs(predicted)["n1", "the kernel"].split("\n") == [
        "install linux-image-lab 9.1.1-1",
        "install linux-image-9.1.0-2-lab 9.1.1-1",
        "9.1.0-2-lab runs from the next boot on",
    ]
    done = apply(lab, book, "--limit", "n1")
    assert (done.code, said(done)) == (0, said(predicted)), done.report
    assert apply(lab, book, "--limit", "n1").outcomes() == {"unchanged"}
    assert run(lab, "rollback", "").outcomes() == {"undone"}
    assert debs.packages(host, "linux-image-*-lab") == []
    found = run(lab, "plan", kernel("9.2", ", package: linux-image-lab"), "--limit", "n1")
    assert found.code == 1
    assert f"{running} runs, >=9.2 is wanted" in str(found.report["changes"])
    assert "linux-image-lab: kernel 9.1.0-2-lab" in str(found.report["changes"])


def test_the_package_of_the_flavour_that_runs_is_found(lab: Lab) -> None:
    host = lab.host("n1")
    with file_over(host, "/proc/sys/kernel/osrelease", "6.1.0-21-lab\n"):
        found = run(lab, "plan", kernel("9.0"), "--limit", "n1")
        assert "install linux-image-lab 9.1.1-1" in str(found.report["changes"])
        with file_over(host, "/etc/os-release", "ID=ubuntu\nVERSION_ID='22.04'\n"):
            found = run(lab, "plan", kernel("9.0"), "--limit", "n1")
    assert "linux-lab: Unable to locate package linux-lab" in str(found.report["changes"])
    assert "linux-lab-hwe-22.04: Unable to locate" in str(found.report["changes"])


def shipped(lab: Lab, command: str, name: str, *words: str) -> Answer:
    return clusterprep(lab, command, "--playbook", name, "--only", "ssh.", *words)


def test_the_shipped_kernel_playbook_installs_and_starts_anew_until_the_kernel_runs(
    lab: Lab,
) -> None:
    """The host says that it runs an old kernel, and has the machine's own after its restart."""
    host = lab.host("n1")
    systemd.install(host)
    host.write("/boot/vmlinuz-5.4.0-1-lab", "no kernel\n")
    file_over(host, "/proc/sys/kernel/osrelease", "5.4.0-1-lab\n")
    predicted = shipped(lab, "plan", "kernel", "--limit", "n[1,3]")
    done = shipped(lab, "apply", "kernel", "--limit", "n[1,3]", "--no-verify")
    assert done.code == 0, done.report
    assert [row for row in outcomes(done) if row[1] == "done"] == [
        ("kernel", "done", ["n1"]),
        ("reboot", "done", ["n1"]),
    ]
    assert {row[:3] for row in said(done)} == {row[:3] for row in said(predicted)}
    assert debs.packages(host, "linux-image-lab") == ["install installed linux-image-lab 9.1.1-1"]
    assert host.read("/proc/sys/kernel/osrelease") != "5.4.0-1-lab\n"
    assert shipped(lab, "apply", "kernel", "--limit", "n[1,3]", "--no-verify").outcomes() == {
        "unchanged"
    }


MODPROBE = """#!/bin/sh
# loads by a note in /run, and knows two modules
for name; do :; done
case $name in ib_uverbs|rdma_ucm) ;;
*) echo "modprobe: FATAL: Module $name not found." >&2; exit 1 ;; esac
case $1 in
-n) [ -e /run/loaded-$name ] || echo "insmod /lib/modules/$name.ko" ;;
-r) rm -f /run/loaded-$name ;;
*) touch /run/loaded-$name ;;
esac
"""


def test_the_shipped_rdma_playbook_brings_libraries_and_modules_and_takes_them_away_again(
    lab: Lab,
) -> None:
    host, names = lab.host("n2"), ("rdma-core", "ibverbs-utils", "infiniband-diags")
    host.write("/usr/local/sbin/modprobe", MODPROBE, mode=0o755)
    before = debs.packages(host, *names)
    predicted = shipped(lab, "plan", "rdma", "--limit", "n2")
    done = shipped(lab, "apply", "rdma", "--limit", "n2", "--no-verify")
    assert (done.code, said(done)) == (0, said(predicted)), done.report
    assert {(row["resource"], row["outcome"]) for row in done.report["changes"]} == {
        ("package", "done"), ("module", "done"), ("limits", "done")
    }  # fmt: skip
    assert [row.split()[2] for row in debs.packages(host, *names)] == sorted(names)
    assert host.read("/etc/modules-load.d/clusterprep-rdma_ucm.conf").endswith("\nrdma_ucm\n")
    again = shipped(lab, "apply", "rdma", "--limit", "n2", "--no-verify")
    assert again.outcomes() == {"unchanged"}, said(again)
    assert run(lab, "rollback", "").outcomes() == {"undone"}
    assert debs.packages(host, *names) == before
    assert "loaded" not in host.run(["ls", "/run"]).stdout
