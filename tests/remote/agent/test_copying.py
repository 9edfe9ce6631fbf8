"""Which files of a node there are to fetch, and what keeps a copy from being begun."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from clusterprep.remote.agent import copying
from clusterprep.remote.agent.disk import Stop


def look(path: str) -> list[dict[str, Any]]:
    """Return the rows of the answer to `fetch_look`, and what can be read there as `content`."""
    work = copying.Copying()  # type: ignore[no-untyped-call]
    try:
        rows: list[dict[str, Any]] = work._fetch(None, {"path": path})["files"]
        for row in rows:
            row["content"] = Path(row["from"]).read_bytes()
        return rows
    finally:
        work.end()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("path", ["/proc/version", "/proc/self/limits"])
def test_a_file_that_the_kernel_makes_while_it_is_read_has_its_bytes(path: str) -> None:
    assert Path(path).stat().st_size == 0
    (row,) = look(path)
    assert row["content"] == Path(path).read_bytes() != b""
    assert row["size"] == len(row["content"])
    assert row["sha"] == hashlib.sha256(row["content"]).hexdigest()
    assert not Path(row["from"]).exists()  # the copy is gone with the agent


def test_a_file_of_sys_has_the_bytes_that_it_has_and_not_its_size() -> None:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not path.exists():
        pytest.skip("this kernel has no such file")
    (row,) = look(str(path))
    assert row["content"] == path.read_bytes()
    assert row["size"] == len(row["content"]) < path.stat().st_size


def test_an_empty_file_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch(0o600)
    (row,) = look(str(path))
    assert (row["from"], row["size"], row["mode"], row["content"]) == (str(path), 0, 0o600, b"")


@pytest.mark.parametrize(
    ("pattern", "said"), [("{}/folder", "folder is not a regular file"), ("{}/fold*", "folders")]
)
def test_a_folder_is_told_to_be_one(tmp_path: Path, pattern: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folds").mkdir()
    with pytest.raises(Stop, match=said):
        look(pattern.format(tmp_path))


def test_more_bytes_than_there_is_room_for_are_refused_before_any_is_sent(tmp_path: Path) -> None:
    with pytest.raises(Stop, match=f"{tmp_path}: No space left on device"):
        copying.require_room(str(tmp_path), 1 << 60)  # type: ignore[no-untyped-call]
    copying.require_room(str(tmp_path), 1)  # type: ignore[no-untyped-call]
