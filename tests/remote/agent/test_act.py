"""The writing part of the agent in a folder of its own.

Its order on disk, and its end at every moment.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.remote.agent import act, disk
from clusterprep.remote.agent.journal import read_journal
from tests.support.system_calls import Cut, noted, out_of_order, path_of, tree_of

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
        request = {
            "root": str(self.root),
            "run": run,
            "undo": run,
            "cluster": "demo",
            "undoes": None,
            "number": 0,
            "node": "n1",
            "nodes": "n[1-2]",
            **more,
        }
        return dict(disk.guarded(getattr(act, op))(None, request))

    def stage(
        self, run: str = RUN, conf: tuple[str | None, str | None] = ("old\n", "new\n"), **more: Any
    ) -> Any:
        return self.ask(
            "stage", run, files=[wanted(CONF, *conf), wanted(NEW, None, "new too\n")], **more
        )

    def text(self, path: str) -> str | None:
        place = self.root / path.lstrip("/")
        return place.read_text() if place.exists() else None

    def state(self, run: str = RUN) -> str | None:
        found = read_journal(str(self.root / STATE))["runs"]
        return next((row[2] for row in found if row[0] == run), None)

    def tree(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in (self.root / "etc").rglob("*")}


def wanted(path: str, before: str | None, after: str | None) -> dict[str, Any]:
    coded = [
        None if text is None else base64.b64encode(text.encode()).decode()
        for text in (before, after)
    ]
    return {"path": path, "before": coded[0], "after": coded[1], "mode": 0o644}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_staging_changes_nothing_that_is_read_and_committing_all(node: Node) -> None:
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
    told = [
        [row[key] and base64.b64decode(row[key]) for key in ("before", "after", "now")]
        for row in run["files"]
    ]
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
    assert (node.text(CONF), node.text(NEW), node.state(), node.state(NEXT)) == (
        "new\n",
        "new too\n",
        "done",
        "undone",
    )
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
        (CONF, False, None),
        (VALUE, True, "sysctl"),
    ]
    assert node.ask("undo") == {}
    assert (place.read_text(), node.text(CONF)) == ("1 5\n", "old\n")
    assert [path.name for path in place.parent.iterdir()] == ["some"]


def test_each_of_several_running_values_is_set(node: Node) -> None:
    place = node.root / VALUE.lstrip("/")
    place.parent.mkdir(parents=True)
    other = f"{VALUE}_other"
    for path in (VALUE, other):
        (node.root / path.lstrip("/")).write_text("1\n")
    assert (
        changes(node, *({**wanted(path, "1\n", "2\n"), "running": True} for path in (VALUE, other)))
        == {}
    )
    assert node.ask("commit") == {}
    assert (node.text(VALUE), node.text(other)) == ("2\n", "2\n")


@pytest.mark.parametrize(
    ("step", "reason"), [("stage", "changed"), ("commit", "changed"), ("gone", "changed")]
)
def test_a_running_value_that_was_set_meanwhile_is_left_alone(
    node: Node, step: str, reason: str
) -> None:
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
    """A file that is longer than what is written into it stands for a value that is clamped."""
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
        assert (run["files"][0]["was"], run["files"][0]["access"]) == (
            [0o640, uid, gid],
            [0o600, uid, gid],
        )
        assert node.ask("undo") == {}
        assert (place.stat().st_mode & 0o777, node.text(CONF)) == (0o640, "old\n")
        assert place.stat().st_ino == os.fstat(first.fileno()).st_ino, "it is the old file itself"


@pytest.mark.parametrize("steps", [["commit"], ["commit", "settle"], []])
def test_a_run_of_a_release_that_knew_files_alone_is_told_and_undone(
    node: Node, steps: list[str]
) -> None:
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
    if (
        shutil.which("chattr") is None
        or subprocess.run(["chattr", "+i", place], check=False).returncode
    ):
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
    runs = [row[0] for row in read_journal(str(node.root / STATE))["runs"]]
    assert (len(runs), runs[-1]) == (act.KEEP, f"20261121-{act.KEEP + 4:06d}-0000")


def finished(node: Node, name: str, last: str, **more: Any) -> None:
    """A whole run with this name, whose last request is `settle` or `undo`."""
    for step in ("stage", "commit", last):
        assert node.ask(step, name, **more) == {}


def test_runs_that_changed_nothing_push_out_none_that_can_be_rolled_back(node: Node) -> None:
    finished(node, RUN, "settle", files=[wanted(CONF, "old\n", "new\n")])
    for number in range(act.KEEP + 5):
        finished(node, f"20261122-{number:06d}-0000", "undo", files=[], number=1)
        finished(node, f"20261123-{number:06d}-0000", "settle", files=[], number=1)
    runs = [row[0] for row in read_journal(str(node.root / STATE))["runs"]]
    assert (len(runs), runs[0], node.state(RUN)) == (act.KEEP + 1, RUN, "done")


def test_runs_that_can_be_rolled_back_are_kept_by_their_number(node: Node) -> None:
    """The last one is kept, also from a controller whose clock is behind."""
    before = "old\n"
    for number in range(act.KEEP + 1):
        name = "20251231-235959-0000" if number == act.KEEP else f"20261122-{number:06d}-0000"
        after = f"{number}\n"
        files = [wanted(CONF, before, after)]
        finished(node, name, "settle", files=files, number=number + 1)
        before = after
    runs = [row[0] for row in read_journal(str(node.root / STATE))["runs"]]
    assert len(runs) == act.KEEP
    assert (runs[0], runs[-1]) == ("20261122-000001-0000", "20251231-235959-0000")


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
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in (*folder.parents[:2], folder, *folder.iterdir())
    }
    assert modes == {
        **dict.fromkeys(["clusterprep", "runs", RUN], 0o755),
        **dict.fromkeys(["manifest.json", "manifest.spare"], 0o644),
        **dict.fromkeys(["0.before", "0.after", "1.after"], 0o600),
    }
    assert (node.root / "etc/clusterprep").stat().st_mode & 0o777 == 0o755


def held(node: Node) -> None:
    """Let go of the lock, which an agent holds until it ends."""
    os.close(act._locks.pop(str(node.root / STATE)))


def test_a_lock_is_seen_while_it_is_held_and_taken_once(node: Node) -> None:
    assert read_journal(str(node.root / STATE)) == {"runs": [], "holder": None}
    assert node.ask("lock") == node.ask("lock") == {"last": 0}
    assert stat.S_IMODE((node.root / STATE / "lock").stat().st_mode) == 0o600, (
        "a user who may open it may lock us out"
    )
    holder = read_journal(str(node.root / STATE))["holder"]
    assert holder.startswith(f"run {RUN} of cluster demo, since ")
    mine = act._locks.pop(str(node.root / STATE))
    refused = node.ask("lock", NEXT)
    assert (refused["no"], refused["why"]) == ("locked", holder)
    os.close(mine)
    assert read_journal(str(node.root / STATE))["holder"] is None
    assert node.ask("lock", NEXT) == {"last": 0}
    held(node)


def test_the_lock_says_who_holds_it_now_and_not_who_held_it(node: Node) -> None:
    place = node.root / STATE / "lock"
    place.parent.mkdir(parents=True)
    place.write_text("run of an earlier day " * 9)
    place.chmod(0o666)
    assert node.ask("lock") == {"last": 0}
    held(node)
    said = place.read_text()
    assert re.fullmatch(
        rf"run {RUN} of cluster demo, since \d{{4}}-\d\d-\d\d [\d:]{{8}} [+-]\d{{4}}\n", said
    )
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_a_link_in_place_of_the_lock_is_not_followed(node: Node) -> None:
    aim = node.root / "etc/nccl.conf"
    place = node.root / STATE / "lock"
    place.parent.mkdir(parents=True)
    place.symlink_to(aim)
    assert node.ask("lock")["no"] == "failed"
    assert (aim.read_text(), stat.S_IMODE(aim.stat().st_mode)) == ("old\n", 0o640)


@pytest.mark.parametrize(("said", "told"), [("run 7\n", "run 7"), ("", "another run")])
def test_a_lock_that_stays_held_is_given_up_after_a_few_tries(
    node: Node, monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    place = node.root / STATE / "lock"
    place.parent.mkdir(parents=True)
    place.write_text(said)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with place.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert node.ask("lock") == {"no": "locked", "why": told}
        assert pauses == [act.PAUSE] * (act.TRIES - 1)
        assert place.read_text() == said
        pauses.clear()
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(other, fcntl.LOCK_UN))
        assert node.ask("lock") == {"last": 0}, "`check` holds it for an instant"
    held(node)


# ---------------------------------------------------------------- cut off, and refused

OTHER_LIFE = "20261121-120000-0002"
GONE, KEY = "/etc/gone", "/etc/key"


class Kinds(Node):
    """A node, and a run that changes files and their modes and sets a value."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        super().__init__(root)
        for path, mode in ((GONE, 0o604), (KEY, 0o644)):
            (root / path.lstrip("/")).write_text("it\n")
            (root / path.lstrip("/")).chmod(mode)
        (root / "proc/sys/net").mkdir(parents=True)
        (root / "proc/sys/net/some").write_text("1\n")
        self.before = tree_of(root)

    def files(self, back: bool = False) -> list[dict[str, Any]]:
        """What a run changes, or, `back`, its rollback."""
        texts = ((CONF, "old\n", "new\n"), (NEW, None, "new too\n"), (GONE, "it\n", None))
        mode, access = (0o644, 0o600) if not back else (0o600, 0o644)
        change = {"before": "1\n", "after": "2\n"}
        one, other = change.values() if not back else reversed(change.values())
        return [
            {**wanted(VALUE, one, other), "running": True, "resource": "sysctl"},
            *(
                {**wanted(path, *(reversed(pair) if back else pair)), "mode": 0o604}
                for path, *pair in texts
            ),
            {
                **wanted(KEY, "it\n", "it\n"),
                "mode": mode,
                "access": [access, os.geteuid(), os.getegid()],
            },
        ]

    def begin(self, run: str = RUN, back: bool = False, **more: Any) -> dict[str, Any]:
        return self.ask("stage", run, files=self.files(back), **more)

    def through(self, run: str = RUN, **more: Any) -> None:
        """The whole of a run."""
        assert self.begin(run, **more) == {}
        assert self.ask("commit", run) == {}
        assert self.ask("settle", run) == {}


