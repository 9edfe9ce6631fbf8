"""What a file has besides its bytes, and what a full disk does not keep from coming back."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import act, disk
from tests.remote.agent.test_act import CONF, NEXT, RUN, STATE, Kinds, Node, died, wanted
from tests.support.full_disks import (
    ACL,
    DEFAULT_ACL,
    NOBODY,
    attributes,
    fill,
    for_nobody,
    mounted,
    without_nobody,
)
from tests.support.system_calls import Cut, noted, tree_of

pytestmark = [pytest.mark.machine]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives labels and mounts")

LABEL = b"system_u:object_r:shadow_t:s0\0"
CHANGE = [wanted(CONF, "old\n", "new\n")]
BACK = [wanted(CONF, "new\n", "old\n")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def labelled(node: Node) -> Node:
    """A node on which a file has an access list, an attribute of a user's and a label."""
    if os.geteuid() != 0:
        pytest.skip("only root gives labels")
    place = node.root / "etc/nccl.conf"
    place.chmod(0o644)
    for name, value in (
        (ACL, without_nobody()),
        ("user.origin", b"puppet"),
        ("security.selinux", LABEL),
    ):
        try:
            os.setxattr(place, name, value)
        except OSError as error:
            pytest.skip(f"{name}: {error.strerror}")
    return node


def done(node: Node, run: str, files: list[dict[str, Any]], **more: Any) -> None:
    for op in ("stage", "commit", "settle"):
        assert node.ask(op, run, files=files, **more) == {}


def nobody_reads(path: Path) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            for folder in reversed(path.parents):
                os.chdir(folder)
            os.close(os.open(path, os.O_RDONLY))
            os._exit(0)
        except OSError as error:
            os._exit(1 if error.filename == str(path) else 2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@as_root
def test_labels_and_access_lists_are_those_of_the_old_file_and_come_back(labelled: Node) -> None:
    place = labelled.root / "etc/nccl.conf"
    before = attributes(place)
    assert sorted(before) == ["security.selinux", ACL, "user.origin"]
    done(labelled, RUN, CHANGE)
    assert (labelled.text(CONF), attributes(place)) == ("new\n", before)
    done(labelled, NEXT, BACK, undoes=RUN)
    assert (labelled.text(CONF), attributes(place), place.stat().st_mode & 0o777) == (
        "old\n",
        before,
        0o644,
    )


@as_root
@pytest.mark.parametrize("linked", [True, False])
def test_an_undo_gives_them_back_too(labelled: Node, linked: bool) -> None:
    """By a rename of the old file; from the journal where it has no second name."""
    place = labelled.root / "etc/nccl.conf"
    before = attributes(place)
    labelled.ask("stage", files=CHANGE)
    labelled.ask("commit")
    os.removexattr(place, ACL)
    os.setxattr(place, "user.origin", b"somebody else")
    if not linked:
        (place.parent / act.kept_name("nccl.conf", RUN)).unlink()
    assert labelled.ask("undo") == {}
    assert (labelled.text(CONF), attributes(place)) == ("old\n", before)


@as_root
def test_a_file_that_a_run_removed_comes_back_with_them(labelled: Node) -> None:
    place = labelled.root / "etc/nccl.conf"
    before = attributes(place)
    done(labelled, RUN, [wanted(CONF, "old\n", None)])
    assert not place.exists()
    done(labelled, NEXT, [wanted(CONF, None, "old\n")], undoes=RUN)
    assert attributes(place) == before


@as_root
def test_a_mode_that_is_asked_for_holds_beside_an_access_list(labelled: Node) -> None:
    """Nobody who is named in the list may more than the mode of the group says."""
    place = labelled.root / "etc/nccl.conf"
    os.setxattr(place, ACL, for_nobody())
    closed = {**wanted(CONF, "old\n", "secret\n"), "access": [0o600, 0, 0]}
    done(labelled, RUN, [closed])
    assert place.stat().st_mode & 0o777 == 0o600
    assert not nobody_reads(place)


@as_root
def test_the_default_list_of_a_folder_gives_no_one_a_new_file(node: Node) -> None:
    etc = node.root / "etc"
    os.setxattr(etc, DEFAULT_ACL, for_nobody())
    files = [
        wanted("/etc/made", None, "secret\n"),
        {**wanted(CONF, "old\n", "secret too\n")},
    ]
    done(node, RUN, files)
    for name in ("made", "nccl.conf"):
        assert ACL not in attributes(etc / name), name
    assert (etc / "made").stat().st_mode & 0o777 == 0o644


@as_root
def test_what_cannot_be_carried_over_stops_before_anything_is_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = node.root / "etc/nccl.conf"
    os.setxattr(place, "user.origin", b"puppet")

    def refused(target: Any, name: str, value: bytes, **more: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setxattr", refused)
    answer = node.ask("stage", files=CHANGE)
    assert answer["no"] == "failed"
    assert answer["why"].startswith("user.origin cannot be given to the new file")
    assert answer["why"].endswith("Operation not permitted")
    assert (node.text(CONF), node.tree(), node.state()) == ("old\n", {"etc/nccl.conf"}, None)


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EIO])
def test_a_file_system_without_attributes_has_none_and_an_error_is_one(
    node: Node, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(target: Any) -> list[str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "listxattr", refused)
    answer = node.ask("stage", files=CHANGE)
    assert answer == {} if number == errno.ENOTSUP else answer["no"] == "failed"
    assert number == errno.ENOTSUP or "extended attributes" in answer["why"]


def test_attributes_are_kept_for_their_owner_alone_and_only_so_many(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = node.root / "etc/nccl.conf"
    os.setxattr(place, "user.token", b"secret")
    assert node.ask("stage", files=CHANGE) == {}
    kept = node.root / STATE / "runs" / RUN / "0.attributes"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert node.ask("undo") == {}
    monkeypatch.setattr(disk, "MAX_ATTRIBUTES", 15)
    answer = node.ask("stage", NEXT, files=CHANGE)
    assert "has 16 bytes of extended attributes, and at most 15 are kept" in answer["why"]


@pytest.mark.parametrize(
    "change",
    [
        lambda place: place.chmod(0o600),
        lambda place: os.setxattr(place, "user.origin", b"somebody else"),
        pytest.param(lambda place: os.chown(place, NOBODY, NOBODY), marks=as_root),
    ],
)
def test_a_mode_or_label_that_is_given_after_staging_is_not_lost(
    node: Node, change: Callable[[Path], None]
) -> None:
    place = node.root / "etc/nccl.conf"
    node.ask("stage", files=CHANGE)
    change(place)
    before = (attributes(place), place.stat().st_mode, place.stat().st_uid)
    answer = node.ask("commit")
    assert (answer["no"], "in its owner, mode or attributes" in answer["why"]) == ("changed", True)
    assert (attributes(place), place.stat().st_mode, place.stat().st_uid) == before
    assert (node.text(CONF), node.tree(), node.state()) == ("old\n", {"etc/nccl.conf"}, "undone")


# ---------------------------------------------------------------- the old file itself


def test_the_old_file_stays_beside_the_new_one_until_the_run_is_final(node: Node) -> None:
    """Under a name that no reader of a folder of settings takes for one."""
    place = node.root / "etc/nccl.conf"
    old = place.stat().st_ino
    node.ask("stage", files=CHANGE)
    assert place.stat().st_nlink == 1, "before the commit nothing is there for others to see"
    node.ask("commit")
    (beside,) = set(place.parent.iterdir()) - {place}
    assert (beside.stat().st_ino, beside.read_text()) == (old, "old\n")
    assert (beside.name[0], beside.suffix) == (".", ".old")
    assert node.ask("settle") == {}
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENAMETOOLONG])
@pytest.mark.parametrize("last", ["settle", "undo"])
def test_where_a_file_has_one_name_only_its_bytes_come_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, last: str
) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source)

    node = Kinds(tmp_path / "node")
    node.begin()
    monkeypatch.setattr(os, "link", refused)
    assert node.ask("commit") == {}
    assert node.text(CONF) == "new\n"
    assert node.ask(last) == {}
    assert last == "settle" or tree_of(node.root) == node.before


