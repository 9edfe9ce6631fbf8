"""`copy` and `fetch` on four real hosts: sums, places, modes, sudo, and being killed."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.command import CLI, Answer, clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = pytest.mark.hosts

USER, PASSWORD = "alice", "correct-horse"
NAMES = ["n1", "n2", "n3", "n4"]


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Lab:
    for host in lab4.hosts:
        faults.add_user(host, USER, "password", PASSWORD)
        host.write(f"/etc/sudoers.d/{USER}", f"{USER} ALL=(ALL:ALL) ALL\n", 0o440)
    return lab4


@pytest.fixture
def source(lab: Lab) -> Path:
    path = lab.folder / "site.conf"
    path.write_text("one\ntwo\n")
    path.chmod(0o640)
    return path


def changes(seen: Answer) -> set[tuple[str, str, str]]:
    return {
        (node, row["action"], row["outcome"])
        for row in seen.report["changes"]
        for node in row["nodes"]
    }


def all_of(action: str, outcome: str) -> set[tuple[str, str, str]]:
    return {(name, action, outcome) for name in NAMES}


def state(host: Host, path: str) -> str:
    return host.run(["stat", "-c", "%a %U:%G", path]).stdout.strip()


def left_over(host: Host) -> str:
    found = host.run(["find", "/etc", "/var/tmp", "/srv", "-name", "*clusterprep-*"])
    return found.stdout


def as_user(lab: Lab, command: str, *words: str) -> Answer:
    ssh = {**lab.inventory_content()["ssh"], "user": USER}
    path = lab.inventory(lab.folder / "user.yaml", ssh=ssh)
    env = {"CLUSTERPREP_BECOME_PASSWORD": PASSWORD}
    return clusterprep(lab, command, *words, inventory=path, env=env)


def test_a_file_is_copied_once(lab: Lab, source: Path) -> None:
    first = clusterprep(lab, "copy", str(source), "/etc/site.conf")
    assert (first.code, changes(first)) == (0, all_of("create", "done"))
    for host in lab.hosts:
        assert (host.read("/etc/site.conf"), state(host, "/etc/site.conf")) == (
            "one\ntwo\n", "640 root:root",
        )  # fmt: skip
    before = lab.host("n1").run(["stat", "-c", "%i", "/etc/site.conf"]).stdout
    again = clusterprep(lab, "copy", str(source), "/etc/")
    assert (again.code, changes(again)) == (0, all_of("none", "unchanged"))
    assert lab.host("n1").run(["stat", "-c", "%i", "/etc/site.conf"]).stdout == before


def test_one_that_differs_is_replaced_with_its_owner(lab: Lab, source: Path) -> None:
    for host in lab.hosts:
        host.write("/etc/other.conf", "old\n", 0o600)
    lab.host("n2").run(["chown", f"{USER}:{USER}", "/etc/other.conf"])
    seen = clusterprep(lab, "copy", "--mode", "0604", str(source), "/etc/other.conf")
    assert (seen.code, changes(seen)) == (0, all_of("update", "done"))
    assert state(lab.host("n1"), "/etc/other.conf") == "604 root:root"
    assert state(lab.host("n2"), "/etc/other.conf") == f"604 {USER}:{USER}"


def test_under_sudo_the_user_stages_and_root_places(lab: Lab, source: Path) -> None:
    words = ("-b", "--owner", "daemon", str(source), "/etc/rooted.conf")
    seen = as_user(lab, "copy", *words)
    assert (seen.code, changes(seen)) == (0, all_of("create", "done"))
    for host in lab.hosts:
        assert host.read("/etc/rooted.conf") == "one\ntwo\n"
        assert state(host, "/etc/rooted.conf") == "640 daemon:root"
        assert left_over(host) == ""


def test_what_a_user_may_not_write_fails_and_is_told(lab: Lab, source: Path) -> None:
    seen = as_user(lab, "copy", str(source), "/etc/denied.conf")
    assert (seen.code, changes(seen)) == (1, all_of("update", "failed"))
    assert "Permission denied" in seen.report["changes"][0]["detail"]


@pytest.mark.parametrize(
    ("make", "path", "said"),
    [
        ("true", "/tmp/x", "can be written by all users"),
        ("ln -s /etc/passwd /etc/link", "/etc/link", "symbolic link"),
        ("true", "/etc/none/x", "no folder /etc/none"),
        ("true", "/proc/x", "holds no files"),
        ("echo x >/etc/two; ln /etc/two /etc/names", "/etc/names", "hard links"),
        ("install -d -o alice /srv/hers", "/srv/hers/x", "belongs to user"),
    ],
)
def test_places_that_apply_refuses_are_refused(
    lab: Lab, source: Path, make: str, path: str, said: str
) -> None:
    host = lab.host("n1")
    host.run(["sh", "-c", make])
    seen = clusterprep(lab, "copy", "--limit", "n1", str(source), path)
    action = "create" if said.startswith("no folder") else "update"
    assert (seen.code, changes(seen)) == (1, {("n1", action, "failed")})
    assert said in seen.report["changes"][0]["detail"]
    assert left_over(host) == ""


def large(lab: Lab, size: int) -> Path:
    path = lab.folder / f"large-{size}"
    block = os.urandom(1 << 20)
    with path.open("wb") as sink:
        for _ in range(size >> 20):
            sink.write(block)
    return path


def sums(lab: Lab, path: str) -> list[str]:
    return [host.run(["sha256sum", path]).stdout.split()[0] for host in lab.hosts]


@pytest.mark.parametrize(
    "size", [24 << 20, pytest.param(1 << 30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_a_copy_that_is_killed_leaves_the_old_file_or_the_new(lab: Lab, size: int) -> None:
    path = large(lab, size)
    new = hashlib.sha256(path.read_bytes()).hexdigest()
    old = hashlib.sha256(b"old\n").hexdigest()
    for host in lab.hosts:
        host.write("/etc/large", "old\n", 0o644)
    argv = [*CLI, "copy", str(lab.inventory()), str(path), "/etc/large"]
    process = lab.controller.popen(argv)
    staged = ["sh", "-c", "test -s /etc/.clusterprep-copy-large-*"]
    until = time.monotonic() + 60
    while lab.host("n2").run(staged, check=False).returncode:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    assert set(sums(lab, "/etc/large")) <= {old, new}
    until = time.monotonic() + 20
    while any(map(left_over, lab.hosts)):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert set(sums(lab, "/etc/large")) == {old}

    second = clusterprep(lab, "copy", str(path), "/etc/large", timeout=800)
    assert (second.code, changes(second)) == (0, all_of("update", "done"))
    assert set(sums(lab, "/etc/large")) == {new}
    third = clusterprep(lab, "copy", str(path), "/etc/large", timeout=800)
    assert (third.code, changes(third)) == (0, all_of("none", "unchanged"))
    path.unlink()


def test_what_a_killed_agent_left_goes_with_the_next_copy(lab: Lab, source: Path) -> None:
    host = lab.host("n3")
    host.write("/etc/.clusterprep-copy-left.conf-abc", "half")
    seen = clusterprep(lab, "copy", "--limit", "n3", str(source), "/etc/left.conf")
    assert seen.code == 0
    assert left_over(host) == ""


# ---------------------------------------------------------------- fetch


def test_files_are_fetched_into_a_folder_per_node(lab: Lab, tmp_path: Path) -> None:
    for host in lab.hosts:
        host.write("/var/log/job.log", f"{host.name}\n" * 1000)
    seen = clusterprep(lab, "fetch", "/var/log/job.log", str(tmp_path))
    assert (seen.code, changes(seen)) == (0, all_of("create", "done"))
    for name in NAMES:
        assert (tmp_path / name / "job.log").read_text() == f"{name}\n" * 1000
    lab.host("n2").write("/var/log/job.log", "new\n")
    again = clusterprep(lab, "fetch", "/var/log/job.log", str(tmp_path))
    assert changes(again) - all_of("none", "unchanged") == {("n2", "update", "done")}
    assert (tmp_path / "n2" / "job.log").read_text() == "new\n"


def test_a_pattern_and_the_name_of_the_node(lab: Lab, tmp_path: Path) -> None:
    host = lab.host("n1")
    for name in ("a.log", "b.log", "c.txt"):
        host.write(f"/srv/logs/{name}", name)
    folder = f"{tmp_path}/{{node}}/today"
    seen = clusterprep(lab, "fetch", "--limit", "n1,n2", "/srv/logs/*.log", folder)
    assert seen.code == 1  # n2 has none
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert found == ["n1/today/a.log", "n1/today/b.log"]


def test_what_only_root_reads_is_fetched_under_sudo(lab: Lab, tmp_path: Path) -> None:
    for host in lab.hosts:
        host.write("/root/key", "secret\n", 0o600)
    assert as_user(lab, "fetch", "/root/key", str(tmp_path)).code == 1
    seen = as_user(lab, "fetch", "-b", "/root/key", str(tmp_path))
    assert (seen.code, changes(seen)) == (0, all_of("create", "done"))
    assert (tmp_path / "n4" / "key").read_text() == "secret\n"
    for host in lab.hosts:
        assert left_over(host) == ""


def test_what_the_kernel_makes_while_it_is_read_is_fetched_whole(lab: Lab, tmp_path: Path) -> None:
    """Its size is 0 to all who ask."""
    seen = clusterprep(lab, "fetch", "/proc/version", str(tmp_path))
    assert (seen.code, changes(seen)) == (0, all_of("create", "done"))
    for host in lab.hosts:
        assert (tmp_path / host.name / "version").read_text() == host.read("/proc/version")
        assert left_over(host) == ""


def test_a_secret_of_a_node_is_no_secret_of_all_users_here(lab: Lab, tmp_path: Path) -> None:
    lab.host("n1").write("/root/key", "secret\n", 0o600)
    lab.host("n1").write("/root/open", "open\n", 0o755)
    clusterprep(lab, "fetch", "--limit", "n1", "/root/key", str(tmp_path))
    clusterprep(lab, "fetch", "--limit", "n1", "/root/open", str(tmp_path))
    assert (tmp_path / "n1" / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "n1" / "open").stat().st_mode & 0o777 == 0o644


def test_a_disk_that_is_full_is_named_and_keeps_its_file(lab: Lab) -> None:
    host = lab.host("n2")
    host.run(["mkdir", "/srv/small"])
    host.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", "/srv/small"])
    host.write("/srv/small/x", "old\n")
    path = large(lab, 1 << 20)
    seen = clusterprep(lab, "copy", "--limit", "n2", str(path), "/srv/small/x")
    assert (seen.code, changes(seen)) == (1, {("n2", "update", "failed")})
    assert "No space left on device" in seen.report["changes"][0]["detail"]
    assert host.read("/srv/small/x") == "old\n"


def test_several_files_that_only_root_reads(lab: Lab, tmp_path: Path) -> None:
    """Each has a private folder on the node until all have been fetched."""
    host = lab.host("n1")
    for name in ("a", "b", "c"):
        host.write(f"/root/keys/{name}.key", name, 0o600)
    seen = as_user(lab, "fetch", "-b", "--limit", "n1", "/root/keys/*.key", str(tmp_path))
    assert (seen.code, changes(seen)) == (0, {("n1", "create", "done")})
    found = {path.name: path.read_text() for path in (tmp_path / "n1").iterdir()}
    assert found == {"a.key": "a", "b.key": "b", "c.key": "c"}
    assert left_over(host) == ""


# What a user of a node puts where an admin fetches, and what becomes of it.
LAID = {
    "ln -s /root/key /home/alice/out/x.log": "is a link of user",
    "ln -s /root /home/alice/out/up; cp /dev/null /root/x.log": "is a link of user",
    "mkfifo /home/alice/out/x.log": "is not a regular file",
    "ln -s /dev/null /home/alice/out/x.log": "is not a regular file",
    "ln -s own /home/alice/out/x.log; echo mine > /home/alice/out/own": "",
}


@pytest.mark.parametrize("laid", LAID)
def test_a_link_of_a_user_leads_root_to_no_file_of_others(
    lab: Lab, tmp_path: Path, laid: str
) -> None:
    host = lab.host("n1")
    host.write("/root/key", "secret\n", 0o600)
    host.run(["sh", "-c", "rm -rf /home/bob /home/alice/out; mkdir -p /home/alice/out"])
    host.run(["sh", "-c", laid])
    host.run(["chown", "-hR", "nobody:", "/home/alice/out"])
    path = "/home/alice/out/up/x.log" if "/up" in laid else "/home/alice/out/x.log"
    seen = as_user(lab, "fetch", "-b", "--limit", "n1", path, str(tmp_path))
    (row,) = seen.report["changes"]
    why = LAID[laid]
    if why:
        assert (seen.code, row["outcome"]) == (1, "failed")
        assert why in row["detail"]
        assert not list((tmp_path / "n1").glob("*"))
    else:
        assert (seen.code, (tmp_path / "n1" / "x.log").read_text()) == (0, "mine\n")
    assert left_over(host) == ""
