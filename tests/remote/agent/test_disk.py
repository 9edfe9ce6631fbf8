"""Single files: complete or as they were, with owner and mode, and never through a link."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import disk
from tests.support.system_calls import Call, descriptors, noted, out_of_order, path_of

MINE = os.geteuid(), os.getegid()
FULL = OSError(errno.ENOSPC, "No space left on device", "f")


def body(run: Any, *words: object) -> dict[str, Any]:
    with pytest.raises(disk.Stop) as stop:
        run(*words)
    return stop.value.body


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.ENOSPC, "no_space"),
        (errno.EROFS, "read_only"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EIO, "failed"),
    ],
)
def test_what_the_system_refuses_is_an_answer_with_a_word(number: int, word: str) -> None:
    def refused(agent: object, request: object) -> None:
        raise OSError(number, "Some reason", "/some/file")

    assert disk.guarded(refused)(None, {}) == {"no": word, "why": "/some/file: Some reason"}


def test_a_stop_is_an_answer_with_all_that_it_carries() -> None:
    def stops(agent: object, request: object) -> None:
        raise disk.Stop("changed", "f changed", path="f", after=None)

    assert disk.guarded(stops)(None, {}) == {
        "no": "changed",
        "why": "f changed",
        "path": "f",
        "after": None,
    }
    assert disk.guarded(lambda agent, request: {"by": (agent, request)})("a", "r") == {
        "by": ("a", "r")
    }


def test_a_new_file_is_whole_and_its_owners_before_it_is_anything_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mode comes after its owner: a change of owner takes setuid away."""
    path = str(tmp_path / "f")
    monkeypatch.setattr(os, "fchown", lambda *_: None)
    with noted() as calls:
        disk.write_new(path, b"it\n", 0o640, 4711, 4712)
    assert [(call.name, call.path) for call in calls.made] == [
        (name, path) for name in ("open", "fchown", "fchmod", "fsync")
    ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    assert (calls.made[0].flags & flags, calls.made[0].mode) == (flags, 0o600)
    state = Path(path).stat()
    assert (Path(path).read_bytes(), stat.S_IMODE(state.st_mode)) == (b"it\n", 0o640)


@pytest.mark.parametrize(
    ("ids", "given"), [((0, 0), False), ((1, 0), True), ((0, 1), True), ((1, 1), True)]
)
def test_a_file_is_given_away_only_where_it_is_to_be_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: tuple[int, int], given: bool
) -> None:
    """Who is not root may not even name itself in some file systems."""
    wanted = (MINE[0] + ids[0], MINE[1] + ids[1])
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "fchown", lambda fd, *ids: asked.append(ids))
    disk.write_new(str(tmp_path / "f"), b"it\n", 0o600, *wanted)
    assert asked == [wanted] * given


@pytest.mark.parametrize("at", [1, 2])
def test_a_new_file_that_cannot_be_finished_is_gone_again(tmp_path: Path, at: int) -> None:
    path = tmp_path / "f"
    with noted(at, FULL) as calls, pytest.raises(OSError, match="No space"):
        disk.write_new(str(path), b"it\n", 0o600, *MINE)
    assert calls.made[at].name == ("fchmod", "fsync")[at - 1]
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing"])
def test_what_is_there_is_not_taken_for_a_new_file(tmp_path: Path, kind: str) -> None:
    path, aim = tmp_path / "f", tmp_path / "aim"
    if kind != "link to nothing":
        aim.write_text("theirs\n")
    path.symlink_to(aim) if "link" in kind else aim.rename(path)
    with pytest.raises(FileExistsError):
        disk.write_new(str(path), b"it\n", 0o600, *MINE)
    assert os.path.lexists(path)
    assert kind == "link to nothing" or path.read_text() == "theirs\n"
    assert kind != "link to nothing" or not aim.exists()


