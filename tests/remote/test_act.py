"""The writing part of the agent in a folder of its own: its order on disk, and its end at every moment."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote import act, disk
from clusterprep.remote.journal import read_journal

RUN, NEXT = "20261121-093000-4f2a", "20261121-101500-0001"
CONF, NEW = "/etc/nccl.conf", "/etc/clusterprep/nccl.env"
STATE = "var/lib/clusterprep"


class Node:
    """A root folder, and the operations on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "etc").mkdir()
        (root / "etc/nccl.conf").write_text("old\n")
        (root / "etc/nccl.conf").chmod(0o640)

    def ask(self, op: str, run: str = RUN, **more: Any) -> dict[str, Any]:
        request = {"root": str(self.root), "run": run, "undo": run, "cluster": "demo", "undoes": None, **more}
        return dict(disk.guarded(getattr(act, op))(None, request))

    def stage(self, run: str = RUN, conf: tuple[str | None, str | None] = ("old\n", "new\n"), **more: Any) -> Any:
        return self.ask("stage", run, files=[wanted(CONF, *conf), wanted(NEW, None, "new too\n")], **more)

    def text(self, path: str) -> str | None:
        place = self.root / path.lstrip("/")
        return place.read_text() if place.exists() else None

    def state(self, run: str = RUN) -> str | None:
        found = read_journal(str(self.root / STATE))["runs"]
        return next((state for name, _, state in found if name == run), None)

    def tree(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in (self.root / "etc").rglob("*")}


def wanted(path: str, before: str | None, after: str | None) -> dict[str, Any]:
    coded = [None if text is None else base64.b64encode(text.encode()).decode() for text in (before, after)]
    return {"path": path, "before": coded[0], "after": coded[1], "mode": 0o644}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_staging_changes_nothing_that_anybody_reads_and_committing_all(node: Node) -> None:
    assert node.stage() == {}
    assert (node.text(CONF), node.text(NEW), node.state()) == ("old\n", None, "staged")
    assert node.ask("commit") == {}
    assert (node.text(CONF), node.text(NEW), node.state()) == ("new\n", "new too\n", "committed")
    assert (node.root / "etc/nccl.conf").stat().st_mode & 0o777 == 0o640
    assert node.ask("settle") == {}
    assert node.state() == "done"
    assert node.tree() == {"etc/nccl.conf", "etc/clusterprep", "etc/clusterprep/nccl.env"}


def test_a_run_tells_the_bytes_that_were_those_it_wrote_and_those_that_are(node: Node) -> None:
    node.stage()
    node.ask("commit")
    node.ask("settle")
    (node.root / "etc/nccl.conf").write_text("mine\n")
    (run,) = node.ask("runs")["runs"]
    assert (run["run"], run["cluster"], run["state"], run["undoes"]) == (RUN, "demo", "done", None)
    told = [[row[key] and base64.b64decode(row[key]) for key in ("before", "after", "now")] for row in run["files"]]
    assert [row["path"] for row in run["files"]] == [CONF, NEW]
    assert told == [[b"old\n", b"new\n", b"mine\n"], [None, b"new too\n", b"new too\n"]]


@pytest.mark.parametrize("steps", [["stage"], ["stage", "commit"]])
def test_undo_leaves_no_trace(node: Node, steps: list[str]) -> None:
    before = node.tree()
    for step in steps:
        node.stage() if step == "stage" else node.ask(step)
    assert node.ask("undo") == {}
    assert (node.text(CONF), node.tree(), node.state()) == ("old\n", before, "undone")
    assert (node.root / "etc/nccl.conf").stat().st_mode & 0o777 == 0o640
    assert node.ask("undo") == {"nothing": "undone"}


def test_what_is_done_is_not_undone_and_what_is_undone_not_done(node: Node) -> None:
    for step in ("commit", "settle"):
        assert step == "settle" or node.stage() == {}
        assert node.ask(step) == {}
    assert node.ask("undo") == {"nothing": "done"}
    assert node.ask("settle") == {"nothing": "done"}
    assert node.text(CONF) == "new\n"
    node.ask("stage", NEXT, files=[wanted(CONF, "new\n", "newer\n")])
    assert node.ask("settle", NEXT)["no"] == "failed"
    assert node.ask("undo", NEXT) == {}
    assert node.ask("settle", NEXT)["no"] == "failed"


def test_a_run_that_was_not_settled_stops_the_next(node: Node) -> None:
    node.stage()
    assert node.ask("stage", NEXT, files=[])["no"] == "unsettled"
    node.ask("commit")
    assert node.ask("stage", NEXT, files=[])["no"] == "unsettled"
    node.ask("settle")
    assert node.ask("stage", NEXT, files=[]) == {}