def after_a_run(folder: Path) -> Any:
    node = Kinds(folder)
    with noted():
        node.through()
    after = tree_of(node.root)
    assert after != node.before
    return after


def died() -> None:
    """What an agent remembers ends with it."""
    act._staged.clear()


def test_a_run_that_is_killed_at_any_call_is_undone_or_done(tmp_path: Path) -> None:
    after = after_a_run(tmp_path / "whole")
    states = []
    for number in itertools.count():
        node = Kinds(tmp_path / str(number))
        with noted(number, Cut()) as calls:
            node.through()
        died()
        states.append(node.state())
        with noted():
            answer = node.ask("undo")
        assert answer == {None: {"nothing": "not begun"}, "done": {"nothing": "done"}}.get(
            states[-1], {}
        ), number
        assert tree_of(node.root) == (after if states[-1] == "done" else node.before), (
            number,
            calls.made[-1],
        )
        if not calls.ended:
            break
    assert list(dict.fromkeys(states)) == [None, "staged", "committed", "done"]


@pytest.mark.parametrize("committed", [False, True])
def test_an_undo_that_is_killed_at_any_call_is_done_again(tmp_path: Path, committed: bool) -> None:
    for number in itertools.count():
        node = Kinds(tmp_path / str(number))
        with noted():
            node.begin()
            assert not committed or node.ask("commit") == {}
        died()
        with noted(number, Cut()) as calls:
            node.ask("undo")
        with noted():
            assert node.ask("undo") in ({}, {"nothing": "undone"})
        assert (tree_of(node.root), node.state()) == (node.before, "undone"), (
            number,
            calls.made[-1],
        )
        if not calls.ended:
            break
    assert number > 4


