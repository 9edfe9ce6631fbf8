"""What a node says about its files leads to no other place here, and to no false sentence."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.errors import LinkLost, Unreached
from clusterprep.fabric.node_files import Failed
from clusterprep.fabric.transfers import (
    CopyRequest,
    Moved,
    NodeCopy,
    NodeFetch,
    base_of,
    folder_of,
    relative_name,
    remote_file,
    rows_of,
    sum_of,
)
from clusterprep.model import Node

START: Any = SimpleNamespace(connection=lambda node: None)
SHA = "0" * 64


class Files:
    """Plays NodeFiles: answers in turn, and files with the content `new`."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def ask(self, op: str, **body: Any) -> Any:
        self.asked.append(body)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(self, source: Path, place: str) -> None:
        pass

    def get(self, file: Any, place: Path) -> None:
        place.write_text("new")

    def close(self) -> None:
        pass


def row(name: str, sha: str = SHA) -> dict[str, Any]:
    return {"name": name, "size": 3, "sha": sha, "from": name, "mode": 0o644}


def fetched(folder: Path, pattern: str, answer: Any, node: str = "n1") -> list[Moved]:
    work = NodeFetch(START, Node(node, node, 0), pattern, str(folder))
    return work.transfer(Files(answer))  # type: ignore[arg-type]


def copied(*answers: Any) -> Moved:
    request = CopyRequest(Path("/dev/null"), 0, SHA, "/etc/x", 0o644)
    work = NodeCopy(START, Node("n1", "n1", 0), request)
    (moved,) = work.transfer(Files(*answers))  # type: ignore[arg-type]
    return moved


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("folder", "node", "place"),
    [
        ("logs", "n1", "logs/n1"),
        ("logs/{node}/today", "n1", "logs/n1/today"),
        ("{node}", "gpu-1.site", "gpu-1.site"),
        ("/a/{node}/{node}", "n1", "/a/n1/n1"),
    ],
)
def test_the_folder_of_a_node(folder: str, node: str, place: str) -> None:
    assert folder_of(folder, node) == Path(place)


@pytest.mark.parametrize("node", ["..", ".", "a\\b"])
def test_a_node_whose_name_is_no_folder_fails_alone(node: str, tmp_path: Path) -> None:
    (moved,) = fetched(tmp_path, "/x", {"files": [row("/x")]}, node)
    assert moved.outcome == "failed"
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("pattern", "name", "relative"),
    [
        ("/var/log/job.log", "/var/log/job.log", "job.log"),
        ("/var/log/*.log", "/var/log/a.log", "a.log"),
        ("/srv/*/log/?.txt", "/srv/a/log/1.txt", "a/log/1.txt"),
        ("/srv/[ab]", "/srv/b", "b"),
    ],
)
def test_what_a_file_is_called_here(pattern: str, name: str, relative: str) -> None:
    assert relative_name(pattern, name) == relative


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("/var/log/job.log", "/var/log/other"),
        ("/var/log/*", "/var/log/.."),
        ("/var/log/*", "/var/log/."),
        ("/var/log/*", "/var/log/"),
        ("/var/log/*", "/var/log/a/b"),
        ("/var/*/x", "/var/../x"),
        ("/var/log/*", "/etc/passwd"),
        ("/var/log/*", "a"),
        ("/var/log/*", "/var/log/a\\..\\b"),
        ("/var/log/*", "/var/log/\033]0;x\007"),
        ("/var/log/*", "/var/log/\u202egol"),
        ("/var/log/*", "/var/log/\udcff"),
        ("/var/log/*", "/var/log/" + "x" * 256),
        ("/", "/"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(pattern: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(Failed):
        relative_name(pattern, name)
    (moved,) = fetched(tmp_path / "in", pattern, {"files": [row(name)]})
    assert moved.outcome == "failed"
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"files": []},
        {"files": 5},
        {"files": "abc"},
        {"files": {"name": "/x"}},
        {"files": [5]},
        {"files": ["abc"]},
        {"files": [None]},
        {"files": [{"name": "/x", "size": -1, "sha": SHA, "from": "/x", "mode": 0}]},
        {"files": [{"name": "/x", "size": True, "sha": SHA, "from": "/x", "mode": 0}]},
        {"files": [{"name": "/x", "size": 1 << 70, "sha": SHA, "from": "/x", "mode": 0}]},
        {"files": [{"name": 5, "size": 1, "sha": SHA, "from": "/x", "mode": 0}]},
        {"files": [row("/x") | {"mode": "0644"}]},
    ],
)
def test_an_answer_of_another_shape_fails(answer: Any, tmp_path: Path) -> None:
    (moved,) = fetched(tmp_path, "/x", answer)
    assert moved.outcome == "failed"