def test_an_old_file_that_was_written_to_under_its_second_name_is_not_put_back(node: Node) -> None:
    node.ask("stage", files=CHANGE)
    node.ask("commit")
    (node.root / "etc" / act.kept_name("nccl.conf", RUN)).write_text("other\n")
    assert node.ask("undo") == {}
    assert (node.text(CONF), node.tree()) == ("old\n", {"etc/nccl.conf"})


def test_a_crash_between_the_second_name_and_the_rename_is_no_file_with_two_names(
    node: Node,
) -> None:
    """The next command plans against the file, and takes the second name away."""
    node.ask("stage", files=CHANGE)
    place = node.root / "etc/nccl.conf"
    os.link(place, place.parent / act.kept_name("nccl.conf", RUN))
    died()
    entry = {"path": CONF, "place": str(place), "running": False}
    assert act.current_state(entry)[0] == b"old\n"
    assert node.ask("undo") == {}
    assert (node.text(CONF), node.tree(), place.stat().st_nlink) == ("old\n", {"etc/nccl.conf"}, 1)
    os.link(place, place.parent / "of-somebody")
    assert node.ask("stage", NEXT, files=CHANGE)["no"] == "not_a_file"


# ---------------------------------------------------------------- a full disk


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with mounted(request.param, tmp_path / "small") as at:
        yield at


@as_root
@pytest.mark.parametrize("last", ["undo", "settle"])
def test_a_full_disk_keeps_nothing_from_being_put_back_or_noted(small: Path, last: str) -> None:
    node = Node(small)
    large = "x" * 300_000
    (node.root / "etc/nccl.conf").write_text(large)
    before = (node.root / "etc/nccl.conf").stat()
    files = [wanted(CONF, large, "new\n"), wanted("/etc/made", None, "it\n")]
    assert node.ask("stage", files=files) == node.ask("commit") == {}
    fill(small)
    assert node.ask(last) == {}
    if last == "undo":
        after = (node.root / "etc/nccl.conf").stat()
        assert (node.text(CONF), after.st_ino) == (large, before.st_ino)
        assert node.tree() == {"etc/nccl.conf"}
    assert node.state() == {"undo": "undone", "settle": "done"}[last]