def test_a_rollback_that_is_killed_at_any_call_has_undone_the_run_or_not(tmp_path: Path) -> None:
    ends = []
    for number in itertools.count():
        node = Kinds(tmp_path / str(number))
        with noted():
            node.through()
        after = tree_of(node.root)
        with noted(number, Cut()) as calls:
            node.through(NEXT, back=True, undoes=RUN)
        died()
        with noted():
            node.ask("undo", NEXT)
        ends.append((node.state(), node.state(NEXT)))
        is_back = ends[-1] == ("undone", "done")
        seen = tree_of(node.root)
        seen.pop("etc/clusterprep", None)  # goes when all else of the rollback is on disk
        if not is_back:
            after.pop("etc/clusterprep")
        assert seen == (node.before if is_back else after), (number, calls.made[-1])
        if not calls.ended:
            break
    assert list(dict.fromkeys(ends)) == [("done", None), ("done", "undone"), ("undone", "done")]
    assert tree_of(node.root) == node.before


@pytest.mark.parametrize("op", ["stage", "commit"])
def test_a_call_that_is_refused_leaves_all_as_it_was(tmp_path: Path, op: str) -> None:
    """As a disk that is full; that of a value has a word of its own.

    The journal has room of its own, so that what was committed is noted all the same.
    """
    for number in itertools.count():
        node = Kinds(tmp_path / str(number))
        if op == "commit":
            node.begin()
        with noted(number, OSError(errno.ENOSPC, "No space left on device", "f")) as calls:
            answer = node.begin() if op == "stage" else node.ask(op)
        if not calls.ended:
            assert answer == {}
            break
        refused = calls.made[number]
        if op == "commit" and f"/{STATE}/" in refused.path:
            assert (answer, node.state()) == ({}, "committed"), refused
            continue
        of_value = refused.path.endswith(VALUE)
        assert answer["no"] == ("failed" if of_value else "no_space"), refused
        assert tree_of(node.root) == node.before, refused
        assert node.state() == (None if op == "stage" else "undone")
        folder = node.root / STATE / "runs" / RUN
        assert op == "commit" or not folder.exists() or not [*folder.iterdir()]
    assert number > 10