def test_a_node_fills_no_disk_by_what_it_says(tmp_path: Path) -> None:
    many = {"files": [row(f"/var/log/{number}.log") for number in range(1001)]}
    (moved,) = fetched(tmp_path, "/var/log/*.log", many)
    assert "more than 1,000 files" in moved.detail
    huge = {"files": [{**row("/var/log/x.log"), "size": 1 << 60}]}
    (moved,) = fetched(tmp_path, "/var/log/x.log", huge)
    assert moved.outcome == "failed"
    assert "it has 1048576 TiB, and " in moved.detail
    assert not [place for place in tmp_path.rglob("*") if place.is_file()]


def test_a_row_is_read_as_it_is() -> None:
    file = remote_file(row("/x"))
    seen = (file.name, file.size, file.sha, file.source, file.mode)
    assert seen == ("/x", 3, SHA, "/x", 0o644)


# ---------------------------------------------------------------- places here


def test_files_that_are_here_already_are_not_fetched(tmp_path: Path) -> None:
    place = tmp_path / "n1" / "x"
    place.parent.mkdir()
    place.write_text("same")
    work = NodeFetch(START, Node("n1", "n1", 0), "/x", str(tmp_path))
    files = Files({"files": [row("/x", sum_of(place))]})
    assert work.transfer(files) == [Moved(str(place), "none", "unchanged")]  # type: ignore[arg-type]
    assert files.asked == [{"path": "/x", "known": {"/x": sum_of(place)}}]


def test_a_folder_in_the_way_fails(tmp_path: Path) -> None:
    (tmp_path / "n1" / "x" / "precious").mkdir(parents=True)
    (moved,) = fetched(tmp_path, "/x", {"files": [row("/x")]})
    assert moved.outcome == "failed"
    assert (tmp_path / "n1" / "x" / "precious").is_dir()


def test_a_file_in_the_way_of_the_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "n1").write_text("precious")
    (moved,) = fetched(tmp_path, "/x", {"files": [row("/x")]})
    assert moved.outcome == "failed"
    assert (tmp_path / "n1").read_text() == "precious"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "x").symlink_to(tmp_path / "precious")
    work = NodeFetch(START, Node("n1", "n1", 0), "/x", str(tmp_path))
    files = Files({"files": [row("/x", sum_of(tmp_path / "precious"))]})
    work.transfer(files)  # type: ignore[arg-type]
    assert files.asked == [{"path": "/x", "known": {}}], "the node would not make it readable"


def test_links_in_what_the_user_named_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.lchown(tmp_path / "link", 4711 if os.geteuid() == 0 else -1, -1)
    (moved,) = fetched(tmp_path / "link" / "new", "/x", {"files": [row("/x")]})
    assert moved.outcome == "done"
    assert (tmp_path / "real" / "new" / "n1" / "x").read_text() == "new"


@pytest.mark.parametrize(
    ("folder", "base"),
    [("logs", "logs"), ("a/{node}/b", "a"), ("{node}", "."), ("/a/x-{node}", "/a")],
)
def test_what_all_nodes_share(folder: str, base: str) -> None:
    assert base_of(folder) == Path(base)


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_that_another_user_linked_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "n1").symlink_to(tmp_path / "theirs")
    os.lchown(shared / "n1", 4711, 4711)
    (moved,) = fetched(shared, "/x", {"files": [row("/x")]})
    assert moved.outcome == "failed"
    assert list((tmp_path / "theirs").iterdir()) == []


# ---------------------------------------------------------------- sentences


def test_a_copy_that_failed_before_its_place_changed_nothing() -> None:
    moved = copied(Failed("no folder /etc/none"))
    assert (moved.outcome, moved.action) == ("failed", "update")
    assert moved.detail == "no folder /etc/none; nothing was changed there"
    assert copied(Failed("no folder /etc/none", reason="missing")).action == "create"


def test_a_copy_that_failed_names_what_it_would_have_done() -> None:
    moved = copied({"stage": "/s", "action": "create"}, Failed("the disk is full"))
    assert (moved.outcome, moved.action) == ("failed", "create")


def test_a_copy_that_was_lost_while_being_placed_is_not_known() -> None:
    moved = copied({"stage": "/s"}, LinkLost("hung", "the connection ended"))
    assert moved.outcome == "unanswered"
    assert "the old one or the new one" in moved.detail


def test_a_copy_that_is_in_place_and_perhaps_not_on_the_disk_says_so() -> None:
    moved = copied({"stage": "/s"}, Failed("None: Input/output error", is_placed=True))
    assert moved.outcome == "failed"
    assert "nothing was changed" not in moved.detail
    assert "the new file is in place" in moved.detail


def test_equal_rows_of_several_nodes_are_one() -> None:
    moved = Moved("/etc/x", "update", "done")
    lost = Unreached("timed_out", "silent")
    rows = rows_of("copy", {"n1": [moved], "n2": lost, "n3": [moved]})
    assert [(line.nodes, line.outcome) for line in rows] == [(("n1", "n3"), "done")]
