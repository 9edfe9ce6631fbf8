"""Files in folders that users other than root can change.

They are refused with the reason before anything is written, on this node or another.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = pytest.mark.hosts

STATE = "/var/lib/clusterprep"
TEXT = "content: of clusterprep\n"
# What to do on a host, the file that is wanted there, and what is told.
TRICKS: tuple[tuple[str, str, str], ...] = (
    ("ln -s /etc/hostname /srv/t/link", "/srv/t/link", "is a symbolic link"),
    ("touch /srv/t/b; ln -s b /srv/t/beside", "/srv/t/beside", "is a symbolic link"),
    ("mkfifo /srv/t/fifo", "/srv/t/fifo", "is not a regular file"),
    ("mknod /srv/t/null c 1 3", "/srv/t/null", "is not a regular file"),
    ("mkdir /srv/t/folder", "/srv/t/folder", "is not a regular file"),
    ("touch /srv/t/one; ln /srv/t/one /srv/t/two", "/srv/t/two", "has 2 names (hard links)"),
    ("install -d -m 777 /srv/t/open", "/srv/t/open/x", "can be written by all users"),
    ("install -d -o mallory /srv/t/theirs", "/srv/t/theirs/x", "belongs to user"),
    ("ln -s /etc /srv/t/way; chown -h mallory /srv/t/way", "/srv/t/way/x", "is a link of user"),
    ("ln -s /home/mallory /srv/t/home", "/srv/t/home/.profile", "belongs to user"),
    ("ln -s /proc/sys/kernel /srv/t/kernel", "/srv/t/kernel/panic", "holds no files"),
    (":", "/tmp/x", "/tmp (mode 1777) can be written by all users"),
)
RACE = "while :; do mkdir d; rmdir d; ln -s /etc d; rm -f d; done"


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    for host in lab4.hosts:
        faults.add_user(host, "mallory")
    return lab4


@pytest.fixture(autouse=True)
def clean(lab: Lab) -> None:
    for host in lab.hosts:
        host.run(
            ["sh", "-c", f"rm -rf /srv/t {STATE} /root/.bashrc; mkdir -p /srv/t; touch /root/mark"]
        )


@dataclass(frozen=True)
class Book:
    """A playbook of one file for each node: node → path."""

    lab: Lab
    files: dict[str, str]
    text: str = TEXT

    def apply(self, *words: str) -> Answer:
        rows = [
            f"- nodes: {node}\n  file: {{path: {path}, {self.text.strip()}}}\n"
            for node, path in self.files.items()
        ]
        (self.lab.folder / "book.yaml").write_text("".join(rows))
        book = ("--playbook", str(self.lab.folder / "book.yaml"), "--only", "ssh.", "--no-verify")
        return clusterprep(self.lab, "apply", *book, *words)


def news(host: Host) -> list[str]:
    """What of the host's own files is newer than the mark, or was made since."""
    places = ["/etc", "/srv", "/home", STATE]
    found = host.run(["find", *places, "-xdev", "-newercm", "/root/mark"], check=False).stdout
    return sorted(found.split())


def why(answer: Answer) -> dict[str, str]:
    """What is told of each node."""
    return {
        node: row.get("detail", "") for row in answer.report["changes"] for node in row["nodes"]
    }


@pytest.mark.parametrize("at", [0, 8, pytest.param(4, marks=pytest.mark.slow)])
def test_a_trick_on_each_node_is_told_and_nothing_is_written_anywhere(at: int, lab: Lab) -> None:
    tricks = dict(zip((host.name for host in lab.hosts), TRICKS[at : at + 4], strict=True))
    for name, (trick, _, _) in tricks.items():
        lab.host(name).run(["sh", "-c", f"{trick}; touch /root/mark"])
    done = Book(lab, {name: path for name, (_, path, _) in tricks.items()}).apply()
    assert done.code == 1
    assert not done.outcomes() & {"done"}
    for name, (_, path, words) in tricks.items():
        told = why(done)[name]
        assert words in told, (path, told)
        assert told.count(f"{path} ") == 1, "it is named once"
        assert "chmod" not in told, "programs rely on the mode of such a folder"
        assert news(lab.host(name)) == [], f"on {name}"


def test_a_user_who_races_with_links_in_an_own_folder_wins_nothing(lab: Lab) -> None:
    host = lab.host("n1")
    racer = host.popen(["sh", "-c", RACE], user="mallory", stderr=subprocess.DEVNULL)
    try:
        done = Book(lab, {"n1": "/home/mallory/d/clusterprep-race", "n2": "/srv/t/x"}).apply()
    finally:
        racer.kill()
        racer.wait()
    assert done.code == 1
    assert "/home/mallory belongs to user" in why(done)["n1"]
    assert host.run(["ls", "/etc/clusterprep-race"], check=False).returncode
    assert news(lab.host("n2")) == []