@pytest.mark.parametrize("op", ["stage", "commit"])
def test_a_refused_call_on_an_open_file_is_told_with_its_path(tmp_path: Path, op: str) -> None:
    """Such a call names none by itself: `None: No space left on device` was all that was said."""
    told = set()
    for number in itertools.count():
        node = Kinds(tmp_path / str(number))
        if op == "commit":
            node.begin()
        with noted(number, OSError(errno.ENOSPC, "No space left on device")) as calls:
            answer = node.begin() if op == "stage" else node.ask(op)
        if not calls.ended:
            break
        refused = calls.made[number]
        if answer and refused.name in ("fchmod", "fchown", "fsync", "ftruncate", "pwrite"):
            told.add(refused.name)
            assert refused.path in answer["why"], refused
            assert "None" not in answer["why"], refused
    assert "fsync" in told


def test_nothing_is_told_before_it_is_on_disk(tmp_path: Path) -> None:
    node = Kinds(tmp_path / "node")
    with noted() as calls:
        node.through()
        node.begin(NEXT, back=True, undoes=RUN)
        node.ask("commit", NEXT)
        node.ask("undo", NEXT)
    assert out_of_order(calls, ("manifest.json",)) == []
    told = [Path(call.path).name for call in calls.made if call.name == "rename"]
    once = ["nccl.conf", "nccl.env", "key"]
    journal = "manifest.json"
    assert told[:6] == [journal, *once, journal, journal]
    assert sorted(told[6:]) == sorted(
        [journal, "nccl.conf", "gone", "key", journal, *once, journal]
    )


def test_no_name_that_becomes_a_link_is_followed_and_no_secret_is_seen_before_its_mode(
    tmp_path: Path,
) -> None:
    node = Kinds(tmp_path / "node")
    with noted() as calls:
        node.begin()
        node.ask("commit")
        node.ask("undo")
    for call in calls.opened:
        assert call.flags & (os.O_NOFOLLOW | os.O_DIRECTORY), call
        assert call.flags & os.O_EXCL or not call.flags & os.O_CREAT, call
    assert {call.mode for call in calls.opened if call.flags & os.O_CREAT} == {0o600}


# ---------------------------------------------------------------- who else is there