@as_root
def test_a_disk_that_is_full_when_a_run_commits_is_no_end_of_it(small: Path) -> None:
    """The states of the journal have their room, and they keep it."""
    node = Node(small)
    assert node.ask("stage", files=CHANGE) == {}
    fill(small)
    assert node.ask("commit") == {}
    assert (node.text(CONF), node.state()) == ("new\n", "committed")
    assert node.ask("undo") == {}
    assert (node.text(CONF), node.state(), node.tree()) == ("old\n", "undone", {"etc/nccl.conf"})


@as_root
def test_the_lock_is_taken_on_a_full_disk(small: Path) -> None:
    node = Node(small)
    for _ in range(2):
        assert node.ask("lock") == {"last": 0}
        os.close(act._locks.pop(str(node.root / STATE)))
        if not (small / "ballast").exists():
            fill(small)


@as_root
def test_a_full_disk_at_the_start_leaves_nothing(small: Path) -> None:
    node = Node(small)
    fill(small)
    answer = node.ask("stage", files=CHANGE)
    assert answer["no"] == "no_space"
    assert (node.text(CONF), node.tree(), node.state()) == ("old\n", {"etc/nccl.conf"}, None)


def test_the_spare_room_is_there_again_after_each_state(node: Node) -> None:
    node.ask("stage", files=CHANGE)
    folder = node.root / STATE / "runs" / RUN
    spare, manifest = folder / "manifest.spare", folder / "manifest.json"
    size = spare.stat().st_size
    assert manifest.stat().st_size == size
    for state in ("committed", "undone", "staged", "done"):
        kept = dict(act.read_manifest(str(folder)), state=state, by=NEXT)
        disk.replace_from(str(spare), str(manifest), act.encoded_manifest(kept))
        assert node.state() == state
        assert manifest.stat().st_size == spare.stat().st_size == size


def test_a_state_that_is_larger_than_its_room_is_refused(node: Node) -> None:
    node.ask("stage", files=CHANGE)
    folder = node.root / STATE / "runs" / RUN
    with pytest.raises(OSError, match="No space"):
        disk.replace_from(
            str(folder / "manifest.spare"), str(folder / "manifest.json"), b"x" * 5000
        )
    assert node.state() == "staged"


def test_a_state_on_a_full_disk_that_is_killed_at_any_call_is_the_old_one_or_the_new(
    tmp_path: Path,
) -> None:
    for number in itertools.count():
        node = Kinds(tmp_path / str(number))
        node.begin()
        folder = node.root / STATE / "runs" / RUN
        spare, manifest = folder / "manifest.spare", folder / "manifest.json"
        text = act.encoded_manifest(dict(act.read_manifest(str(folder)), state="committed"))
        with noted(number, Cut()) as calls:
            disk.replace_from(str(spare), str(manifest), text)
        assert node.state() in ("staged", "committed"), calls.made[-1]
        died()
        assert node.ask("undo") == {}
        assert node.state() == "undone"
        if not calls.ended:
            break
    assert number > 3


def test_a_file_that_has_grown_too_large_to_be_kept_is_not_cut(node: Node) -> None:
    """With `--force` its beginning would have been kept as if it were all."""
    node.ask("stage", files=CHANGE)
    node.ask("commit")
    node.ask("settle")
    text = "x" * (1 << 20) + "yz"
    (node.root / "etc/nccl.conf").write_text(text)
    (run,) = node.ask("runs")["runs"]
    (file,) = run["files"]
    assert (file["now"], "more than 1048576 bytes" in file["strange"]) == (None, True)
    cut = text[: (1 << 20) + 1]
    answer = node.ask("stage", NEXT, files=[wanted(CONF, cut, "old\n")], undoes=RUN)
    assert answer["no"] == "truncated"
    assert node.text(CONF) == text


def test_a_file_that_has_grown_after_the_commit_is_put_back_by_force_alone(node: Node) -> None:
    node.ask("stage", files=CHANGE)
    node.ask("commit")
    (node.root / "etc/nccl.conf").write_text("x" * (2 << 20))
    answer = node.ask("undo")
    assert (answer["no"], "has grown" in answer["why"]) == ("changed", True)
    assert node.ask("undo", force=True) == {}
    assert (node.text(CONF), node.tree()) == ("old\n", {"etc/nccl.conf"})


def test_more_files_than_the_journal_holds_are_refused_before_anything_is_written(
    node: Node,
) -> None:
    files = [wanted(f"/etc/{'x' * 100}-{number}", None, "it\n") for number in range(500)]
    answer = node.ask("stage", files=files)
    assert "the journal of 500 files would have" in answer["why"]
    assert (node.tree(), node.state()) == ({"etc/nccl.conf"}, None)