@pytest.mark.parametrize("step", ["stage", "commit"])
def test_a_file_that_changed_since_it_was_planned_is_left_alone(node: Node, step: str) -> None:
    if step == "commit":
        node.stage()
    (node.root / "etc/nccl.conf").write_text("mine\n")
    answer = node.stage() if step == "stage" else node.ask(step)
    assert (answer["no"], answer["path"]) == ("changed", CONF)
    assert base64.b64decode(answer["current"]) == b"mine\n"
    assert (node.text(CONF), node.text(NEW)) == ("mine\n", None)
    assert node.state() in (None, "undone")
    assert node.tree() == {"etc/nccl.conf"}


def test_a_second_file_that_changed_puts_the_first_back(node: Node) -> None:
    node.stage()
    (node.root / NEW.lstrip("/")).write_text("mine\n")
    assert node.ask("commit")["path"] == NEW
    assert (node.text(CONF), node.text(NEW), node.state()) == ("old\n", "mine\n", "undone")


def test_an_edit_after_the_commit_is_destroyed_by_force_alone(node: Node) -> None:
    node.stage()
    node.ask("commit")
    (node.root / "etc/nccl.conf").write_text("mine\n")
    refused = node.ask("undo")
    assert (refused["no"], base64.b64decode(refused["after"])) == ("changed", b"new\n")
    assert (node.text(CONF), node.text(NEW), node.state()) == ("mine\n", "new too\n", "committed")
    assert node.ask("undo", force=True, by=NEXT) == {}
    assert (node.text(CONF), node.text(NEW), node.state()) == ("old\n", None, "undone")
    assert [run["by"] for run in node.ask("runs")["runs"]] == [NEXT]


def test_a_rollback_that_is_undone_leaves_the_run_that_it_would_have_undone(node: Node) -> None:
    node.stage()
    node.ask("commit")
    node.ask("settle")
    back = [wanted(CONF, "new\n", "old\n"), wanted(NEW, "new too\n", None)]
    node.ask("stage", NEXT, files=back, undoes=RUN)
    node.ask("commit", NEXT)
    assert (node.text(CONF), node.text(NEW), node.state()) == ("old\n", None, "done")
    node.ask("undo", NEXT)
    assert (node.text(CONF), node.text(NEW), node.state(), node.state(NEXT)) == ("new\n", "new too\n", "done", "undone")
    again = "20261121-111500-0001"
    for step in ("stage", "commit", "settle"):
        assert node.ask(step, again, files=back, undoes=RUN) == {}
    assert (node.state(), node.state(again), node.tree()) == ("undone", "done", {"etc/nccl.conf"})


@pytest.mark.machine
@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "device"])
def test_only_files_are_written_to(node: Node, kind: str) -> None:
    place = node.root / "etc/nccl.conf"
    place.unlink()
    if kind == "link":
        place.symlink_to("passwd")
        (node.root / "etc/passwd").write_text("root\n")
    elif kind == "folder":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        require_root()
        os.mknod(place, 0o020644, os.makedev(1, 3))
    before = node.tree()
    assert node.stage(conf=("", "new\n"))["no"] == "not_a_file"
    assert (node.tree(), node.state()) == (before, None)


VALUE = "/proc/sys/net/some"


def changes(node: Node, *files: dict[str, Any], run: str = RUN, **more: Any) -> dict[str, Any]:
    return node.ask("stage", run, files=list(files), **more)


def test_a_running_value_is_set_after_all_files_and_put_back_with_them(node: Node) -> None:
    place = node.root / VALUE.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("1\t5\n")
    value = {**wanted(VALUE, "1 5\n", "2 6\n"), "running": True, "resource": "sysctl"}
    assert changes(node, value, wanted(CONF, "old\n", "new\n")) == {}
    assert place.read_text() == "1\t5\n"
    assert node.ask("commit") == {}
    assert (place.read_text(), node.text(CONF)) == ("2 6\n", "new\n")
    (run,) = node.ask("runs")["runs"]
    assert [(row["path"], row["running"], row["resource"]) for row in run["files"]] == [
        (CONF, False, None), (VALUE, True, "sysctl")
    ]  # fmt: skip
    assert node.ask("undo") == {}
    assert (place.read_text(), node.text(CONF)) == ("1 5\n", "old\n")
    assert [path.name for path in place.parent.iterdir()] == ["some"]