@pytest.mark.parametrize("op", ["lock", "stage", "commit", "settle", "undo", "runs"])
@pytest.mark.parametrize("folder", [STATE, f"{STATE}/runs"])
def test_state_of_ours_that_others_can_change_is_not_believed(
    tmp_path: Path, op: str, folder: str
) -> None:
    node = Kinds(tmp_path / "node")
    node.begin()
    (node.root / folder).chmod(0o777)
    answer = node.begin(NEXT) if op == "stage" else node.ask(op)
    assert answer["no"] == "not_ours"
    if (op, folder) == ("lock", f"{STATE}/runs"):
        held(node)  # it lies beside that folder, and was taken before the runs are read
    (node.root / folder).chmod(0o755)
    assert node.state() == "staged"


@pytest.mark.parametrize("op", ["commit", "undo", "settle", "runs"])
def test_a_manifest_that_others_can_write_is_not_believed(node: Node, op: str) -> None:
    node.stage()
    manifest = node.root / STATE / "runs" / RUN / "manifest.json"
    manifest.chmod(0o666)
    answer = node.ask(op)
    if op == "runs":
        ((run, why),) = answer["damaged"]
        assert (answer["runs"], run) == ([], RUN)
        assert "others could have written it" in why
    else:
        assert answer["no"] == "not_ours"
    manifest.chmod(0o644)
    assert (node.text(CONF), node.state()) == ("old\n", "staged")


@pytest.mark.parametrize("op", ["stage", "commit", "undo"])
def test_a_file_in_a_folder_that_others_can_change_is_not_touched(node: Node, op: str) -> None:
    for step in ("stage", "commit")[: ["stage", "commit", "undo"].index(op)]:
        assert (node.stage() if step == "stage" else node.ask(step)) == {}
    seen = node.text(CONF)
    (node.root / "etc").chmod(0o777)
    answer = node.stage() if op == "stage" else node.ask(op)
    assert answer["no"] == "not_ours"
    assert "can be written by all users" in answer["why"]
    assert (node.text(CONF), node.text(NEW)) == (seen, "new too\n" if op == "undo" else None)


def test_a_link_that_leads_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    for name in ("outside", "root"):
        (tmp_path / name).mkdir()
    node = Node(tmp_path / "root")
    (node.root / "etc/clusterprep").symlink_to(tmp_path / "outside")
    answer = node.stage()
    assert (answer["no"], "leads out of" in answer["why"]) == ("not_ours", True)
    assert [*(tmp_path / "outside").iterdir()] == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc", "a b", "a\n"])
@pytest.mark.parametrize("op", ["stage", "commit", "settle", "undo"])
def test_what_is_no_name_of_a_run_names_no_folder(node: Node, op: str, name: str) -> None:
    before = tree_of(node.root)
    answer = node.ask(op, name, undo=name, files=[])
    assert answer["no"] == "failed"
    assert "bad run name" in answer["why"]
    assert tree_of(node.root) == before


def test_a_file_that_was_removed_comes_back_to_those_whose_it_was(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.stage()
    node.ask("commit")
    node.ask("settle")
    path = node.root / STATE / "runs" / RUN / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][0]["was"] = [0o640, 4711, 4712]
    manifest["files"][1].update(uid=4713, gid=4714)
    path.write_text(json.dumps(manifest))
    for name in (CONF, NEW):
        (node.root / name.lstrip("/")).unlink()
    given: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        os, "fchown", lambda fd, *ids: given.append((path_of(fd).split(".")[1], *ids))
    )
    files = [
        wanted(CONF, None, "old\n"),
        wanted(NEW, None, "it\n"),
        wanted("/etc/third", None, "it\n"),
    ]
    assert node.ask("stage", NEXT, files=files, undoes=RUN) == {}
    assert given == [("nccl", 4711, 4712), ("nccl", 4713, 4714)]
    text = (node.root / STATE / "runs" / NEXT / "manifest.json").read_text()
    mine = (0o644, os.geteuid(), os.getegid())
    rows = [(entry["mode"], entry["uid"], entry["gid"]) for entry in json.loads(text)["files"]]
    assert rows == [(0o644, 4711, 4712), (0o644, 4713, 4714), mine]


