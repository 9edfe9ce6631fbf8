"""The file of kept findings.

Written in one piece, and read only if no other user could have written it.
"""

from __future__ import annotations

import json
import os
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent.readers import MAX_TEXT, NoAnswer
from clusterprep.remote.agent.results import read_results
from clusterprep.remote.agent.store import store


def stored(path: Path, **results: Any) -> dict[str, Any]:
    answer: dict[str, Any] = store(None, {"path": str(path), "root": "/", "results": results})
    return answer


def test_what_is_stored_is_read_with_the_moment_of_both(tmp_path: Path) -> None:
    path = tmp_path / "state" / "deep.json"
    assert stored(path, schema=1) == {"before": False}
    assert stored(path, schema=1, findings=[{"seen": "\udcff \u00e9"}]) == {"before": True}
    read = read_results(str(path))
    kept = json.loads(read["text"])
    assert kept["findings"] == [{"seen": "\udcff \u00e9"}]
    assert kept["boot"] == read["boot"]
    assert 0 <= read["uptime"] - kept["uptime"] < 10
    assert (path.stat().st_mode & 0o777, list(path.parent.iterdir())) == (0o644, [path])


def test_a_reader_meanwhile_has_the_old_or_the_new_findings(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    stored(path, schema=1, checks=["a"])
    with path.open() as before:
        stored(path, schema=1, checks=["b"])
        assert json.loads(before.read())["checks"] == ["a"]


def test_two_do_not_store_at_once(tmp_path: Path) -> None:
    import fcntl

    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert stored(tmp_path / "deep.json")["no"] == "locked"
    os.close(held)
    assert stored(tmp_path / "deep.json") == {"before": False}


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    assert "no" in stored(tmp_path / "state" / "deep.json")


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(path))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_text("x" * (MAX_TEXT + 1)), "truncated"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not_a_file"),
        (lambda path: (path.unlink(), path.mkdir()), "not_a_file"),
        (lambda path: (path.rename(f"{path}.x"), path.symlink_to(f"{path}.x")), "not_a_file"),
        (lambda path: path.chmod(0o646), "denied"),
        (lambda path: path.chmod(0o664), "denied"),
        (lambda path: path.parent.chmod(0o777), "denied"),
        (lambda path: path.parent.chmod(0o1777), "denied"),
        (lambda path: os.truncate(path, 100 << 20), "truncated"),
        (lambda path: (path.unlink(), bound(path)), "not_a_file"),
    ],
    ids=[
        "huge",
        "pipe",
        "folder",
        "link",
        "writable-for-all",
        "writable-for-the-group",
        "in-a-folder-of-all",
        "in-a-sticky-folder-of-all",
        "huge-and-sparse",
        "socket",
    ],
)
def test_what_others_could_have_written_is_not_read(
    tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "deep.json"
    stored(path, schema=1)
    spoil(path)
    with pytest.raises(NoAnswer) as told:
        read_results(str(path))
    assert (told.value.reason, str(path) in told.value.why) == (reason, True)


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_findings_owned_by_another_user_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    stored(path, schema=1)
    os.chown(path, 12345, 0)
    with pytest.raises(NoAnswer, match="denied"):
        read_results(str(path))


def test_no_file_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_results(str(tmp_path / "deep.json"))


def test_a_device_is_not_read() -> None:
    with pytest.raises(NoAnswer, match="not_a_file"):
        read_results("/dev/zero")


def test_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    stored(path, schema=1)
    os.truncate(path, 100 << 20)
    tracemalloc.start()
    with pytest.raises(NoAnswer, match="truncated"):
        read_results(str(path))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * MAX_TEXT


def test_findings_in_a_folder_that_others_may_write_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state" / "deep.json"
    stored(path, schema=1)
    read_results(str(path))
    path.parent.chmod(0o775)
    with pytest.raises(NoAnswer) as told:
        read_results(str(path))
    assert told.value.why == f"{path.parent} can be written by others than root; {path} is not read"


def test_bytes_that_are_no_text_travel_as_text(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_bytes(b"\xff\xfe\x00\x1b[2J")
    assert read_results(str(path))["text"] == "\ufffd\ufffd\x00\x1b[2J"