@pytest.mark.parametrize(("step", "reason"), [("stage", "changed"), ("commit", "changed"), ("gone", "changed")])
def test_a_running_value_that_somebody_set_meanwhile_is_left_alone(node: Node, step: str, reason: str) -> None:
    place = node.root / VALUE.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("1\n")
    files = ({**wanted(VALUE, "1\n", "2\n"), "running": True}, wanted(CONF, "old\n", "new\n"))
    if step == "commit":
        changes(node, *files)
    place.write_text("3\n")
    if step == "gone":
        place.unlink()
    answer = node.ask("commit") if step == "commit" else changes(node, *files)
    assert (answer["no"], answer["path"], node.text(CONF)) == (reason, VALUE, "old\n")
    assert not place.exists() or place.read_text() == "3\n"


def test_a_value_that_was_staged_and_never_set_is_not_set_back(node: Node) -> None:
    place = node.root / VALUE.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("1\n")
    changes(node, {**wanted(VALUE, "1\n", "2\n"), "running": True})
    place.write_text("3\n")
    assert node.ask("undo") == {}
    assert place.read_text() == "3\n"


def test_a_value_that_the_kernel_takes_otherwise_puts_all_back(node: Node) -> None:
    """Here a file that is longer than what is written into it, as a value that is clamped would be."""
    place = node.root / VALUE.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text("12345\n")
    value = {**wanted(VALUE, "12345\n", "6\n"), "running": True}
    changes(node, wanted(CONF, "old\n", "new\n"), value)
    answer = node.ask("commit")
    assert (answer["no"], node.text(CONF), place.read_text()) == ("failed", "old\n", "12345\n")
    assert "took" in answer["why"]
    assert node.state() == "undone"


def test_owner_and_mode_are_given_where_they_are_asked_for_and_come_back(node: Node) -> None:
    uid, gid = os.geteuid(), os.getegid()
    place = node.root / "etc/nccl.conf"
    new = {**wanted(CONF, "old\n", "old\n"), "access": [0o600, uid, gid]}
    with place.open() as first:  # as long as it is open no other file gets its number
        assert changes(node, new) == {}
        assert node.ask("commit") == {}
        assert (place.stat().st_mode & 0o777, node.text(CONF)) == (0o600, "old\n")
        (run,) = node.ask("runs")["runs"]
        assert (run["files"][0]["was"], run["files"][0]["access"]) == ([0o640, uid, gid], [0o600, uid, gid])
        assert node.ask("undo") == {}
        assert (place.stat().st_mode & 0o777, node.text(CONF)) == (0o640, "old\n")
        assert place.stat().st_ino != os.fstat(first.fileno()).st_ino


@pytest.mark.parametrize("steps", [["commit"], ["commit", "settle"], []])
def test_a_run_of_a_release_that_knew_files_alone_is_told_and_undone(node: Node, steps: list[str]) -> None:
    node.stage()
    for step in steps:
        node.ask(step)
    path = node.root / f"var/lib/clusterprep/runs/{RUN}/manifest.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["files"]:
        for key in ("running", "access", "was", "resource"):
            del entry[key]
    path.write_text(json.dumps(manifest))
    conf, _ = node.ask("runs")["runs"][0]["files"]
    assert (conf["path"], conf["mode"], conf["was"], conf["running"]) == (CONF, 0o640, None, False)
    if "settle" in steps:
        back = [wanted(CONF, "new\n", "old\n"), wanted(NEW, "new too\n", None)]
        assert node.ask("stage", NEXT, files=back, undoes=RUN) == {}
        assert node.ask("commit", NEXT) == {}
    else:
        assert node.ask("undo") == {}
    assert (node.text(CONF), node.text(NEW)) == ("old\n", None)
    assert (node.root / "etc/nccl.conf").stat().st_mode & 0o777 == 0o640


def require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.mark.machine
def test_a_file_that_chattr_protects_is_seen_before_anything_is_renamed(node: Node) -> None:
    require_root()
    place = node.root / "etc/nccl.conf"
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", place], check=False).returncode:
        pytest.skip("no chattr on this file system")
    try:
        assert node.stage()["no"] == "immutable"
    finally:
        subprocess.run(["chattr", "-i", place], check=True)
    assert (node.tree(), node.state()) == ({"etc/nccl.conf"}, None)


def test_old_runs_are_forgotten_but_never_one_that_is_not_settled(node: Node) -> None:
    for number in range(act.KEEP + 5):
        name = f"20261121-{number:06d}-0000"
        for step in ("stage", "commit", "settle"):
            assert node.ask(step, name, files=[]) == {}
    runs = [run for run, _, _ in read_journal(str(node.root / STATE))["runs"]]
    assert (len(runs), runs[-1]) == (act.KEEP, f"20261121-{act.KEEP + 4:06d}-0000")