def test_a_rollback_of_what_this_node_never_did_has_no_owners_of_then(node: Node) -> None:
    assert node.stage(NEXT, undoes=RUN) == {}
    assert node.ask("commit", NEXT) == {}
    assert node.ask("settle", NEXT) == {}
    assert (node.state(), node.state(NEXT)) == (None, "done")


def test_a_run_is_remembered_as_long_as_a_rollback_reads_it(node: Node) -> None:
    for name in ("20261120-000000-0000", RUN):
        assert node.ask("stage", name, files=[]) == {}
        assert node.ask("commit", name) == node.ask("settle", name) == {}
    for number in range(act.KEEP + 1):
        node.ask("stage", f"20261122-{number:06d}-0000", files=[], undoes=RUN)
        assert node.ask("undo", f"20261122-{number:06d}-0000") == {}
    later = "20261123-000000-0000"
    assert node.ask("stage", later, files=[], undoes="20261120-000000-0000") == {}
    assert node.state("20261120-000000-0000") == "done"
    assert node.ask("commit", later) == node.ask("settle", later) == {}
    assert node.state("20261120-000000-0000") is None, (
        "it is settled, and older than those that are kept"
    )
    assert len(read_journal(str(node.root / STATE))["runs"]) == act.KEEP


def test_a_folder_that_others_use_by_now_stays_and_is_named(node: Node) -> None:
    files = [wanted("/etc/a/b/c/file", None, "it\n")]
    node.ask("stage", files=files)
    node.ask("commit")
    node.ask("settle")
    (node.root / "etc/a/theirs").touch()
    node.ask("stage", NEXT, files=[wanted("/etc/a/b/c/file", "it\n", None)], undoes=RUN)
    node.ask("commit", NEXT)
    assert (node.root / "etc/a/b/c").is_dir(), "until it is settled there is a way back"
    assert node.ask("settle", NEXT) == {"left": [str(node.root / "etc/a")]}
    assert [path.name for path in (node.root / "etc/a").iterdir()] == ["theirs"]
    assert node.ask("settle", NEXT) == {"nothing": "done"}


def test_what_was_edited_beside_what_is_staged_is_none_of_the_undos(node: Node) -> None:
    node.stage()
    (node.root / "etc/nccl.conf").write_text("mine\n")
    assert node.ask("undo") == {}
    assert (node.text(CONF), node.tree(), node.state()) == ("mine\n", {"etc/nccl.conf"}, "undone")


@pytest.mark.parametrize("now", ["3\n", None])
def test_a_value_that_was_set_again_is_set_back_by_force_alone(
    tmp_path: Path, now: str | None
) -> None:
    node = Kinds(tmp_path / "node")
    node.begin()
    node.ask("commit")
    place = node.root / VALUE.lstrip("/")
    place.write_text(now) if now else place.unlink()
    answer = node.ask("undo")
    assert (answer["no"], answer["path"]) == ("changed", VALUE)
    assert [answer[key] and base64.b64decode(answer[key]) for key in ("current", "after")] == [
        now and now.encode(),
        b"2\n",
    ]
    assert (node.text(CONF), node.state()) == ("new\n", "committed")
    place.write_text("3\n")
    assert node.ask("undo", force=True) == {}
    assert tree_of(node.root) == node.before


def test_a_value_that_may_not_be_set_here_stops_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Kinds(tmp_path / "node")
    asked = []
    monkeypatch.setattr(os, "access", lambda path, how: asked.append((path, how)))
    assert node.begin()["no"] == "denied"
    assert asked == [(str(node.root / VALUE.lstrip("/")), os.W_OK)]
    assert (tree_of(node.root), node.state()) == (node.before, None)


def test_a_file_that_chattr_would_protect_stops_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Kinds(tmp_path / "node")
    asked = []

    def ioctl(fd: int, *_: object) -> bytes:
        asked.append(Path(path_of(fd)).name)
        return (0x10 if asked[-1] == "key" else 0).to_bytes(8, sys.byteorder)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert node.begin()["no"] == "immutable"
    assert asked == ["nccl.conf", "gone", "key"], "what is made, and a value, has no such flags"
    assert (tree_of(node.root), node.state()) == (node.before, None)