STATES: tuple[tuple[str, str], ...] = (
    (
        f"mkdir /srv/t/state; ln -s /srv/t/state {STATE}; chown -h mallory {STATE}",
        "is a link of user",
    ),
    (f"install -d -o mallory {STATE}", f"{STATE} belongs to user"),
    (f"install -d -m 777 {STATE}", f"{STATE} (mode 0777) can be written by all users"),
    (f"install -d {STATE}; install -d -o mallory {STATE}/runs", f"{STATE}/runs belongs to user"),
    (
        f"install -d {STATE}; ln -s /etc/hostname {STATE}/lock",
        "lock: Too many levels of symbolic links",
    ),
)


@pytest.mark.parametrize(
    ("trick", "words"),
    [STATES[0], *(pytest.param(*row, marks=pytest.mark.slow) for row in STATES[1:])],
)
def test_a_state_folder_of_others_is_refused(trick: str, words: str, lab: Lab) -> None:
    host = lab.host("n1")
    host.run(["sh", "-c", f"{trick}; touch /root/mark"])
    done = Book(lab, {"n1": "/srv/t/x", "n2": "/srv/t/x"}).apply("--limit", "n1")
    assert (done.code, done.outcomes()) == (1, {"failed"})
    assert words in why(done)["n1"]
    assert [path for path in news(host) if path not in (STATE, f"{STATE}/lock")] == []


def test_a_journal_of_a_stranger_undoes_nothing(lab: Lab) -> None:
    """He could have had every file of root's replaced.

    The next run puts back what a journal says was there.
    """
    host = lab.host("n1")
    assert Book(lab, {"n1": "/srv/t/x"}).apply("--limit", "n1").code == 0
    (manifest,) = host.run(["find", STATE, "-name", "manifest.json"]).stdout.split()
    text = json.loads(host.read(manifest))
    evil = {
        **text,
        "state": "committed",
        "files": [{**text["files"][0], "path": "/etc/hostname", "place": "/etc/hostname"}],
    }
    host.write(manifest, json.dumps(evil))
    host.run(["sh", "-c", f"chown mallory {manifest}; touch /root/mark"])
    done = Book(lab, {"n1": "/srv/t/x"}, "content: newer").apply("--limit", "n1")
    message = done.report["error"]["message"]
    assert (done.code, f"n1: {manifest} cannot be read" in message) == (4, True), message
    assert "others could have written it" in message
    assert host.read("/srv/t/x") == "of clusterprep"
    aside = clusterprep(lab, "rollback", "--force", "--limit", "n1")
    assert (aside.code, aside.failed()) == (0, {}), aside.report
    assert host.run(["ls", "/etc/hostname"]).stdout, "it would have been removed"
    assert host.read("/srv/t/x") == "of clusterprep"
    assert Book(lab, {"n1": "/srv/t/x"}, "content: newer").apply("--limit", "n1").code == 0


@pytest.mark.parametrize("umask", ["077", pytest.param("000", marks=pytest.mark.slow)])
def test_modes_are_ours_whatever_the_umask_of_the_session(umask: str, lab: Lab) -> None:
    host = lab.host("n1")
    host.write("/root/.bashrc", f"umask {umask}\n")
    assert lab.controller.run(lab.ssh(host, "umask")).stdout.strip().endswith(umask)
    assert Book(lab, {"n1": "/srv/t/new/x"}).apply("--limit", "n1").code == 0
    found = host.run(["find", "/srv/t/new", STATE, "-printf", "%m %f\n"]).stdout.split("\n")[:-1]
    modes = dict(reversed(row.split()) for row in found)
    kept = {name: mode for name, mode in modes.items() if name.startswith("0.")}
    assert (modes["new"], modes["x"], modes["clusterprep"], modes["runs"]) == (
        "755",
        "644",
        "755",
        "755",
    )
    assert (modes["lock"], modes["manifest.json"], set(kept.values())) == ("600", "644", {"600"})


@pytest.mark.parametrize(
    ("folder", "options", "words"),
    [
        pytest.param(STATE, "mode=0755,size=64k", "no_space", id="state"),
        pytest.param(
            "/srv/t/small", "mode=0755,size=64k", "no_space", id="target", marks=pytest.mark.slow
        ),
        pytest.param(
            "/srv/t/small", "mode=0755,ro", "read_only", id="read-only", marks=pytest.mark.slow
        ),
    ],
)
def test_a_disk_that_takes_nothing_more_leaves_nothing_half(
    folder: str, options: str, words: str, lab: Lab
) -> None:
    host = lab.host("n1")
    text = "content: " + "x" * 200_000
    with faults.tmpfs(host, folder, options):
        host.run(["touch", "/root/mark"])
        done = Book(lab, {"n1": "/srv/t/small/x", "n2": "/srv/t/x"}, text).apply()
        assert done.code == 1
        assert words in why(done)["n1"]
        assert host.run(["find", folder, "-type", "f", "-not", "-name", "lock"]).stdout == ""
        assert host.run(["sh", "-c", f"ls -A {STATE}/runs"]).stdout == ""
        assert lab.host("n2").run(["ls", "-A", "/srv/t"]).stdout == ""