def test_runs_that_fail_are_forgotten_too_and_the_last_that_is_done_is_not(node: Node) -> None:
    for step in ("stage", "commit", "settle"):
        assert node.ask(step, files=[]) == {}
    for number in range(act.KEEP + 5):
        name = f"20261122-{number:06d}-0000"
        for step in ("stage", "commit", "undo"):
            assert node.ask(step, name, files=[]) == {}
    runs = [run for run, _, _ in read_journal(str(node.root / STATE))["runs"]]
    assert (len(runs), runs[0], node.state(RUN)) == (act.KEEP + 2, RUN, "done")


def test_the_journal_can_be_read_by_everybody_and_the_bytes_by_their_owner(node: Node) -> None:
    before = os.umask(0o077)
    try:
        node.ask("lock")
        node.stage()
        node.ask("commit")
    finally:
        os.umask(before)
        held(node)
    folder = node.root / STATE / "runs" / RUN
    modes = {path.name: path.stat().st_mode & 0o777 for path in (*folder.parents[:2], folder, *folder.iterdir())}
    assert modes == {
        **dict.fromkeys(["clusterprep", "runs", RUN], 0o755),
        "manifest.json": 0o644,
        **dict.fromkeys(["0.before", "0.after", "1.after"], 0o600),
    }
    assert (node.root / "etc/clusterprep").stat().st_mode & 0o777 == 0o755


def held(node: Node) -> None:
    """Let go of the lock, which an agent holds until it ends."""
    os.close(act._locks.pop(str(node.root / STATE)))


def test_a_lock_is_seen_while_it_is_held_and_taken_once(node: Node) -> None:
    assert read_journal(str(node.root / STATE)) == {"runs": [], "holder": None}
    assert node.ask("lock") == node.ask("lock") == {}
    assert stat.S_IMODE((node.root / STATE / "lock").stat().st_mode) == 0o600, "whoever may open it may lock us out"
    holder = read_journal(str(node.root / STATE))["holder"]
    assert holder.startswith(f"run {RUN} of cluster demo, since ")
    mine = act._locks.pop(str(node.root / STATE))
    refused = node.ask("lock", NEXT)
    assert (refused["no"], refused["why"]) == ("locked", holder)
    os.close(mine)
    assert read_journal(str(node.root / STATE))["holder"] is None
    assert node.ask("lock", NEXT) == {}
    held(node)


# ---------------------------------------------------------------- the order on disk

_RUNS = """
import json, sys
from clusterprep.remote import act, disk
for op, request in json.load(sys.stdin):
    answer = disk.guarded(getattr(act, op))(None, request)
    assert answer == {}, answer
"""


@pytest.mark.machine
def test_bytes_and_names_are_on_disk_before_the_journal_says_so(node: Node) -> None:
    """The system calls: each file is synced before its rename, its folder after it, and then the journal is written."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    base = {"root": str(node.root), "run": RUN, "cluster": "demo", "undoes": None}
    files = [wanted(CONF, "old\n", "new\n"), wanted(NEW, None, "new too\n")]
    steps = [["stage", {**base, "files": files}], ["commit", base], ["settle", base]]
    log = node.root / "log"
    argv = ["strace", "-f", "-y", "-qq", "-s", "4096", "-e", "trace=fsync,rename,unlink", "-o", str(log)]
    argv += [sys.executable, "-c", _RUNS]
    subprocess.run(argv, input=json.dumps(steps), text=True, check=True, cwd=Path(__file__).resolve().parents[2])
    calls = [(name, path) for name, path in map(call, log.read_text().splitlines()) if "/etc" in path or STATE in path]
    calls = [(name, path.replace(str(node.root), "")) for name, path in calls]
    manifest, folder = f"/{STATE}/runs/{RUN}/manifest.json", f"/{STATE}/runs/{RUN}"
    written = [number for number, (name, path) in enumerate(calls) if (name, path) == ("rename", manifest)]
    staged, committed, done = written
    for path in (CONF, NEW):
        beside = f"{Path(path).parent}/.{Path(path).name}.clusterprep-{RUN}"
        moved = calls.index(("rename", path))
        assert staged < calls.index(("fsync", beside)) < moved
        assert moved < calls.index(("fsync", str(Path(path).parent)), moved) < committed
    for number in written:
        assert ("fsync", f"{manifest}.clusterprep-new") in calls[:number]
        assert calls[number + 1] == ("fsync", folder)
    for kept in ("0.before", "0.after", "1.after"):
        assert calls.index(("fsync", f"{folder}/{kept}")) < staged
    assert staged < committed < done


def call(line: str) -> tuple[str, str]:
    """Name and path of a system call; of a rename the path that it leads to."""
    found = re.search(r"(\w+)\((.*)\)\s+= 0", line)
    if not found:
        return "", ""
    paths = re.findall(r'[<"]([^<>"]+)[>"]', found[2])
    return found[1], paths[-1] if paths else ""