def test_every_file_of_a_run_is_told(tmp_path: Path) -> None:
    node = Kinds(tmp_path / "node")
    node.begin()
    node.ask("commit")
    (node.root / NEW.lstrip("/")).unlink()
    (node.root / NEW.lstrip("/")).symlink_to("elsewhere")
    (run,) = node.ask("runs")["runs"]
    files = {row.pop("path"): row for row in run.pop("files")}
    names = {"number": 0, "node": "n1", "nodes": "n[1-2]"}
    settled = {"state": "committed", "undoes": None, "by": None, "reversible": True}
    assert run == {"run": RUN, "cluster": "demo", **names, **settled}
    mine = [os.geteuid(), os.getegid()]
    assert "symbolic link" in files[NEW].pop("strange")
    plain = {"resource": None, "running": False, "was": None, "strange": None}
    for path, mode, now, access, more in (
        (CONF, 0o640, b"new\n", [0o640, *mine], {}),
        (GONE, 0o604, None, None, {}),
        (KEY, 0o644, b"it\n", [0o600, *mine], {"was": [0o644, *mine]}),
        (VALUE, 0o644, b"2\n", None, {"running": True, "resource": "sysctl"}),
    ):
        row = files[path]
        before, after = (row.pop(key) for key in ("before", "after"))
        assert row == {
            **plain,
            "mode": mode,
            "now": now and disk.encoded(now),
            "access": access,
            **more,
        }, path
        told = [
            next(file[key] for file in node.files() if file["path"] == path)
            for key in ("before", "after")
        ]
        assert [before, after] == told
    del files[NEW]["before"], files[NEW]["after"]
    assert files[NEW] == {
        "mode": 0o604,
        "now": None,
        "resource": None,
        "running": False,
        "was": None,
    }


def test_what_was_staged_goes_when_the_agent_ends_and_what_was_committed_stays(
    tmp_path: Path,
) -> None:
    agent = SimpleNamespace(endings=[], ops={})
    act.install(agent)
    assert sorted(agent.ops) == ["commit", "lock", "runs", "set_aside", "settle", "stage", "undo"]
    (end,) = agent.endings
    spoilt, staged, committed, undone = (Kinds(tmp_path / name) for name in ("a", "b", "c", "d"))
    for node, run in ((spoilt, "1"), (staged, "2"), (committed, "3"), (undone, "4")):
        request = {"root": str(node.root), "run": run, "undo": run, "cluster": "demo"}
        request.update(number=1, node="n1", nodes="n1")
        assert agent.ops["stage"](agent, {**request, "files": node.files()}) == {}
    assert committed.ask("commit", "3") == undone.ask("undo", "4") == {}
    (spoilt.root / STATE / "runs/1/manifest.json").chmod(0o666)
    (undone.root / STATE / "runs/4/manifest.json").unlink()
    end()
    assert (tree_of(staged.root), staged.state("2")) == (staged.before, "undone")
    assert committed.state("3") == "committed"
    assert tree_of(spoilt.root) != spoilt.before
    assert not (undone.root / STATE / "runs/4/manifest.json").exists()
    died()
    refused = agent.ops["commit"](agent, {"root": str(staged.root), "run": "none"})
    assert refused["no"] == "failed"


# ---------------------------------------------------------------- damaged records

SPOILT = {
    "manifest.json": ("", "it is empty"),
    "0.before": (None, "No such file or directory"),
}


def spoilt(node: Node, name: str, run: str = RUN) -> Path:
    """A node on which one run was done whole, and one record of it was damaged afterwards."""
    for op in ("stage", "commit", "settle"):
        assert node.ask(op, run, files=[wanted(CONF, "old\n", "new\n")]) == {}
    place = node.root / STATE / "runs" / run / name
    text, _ = SPOILT[name]
    place.unlink() if text is None else place.write_text(text)
    return place


@pytest.mark.parametrize("name", SPOILT)
def test_a_damaged_record_is_moved_aside_with_all_that_is_left_of_it(node: Node, name: str) -> None:
    place = spoilt(node, name)
    seen = node.ask("runs")
    ((run, why),) = seen["damaged"]
    assert (seen["runs"], run, str(place) in why) == ([], RUN, True)
    assert why.endswith(SPOILT[name][1])
    kept = sorted(path.name for path in place.parent.iterdir())
    assert node.ask("set_aside") == {
        "moved": [[RUN, str(node.root / STATE / f"damaged-{RUN}"), why]]
    }
    assert sorted(path.name for path in (node.root / STATE / f"damaged-{RUN}").iterdir()) == kept
    assert node.ask("runs") == {"runs": [], "damaged": []}
    assert node.ask("set_aside") == {"moved": []}
    assert node.text(CONF) == "new\n"
    assert node.ask("stage", NEXT, files=[wanted(CONF, "new\n", "newer\n")]) == {}