def test_a_file_is_replaced_beside_what_an_earlier_life_left_there(tmp_path: Path) -> None:
    path, aim = tmp_path / "f", tmp_path / "aim"
    path.write_text("old\n")
    aim.write_text("theirs\n")
    (tmp_path / "f.clusterprep-new").symlink_to(aim)
    with noted() as calls:
        disk.replace_file(str(path), b"new\n", 0o604, *MINE)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode), aim.read_text()) == (
        "new\n",
        0o604,
        "theirs\n",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aim", "f"]
    assert calls.made[-2:] == [
        Call("rename", str(path), source=f"{path}.clusterprep-new"),
        Call("fsync", str(tmp_path)),
    ]
    assert out_of_order(calls, ("f",)) == []


def test_a_file_is_removed_and_that_is_on_disk(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with noted() as calls:
        disk.remove_file(str(tmp_path / "f"))
    assert calls.made == [Call("unlink", str(tmp_path / "f")), Call("fsync", str(tmp_path))]
    assert [*tmp_path.iterdir()] == []


def test_only_a_folder_is_synced_as_one(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    before = descriptors()
    with pytest.raises(NotADirectoryError):
        disk.sync_folder(str(tmp_path / "f"))
    disk.sync_folder(str(tmp_path))
    assert descriptors() == before


def test_folders_are_made_from_the_outside_each_on_disk_before_the_next(tmp_path: Path) -> None:
    at = str(tmp_path)
    assert disk.missing_folders(f"{at}/a/b") == [f"{at}/a", f"{at}/a/b"]
    before = os.umask(0o077)
    try:
        with noted() as calls:
            disk.make_folder(f"{at}/a/b")
    finally:
        os.umask(before)
    assert [(call.name, call.path) for call in calls.made] == [
        (name, path)
        for path, inside in ((f"{at}/a", at), (f"{at}/a/b", f"{at}/a"))
        for name, path in (("mkdir", path), ("chmod", path), ("fsync", inside))
    ]
    assert [stat.S_IMODE(Path(path).stat().st_mode) for path in (f"{at}/a", f"{at}/a/b")] == [
        0o755,
        0o755,
    ]
    assert disk.missing_folders(f"{at}/a/b") == []
    with noted() as calls:
        disk.make_folder(f"{at}/a/b")
    assert calls.made == []


# ---------------------------------------------------------------- what a name is


def test_a_file_is_read_with_its_state_and_no_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert disk.current(str(path)) == (None, None)
    path.write_bytes(b"it\n")
    data, state = disk.current(str(path))
    assert (data, state and state.st_ino) == (b"it\n", path.stat().st_ino)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_file_that_is_too_large_to_be_kept_is_not_read_in_part(tmp_path: Path, more: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * (disk.MAX_FILE + more))
    if more:
        assert body(disk.current, str(path)) == {
            "no": "truncated",
            "why": f"{path} has more than 1048576 bytes",
        }
    else:
        data, _ = disk.current(str(path))
        assert data is not None
        assert len(data) == disk.MAX_FILE == 1 << 20


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda at: at.symlink_to("/etc/hostname"), "is a symbolic link"),
        (lambda at: at.mkdir(), "is not a regular file"),
        (lambda at: (at.touch(), at.with_name("b").hardlink_to(at)), "has 2 names"),
        (os.mkfifo, "is not a regular file"),
    ],
)
def test_what_is_no_file_is_refused_by_a_name(tmp_path: Path, plant: Any, words: str) -> None:
    plant(tmp_path / "f")
    refused = body(disk.current, str(tmp_path / "f"))
    assert (refused["no"], words in refused["why"]) == ("not_a_file", True)


def test_a_path_through_a_file_is_no_missing_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(NotADirectoryError):
        disk.current(str(tmp_path / "f/g"))


def test_our_own_state_is_read_only_where_others_could_not_have_written_it(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    assert disk.read_own_file(str(path)) == b"{}"
    path.chmod(0o622)
    refused = body(disk.read_own_file, str(path))
    assert (refused["no"], "others could have written it" in refused["why"]) == ("not_ours", True)


def test_a_folder_of_others_is_told_with_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    disk.refuse_shared(str(folder / "file"), str(tmp_path))
    folder.chmod(0o777)
    refused = body(disk.refuse_shared, str(folder / "file"), str(tmp_path))
    assert refused["no"] == "not_ours"
    assert refused["why"].startswith(f"{folder}/file is not touched: {folder} (mode 0777)")


# FS_IMMUTABLE_FL and FS_APPEND_FL of linux/fs.h, and those before, between and behind them.
PINNED = {
    0x10: True,
    0x20: True,
    0x30: True,
    0x90: True,
    0x0F: False,
    0x40: False,
    0x80000: False,
    0: False,
}


@pytest.mark.parametrize(("flags", "pinned"), PINNED.items())
def test_a_file_that_chattr_keeps_as_it_is_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, pinned: bool
) -> None:
    path = tmp_path / "f"
    path.touch()
    asked = []

    def ioctl(fd: int, request: int, room: bytes) -> bytes:
        asked.append((path_of(fd), request, len(room)))
        return flags.to_bytes(4, sys.byteorder) + b"\xff" * 4  # the kernel writes an int alone

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    before = descriptors()
    if pinned:
        refused = body(disk.refuse_pinned, str(path))
        assert (refused["no"], refused["why"].startswith(f"{path} may not be changed")) == (
            "immutable",
            True,
        )
    else:
        disk.refuse_pinned(str(path))
    assert asked == [(str(path), 0x80086601, 8)], "FS_IOC_GETFLAGS"
    assert descriptors() == before