def test_a_run_that_cannot_be_read_stops_the_next_with_its_file(node: Node) -> None:
    place = spoilt(node, "manifest.json")
    answer = node.ask("stage", NEXT, files=[wanted(CONF, "new\n", "newer\n")])
    assert answer == {"no": "damaged", "why": f"{place} cannot be read: it is empty"}
    assert node.text(CONF) == "new\n"


def test_a_damaged_record_keeps_no_other_run_from_its_end(node: Node) -> None:
    """It may be damaged while another run is under way, and that one is told and finished."""
    spoilt(node, "manifest.json").write_text("{}")
    (node.root / STATE / "runs" / RUN).rename(node.root / STATE / "apart")
    for op in ("stage", "commit"):
        node.ask(op, NEXT, files=[wanted(CONF, "new\n", "newer\n")])
    (node.root / STATE / "apart").rename(node.root / STATE / "runs" / RUN)
    assert [row["run"] for row in node.ask("runs")["runs"]] == [NEXT]
    assert node.ask("lock")["last"] == 0
    held(node)
    assert node.ask("settle", NEXT) == {}


def test_a_second_record_of_the_same_name_takes_another_name_aside(node: Node) -> None:
    (node.root / STATE / f"damaged-{RUN}").mkdir(parents=True)
    spoilt(node, "manifest.json")
    ((_, folder, _),) = node.ask("set_aside")["moved"]
    assert folder.endswith(f"damaged-{RUN}-2")


def test_steps_that_cannot_be_read_are_damage_too_and_are_not_forgotten(node: Node) -> None:
    for op in ("stage", "commit", "settle"):
        assert node.ask(op, files=[]) == {}
    steps = node.root / STATE / "runs" / RUN / act.STEPS
    steps.write_text("[")
    steps.chmod(0o600)
    assert node.ask("runs")["damaged"][0][1].startswith(f"{steps} cannot be read: ")
    for number in range(act.KEEP + 2):
        finished(node, f"20261123-{number:06d}-0000", "undo", files=[], number=1)
    assert steps.exists()


# ---------------------------------------------------------------- the order on disk

_RUNS = """
import json, sys
from clusterprep.remote.agent import act, disk
for op, request in json.load(sys.stdin):
    answer = disk.guarded(getattr(act, op))(None, request)
    assert answer == {}, answer
"""


@pytest.mark.machine
def test_bytes_and_names_are_on_disk_before_the_journal_says_so(node: Node) -> None:
    """Each file is synced before its rename, its folder after it; then the journal is written."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    names = {"number": 1, "node": "n1", "nodes": "n1"}
    base = {"root": str(node.root), "run": RUN, "cluster": "demo", "undoes": None, **names}
    files = [wanted(CONF, "old\n", "new\n"), wanted(NEW, None, "new too\n")]
    steps = [["stage", {**base, "files": files}], ["commit", base], ["settle", base]]
    log = node.root / "log"
    argv = [
        "strace",
        "-f",
        "-y",
        "-qq",
        "-s",
        "4096",
        "-e",
        "trace=fsync,rename,unlink",
        "-o",
        str(log),
    ]
    argv += [sys.executable, "-c", _RUNS]
    subprocess.run(
        argv,
        input=json.dumps(steps),
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    calls = [
        (name, path)
        for name, path in map(call, log.read_text().splitlines())
        if "/etc" in path or STATE in path
    ]
    calls = [(name, path.replace(str(node.root), "")) for name, path in calls]
    manifest, folder = f"/{STATE}/runs/{RUN}/manifest.json", f"/{STATE}/runs/{RUN}"
    written = [
        number for number, (name, path) in enumerate(calls) if (name, path) == ("rename", manifest)
    ]
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