def test_a_file_system_without_such_flags_pins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").touch()
    before = descriptors()

    def ioctl(*_: object) -> bytes:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    disk.refuse_pinned(str(tmp_path / "f"))
    assert descriptors() == before


def test_flags_are_read_of_no_link_and_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "link").symlink_to("f")
    with noted() as calls:
        disk.refuse_pinned(str(tmp_path / "f"))
        with pytest.raises(OSError, match="symbolic links"):
            disk.refuse_pinned(str(tmp_path / "link"))
    assert [call.flags for call in calls.opened] == [
        os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    ] * 2
    assert calls.made == []


# ---------------------------------------------------------------- kept bytes, and values


def test_bytes_are_kept_for_their_owner_alone_and_no_file_as_none(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert disk.store_bytes(folder, "0.before", None) is None
    assert disk.read_stored(folder, None) is None
    assert [*tmp_path.iterdir()] == []
    assert disk.store_bytes(folder, "0.before", b"\0it") == "0.before"
    assert disk.read_stored(folder, "0.before") == b"\0it"
    assert stat.S_IMODE((tmp_path / "0.before").stat().st_mode) == 0o600


def test_bytes_travel_as_base64_and_no_file_as_none() -> None:
    assert (disk.decoded(None), disk.encoded_or_none(None)) == (None, None)
    assert (disk.decoded("AGl0"), disk.encoded_or_none(b"\0it")) == (b"\0it", "AGl0")


def test_a_value_has_blanks_where_the_kernel_writes_tabs(tmp_path: Path) -> None:
    assert disk.value_of(str(tmp_path / "none")) is None
    (tmp_path / "v").write_bytes(b"4096\t87380 6291456\n")
    assert disk.value_of(str(tmp_path / "v")) == b"4096 87380 6291456\n"


def test_a_value_that_is_taken_is_no_failure_and_one_that_is_not_is(tmp_path: Path) -> None:
    """Here a file is longer than what is written into it, as a value that is clamped would be."""
    place = tmp_path / "v"
    place.write_bytes(b"1\t2\n")
    disk.set_value(str(place), b"3 4\n")
    assert place.read_bytes() == b"3 4\n"
    place.write_bytes(b"12345\n")
    refused = body(disk.set_value, str(place), b"6\n")
    assert refused == {"no": "failed", "why": f"{place} took '6\\n345' for '6'"}


@pytest.mark.parametrize("kind", ["link", "none", "refused"])
def test_a_value_that_cannot_be_set_is_named(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "v"
    (tmp_path / "aim").write_bytes(b"1\n")
    if kind == "link":
        place.symlink_to("aim")
    elif kind == "refused":
        place.write_bytes(b"1\n")
    before = descriptors()
    # The first call opens it, and the second writes.
    with noted(1, OSError(errno.EINVAL, "Invalid argument")) as calls:
        refused = body(disk.set_value, str(place), b"2\n")
    why = {"link": "symbolic links", "none": "No such file", "refused": "Invalid argument"}[kind]
    assert refused["no"] == "failed"
    assert refused["why"].startswith(f"{place} does not take '2': ")
    assert why in refused["why"]
    assert calls.made[0].flags & os.O_NOFOLLOW
    assert not calls.made[0].flags & (os.O_CREAT | os.O_TRUNC)
    assert (tmp_path / "aim").read_bytes() == b"1\n"
    assert descriptors() == before


@pytest.mark.parametrize(("data", "text"), [(None, ""), (b" 1\n", "1"), (b"\xff", "\ufffd")])
def test_a_value_is_shown_as_text_whatever_it_holds(data: bytes | None, text: str) -> None:
    assert disk.shown(data) == text


@pytest.mark.parametrize("root", ["/", "/img", "/img/"])
@pytest.mark.parametrize("path", ["/etc/f", "etc/f", "//etc/f", "/X11/f"])
def test_a_path_is_always_below_the_root(root: str, path: str) -> None:
    assert disk.below_root(root, path) == f"{root.rstrip('/')}/{path.lstrip('/')}"
